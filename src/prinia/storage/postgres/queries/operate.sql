-- One step of an operation on many jobs: up to 1,000 of those in one table that meet a selection, in the order of their
-- ids. It looks at a stretch of the table only ("edge" is how far, null when there is nothing beyond), so that no step
-- takes long whatever is looked for. {done} locks those that it gets and looks at them again: "mine" has them, each with
-- a verdict that says why it is left alone, or null; "done" is what was changed. What was matched and is in neither is
-- locked, or was changed, in this moment: it is left for another step.
with edge as materialized (
    select (select j.id from {schema}.{table} j
             where j.id > %(after)s::bigint and {walk}
             order by j.id offset {stretch} limit 1) as id
),
matched as materialized (
    select j.id
      from {schema}.{table} j
     where j.id > %(after)s::bigint and {walk}
       and j.id <= (select coalesce(id, 9223372036854775807) from edge)
       and {condition}
     order by j.id
     limit 1000
),
{done},
tally as (
    select (select count(*) from done) as changed,
           (select count(*) from mine where verdict is not null) as skipped
),
{noted}
select (select array_agg(m.id order by m.id) from matched m),
       (select changed from tally),
       (select jsonb_object_agg(v.verdict, v.number)
          from (select m.verdict, count(*) as number from mine m where m.verdict is not null group by m.verdict) v),
       (select array_agg(l.id order by l.id)
          from (select id from matched
                except select id from done
                except select id from mine where verdict is not null) l),
       (select id from noted),
       (select id from edge),
       (select count(*) from woken)

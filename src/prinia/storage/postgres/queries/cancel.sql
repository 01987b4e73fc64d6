-- Cancel by id: waiting jobs end now, running ones are marked and end so unless their result arrives first. What
-- somebody else has locked just now is left; the second column says how many ids still want another round.
with mine as materialized (
    select j.ctid as at, j.id, j.claimed_at is not null as running
      from {schema}.jobs j
     where j.id = any (%(ids)s::bigint[]) and j.cancel_requested_at is null
     order by j.id
       for update skip locked
),
marked as (
    update {schema}.jobs j
       set cancel_requested_at = clock_timestamp(),
           cancel_requested_by = %(by)s
     where j.ctid = any (array(select m.at from mine m where m.running))
    returning j.id
),
{end_waiting}
select done.jobs,
       (select count(*) from {schema}.jobs j where j.id = any (%(ids)s::bigint[]) and j.cancel_requested_at is null)
       - done.jobs,
       (select count(*) from announced)
  from (select (select count(*) from archived) + (select count(*) from marked) as jobs) as done

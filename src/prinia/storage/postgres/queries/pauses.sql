-- What is paused: everything first, then queues, then tasks.
select kind, name, at, by
  from (select 'queue' as kind, q.name, q.paused_at as at, q.paused_by as by
          from {schema}.queues q where q.paused_at is not null
        union all
        select p.kind, p.name, p.at, p.by from {schema}.pauses p) paused
 order by array_position(array['everything', 'queue', 'task'], kind), name

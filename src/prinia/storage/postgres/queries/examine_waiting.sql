-- Of which tasks ready jobs wait: of each lane (a queue and a priority) the first ones are looked at, where those stay
-- that nobody runs. The last column says that there are more.
with recursive {lanes}
select l.queue, head.task, sum(head.jobs)::bigint, bool_or(head.looked_at = %(limit)s::bigint)
  from lanes l
  cross join lateral (
       select first.task, count(*) as jobs, sum(count(*)) over () as looked_at
         from (select j.task
                 from {schema}.jobs j
                where j.queue = l.queue and j.priority = l.priority and j.limit_key is null
                  and j.claimed_at is null and j.scheduled_at <= statement_timestamp()
                order by j.scheduled_at, j.id
                limit %(limit)s::bigint) first
        group by first.task
  ) head
 group by l.queue, head.task
 order by l.queue, head.task

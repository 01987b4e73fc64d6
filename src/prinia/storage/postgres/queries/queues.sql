-- The queues that have live jobs, finished ones that did not complete, settings or a worker: for each how many jobs it
-- has in each state. Of live ones up to a limit are looked at for each queue, those that are next to run, and of finished
-- ones for each queue and state; "more" says that there are more than that. The first rows have what else is known.
with recursive clock as materialized (
    select clock_timestamp() as now
),
{lanes},
unsuccessful (queue, state) as (
    (select f.queue, f.state
       from {schema}.archive f
      where f.state <> 'completed'
      order by f.queue, f.state
      limit 1)
    union all
    select next.queue, next.state
      from unsuccessful u
      cross join lateral (
           select f.queue, f.state
             from {schema}.archive f
            where f.state <> 'completed' and (f.queue, f.state) > (u.queue, u.state)
            order by f.queue, f.state
            limit 1
      ) next
),
names as materialized (
    select queue from lanes
    union select queue from unsuccessful
    union select name from {schema}.queues
    union select queue from {schema}.workers w cross join unnest(w.queues) as served (queue) where w.died_at is null
)
select n.queue, 'queue' as state, 0::bigint as jobs, false as more,
       (select min(first.scheduled_at)
          from lanes l
          cross join lateral (
               select j.scheduled_at
                 from {schema}.jobs j
                where j.queue = l.queue and j.priority = l.priority and j.limit_key is null and j.claimed_at is null
                order by j.scheduled_at, j.id
                limit 1
          ) first
         where l.queue = n.queue and first.scheduled_at <= (select now from clock)) as oldest_ready_at,
       (select now from clock) as now,
       coalesce((select q.paused_at is not null from {schema}.queues q where q.name = n.queue), false) as paused,
       (select array_agg(w.id order by w.started_at, w.id) from {schema}.workers w
         where w.died_at is null and n.queue = any (w.queues)) as workers
  from names n
union all
select n.queue, counted.state, counted.jobs, counted.looked_at > %(limit)s::bigint, null, null, null, null
  from (select distinct queue from lanes) n
  cross join lateral (
       select s.state, count(*) as jobs, sum(count(*)) over () as looked_at
         from (select case when j.claimed_at is not null then 'running'
                           when j.scheduled_at = 'infinity' then 'blocked'
                           when j.scheduled_at > (select now from clock)
                                then case when j.attempt > 0 then 'retrying' else 'scheduled' end
                           else 'ready' end as state
                 from {schema}.jobs j
                where j.queue = n.queue and j.limit_key is null
                order by j.priority desc, j.scheduled_at, j.id
                limit %(limit)s::bigint + 1) s
        group by s.state
  ) counted
union all
select u.queue, u.state, counted.jobs, counted.jobs > %(limit)s::bigint, null, null, null, null
  from unsuccessful u
  cross join lateral (
       select count(*) as jobs
         from (select from {schema}.archive f
                where f.state <> 'completed' and f.queue = u.queue and f.state = u.state
                limit %(limit)s::bigint + 1) s
  ) counted

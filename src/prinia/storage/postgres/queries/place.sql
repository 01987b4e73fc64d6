-- The time, and of a job that has not ended its latest start and how many jobs of its queue a claim would take before it,
-- if it is ready: looked for lane by lane (a lane is a priority), in each up to the job's place, until they are enough.
with recursive clock as materialized (
    select clock_timestamp() as now
),
job as materialized (
    select j.queue, j.priority, j.scheduled_at, j.id, j.expires_at,
           j.claimed_at is null and j.crashes < 2 and j.limit_key is null
               and j.scheduled_at <= (select now from clock) as ready
      from {schema}.jobs j
     where j.id = %(id)s::bigint
),
lanes (queue, priority) as (
    (select r.queue, r.priority
       from {schema}.jobs r
      where (select ready from job) and r.queue = (select queue from job) and r.priority >= (select priority from job)
        and r.limit_key is null
      order by r.priority desc
      limit 1)
    union all
    select next.queue, next.priority
      from lanes l
      cross join lateral (
           select r.queue, r.priority
             from {schema}.jobs r
            where r.queue = l.queue and r.priority < l.priority and r.priority >= (select priority from job)
              and r.limit_key is null
            order by r.priority desc
            limit 1
      ) next
),
-- How far each of them is looked through: all that is due, and the job's own up to itself.
ends as materialized (
    select l.queue, l.priority,
           case when l.priority = job.priority then job.scheduled_at else (select now from clock) end as at,
           case when l.priority = job.priority then job.id else 9223372036854775807 end as id
      from lanes l, job
),
paused as materialized (
    select array(select p.name from {schema}.pauses p where p.kind = 'task') as tasks
)
select (select now from clock), (select expires_at from job),
       (select count(*)
          from (select from ends
                  cross join lateral (
                       select from {schema}.jobs r
                        where r.queue = ends.queue and r.priority = ends.priority
                          and (r.scheduled_at, r.id) < (ends.at, ends.id)
                          and r.limit_key is null and r.claimed_at is null and r.crashes < 2
                          and r.task <> all ((select p.tasks from paused p)::text[])
                        order by r.scheduled_at, r.id
                        limit %(limit)s::bigint + 1
                  ) before
                 limit %(limit)s::bigint + 1) counted)

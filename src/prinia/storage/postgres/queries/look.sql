-- What a worker that found nothing needs before it sleeps: per lane the last due position (its next claims may start
-- above it) and how long until the next job is due; and whether jobs wait that must be claimed alone.
with lanes as (
    select lane.queue, lane.priority
      from unnest(%(queues)s::text[], %(priorities)s::smallint[]) as lane (queue, priority)
     where (select q.paused_at from {schema}.queues q where q.name = lane.queue) is null
),
passed as (
    select lanes.queue, lanes.priority, last.scheduled_at, last.id
      from lanes
      cross join lateral (
           select r.scheduled_at, r.id
             from {schema}.jobs r
            where r.queue = lanes.queue and r.priority = lanes.priority
              and r.scheduled_at <= statement_timestamp() and r.limit_key is null
            order by r.scheduled_at desc, r.id desc
            limit 1
      ) last
),
due as (
    select min(next.scheduled_at) as at
      from lanes
      cross join lateral (
           select r.scheduled_at
             from {schema}.jobs r
            where r.queue = lanes.queue and r.priority = lanes.priority
              and r.scheduled_at > statement_timestamp() and r.scheduled_at < 'infinity'
              and r.limit_key is null and r.crashes < 2 and r.task <> all (%(excluded)s::text[])
            order by r.scheduled_at, r.id
            limit 1
      ) next
)
select marks.*,
       extract(epoch from (select at from due) - statement_timestamp())::float8,
       exists (select from {schema}.jobs r
                where r.crashes >= 2 and r.queue = any (%(turns)s::text[]) and r.scheduled_at <= statement_timestamp()
                  and r.claimed_at is null and r.limit_key is null and r.task <> all (%(excluded)s::text[])
                  and (select q.paused_at from {schema}.queues q where q.name = r.queue) is null)
  from (select array_agg(queue), array_agg(priority), array_agg(scheduled_at), array_agg(id) from passed) marks

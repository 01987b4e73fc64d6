-- What a worker that found nothing needs before it sleeps: per lane the last due position above its tip, if there is one
-- (its next claims may start there), and how long until the next job is due. Due is what was due at the time of the claim
-- that found nothing: a job that has become due since is neither passed nor forgotten.
with lanes as (
    select lane.*
      from unnest(%(queues)s::text[], %(priorities)s::smallint[], %(times)s::timestamptz[], %(ids)s::bigint[])
           as lane (queue, priority, at, id)
     where (select q.paused_at from {schema}.queues q where q.name = lane.queue) is null
       and not exists (select from {schema}.pauses p where p.kind = 'everything')
       and (select w.command is null from {schema}.workers w where w.id = %(owner)s::uuid)
),
left_alone as materialized (
    select %(excluded)s::text[] || array(select p.name from {schema}.pauses p where p.kind = 'task') as tasks
),
passed as (
    select lanes.queue, lanes.priority, last.scheduled_at, last.id
      from lanes
      cross join lateral (
           select r.scheduled_at, r.id
             from {schema}.jobs r
            where r.queue = lanes.queue and r.priority = lanes.priority
              and (r.scheduled_at, r.id) > (lanes.at, lanes.id)
              and r.scheduled_at <= to_timestamp(%(at)s::float8) and r.limit_key is null
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
              and r.scheduled_at > to_timestamp(%(at)s::float8) and r.scheduled_at < 'infinity'
              and r.limit_key is null and r.crashes < 2
              and r.task <> all ((select l.tasks from left_alone l)::text[])
            order by r.scheduled_at, r.id
            limit 1
      ) next
)
select marks.*,
       (select greatest(extract(epoch from due.at - statement_timestamp()), 0)::float8 from due where due.at is not null)
  from (select array_agg(queue), array_agg(priority), array_agg(scheduled_at), array_agg(id) from passed) marks

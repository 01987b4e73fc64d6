-- Take up to {limit} due jobs, lane by lane (a lane is a queue and a priority), each above the position given for it.
-- The claim is the lock: one write. Limits are literals and nothing sorts above "for update", so the plan stays an
-- ordered walk of jobs_ready; what comes back is sorted afterwards. {limit} is filled in by the caller.
with recursive
-- Lanes that the caller does not know yet: one index descent for each gap between those it knows, one more per find.
probed (queue, low, priority) as (
    select gap.queue, gap.low, lane.priority
      from unnest(%(gap_queues)s::text[], %(gap_lows)s::smallint[], %(gap_highs)s::smallint[])
           as gap (queue, low, high)
      cross join lateral (
           select r.priority
             from {schema}.jobs r
            where r.queue = gap.queue and r.priority > gap.low and r.priority < gap.high and r.limit_key is null
            order by r.priority desc
            limit 1
      ) lane
    union all
    select p.queue, p.low, lane.priority
      from probed p
      cross join lateral (
           select r.priority
             from {schema}.jobs r
            where r.queue = p.queue and r.priority > p.low and r.priority < p.priority and r.limit_key is null
            order by r.priority desc
            limit 1
      ) lane
),
began as materialized (
    select clock_timestamp() as at
),
paused as materialized (
    select array(select p.name from {schema}.pauses p where p.kind = 'task') as tasks,
           exists (select from {schema}.pauses p where p.kind = 'everything') as everything
),
-- What is not to be claimed: tasks that the caller does not know, and paused ones.
left_alone as materialized (
    select %(excluded)s::text[] || paused.tasks as tasks from paused
),
found as materialized (
    select p.queue, p.priority, clock_timestamp() as at from began, probed p
),
lanes as materialized (
    select lane.*
      from (select * from unnest(%(queues)s::text[], %(priorities)s::smallint[], %(times)s::timestamptz[],
                                 %(ids)s::bigint[])
            union all
            select queue, priority, '-infinity', 0 from found) as lane (queue, priority, at, id)
     where (select q.paused_at from {schema}.queues q where q.name = lane.queue) is null
       and (select w.died_at is null and w.command is null from {schema}.workers w where w.id = %(owner)s::uuid)
       and not (select paused.everything from paused)
     order by array_position(%(turns)s::text[], lane.queue), lane.priority desc
),
claimed as (
    update {schema}.jobs j
       set owner = %(owner)s::uuid, token = %(token)s::bigint, claimed_at = statement_timestamp(),
           attempt = least(j.attempt, 2147483646) + 1
     where j.ctid = any (array(
           select hit.at
             from lanes
             cross join lateral (
                  select r.ctid as at
                    from {schema}.jobs r
                   where r.queue = lanes.queue
                     and r.priority = lanes.priority
                     and (r.scheduled_at, r.id) > (lanes.at, lanes.id)
                     and r.scheduled_at <= statement_timestamp()
                     and r.limit_key is null
                     and r.claimed_at is null
                     and r.crashes < 2
                     and r.task <> all ((select l.tasks from left_alone l)::text[])
                   order by r.scheduled_at, r.id
                   limit {limit}
                     for update skip locked
             ) hit
            limit {limit}))
    returning j.id, j.task, j.queue, j.priority, j.scheduled_at, j.attempt, j.max_attempts, j.crashes, j.args,
              case when j.codec = 'json' and j.timeout is null and j.retry is null and j.expires_at is null
                        and j.tags is null and j.meta is null and j.redriven_at is null
                   then null
                   else json_build_object('codec', j.codec, 'timeout', j.timeout, 'retry', j.retry,
                                          'expired', coalesce(j.expires_at <= statement_timestamp(), false),
                                          'tags', j.tags, 'meta', j.meta,
                                          'history', j.redriven_at is not null)::text end as extras
),
ordered as (
    select *
      from claimed
     order by array_position(%(turns)s::text[], queue), priority desc, scheduled_at, id
),
-- The furthest position taken from each lane: the next claim starts above it.
tips as (
    select distinct on (queue, priority) queue, priority, scheduled_at, id
      from claimed
     order by queue, priority, scheduled_at desc, id desc
)
select jobs.*, marks.*, probes.*, extract(epoch from statement_timestamp())::float8,
       pg_current_xact_id_if_assigned()::text::bigint, pg_snapshot_xmin(pg_current_snapshot())::text::bigint,
       (select array_agg(q.name) from {schema}.queues q
         where q.paused_at is not null and q.name = any (%(turns)s::text[])),
       (select paused.tasks from paused), (select paused.everything from paused),
       -- "limit_key is null" would let the planner take jobs_ready, and read every ready row.
       exists (select from {schema}.jobs r
                where r.crashes >= 2 and r.queue = any (%(turns)s::text[]) and r.scheduled_at <= statement_timestamp()
                  and r.claimed_at is null and num_nonnulls(r.limit_key) = 0
                  and r.task <> all ((select l.tasks from left_alone l)::text[])
                  and (select q.paused_at from {schema}.queues q where q.name = r.queue) is null
                  and not (select paused.everything from paused)
                  and (select w.command is null from {schema}.workers w where w.id = %(owner)s::uuid))
  from (select array_agg(id), array_agg(task), array_agg(queue), array_agg(priority), array_agg(attempt),
               array_agg(max_attempts), array_agg(crashes), array_agg(args), array_agg(extras) from ordered) jobs,
       (select array_agg(queue), array_agg(priority), array_agg(scheduled_at), array_agg(id) from tips) marks,
       (select array_agg(queue), array_agg(priority),
               extract(epoch from coalesce(max(found.at), clock_timestamp()) - (select at from began))::float8
          from found) probes

-- Up to {limit} jobs that meet a selection, from beyond a position, in the order of their ids. Each statement looks at a
-- stretch of each table only, so that none takes long whatever is looked for: "edge" is how far this one looked, null
-- when there is nothing beyond. The walk is of an index by id; what {live} and {finished} say is a filter on it.
with clock as materialized (
    select clock_timestamp() as now
),
edge as materialized (
    select {nearest}(
               (select j.id from {schema}.jobs j
                 where j.id {beyond} %(after)s::bigint and {live_walk}
                 order by j.id {direction} offset %(stretch)s::bigint limit 1),
               (select f.id from {schema}.archive f
                 where f.id {beyond} %(after)s::bigint and {finished_walk}
                 order by f.id {direction} offset %(stretch)s::bigint limit 1)) as id
),
found as (
    (select j.id, j.task, j.queue,
            case when j.claimed_at is not null then 'running'
                 when j.scheduled_at = 'infinity' then 'blocked'
                 when j.scheduled_at > (select now from clock)
                      then case when j.attempt > 0 then 'retrying' else 'scheduled' end
                 else 'ready' end as state,
            j.priority, j.attempt, j.max_attempts, j.crashes, j.args, j.codec, j.created_at,
            nullif(j.scheduled_at, 'infinity') as scheduled_at, j.claimed_at as started_at,
            null::timestamptz as finished_at, case when j.claimed_at is not null then j.owner end as owner,
            null::bytea as result,
            (select jsonb_agg({schema}.error_entry(t.attempt, t.kind, t.message, t.traceback, t.at) order by t.id)
               from {schema}.attempts t where t.job_id = j.id) as errors,
            case when j.cancel_requested_at is not null
                 then 'cancel requested by ' || j.cancel_requested_by end as reason,
            j.tags, j.meta::text as meta
       from {schema}.jobs j
      where j.id {beyond} %(after)s::bigint and {live_walk}
        and j.id {covered} (select coalesce(id, %(last)s::bigint) from edge)
        and {live}
      order by j.id {direction}
      limit %(limit)s::bigint)
    union all
    (select f.id, f.task, f.queue, f.state, f.priority, f.attempt, f.max_attempts, f.crashes, f.args, f.codec,
            f.created_at, nullif(f.scheduled_at, 'infinity'), f.started_at, f.finished_at, f.owner, f.result, f.errors,
            f.reason, f.tags, f.meta::text
       from {schema}.archive f
      where f.id {beyond} %(after)s::bigint and {finished_walk}
        and f.id {covered} (select coalesce(id, %(last)s::bigint) from edge)
        and {finished}
      order by f.id {direction}
      limit %(limit)s::bigint)
    order by id {direction}
    limit %(limit)s::bigint
)
select found.*, edge.id as edge
  from edge left join found on true
 order by found.id {direction}

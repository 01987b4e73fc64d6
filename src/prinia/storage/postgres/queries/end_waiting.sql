-- Part of cancel, operate_cancel and sweep_expired: the waiting rows in "mine" become cancelled, for a reason. A row that
-- was claimed, or changed, after this statement began stays, and so does its error history. Whoever uses it must read
-- "announced".
gone as (
    delete from {schema}.jobs j
     where j.ctid = any (array(select m.at from mine m)) and j.claimed_at is null
    returning j.*
),
history as (
    delete from {schema}.attempts t
     where t.job_id = any (array(select g.id from gone g))
    returning t.id, t.job_id, t.attempt, t.kind, t.message, t.traceback, t.at
),
told as (
    select h.job_id, jsonb_agg({schema}.error_entry(h.attempt, h.kind, h.message, h.traceback, h.at) order by h.id)
           as errors
      from history h
     group by h.job_id
),
archived as (
    insert into {schema}.archive (
        id, drop_at, scheduled_at, created_at, attempt, max_attempts, priority, crashes, max_crashes,
        rerun_after_crash, state, queue, task, codec, args, timeout, retry, unique_key, reason, errors, tags, meta)
    select g.id, statement_timestamp() + coalesce(q.keep_cancelled, interval '7 days'), g.scheduled_at, g.created_at,
           g.attempt, g.max_attempts, g.priority, g.crashes, g.max_crashes, g.rerun_after_crash, 'cancelled', g.queue,
           g.task, g.codec, g.args, g.timeout, g.retry, g.unique_key, %(reason)s, t.errors, g.tags, g.meta
      from gone g
      left join told t on t.job_id = g.id
      left join {schema}.queues q on q.name = g.queue
    returning id
),
announced as (
    select {schema}.announce(array_agg(id)) from archived
)

-- Record outcomes of every kind, each only where the row still carries the fence. A final one moves the row and its
-- error history into the archive; any other leaves the same live row, with owner and token behind so that a resent ack
-- is recognised. A cancel request on the row turns whatever would live on into cancelled.
with acked as materialized (
    select a.*
      from json_to_recordset(%(acks)s::json) as a (
           id bigint, token bigint, kind text, result64 text, error_attempt integer, error_kind text,
           error_message text, error_traceback text, reason text, delay float8, uncounted boolean)
),
locked as materialized (
    select j.ctid as at, j.id, j.token, j.cancel_requested_at
      from {schema}.jobs j
     where j.id = any (%(ids)s::bigint[]) and j.owner = %(owner)s::uuid and j.claimed_at is not null
     order by j.id
       for update skip locked
),
mine as materialized (
    select l.at, a.*,
           case when a.kind = 'complete' then 'completed'
                when a.kind = 'fail' then 'failed'
                when a.kind = 'cancel' or l.cancel_requested_at is not null then 'cancelled' end as state
      from locked l
      join acked a on a.id = l.id and a.token = l.token
),
noted as (
    insert into {schema}.attempts (job_id, attempt, kind, message, traceback)
    select m.id, m.error_attempt, m.error_kind, m.error_message, m.error_traceback
      from mine m
     where m.error_kind is not null and m.state is null
),
trimmed as (
    delete from {schema}.attempts
     where id = any (array(
           select old.id
             from mine m
             cross join lateral (
                  select t.id from {schema}.attempts t where t.job_id = m.id order by t.id desc offset {kept_errors} - 1
             ) old
            where m.error_kind is not null and m.state is null))
),
history as (
    delete from {schema}.attempts t
     where t.job_id = any (array(select m.id from mine m where m.state is not null))
    returning t.id, t.job_id, t.attempt, t.kind, t.message, t.traceback, t.at
),
-- Per ended job its history and the error of this ack, the latest of them. Joined as a whole: looked up job by job it
-- would grow with the square of a flush.
told as (
    select e.job_id, jsonb_agg(e.entry order by e.id) as errors
      from (select e.*, row_number() over (partition by e.job_id order by e.id desc nulls first) as back
              from (select h.job_id, h.id, {schema}.error_entry(h.attempt, h.kind, h.message, h.traceback, h.at) as entry
                      from history h
                    union all
                    select m.id, null, {schema}.error_entry(m.error_attempt, m.error_kind, m.error_message,
                                                            m.error_traceback, clock_timestamp())
                      from mine m
                     where m.error_kind is not null and m.state is not null) e) e
     where e.back <= {kept_errors}
     group by e.job_id
),
gone as (
    delete from {schema}.jobs j
     where j.ctid = any (array(select m.at from mine m where m.state is not null))
    returning j.*
),
archived as (
    insert into {schema}.archive (
        id, drop_at, scheduled_at, created_at, started_at, token, owner, attempt, max_attempts, priority, crashes,
        max_crashes, rerun_after_crash, state, queue, task, codec, args, result, timeout, retry, unique_key, reason,
        errors, tags, meta)
    select g.id,
           statement_timestamp() + case m.state
               when 'completed' then coalesce(q.keep_completed, interval '1 day')
               when 'failed' then coalesce(q.keep_failed, interval '30 days')
               else coalesce(q.keep_cancelled, interval '7 days') end,
           g.scheduled_at, g.created_at, g.claimed_at, g.token, g.owner, g.attempt - coalesce(m.uncounted, false)::int,
           g.max_attempts, g.priority, g.crashes, g.max_crashes, g.rerun_after_crash, m.state, g.queue, g.task,
           g.codec, case when m.state <> 'completed' or octet_length(g.args) <= 2048 then g.args end,
           decode(m.result64, 'base64'), g.timeout, g.retry, g.unique_key,
           case when m.state = 'cancelled'
                then coalesce(m.reason, 'cancelled by ' || g.cancel_requested_by) end,
           t.errors, g.tags, g.meta
      from gone g
      join mine m on m.id = g.id
      left join told t on t.job_id = g.id
      left join {schema}.queues q on q.name = g.queue
    returning id
),
announced as (
    select {schema}.announce(array_agg(id)) from archived
),
kept as (
    update {schema}.jobs j
       set claimed_at = null, attempt = j.attempt - coalesce(m.uncounted, false)::int,
           scheduled_at = greatest(j.scheduled_at, clock_timestamp() + coalesce(m.delay, 0) * interval '1 second')
      from mine m
     where j.ctid = any (array(select k.at from mine k where k.state is null)) and m.id = j.id
    returning j.id, j.queue
),
rung as (
    select {schema}.ring(array_agg(distinct queue)) from kept
)
select (select count(*) from archived) + (select count(*) from kept),
       -- A cancel request ended them, where their acks would not have.
       (select array_agg(m.id) from mine m where m.state = 'cancelled' and m.kind <> 'cancel'),
       (select count(*) from rung), (select count(*) from announced)

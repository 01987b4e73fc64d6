-- Bring back jobs that their owner will not finish: {found} says which. At most 1,000, locked in id order; one that
-- somebody else has locked is left for the next round. The attempt is handed back, the crash is counted. Owner and
-- token are cleared, so that a late ack of the lost owner finds no row of its own.
with found as materialized (
    {found}
),
mine as materialized (
    select j.ctid as at, j.id, j.id = any (f.started) as had_started, f.crashed,
           case when j.cancel_requested_at is not null then 'cancelled'
                when f.crashed and j.crashes + 1 > j.max_crashes then 'failed'
                -- Reports of what has started are seconds old: nobody knows that this one had not.
                when f.crashed and not j.rerun_after_crash then 'failed' end as state
      from found f
      join {schema}.jobs j on j.id = f.id
     where j.claimed_at is not null and j.owner is not distinct from f.owner and j.token is not distinct from f.token
     order by j.id
     limit 1000
       for update of j skip locked
),
noted as (
    insert into {schema}.attempts (job_id, attempt, kind, message)
    select j.id, j.attempt, 'WorkerLost', 'worker lost: its process ended or stalled while this job was running'
      from mine m
      join {schema}.jobs j on j.id = m.id
     where m.state is null and m.had_started and m.crashed
),
trimmed as (
    delete from {schema}.attempts
     where id = any (array(
           select old.id
             from mine m
             cross join lateral (
                  select t.id from {schema}.attempts t where t.job_id = m.id order by t.id desc offset {kept_errors} - 1
             ) old
            where m.had_started and m.crashed and m.state is null))
),
history as (
    delete from {schema}.attempts t
     where t.job_id = any (array(select m.id from mine m where m.state is not null))
    returning t.id, t.job_id, t.attempt, t.kind, t.message, t.traceback, t.at
),
gone as (
    delete from {schema}.jobs j
     where j.ctid = any (array(select m.at from mine m where m.state is not null))
    returning j.*
),
told as (
    select e.job_id, jsonb_agg(e.entry order by e.id) as errors
      from (select e.*, row_number() over (partition by e.job_id order by e.id desc nulls first) as back
              from (select h.job_id, h.id, {schema}.error_entry(h.attempt, h.kind, h.message, h.traceback, h.at) as entry
                      from history h
                    union all
                    select g.id, null, {schema}.error_entry(
                               g.attempt, 'WorkerLost',
                               format('worker lost: this job was with a worker that was lost for the %%s. time'
                                      ' (max_crashes %%s%%s)', g.crashes + 1, g.max_crashes,
                                      case when g.rerun_after_crash then '' else ', must not run again' end),
                               null, clock_timestamp())
                      from gone g
                      join mine m on m.id = g.id
                     where m.state = 'failed') e) e
     where e.back <= {kept_errors}
     group by e.job_id
),
archived as (
    insert into {schema}.archive (
        id, drop_at, scheduled_at, created_at, started_at, attempt, max_attempts, priority, crashes, max_crashes,
        rerun_after_crash, state, queue, task, codec, args, timeout, retry, unique_key, reason, errors, tags, meta)
    select g.id,
           statement_timestamp() + case m.state when 'failed' then coalesce(q.keep_failed, interval '30 days')
                                                else coalesce(q.keep_cancelled, interval '7 days') end,
           g.scheduled_at, g.created_at, g.claimed_at, g.attempt - 1, g.max_attempts, g.priority,
           least(g.crashes, 32766) + m.crashed::int,
           g.max_crashes, g.rerun_after_crash, m.state, g.queue, g.task, g.codec, g.args, g.timeout, g.retry,
           g.unique_key, case when m.state = 'cancelled' then 'cancelled by ' || g.cancel_requested_by end,
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
       set claimed_at = null, owner = null, token = null, attempt = greatest(j.attempt - 1, 0),
           crashes = least(j.crashes, 32766) + m.crashed::int,
           scheduled_at = greatest(j.scheduled_at, clock_timestamp())
      from mine m
     where j.ctid = any (array(select k.at from mine k where k.state is null)) and m.id = j.id
    returning j.id, j.queue
),
rung as (
    select {schema}.ring(array_agg(distinct queue)) from kept
)
select (select count(*) from archived) + (select count(*) from kept),
       (select count(*) from rung), (select count(*) from announced)

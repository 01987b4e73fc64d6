-- Reading: finished jobs that did not complete are found and counted without a look at all that did, and views for
-- those who read in SQL.

-- Completed jobs are the many, and the cost of an ack: an index that holds them, of the queue and the id, made the
-- server's work for one a third dearer. Those that did not complete are few, and are what people look for.
create index archive_unsuccessful on {schema}.archive (id) where state <> 'completed';
create index archive_unsuccessful_queue on {schema}.archive (queue, state) where state <> 'completed';

-- Jobs that have not ended, with the state that follows from their columns.
create view {schema}.live_jobs as
select id, task, queue,
       case when claimed_at is not null then 'running'
            when scheduled_at = 'infinity' then 'blocked'
            when scheduled_at > clock_timestamp() then case when attempt > 0 then 'retrying' else 'scheduled' end
            else 'ready' end as state,
       priority, attempt, max_attempts, crashes, max_crashes, created_at,
       nullif(scheduled_at, 'infinity') as scheduled_at, claimed_at as started_at, null::timestamptz as finished_at,
       case when claimed_at is not null then owner end as owner, codec, args, null::bytea as result, timeout, retry,
       expires_at, unique_key,
       case when cancel_requested_at is not null then 'cancel requested by ' || cancel_requested_by end as reason,
       tags, meta,
       -- Not error_entry(): whoever may read a view may not have been granted a function.
       (select jsonb_agg(jsonb_build_object('attempt', t.attempt, 'kind', t.kind, 'message', t.message,
                                            'traceback', t.traceback, 'at', t.at) order by t.id)
          from {schema}.attempts t where t.job_id = j.id) as errors
  from {schema}.jobs j;

-- Jobs that have ended and are still kept.
create view {schema}.finished_jobs as
select id, task, queue, state, priority, attempt, max_attempts, crashes, max_crashes, created_at, scheduled_at,
       started_at, finished_at, owner, codec, args, result, timeout, retry, null::timestamptz as expires_at, unique_key,
       reason, tags, meta, errors
  from {schema}.archive;

create or replace view {schema}.all_jobs as
select * from {schema}.live_jobs
union all
select * from {schema}.finished_jobs;

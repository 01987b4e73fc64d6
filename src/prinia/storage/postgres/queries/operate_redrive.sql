-- Part of operate: jobs that have ended are live again, under their ids, with all attempts before them and their error
-- histories behind them. Each row comes from the delete of the other. Owner and token stay, so that an ack that is sent
-- again is still recognised. A key without a window is taken again; of two that would take the same one the first has it.
{lock},
mine as materialized (
    select l.id, j.hash,
           coalesce(l.verdict, case when row_number() over (partition by j.hash order by l.id) > 1 and j.hash is not null
                                    then 'unique key taken' end) as verdict
      from locked l
      left join lateral (
           select {schema}.unique_hash(f.task, 'live', f.unique_key) as hash
             from {schema}.archive f
            where f.id = l.id and l.verdict is null
              and not exists (select from {schema}.unique_keys k
                               where k.hash = {schema}.unique_hash(f.task, 'window', f.unique_key)
                                 and k.job_id = f.id)
      ) j on true
),
gone as (
    delete from {schema}.archive j
     where j.id = any (array(select m.id from mine m where m.verdict is null))
    returning j.*
),
told as (
    insert into {schema}.attempts (job_id, attempt, kind, message, traceback, at)
    select g.id, (e.entry ->> 'attempt')::integer, e.entry ->> 'kind', e.entry ->> 'message', e.entry ->> 'traceback',
           (e.entry ->> 'at')::timestamptz
      from gone g
      cross join lateral jsonb_array_elements(
           case jsonb_typeof(g.errors) when 'array' then g.errors else '[]' end) with ordinality as e (entry, nr)
     order by g.id, e.nr
),
done as (
    insert into {schema}.jobs (
        id, scheduled_at, created_at, token, owner, max_attempts, priority, max_crashes, rerun_after_crash, queue, task,
        codec, args, timeout, retry, unique_hash, unique_key, tags, meta, redriven_at)
    select g.id, (select clock_timestamp()), g.created_at, g.token, g.owner, g.max_attempts, g.priority, g.max_crashes,
           g.rerun_after_crash, g.queue, g.task, g.codec, g.args, g.timeout, g.retry, m.hash, g.unique_key, g.tags,
           g.meta, clock_timestamp()
      from gone g
      join mine m on m.id = g.id
     order by m.hash
    returning id, queue
),
woken as (
    select {schema}.ring(array_agg(distinct queue)) from done
)

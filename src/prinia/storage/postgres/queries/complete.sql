-- Record completed jobs that have no error history: the common case, kept lean. Each row must still carry the fence
-- (owner, token, claimed). Rows are locked in id order; one that somebody else has locked is left for a later try.
with acked as materialized (
    select a.id, a.token, a.result
      from unnest(%(ids)s::bigint[], %(tokens)s::bigint[], %(results)s::bytea[]) as a (id, token, result)
),
locked as materialized (
    select j.ctid as at, j.id, j.token
      from {schema}.jobs j
     where j.id = any (%(ids)s::bigint[]) and j.owner = %(owner)s::uuid and j.claimed_at is not null
     order by j.id
       for update skip locked
),
gone as (
    delete from {schema}.jobs j
     where j.ctid = any (array(select l.at from locked l join acked a on a.id = l.id and a.token = l.token))
    returning j.*
),
archived as (
    insert into {schema}.archive (
        id, drop_at, scheduled_at, created_at, started_at, token, owner, attempt, max_attempts, priority, crashes,
        max_crashes, rerun_after_crash, state, queue, task, codec, args, result, timeout, retry, unique_key, tags, meta)
    select g.id,
           statement_timestamp() + coalesce(q.keep_completed, interval '1 day'),
           g.scheduled_at, g.created_at, g.claimed_at, g.token, g.owner, g.attempt, g.max_attempts, g.priority,
           g.crashes, g.max_crashes, g.rerun_after_crash, 'completed', g.queue, g.task, g.codec,
           case when octet_length(g.args) <= 2048 then g.args end,
           a.result, g.timeout, g.retry, g.unique_key, g.tags, g.meta
      from gone g
      join acked a on a.id = g.id and a.token = g.token
      left join {schema}.queues q on q.name = g.queue
    returning id
),
announced as (
    select {schema}.announce(array_agg(id)) from archived
)
select (select count(*) from archived), null::bigint[], (select count(*) from announced)

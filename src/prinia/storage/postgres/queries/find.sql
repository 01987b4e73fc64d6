select id, task, queue, state, priority, attempt, max_attempts, crashes, args, codec, created_at, scheduled_at, started_at,
       finished_at, owner, result, errors, reason, tags, meta::text
  from {schema}.all_jobs
 where id = any (%(ids)s::bigint[])

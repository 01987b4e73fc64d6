-- Take one job that was running in too many crashes. The caller runs nothing else beside it.
with claimed as (
    update {schema}.jobs j
       set owner = %(owner)s::uuid, token = %(token)s::bigint, claimed_at = statement_timestamp(),
           attempt = least(j.attempt, 2147483646) + 1
     where j.ctid = any (array(
           select r.ctid
             from {schema}.jobs r
            where r.crashes >= 2
              and r.queue = any (%(queues)s::text[])
              and r.scheduled_at <= statement_timestamp()
              and r.claimed_at is null
              -- "is null" would let the planner take jobs_ready, and read every ready row.
              and num_nonnulls(r.limit_key) = 0
              and r.task <> all (%(excluded)s::text[])
              and (select q.paused_at from {schema}.queues q where q.name = r.queue) is null
              and (select w.died_at is null and w.command is null from {schema}.workers w where w.id = %(owner)s::uuid)
              and not exists (select from {schema}.pauses p
                               where p.kind = 'everything' or p.kind = 'task' and p.name = r.task)
            limit 1
              for update skip locked))
    returning j.*
)
select array_agg(id), array_agg(task), array_agg(queue), array_agg(priority), array_agg(attempt),
       array_agg(max_attempts), array_agg(crashes), array_agg(args),
       array_agg(json_build_object('codec', codec, 'timeout', timeout, 'retry', retry,
                                   'expired', coalesce(expires_at <= statement_timestamp(), false),
                                   'tags', tags, 'meta', meta)::text)
  from claimed

-- Part of queues and examine_waiting, which must be recursive: all lanes, a queue and a priority each. One index descent
-- for each of them.
lanes (queue, priority) as (
    (select j.queue, j.priority
       from {schema}.jobs j
      where j.limit_key is null
      order by j.queue, j.priority desc
      limit 1)
    union all
    select next.queue, next.priority
      from lanes l
      cross join lateral (
           (select j.queue, j.priority
              from {schema}.jobs j
             where j.limit_key is null and j.queue = l.queue and j.priority < l.priority
             order by j.priority desc
             limit 1)
           union all
           (select j.queue, j.priority
              from {schema}.jobs j
             where j.limit_key is null and j.queue > l.queue
             order by j.queue, j.priority desc
             limit 1)
           limit 1
      ) next
)

-- How many rows of a random part of each table's pages are of which queue and state.
select j.queue,
       case when j.claimed_at is not null then 'running'
            when j.scheduled_at = 'infinity' then 'blocked'
            when j.scheduled_at > (select clock_timestamp())
                 then case when j.attempt > 0 then 'retrying' else 'scheduled' end
            else 'ready' end as state,
       count(*)
  from {schema}.jobs j tablesample system (%(live_percent)s::real)
 group by 1, 2
union all
select f.queue, f.state, count(*)
  from {schema}.archive f tablesample system (%(finished_percent)s::real)
 group by 1, 2

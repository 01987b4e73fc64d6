-- Somebody awaits these jobs: for a minute their ends are announced. What nobody has renewed for as long is forgotten.
with forgotten as (
    delete from {schema}.awaited a
     where a.job_id = any (array(
           select e.job_id
             from {schema}.awaited e
            where e.until < clock_timestamp() and not e.job_id = any (%(ids)s::bigint[])
            order by e.until
            limit 1000
              for update skip locked))
)
insert into {schema}.awaited as a (job_id, until)
select id, clock_timestamp() + interval '1 minute'
  from unnest(%(ids)s::bigint[]) as i (id)
 order by id
    on conflict (job_id) do update set until = excluded.until where a.until < excluded.until - interval '10 seconds'

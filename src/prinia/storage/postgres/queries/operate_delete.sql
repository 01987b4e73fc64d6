-- Part of operate: jobs are gone, with their error histories and their unique keys.
{lock},
gone as (
    delete from {schema}.{table} j
     where j.id = any (array(select m.id from mine m where m.verdict is null))
    returning j.id, j.task, j.unique_key
),
history as (
    delete from {schema}.attempts t where t.job_id = any (array(select g.id from gone g))
),
freed as (
    delete from {schema}.unique_keys k
     using gone g
     where k.hash = {schema}.unique_hash(g.task, 'window', g.unique_key) and k.job_id = g.id
),
done as (
    select id from gone
),
woken as (
    select {schema}.announce(array_agg(id)) from gone
)

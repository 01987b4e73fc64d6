-- End waiting jobs whose latest start has passed.
with mine as materialized (
    select j.ctid as at, j.id
      from {schema}.jobs j
     where j.id = any (array(
           select e.id from {schema}.jobs e
            where e.expires_at is not null and e.expires_at <= statement_timestamp() and e.claimed_at is null
            order by e.expires_at
            limit 1000))
       -- "is true" keeps the planner from reading everything that has expired once more.
       and j.claimed_at is null and (j.expires_at <= statement_timestamp()) is true
     order by j.id
       for update skip locked
),
{end_waiting}
select (select count(*) from archived), (select count(*) from announced)

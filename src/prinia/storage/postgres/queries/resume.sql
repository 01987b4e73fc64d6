-- A queue goes on: whoever serves it is rung.
with resumed as (
    update {schema}.queues set paused_at = null, paused_by = null
     where name = %(name)s and paused_at is not null
    returning name
),
noted as (
    insert into {schema}.audit (by, operation, target) select %(by)s, 'resume', %(target)s::jsonb from resumed
),
rung as (
    select {schema}.ring(array_agg(name)) from resumed
)
select exists (select from resumed), (select count(*) from rung)

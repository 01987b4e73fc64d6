-- A queue is paused; one that is paused already stays so.
with paused as (
    insert into {schema}.queues (name, paused_at, paused_by) values (%(name)s, clock_timestamp(), %(by)s)
    on conflict (name) do update set paused_at = excluded.paused_at, paused_by = excluded.paused_by
     where queues.paused_at is null
    returning name
),
noted as (
    insert into {schema}.audit (by, operation, target) select %(by)s, 'pause', %(target)s::jsonb from paused
)
select exists (select from paused)

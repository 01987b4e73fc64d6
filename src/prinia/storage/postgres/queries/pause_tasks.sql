-- A task, or everything, is paused.
with paused as (
    insert into {schema}.pauses (kind, name, by) values (%(kind)s, %(name)s, %(by)s)
    on conflict do nothing
    returning name
),
noted as (
    insert into {schema}.audit (by, operation, target) select %(by)s, 'pause', %(target)s::jsonb from paused
)
select exists (select from paused)

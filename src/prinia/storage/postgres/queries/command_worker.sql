-- Tell a worker what to do, null to go on. All that listen look, and the one meant finds it.
with told as (
    update {schema}.workers w
       set command = %(command)s, commanded_at = clock_timestamp(), commanded_by = %(by)s
     where w.id = %(instance)s::uuid and w.died_at is null
       and w.command is distinct from %(command)s and w.command is distinct from 'stop'
    returning w.id
),
noted as (
    insert into {schema}.audit (by, operation, target) select %(by)s, %(operation)s, %(target)s::jsonb from told
),
notified as (
    select pg_notify({schema}.bell_channel(), 'orders') from told
)
select exists (select from told),
       exists (select from {schema}.workers w where w.id = %(instance)s::uuid and w.died_at is null),
       (select count(*) from notified)

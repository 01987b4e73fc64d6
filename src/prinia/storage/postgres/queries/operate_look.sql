-- Part of operate: what would be changed. Nothing is locked, nothing is done.
mine as materialized (
    select j.id, {verdict} as verdict
      from {schema}.{table} j
     where j.id = any (array(select m.id from matched m))
),
done as (
    select id from mine where verdict is null
),
woken as (
    select
)

-- Part of the parts of operate: what is got. A row that was changed since it was matched has to meet the selection still.
{mine} as materialized (
    select j.ctid as at, j.id, {verdict} as verdict
      from {schema}.{table} j
     where j.id = any (array(select m.id from matched m)) and {condition}
     order by j.id
       for update skip locked
)

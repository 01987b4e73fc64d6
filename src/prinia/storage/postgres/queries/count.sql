-- How many jobs of a stretch of each table meet a selection: see browse.sql.
with clock as materialized (
    select clock_timestamp() as now
),
edge as materialized (
    select greatest(
               (select j.id from {schema}.jobs j
                 where j.id < %(after)s::bigint and {live_walk}
                 order by j.id desc offset %(stretch)s::bigint limit 1),
               (select f.id from {schema}.archive f
                 where f.id < %(after)s::bigint and {finished_walk}
                 order by f.id desc offset %(stretch)s::bigint limit 1)) as id
)
select (select count(*)
          from (select from {schema}.jobs j
                 where j.id < %(after)s::bigint and {live_walk}
                   and j.id >= (select coalesce(id, 0) from edge) and {live}
                 order by j.id desc
                 limit %(stretch)s::bigint + 1) s),
       (select count(*)
          from (select from {schema}.archive f
                 where f.id < %(after)s::bigint and {finished_walk}
                   and f.id >= (select coalesce(id, 0) from edge) and {finished}
                 order by f.id desc
                 limit %(stretch)s::bigint + 1) s),
       edge.id
  from edge

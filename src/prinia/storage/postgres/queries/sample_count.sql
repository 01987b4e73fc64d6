-- How many rows of a random part of each table's pages meet a selection.
with clock as materialized (
    select clock_timestamp() as now
)
select (select count(*) from {schema}.jobs j tablesample system (%(live_percent)s::real) where {live}),
       (select count(*) from {schema}.archive f tablesample system (%(finished_percent)s::real) where {finished})

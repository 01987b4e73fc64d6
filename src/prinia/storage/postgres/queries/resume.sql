with resumed as (
    update {schema}.queues set paused_at = null where name = %(queue)s and paused_at is not null returning name
)
select {schema}.ring(array_agg(name)) from resumed

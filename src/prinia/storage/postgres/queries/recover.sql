-- Hand back, uncounted, what claims with these tokens got without their answer being heard. No index serves this on
-- purpose (it would cost every claim); it runs once after a lost connection, for claims that were in flight then.
with mine as materialized (
    select j.ctid as at
      from {schema}.jobs j
     where j.claimed_at is not null and j.owner = %(owner)s::uuid and j.token = any (%(tokens)s::bigint[])
     order by j.id
       for update skip locked
),
kept as (
    update {schema}.jobs j
       set claimed_at = null, owner = null, token = null, attempt = greatest(j.attempt - 1, 0),
           scheduled_at = greatest(j.scheduled_at, clock_timestamp())
     where j.ctid = any (array(select at from mine))
    returning j.id, j.queue
),
rung as (
    select {schema}.ring(array_agg(distinct queue)) from kept
)
select (select count(*) from kept), (select count(*) from rung)

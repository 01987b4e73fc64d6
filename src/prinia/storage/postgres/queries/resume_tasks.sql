-- A task, or everything, goes on. Its jobs may be in any queue: all that are served are rung.
with resumed as (
    delete from {schema}.pauses where kind = %(kind)s and name = %(name)s returning name
),
noted as (
    insert into {schema}.audit (by, operation, target) select %(by)s, 'resume', %(target)s::jsonb from resumed
),
rung as (
    select {schema}.ring(array(select distinct s.queue
                                 from {schema}.workers w, unnest(w.queues) as s (queue)
                                where w.died_at is null))
      from resumed
)
select exists (select from resumed), (select count(*) from rung)

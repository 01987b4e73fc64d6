-- Of the latest jobs that ended badly, by id, those that failed within a day; the last column says that there are more.
with latest as materialized (
    select f.task, f.state, f.finished_at
      from {schema}.archive f
     where f.state <> 'completed'
     order by f.id desc
     limit %(limit)s::bigint
)
select task, count(*), (select count(*) from latest) = %(limit)s::bigint
  from latest
 where state = 'failed' and finished_at > statement_timestamp() - interval '1 day'
 group by task
 order by task

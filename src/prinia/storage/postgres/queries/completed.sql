-- Completed jobs by queue, of the newest finished ones; "more" says that there are older ones.
select s.queue, count(*) filter (where s.state = 'completed'), sum(count(*)) over () > %(limit)s::bigint
  from (select f.queue, f.state from {schema}.archive f order by f.id desc limit %(limit)s::bigint + 1) s
 group by s.queue

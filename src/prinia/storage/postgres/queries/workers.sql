-- Everybody on the register.
select w.id, w.name, w.host, w.pid, w.run, w.version, w.queues, w.tasks, w.concurrency, w.started, w.started_at, w.beat_at,
       extract(epoch from greatest(clock_timestamp() - w.beat_at, interval '0'))::float8, w.listener, w.lag, w.blocked,
       w.command, w.died_at is null, case when w.command is not null then w.commanded_by end
  from {schema}.workers w
 order by w.name, w.started_at, w.id

insert into {schema}.workers (id, name, queues, tasks, host, pid, version, concurrency, run, command)
values (%(id)s::uuid, %(name)s, %(queues)s::text[], %(tasks)s::text[], %(host)s, %(pid)s, %(version)s, %(concurrency)s,
        %(run)s, %(command)s)
on conflict (id) do nothing

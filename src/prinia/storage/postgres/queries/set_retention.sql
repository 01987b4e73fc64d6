insert into {schema}.queues (name, keep_completed, keep_failed, keep_cancelled)
values (%(queue)s, {schema}.keep(%(completed)s::float8), {schema}.keep(%(failed)s::float8),
        {schema}.keep(%(cancelled)s::float8))
on conflict (name) do update
   set keep_completed = excluded.keep_completed, keep_failed = excluded.keep_failed,
       keep_cancelled = excluded.keep_cancelled

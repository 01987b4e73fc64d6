insert into {schema}.queues (name, paused_at) values (%(queue)s, clock_timestamp())
on conflict (name) do update set paused_at = coalesce(queues.paused_at, excluded.paused_at)

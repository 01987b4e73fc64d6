-- The tables that change all the time, as autovacuum sees them.
select c.relname::text, coalesce(s.n_dead_tup, 0),
       coalesce((select o.option_value from pg_options_to_table(c.reloptions) o
                  where o.option_name = 'autovacuum_vacuum_threshold'),
                current_setting('autovacuum_vacuum_threshold'))::float8
           + coalesce((select o.option_value from pg_options_to_table(c.reloptions) o
                        where o.option_name = 'autovacuum_vacuum_scale_factor'),
                      current_setting('autovacuum_vacuum_scale_factor'))::float8 * coalesce(s.n_live_tup, 0),
       extract(epoch from clock_timestamp() - greatest(s.last_vacuum, s.last_autovacuum))::float8,
       coalesce((select o.option_value from pg_options_to_table(c.reloptions) o
                  where o.option_name = 'autovacuum_enabled'), 'true')::boolean
  from pg_class c
  join pg_namespace n on n.oid = c.relnamespace
  left join pg_stat_user_tables s on s.relid = c.oid
 where n.nspname = {schema_literal} and c.relname in ('jobs', 'attempts', 'workers', 'queues')
 order by c.relname

-- Who keeps dead rows of this database from being removed: how many transactions began since, and for how many seconds.
-- Of sessions of other roles state and time may be hidden.
select 'session' as kind, a.pid::text as name, coalesce(a.usename::text, '') as role,
       coalesce(a.application_name, '') as application, coalesce(a.state, '') as state,
       coalesce(greatest(age(a.backend_xmin), age(a.backend_xid)), 0) as xids,
       extract(epoch from clock_timestamp() - a.xact_start)::float8 as seconds
  from pg_stat_activity a
 where a.pid <> pg_backend_pid()
   and (a.datname = current_database() or a.backend_type = 'walsender')
   and (a.backend_xmin is not null or a.backend_xid is not null or a.state like 'idle in transaction' || '%%')
union all
select 'prepared', p.gid, p.owner::text, '', '', age(p.transaction),
       extract(epoch from clock_timestamp() - p.prepared)::float8
  from pg_prepared_xacts p
 where p.database = current_database()
union all
select 'slot', s.slot_name::text, '', '', case when s.active then 'in use' else 'not in use' end, age(s.xmin), null
  from pg_replication_slots s
 where s.xmin is not null
order by seconds desc nulls last, xids desc

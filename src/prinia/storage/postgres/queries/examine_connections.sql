-- How many connections there are, and for how many there is room, by each limit that there is. Of sessions of other roles
-- their type may be hidden.
with clients as (
    select usesysid, datid
      from pg_stat_activity
     where datid is not null and coalesce(backend_type, 'client backend') = 'client backend'
)
select (select count(*) from clients),
       current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
           - coalesce(current_setting('reserved_connections', true)::int, 0),
       'max_connections, less those for superusers'
union all
select (select count(*) from clients where usesysid = r.oid), r.rolconnlimit, 'the limit of this role'
  from pg_roles r where r.rolname = current_user and r.rolconnlimit >= 0 and not r.rolsuper
union all
select (select count(*) from clients where datid = d.oid), d.datconnlimit, 'the limit of this database'
  from pg_database d where d.datname = current_database() and d.datconnlimit >= 0

-- What this role may do with each thing of the schema, and whether it owns that. Leaves of the archive are used through
-- their parent.
select 'schema' as kind, n.nspname::text as name,
       case when has_schema_privilege(n.oid, 'usage') then array['usage'] else '{}' end as held,
       pg_has_role(n.nspowner, 'usage') as owned
  from pg_namespace n
 where n.nspname = {schema_literal}
union all
select case c.relkind when 'v' then 'view' else 'table' end, c.relname::text,
       array(select p from unnest(array['select', 'insert', 'update', 'delete']) p where has_table_privilege(c.oid, p)),
       pg_has_role(c.relowner, 'usage')
  from pg_class c
  join pg_namespace n on n.oid = c.relnamespace
 where n.nspname = {schema_literal} and c.relkind in ('r', 'p', 'v') and c.relname !~ '^archive_'
union all
select 'function', p.proname || '(' || pg_get_function_identity_arguments(p.oid) || ')',
       case when has_function_privilege(p.oid, 'execute') then array['execute'] else '{}' end,
       pg_has_role(p.proowner, 'usage')
  from pg_proc p
  join pg_namespace n on n.oid = p.pronamespace
 where n.nspname = {schema_literal}
 order by 1, 2

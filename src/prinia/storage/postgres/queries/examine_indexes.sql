select c.relname::text
  from pg_index i
  join pg_class c on c.oid = i.indexrelid
  join pg_namespace n on n.oid = c.relnamespace
 where n.nspname = {schema_literal} and not i.indisvalid
 order by 1

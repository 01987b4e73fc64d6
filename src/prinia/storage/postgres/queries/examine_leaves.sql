-- The leaves of the archive; a detach that was cut off leaves one that is none any more.
select c.relname::text
  from pg_class c
  join pg_namespace n on n.oid = c.relnamespace
 where n.nspname = {schema_literal} and c.relkind = 'r' and c.relname ~ '^archive_[0-9]+_[0-9]+$'
 order by 1

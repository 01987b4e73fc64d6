-- Whether these tables are those that were served before: as meet() finds it, but nothing is written.
select i.single is not null,
       i.jobs = c.oid and case when i.system <> %(here)s::bigint then i.xmin::text::bigint = i.written_by
                               else i.database = d.oid end,
       i.name, extract(epoch from i.since)::float8, exists (select from {schema}.jobs)
  from pg_database d
  join pg_namespace n on n.nspname = {schema_literal}
  join pg_class c on c.relnamespace = n.oid and c.relname = 'jobs'
  left join {schema}.identity i on true
 where d.datname = current_database()

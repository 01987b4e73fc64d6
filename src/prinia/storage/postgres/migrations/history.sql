-- Comes before the first migration: the schema, and the record of what was applied to it.
-- Not "create schema if not exists": that asks for the right to create one even where it stands.
do $prinia$
begin
    if not exists (select from pg_catalog.pg_namespace where nspname = {schema_literal}) then
        create schema {schema};
    end if;
end $prinia$;

create table if not exists {schema}.migrations (
    version integer primary key check (version > 0),
    name text not null,
    checksum text not null,
    prinia text not null,
    applied_at timestamptz not null default clock_timestamp()
);

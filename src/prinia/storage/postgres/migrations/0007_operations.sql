-- Operations from outside: who did what, what is paused beside queues, and what single workers were told. Workers of an
-- older Prinia go on as before: they know of paused queues alone.

-- One row for each operation that did something, or had nothing to do; target is a selection of jobs, or names a queue, a
-- task, everything or a worker instance.
create table {schema}.audit (
    id bigint generated always as identity primary key,
    at timestamptz not null default clock_timestamp(),
    by text not null,
    operation text not null,
    target jsonb not null,
    "values" jsonb not null default '{}',
    changed bigint not null default 0,
    skipped bigint not null default 0
);

-- Paused tasks, and everything (of which the name is empty). Paused queues are in queues. Claims read it each time.
create table {schema}.pauses (
    kind text not null check (kind in ('task', 'everything')),
    name text not null check (length(name) <= 200 and (name = '') = (kind = 'everything')),
    at timestamptz not null default clock_timestamp(),
    by text not null,
    primary key (kind, name)
);

alter table {schema}.queues add column paused_by text;

-- A worker with a command claims nothing.
alter table {schema}.workers
    add column command text check (command in ('quiet', 'pause', 'stop')),
    add column commanded_at timestamptz,
    add column commanded_by text;

-- When a job that had ended was brought back: it has an error history from its first attempt on, which a claim has to
-- say, because what ends well without one takes a shorter way into the archive.
alter table {schema}.jobs add column redriven_at timestamptz;

-- As before, with one column more.
create or replace function {schema}.read_jobs(jobs text) returns setof {schema}.jobs
    language sql stable
    as $$
select nextval({job_ids_literal}),
       case when r.scheduled_at = 'infinity' then {schema}.refuse('scheduled_at may not be infinity')
            else greatest(coalesce(r.scheduled_at, clock_timestamp() + coalesce(r.delay, 0) * interval '1 second'),
                          clock_timestamp()) end,
       clock_timestamp(), null::timestamptz, null::bigint, null::uuid, 0, coalesce(r.max_attempts, 5),
       coalesce(r.priority, 0::smallint), 0::smallint, coalesce(r.max_crashes, 3::smallint),
       coalesce(r.rerun_after_crash, true), coalesce(r.queue, 'default'), r.task, coalesce(r.codec, 'json'),
       coalesce(convert_to(r.args::text, 'UTF8'), decode(r.args64, 'base64')), r.timeout, r.retry::text,
       coalesce(r.expires_at, clock_timestamp() + r.expires_in * interval '1 second'),
       substring(sha256(convert_to(r.task || case when r.unique_for is null then e'\x1flive\x1f' else e'\x1fwindow\x1f' end
                                   || r.unique_key, 'UTF8')) from 1 for 16), r.unique_key,
       r.limit_key, null::timestamptz, null::text, r.tags, r.meta, null::timestamptz
  from json_to_recordset(jobs::json) as r (
       task text, args json, args64 text, codec text, queue text, priority smallint, scheduled_at timestamptz,
       delay float8, expires_at timestamptz, expires_in float8, max_attempts integer, max_crashes smallint,
       rerun_after_crash boolean, retry json, timeout float8, unique_key text, unique_for float8, limit_key text,
       tags text[], meta jsonb)
$$;

-- A unique key as it is held: in scope 'live' by a live job, in scope 'window' by a row of unique_keys.
create function {schema}.unique_hash(task text, scope text, key text) returns bytea
    language sql immutable parallel safe
    as $$
select pg_catalog.substring(pg_catalog.sha256(pg_catalog.convert_to(
           task operator(pg_catalog.||) e'\x1f' operator(pg_catalog.||) scope
           operator(pg_catalog.||) e'\x1f' operator(pg_catalog.||) key, 'UTF8')), 1, 16) $$;

revoke all on function {schema}.unique_hash(text, text, text) from public;

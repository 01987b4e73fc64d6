-- Live jobs, finished jobs, workers. {schema} stands for the quoted name of Prinia's schema.
-- Everything is schema-qualified: it must work with an empty search_path, and touch nothing outside the schema.

create sequence {schema}.job_ids as bigint;

-- One row per live job. Its state is derived (view all_jobs), never stored. A claim writes claimed_at, owner, token
-- and attempt: no index may hold any of them, in columns or predicate, so that claims stay HOT updates.
create table {schema}.jobs (
    id bigint primary key,
    scheduled_at timestamptz not null default clock_timestamp(),
    created_at timestamptz not null default clock_timestamp(),
    claimed_at timestamptz,
    token bigint,
    owner uuid,
    attempt integer not null default 0 check (attempt >= 0),
    max_attempts integer not null default 5 check (max_attempts >= 1),
    priority smallint not null default 0 check (priority between -100 and 100),
    crashes smallint not null default 0 check (crashes >= 0),
    max_crashes smallint not null default 3 check (max_crashes >= 0),
    rerun_after_crash boolean not null default true,
    queue text not null default 'default' check (length(queue) between 1 and 200),
    task text not null check (length(task) between 1 and 200),
    codec text not null default 'json',
    args bytea not null,
    -- NaN is greater than any number here, infinity included.
    timeout double precision check (timeout > 0 and timeout < 'infinity'),
    retry text check (retry ~ '^\s*\{'),
    expires_at timestamptz,
    unique_hash bytea check (length(unique_hash) = 16),
    unique_key text,
    -- Limits come with a later migration, which drops this check; the ready index is made for them already.
    limit_key text constraint limits_come_later check (limit_key is null),
    cancel_requested_at timestamptz,
    cancel_requested_by text,
    tags text[] check (array_ndims(tags) = 1 and array_position(tags, null) is null),
    meta jsonb check (jsonb_typeof(meta) = 'object')
) with (
    fillfactor = 45,
    autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_cost_delay = 0
);

create index jobs_ready on {schema}.jobs (queue, priority desc, scheduled_at, id) where limit_key is null;
create unique index jobs_unique on {schema}.jobs (unique_hash) where unique_hash is not null;
create index jobs_suspect on {schema}.jobs (queue, scheduled_at) where crashes >= 2;
create index jobs_expiring on {schema}.jobs (expires_at) where expires_at is not null;

-- One row per failed attempt or crash of a live job, at most 20 per job; moved into archive.errors at the end.
create table {schema}.attempts (
    id bigint generated always as identity primary key,
    job_id bigint not null,
    attempt integer not null,
    kind text not null,
    message text not null,
    traceback text,
    at timestamptz not null default clock_timestamp()
) with (autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_scale_factor = 0.02);

create index attempts_job on {schema}.attempts (job_id, id);

-- One entry of a job's error history as it is kept in the archive and shown by all_jobs.
create function {schema}.error_entry(attempt integer, kind text, message text, traceback text, at timestamptz)
    returns jsonb
    language sql stable parallel safe
    as $$
select pg_catalog.jsonb_build_object('attempt', attempt, 'kind', kind, 'message', message, 'traceback', traceback,
                                     'at', at) $$;

-- Finished jobs, by the time they may be dropped. No default partition: a leaf that is missing is made.
create table {schema}.archive (
    id bigint not null,
    drop_at timestamptz not null,
    scheduled_at timestamptz not null,
    created_at timestamptz not null,
    started_at timestamptz,
    finished_at timestamptz not null default clock_timestamp(),
    token bigint,
    owner uuid,
    attempt integer not null,
    max_attempts integer not null,
    priority smallint not null,
    crashes smallint not null,
    max_crashes smallint not null,
    rerun_after_crash boolean not null,
    state text not null check (state in ('completed', 'failed', 'cancelled')),
    queue text not null,
    task text not null,
    codec text not null,
    args bytea,
    result bytea,
    timeout double precision,
    retry text,
    unique_key text,
    reason text,
    errors jsonb,
    tags text[],
    meta jsonb
) partition by range (drop_at);

create index archive_id on {schema}.archive (id);

-- Settings of queues that have any; a queue needs no row to exist.
create table {schema}.queues (
    name text primary key check (length(name) between 1 and 200),
    paused_at timestamptz,
    keep_completed interval,
    keep_failed interval,
    keep_cancelled interval
);

-- One row per life of a worker; the name is a label. The counter is watched by the others, beat_at is for people.
create table {schema}.workers (
    id uuid primary key,
    name text not null,
    queues text[] not null,
    tasks text[] not null,
    host text not null,
    pid integer not null,
    version text not null,
    concurrency integer not null,
    started_at timestamptz not null default clock_timestamp(),
    beat bigint not null default 0,
    beat_at timestamptz not null default clock_timestamp(),
    previous_beat_at timestamptz,
    tokens bigint[] not null default '{}',
    started bigint[] not null default '{}',
    died_at timestamptz
) with (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);

create table {schema}.leader (
    single boolean primary key default true check (single),
    instance uuid,
    term bigint not null default 0
);
insert into {schema}.leader default values;

-- Bells whose exclusive lock a sleeper could not get for a while: pushes then always notify.
create table {schema}.loud_bells (bell integer primary key);

create function {schema}.bell_space() returns integer
    language sql immutable parallel safe
    set search_path = pg_catalog, pg_temp
    as $$ select hashtext('prinia ' || {schema_literal}) $$;

create function {schema}.bell_of(queue text) returns integer
    language sql immutable parallel safe
    as $$ select pg_catalog.hashtext(queue) & 63 $$;

create function {schema}.bell_channel() returns text
    language sql immutable parallel safe
    set search_path = pg_catalog, pg_temp
    as $$ select 'prinia_' || to_hex(hashtext('prinia ' || {schema_literal})) $$;

-- Whoever makes jobs claimable rings the bells of their queues. A bell is an advisory lock: a sleeping worker holds it
-- exclusively, the ringer shared until its commit. Who cannot get it shared knows that somebody sleeps, and notifies.
-- A notification takes a database-wide lock at commit, so it must not be sent when nobody sleeps.
create function {schema}.ring(rung text[]) returns void
    language plpgsql security definer
    set search_path = pg_catalog, pg_temp
    as $$
declare
    nr integer;
begin
    for nr in select distinct {schema}.bell_of(queue) from unnest(rung) as r (queue) order by 1 loop
        if exists (select from {schema}.loud_bells l where l.bell = nr)
           or not pg_try_advisory_xact_lock_shared({schema}.bell_space(), nr) then
            perform pg_notify({schema}.bell_channel(), nr::text);
        end if;
    end loop;
end $$;

-- The leaves that stand. They are known by their names alone, archive_FROM_TO in days of UTC: no list to fall out of step.
create function {schema}.leaves() returns table (leaf text, low timestamptz, high timestamptz)
    language sql stable
    set search_path = pg_catalog, pg_temp
    set timezone = 'UTC'
    as $$
select c.relname::text, to_date(split_part(c.relname, '_', 2), 'YYYYMMDD')::timestamptz,
       to_date(split_part(c.relname, '_', 3), 'YYYYMMDD')::timestamptz
  from pg_inherits i
  join pg_class c on c.oid = i.inhrelid
 where i.inhparent = to_regclass(format('%I.archive', {schema_literal}))
   and c.relname ~ '^archive_[0-9]+_[0-9]+$' $$;

-- Make the leaf of the archive that takes drop_at: a day, a week or a month wide by how far off it is, clipped where
-- neighbours stand. False when there is one already.
create function {schema}.make_leaf(at timestamptz) returns boolean
    language plpgsql security definer
    set search_path = pg_catalog, pg_temp
    set timezone = 'UTC'
    as $$
declare
    step text := case when at < now() + interval '35 days' then 'day'
                      when at < now() + interval '16 weeks' then 'week' else 'month' end;
    starts timestamptz := date_trunc(step, at);
    ends timestamptz := starts + ('1 ' || step)::interval;
    leaf text;
begin
    if exists (select from {schema}.leaves() l where l.low <= at and at < l.high) then
        return false;
    end if;
    select greatest(starts, max(l.high) filter (where l.high <= at)), least(ends, min(l.low) filter (where l.low > at))
      into starts, ends
      from {schema}.leaves() l;
    leaf := format('archive_%s_%s', to_char(starts, 'YYYYMMDD'), to_char(ends, 'YYYYMMDD'));
    -- Created apart and attached: that takes no lock on the archive that an insert or a reader would feel.
    execute format('create table %I.%I (like %1$I.archive including all,'
                   ' check (drop_at is not null and drop_at >= %3$L and drop_at < %4$L))',
                   {schema_literal}, leaf, starts, ends);
    execute format('alter table %I.archive attach partition %1$I.%I for values from (%3$L) to (%4$L)',
                   {schema_literal}, leaf, starts, ends);
    return true;
end $$;

-- Room for everything that may finish within a week: leaves for every day that default retention can name, and for the
-- longer retention of single queues. Returns how many were made.
create function {schema}.make_leaves() returns integer
    language plpgsql security definer
    set search_path = pg_catalog, pg_temp
    as $$
declare
    made integer := 0;
    at timestamptz;
begin
    -- Conflicts with itself alone among what Prinia does: makers wait for each other, acks go on.
    lock table {schema}.archive in share update exclusive mode;
    for at in
        with wanted as (
            select now() + days * interval '1 day' as at from generate_series(0, 42) as ahead (days)
            union all
            select now() + keep + ahead
              from {schema}.queues q,
                   unnest(array[q.keep_completed, q.keep_failed, q.keep_cancelled]) as k (keep),
                   unnest(array[interval '0', interval '7 days']) as a (ahead)
             where keep > interval '35 days'
        ), standing as materialized (
            select * from {schema}.leaves()
        )
        select w.at from wanted w
         where not exists (select from standing l where l.low <= w.at and w.at < l.high)
         order by 1
    loop
        made := made + {schema}.make_leaf(at)::integer;
    end loop;
    return made;
end $$;

-- Instead of a value that enqueue does not take.
create function {schema}.refuse(what text) returns timestamptz
    language plpgsql
    as $$
begin
    raise exception using errcode = 'invalid_parameter_value', message = what;
end $$;

-- The jobs of a JSON array as rows, with ids. Declared stable, which its ids and times are not, because only then it is
-- inlined into the statement that uses it; each call is used once.
create function {schema}.read_jobs(jobs text) returns setof {schema}.jobs
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
       substring(sha256(convert_to(r.task || e'\x1flive\x1f' || r.unique_key, 'UTF8')) from 1 for 16), r.unique_key,
       r.limit_key, null::timestamptz, null::text, r.tags, r.meta
  from json_to_recordset(jobs::json) as r (
       task text, args json, args64 text, codec text, queue text, priority smallint, scheduled_at timestamptz,
       delay float8, expires_at timestamptz, expires_in float8, max_attempts integer, max_crashes smallint,
       rerun_after_crash boolean, retry json, timeout float8, unique_key text, limit_key text, tags text[], meta jsonb)
$$;

-- The one way in: a JSON array of jobs as text, stored in its order, all or none. A job whose unique key is held by a
-- live job is not stored; its answer has the holder's id. The parameter is text so that no driver encodes it twice, and
-- read as json, not jsonb, so that args are kept to the letter.
create function {schema}.enqueue(jobs text, bell boolean default true)
    returns table (id bigint, created boolean, xid bigint)
    language plpgsql security definer
    set search_path = pg_catalog, pg_temp
    as $$
#variable_conflict use_column
declare
    specs {schema}.jobs[];
    spec {schema}.jobs;
    refused bigint[] := '{}';
    holders bigint[] := '{}';
    holder bigint;
begin
    if position('"unique_key"' in jobs) = 0 then
        return query
            with new as (
                insert into {schema}.jobs select * from {schema}.read_jobs(enqueue.jobs) returning jobs.id, jobs.queue
            ), rung as materialized (
                select case when enqueue.bell then {schema}.ring(array_agg(distinct queue)) end from new
            )
            select new.id, true, pg_current_xact_id()::text::bigint from new, rung order by 1;
        return;
    end if;
    -- Before the clock is read: workers wait for transactions that may still store a job below their marks, and this one
    -- may read the clock and then wait long for the holder of a key.
    perform pg_current_xact_id();
    specs := array(select r from {schema}.read_jobs(enqueue.jobs) r);
    insert into {schema}.jobs select r.* from unnest(specs) r where r.unique_hash is null;
    -- In the order of keys, so that two pushes that share keys wait for each other instead of locking each other out.
    for spec in select r.* from unnest(specs) r where r.unique_hash is not null order by r.unique_hash, r.id loop
        loop
            insert into {schema}.jobs select spec.* on conflict (unique_hash) where unique_hash is not null do nothing;
            exit when found;
            -- A new statement, so that it sees the holder that the insert has waited for, or that it is gone again.
            select j.id into holder from {schema}.jobs j where j.unique_hash = spec.unique_hash;
            if found then
                refused := refused || spec.id;
                holders := holders || holder;
                exit;
            end if;
        end loop;
    end loop;
    if enqueue.bell then
        perform {schema}.ring(array(select distinct r.queue from unnest(specs) r where r.id <> all (refused)));
    end if;
    return query
        select coalesce(h.holder, r.id), h.holder is null, pg_current_xact_id()::text::bigint
          from unnest(specs) r left join unnest(refused, holders) h (id, holder) on h.id = r.id
         order by r.id;
end $$;

-- Every job, live or finished, with its state.
create view {schema}.all_jobs as
select id, task, queue,
       case when claimed_at is not null then 'running'
            when scheduled_at = 'infinity' then 'blocked'
            when scheduled_at > clock_timestamp() then case when attempt > 0 then 'retrying' else 'scheduled' end
            else 'ready' end as state,
       priority, attempt, max_attempts, crashes, max_crashes, created_at,
       nullif(scheduled_at, 'infinity') as scheduled_at, claimed_at as started_at, null::timestamptz as finished_at,
       case when claimed_at is not null then owner end as owner, codec, args, null::bytea as result, timeout, retry, expires_at, unique_key,
       case when cancel_requested_at is not null then 'cancel requested by ' || cancel_requested_by end as reason,
       tags, meta,
       (select jsonb_agg({schema}.error_entry(t.attempt, t.kind, t.message, t.traceback, t.at) order by t.id)
          from {schema}.attempts t where t.job_id = j.id) as errors
  from {schema}.jobs j
union all
select id, task, queue, state, priority, attempt, max_attempts, crashes, max_crashes, created_at, scheduled_at,
       started_at, finished_at, owner, codec, args, result, timeout, retry, null::timestamptz, unique_key, reason,
       tags, meta, errors
  from {schema}.archive;

select {schema}.make_leaves();

revoke all on all functions in schema {schema} from public;

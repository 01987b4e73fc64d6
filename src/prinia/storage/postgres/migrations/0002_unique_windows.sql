-- Unique keys that are held for a window of time, and pushes that replace the job that waits under their key.

-- Keys with a window. Held until expires_at, whether or not the job has ended; after that the row is free to be taken by
-- the next job of its key, or to be swept. (A key without a window is held by its live row in jobs alone.)
create table {schema}.unique_keys (
    hash bytea primary key check (length(hash) = 16),
    job_id bigint not null,
    expires_at timestamptz not null
);

create index unique_keys_expiring on {schema}.unique_keys (expires_at);

-- As before, but for the hash: a key with a window is another key.
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
       r.limit_key, null::timestamptz, null::text, r.tags, r.meta
  from json_to_recordset(jobs::json) as r (
       task text, args json, args64 text, codec text, queue text, priority smallint, scheduled_at timestamptz,
       delay float8, expires_at timestamptz, expires_in float8, max_attempts integer, max_crashes smallint,
       rerun_after_crash boolean, retry json, timeout float8, unique_key text, unique_for float8, limit_key text,
       tags text[], meta jsonb)
$$;

-- Take a unique key for a job and store it, with no holder to name when the key was free. Else name the job that holds
-- it; if asked to replace that one and it waits, put the new job in its place: the same id, everything else is the new
-- job's. (Owner and token stay: an ack of the old one that is sent again is still recognised.) What another transaction
-- has not committed yet is waited for.
create function {schema}.take_key(spec {schema}.jobs, unique_for double precision, replaces boolean,
                                  out holder bigint, out replaced boolean)
    language plpgsql
    set search_path = pg_catalog, pg_temp
    as $$
declare
    waits boolean;
begin
    replaced := false;
    -- Each statement sees what was committed before it, so what one has seen may not hold for the next: then again.
    loop
        holder := null;
        if unique_for is null then
            insert into {schema}.jobs select spec.* on conflict (unique_hash) where unique_hash is not null do nothing;
            exit when found;
            select j.id into holder from {schema}.jobs j where j.unique_hash = spec.unique_hash;
        else
            insert into {schema}.unique_keys
            values (spec.unique_hash, spec.id, clock_timestamp() + unique_for * interval '1 second')
                on conflict do nothing;
            if not found then
                update {schema}.unique_keys k
                   set job_id = spec.id, expires_at = clock_timestamp() + unique_for * interval '1 second'
                 where k.hash = spec.unique_hash and k.expires_at <= clock_timestamp();
            end if;
            if found then
                spec.unique_hash := null;
                insert into {schema}.jobs select spec.*;
                exit;
            end if;
            select k.job_id into holder
              from {schema}.unique_keys k where k.hash = spec.unique_hash and k.expires_at > clock_timestamp();
        end if;
        continue when holder is null;
        exit when not replaces;
        -- A blocked job is let go by those that it waits for.
        update {schema}.jobs j
           set scheduled_at = spec.scheduled_at, created_at = spec.created_at, attempt = 0,
               max_attempts = spec.max_attempts, priority = spec.priority, crashes = 0, max_crashes = spec.max_crashes,
               rerun_after_crash = spec.rerun_after_crash, queue = spec.queue, codec = spec.codec, args = spec.args,
               timeout = spec.timeout, retry = spec.retry, expires_at = spec.expires_at, limit_key = spec.limit_key,
               tags = spec.tags, meta = spec.meta
         where j.id = holder and j.claimed_at is null and j.scheduled_at < 'infinity';
        if found then
            delete from {schema}.attempts t where t.job_id = holder;
            replaced := true;
            exit;
        end if;
        select j.claimed_at is null and j.scheduled_at < 'infinity' into waits from {schema}.jobs j where j.id = holder;
        -- It runs, or it has ended within its window.
        exit when not coalesce(waits, unique_for is null);
    end loop;
end $$;

-- The one way in: a JSON array of jobs as text, stored in its order, all or none. The parameter is text so that no driver
-- encodes it twice, and read as json, not jsonb, so that args are kept to the letter. A job whose unique key is held is
-- not stored: its answer has the holder's id. Its on_conflict says what becomes of it: "keep" (nothing), "replace" (it
-- takes the place of a holder that waits), "raise" (an error).
create or replace function {schema}.enqueue(jobs text, bell boolean default true)
    returns table (id bigint, created boolean, xid bigint)
    language plpgsql security definer
    set search_path = pg_catalog, pg_temp
    as $$
#variable_conflict use_column
declare
    specs {schema}.jobs[];
    windows double precision[];
    rules text[];
    nr integer;
    spec {schema}.jobs;
    taken record;
    answered bigint[] := '{}';
    holders bigint[] := '{}';
    kept bigint[] := '{}';
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
    select array_agg(r.unique_for), array_agg(coalesce(r.on_conflict, 'keep')) into windows, rules
      from json_to_recordset(enqueue.jobs::json) as r (unique_for float8, on_conflict text);
    perform {schema}.refuse(format('on_conflict=%L is none of keep, raise and replace', rule))
       from unnest(rules) rule where rule not in ('keep', 'raise', 'replace');
    perform {schema}.refuse(format('unique_for=%s is no number of seconds above 0', seconds))
       from unnest(windows) seconds where not (seconds > 0 and seconds < 'infinity');
    insert into {schema}.jobs select r.* from unnest(specs) r where r.unique_hash is null;
    -- In the order of keys, so that two pushes that share keys wait for each other instead of locking each other out.
    for nr in
        select r.ordinality from unnest(specs) with ordinality r
         where r.unique_hash is not null
         order by r.unique_hash, r.ordinality
    loop
        spec := specs[nr];
        if windows[nr] is null then
            -- Most keys are free; without a call that is a quarter faster.
            insert into {schema}.jobs select spec.* on conflict (unique_hash) where unique_hash is not null do nothing;
            continue when found;
        end if;
        select * into taken from {schema}.take_key(spec, windows[nr], rules[nr] = 'replace');
        continue when taken.holder is null;
        if rules[nr] = 'raise' then
            raise exception using errcode = 'unique_violation',
                message = format('job %s already has the unique key %L', taken.holder, spec.unique_key);
        end if;
        answered := answered || spec.id;
        holders := holders || taken.holder;
        if not taken.replaced then
            kept := kept || spec.id;
        end if;
    end loop;
    if enqueue.bell then
        perform {schema}.ring(array(select distinct r.queue from unnest(specs) r where r.id <> all (kept)));
    end if;
    return query
        select coalesce(h.holder, r.id), h.holder is null, pg_current_xact_id()::text::bigint
          from unnest(specs) r left join unnest(answered, holders) h (id, holder) on h.id = r.id
         order by r.id;
end $$;

revoke all on function {schema}.take_key from public;

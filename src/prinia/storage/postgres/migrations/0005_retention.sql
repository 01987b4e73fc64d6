-- Retention of finished jobs: how long which are kept, and how what is past leaves. And the database's identity.

-- How long to keep, as it stands in queues and is added to the time of a job's end to give its drop_at. What is kept
-- longer than 31 days is filed two thousand years later, where leaves are a month wide: else such a leaf, made long
-- ahead, would some day hold up the jobs of all queues that are kept for a day. (The calendar repeats after 400 years.)
-- For ever is five thousand years.
create function {schema}.keep(seconds double precision) returns interval
    language sql immutable
    as $$
select case when seconds = 'infinity' then interval '5000 years'
            when seconds > 31 * 86400 then interval '2000 years' + seconds * interval '1 second'
            else seconds * interval '1 second' end $$;

-- The other way round: seconds.
create function {schema}.kept(keep interval) returns double precision
    language sql immutable
    as $$
select case when keep >= interval '5000 years' then 'infinity'::float8
            when keep >= interval '2000 years' then extract(epoch from keep - interval '2000 years')::float8
            else extract(epoch from keep)::float8 end $$;

-- What the name of a leaf says: it takes drop_at from low to high, and may go at past.
create function {schema}.leaf_days(leaf text) returns table (low timestamptz, high timestamptz, past timestamptz)
    language sql stable
    as $$
select d.low at time zone 'UTC', d.high at time zone 'UTC',
       (d.high - case when d.low >= '4000-01-01' then interval '2000 years' else interval '0' end) at time zone 'UTC'
  from (select pg_catalog.to_date(pg_catalog.split_part(leaf, '_', 2), 'YYYYMMDD')::timestamp as low,
               case when pg_catalog.split_part(leaf, '_', 3) = 'ever' then 'infinity'
                    else pg_catalog.to_date(pg_catalog.split_part(leaf, '_', 3), 'YYYYMMDD')::timestamp
               end as high) d $$;

-- As before, and the one to infinity.
create or replace function {schema}.leaves() returns table (leaf text, low timestamptz, high timestamptz)
    language sql stable
    set search_path = pg_catalog, pg_temp
    set timezone = 'UTC'
    as $$
select c.relname::text, d.low, d.high
  from pg_inherits i
  join pg_class c on c.oid = i.inhrelid
 cross join {schema}.leaf_days(c.relname) d
 where i.inhparent = to_regclass(format('%I.archive', {schema_literal}))
   and c.relname ~ '^archive_[0-9]+_([0-9]+|ever)$' $$;

-- As before, with days as far as jobs that are kept for up to 31 days need them, and the one to infinity.
create or replace function {schema}.make_leaf(at timestamptz) returns boolean
    language plpgsql security definer
    set search_path = pg_catalog, pg_temp
    set timezone = 'UTC'
    as $$
declare
    step text := case when at < now() + interval '39 days' then 'day'
                      when at < now() + interval '16 weeks' then 'week' else 'month' end;
    ever constant timestamptz := '6000-01-01';
    starts timestamptz := date_trunc(step, at);
    ends timestamptz := starts + ('1 ' || step)::interval;
    leaf text;
    fits text;
begin
    if exists (select from {schema}.leaves() l where l.low <= at and (at < l.high or l.high = 'infinity')) then
        return false;
    end if;
    if at >= ever then
        starts := ever;
        ends := 'infinity';
    end if;
    select greatest(starts, max(l.high) filter (where l.high <= at)), least(ends, min(l.low) filter (where l.low > at))
      into starts, ends
      from {schema}.leaves() l;
    leaf := format('archive_%s_%s', to_char(starts, 'YYYYMMDD'),
                   case when ends = 'infinity' then 'ever' else to_char(ends, 'YYYYMMDD') end);
    fits := format('drop_at is not null and drop_at >= %L', starts)
            || case when ends = 'infinity' then '' else format(' and drop_at < %L', ends) end;
    -- Created apart and attached: that takes no lock on the archive that an insert or a reader would feel.
    execute format('create table %I.%I (like %1$I.archive including all, check (%3$s))', {schema_literal}, leaf, fits);
    execute format('alter table %I.archive attach partition %1$I.%I for values from (%3$L) to (%4$s)',
                   {schema_literal}, leaf, starts,
                   case when ends = 'infinity' then 'maxvalue' else quote_literal(ends) end);
    return true;
end $$;

-- As before, for jobs that are kept for up to 31 days and end within a week, and for those kept longer.
create or replace function {schema}.make_leaves() returns integer
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
            select now() + days * interval '1 day' as at from generate_series(0, 38) as ahead (days)
            union all
            select now() + keep + ahead
              from (select distinct keep
                      from {schema}.queues q,
                           unnest(array[q.keep_completed, q.keep_failed, q.keep_cancelled]) as k (keep)
                     where keep > interval '31 days') kept,
                   unnest(array[interval '0', interval '7 days']) as a (ahead)
        ), standing as materialized (
            select * from {schema}.leaves()
        )
        select w.at from wanted w
         where not exists (select from standing l where l.low <= w.at and (w.at < l.high or l.high = 'infinity'))
         order by 1
    loop
        made := made + {schema}.make_leaf(at)::integer;
    end loop;
    return made;
end $$;

-- Drop a leaf that is past, or empty it first; false when somebody is reading. For roles that do not own the tables, and
-- for PostgreSQL 13: who may, detaches it concurrently instead. Dropping takes the archive for itself for a moment, and
-- whoever comes meanwhile waits behind; so it is tried for 50 ms only, and with nothing left to free.
create function {schema}.drop_leaf(leaf text, at timestamptz default now()) returns boolean
    language plpgsql security definer
    set search_path = pg_catalog, pg_temp
    set lock_timeout = '50ms'
    as $$
declare
    relation regclass := to_regclass(format('%I.%I', {schema_literal}, leaf));
begin
    if relation is null then
        return false;
    end if;
    if leaf !~ '^archive_[0-9]+_[0-9]+$' or (select d.past > at from {schema}.leaf_days(leaf) d) then
        perform {schema}.refuse(format('%s is no leaf of the archive that is past', leaf));
    end if;
    if pg_relation_size(relation) > 0 then
        execute format('truncate %s', relation);
        return true;
    end if;
    lock table {schema}.archive in access exclusive mode;
    execute format('drop table %s', relation);
    return true;
exception when lock_not_available then
    return false;
end $$;

-- The database in which workers have served these tables: see meet().
create table {schema}.identity (
    single boolean primary key default true check (single),
    -- Null where the server does not tell.
    system bigint,
    database oid not null,
    name text not null,
    jobs oid not null,
    -- The transaction that wrote this row: its xmin, unless the row was written again by a restore.
    written_by bigint,
    since timestamptz not null default clock_timestamp()
);

create function {schema}.system_identifier() returns bigint
    language plpgsql stable
    set search_path = pg_catalog, pg_temp
    as $$
begin
    return (select s.system_identifier from pg_control_system() s);
exception when others then
    return null;
end $$;

-- Remember this database as the one in which these tables are served. Returns how many live jobs there are.
create function {schema}.adopt() returns bigint
    language plpgsql security definer
    set search_path = pg_catalog, pg_temp
    as $$
begin
    insert into {schema}.identity as i (system, database, name, jobs)
    select {schema}.system_identifier(), d.oid, d.datname, to_regclass(format('%I.jobs', {schema_literal}))
      from pg_database d
     where d.datname = current_database()
        on conflict (single) do update
       set system = excluded.system, database = excluded.database, name = excluded.name, jobs = excluded.jobs,
           since = excluded.since;
    update {schema}.identity set written_by = xmin::text::bigint;
    return (select count(*) from {schema}.jobs);
end $$;

-- Whether these tables are those that were served before (a restart, a standby that took over, a pg_upgrade), or a copy
-- of them (a dump that was restored, a database made from a template), whose jobs run elsewhere as well or ran already.
-- A copy without jobs can do no harm: it is adopted. Otherwise the answer is how many jobs it has, of which database,
-- since when; null for no copy.
create function {schema}.meet(out jobs bigint, out name text, out since timestamptz)
    language plpgsql security definer
    set search_path = pg_catalog, pg_temp
    as $$
#variable_conflict use_column
declare
    known record;
    here bigint := {schema}.system_identifier();
    original boolean;
begin
    select i.*, i.xmin::text::bigint = i.written_by as unmoved,
           i.database = (select d.oid from pg_database d where d.datname = current_database()) as same_database,
           i.jobs = to_regclass(format('%I.jobs', {schema_literal})) as same_jobs
      into known
      from {schema}.identity i;
    -- A pg_upgrade makes a new system and keeps tables and rows as they are, which no restore does.
    original := known.same_jobs and case when known.system <> here then known.unmoved else known.same_database end;
    if original and known.system is not distinct from here then
        return;
    end if;
    if known.single is null or original or not exists (select from {schema}.jobs) then
        perform {schema}.adopt();
        return;
    end if;
    jobs := (select count(*) from {schema}.jobs);
    name := known.name;
    since := known.since;
end $$;

revoke all on function {schema}.keep, {schema}.kept, {schema}.leaf_days, {schema}.drop_leaf, {schema}.system_identifier,
                       {schema}.adopt, {schema}.meet from public;

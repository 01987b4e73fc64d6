-- The ends of jobs that somebody awaits are announced. Of those alone: a notification takes a lock of the whole server at
-- its commit. Nothing depends on it, because who waits also looks; so the table need not outlive a crash.
create unlogged table {schema}.awaited (
    job_id bigint primary key,
    until timestamptz not null
);

create index awaited_until on {schema}.awaited (until);

-- Called by whatever ends jobs, in its transaction. Being volatile it sees what was awaited since its statement began.
create function {schema}.announce(ended bigint[]) returns void
    language plpgsql security definer
    set search_path = pg_catalog, pg_temp
    as $$
begin
    if exists (select from {schema}.awaited) then
        -- A notification has room for 7,999 bytes.
        perform pg_notify({schema}.bell_channel(), 'ended ' || string_agg(a.job_id::text, ','))
           from (select w.job_id, row_number() over () / 300 as part
                   from {schema}.awaited w
                  where w.job_id = any (ended)) a
          group by a.part;
    end if;
end $$;

revoke all on function {schema}.announce(bigint[]) from public;

-- As before, and announced.
create or replace function {schema}.complete(job text) returns boolean
    language plpgsql security definer
    set search_path = pg_catalog, pg_temp
    as $$
declare
    ended record;
begin
    select * into strict ended from json_to_record(job::json) as r (id bigint, owner uuid, token bigint, result64 text);
    for round in 1 .. 2 loop
        begin
            with gone as (
                delete from {schema}.jobs j
                 where j.id = ended.id and j.owner = ended.owner and j.token = ended.token and j.claimed_at is not null
                returning j.*
            ),
            history as (
                delete from {schema}.attempts t
                 where t.job_id in (select g.id from gone g)
                returning t.id, {schema}.error_entry(t.attempt, t.kind, t.message, t.traceback, t.at) as entry
            )
            insert into {schema}.archive (
                id, drop_at, scheduled_at, created_at, started_at, token, owner, attempt, max_attempts, priority,
                crashes, max_crashes, rerun_after_crash, state, queue, task, codec, args, result, timeout, retry,
                unique_key, errors, tags, meta)
            select g.id,
                   statement_timestamp() + coalesce(q.keep_completed, interval '1 day'),
                   g.scheduled_at, g.created_at, g.claimed_at, g.token, g.owner, g.attempt, g.max_attempts, g.priority,
                   g.crashes, g.max_crashes, g.rerun_after_crash, 'completed', g.queue, g.task, g.codec,
                   case when octet_length(g.args) <= 2048 then g.args end,
                   decode(ended.result64, 'base64'), g.timeout, g.retry, g.unique_key,
                   (select jsonb_agg(h.entry order by h.id) from history h), g.tags, g.meta
              from gone g
              left join {schema}.queues q on q.name = g.queue;
            if found or exists (
                select from {schema}.archive f
                 where f.id = ended.id and f.owner = ended.owner and f.token = ended.token and f.state = 'completed')
            then
                perform {schema}.announce(array[ended.id]);
                return true;
            end if;
            return case when current_setting('transaction_isolation') like 'read %' then false end;
        exception when check_violation then
            -- The archive has no leaf for its time yet.
            if round = 2 then
                raise;
            end if;
            perform {schema}.make_leaves();
        end;
    end loop;
end $$;

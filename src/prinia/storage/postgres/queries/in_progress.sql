-- What had not ended when this statement began its look is not visible to it; no xid is too old to ask, or too new.
-- A job that is seen was there before. While it is being written, the row that is seen names the writer: the transaction
-- itself, or a savepoint of it, which has a later xid of its own. (A row has the lower half of an xid only.) The session
-- that writes has a lock on that, unless it has released the savepoint; workers write in none.
with pushed as (
    select %(xid)s::bigint as number, %(xid)s::bigint::text::xid8 as xid, pg_current_snapshot() as snapshot
), written as (
    select j.xmax as half, (j.xmax::text::bigint - pushed.number) & 4294967295 as later
      from {schema}.jobs j, pushed
     where j.id = %(id)s and j.xmax <> '0'
), writing as (
    select half
      from (select half, (number + later)::text::xid8 as xid, snapshot from written, pushed where later < 2147483648) w
     where case when w.xid >= pg_snapshot_xmax(snapshot) then true else pg_xact_status(w.xid) = 'in progress' end
), holding as (
    select transactionid, pid from pg_locks where locktype = 'transactionid' and mode = 'ExclusiveLock'
)
select case
           when pg_visible_in_snapshot(pushed.xid, snapshot) then false
           when not exists (select from {schema}.jobs j where j.id = %(id)s) then true
           else exists (
               select from writing
                where not exists (
                    select from holding h
                     where h.transactionid = half
                       and h.pid not in (select pid from holding where transactionid = pushed.xid::xid)))
       end
  from pushed

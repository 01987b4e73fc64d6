-- The leaf of the archive that goes next, how far it has gone, and whether this role may do with it what it likes. A
-- detach that was interrupted comes first: only one may be under way. Past by an hour, so that neither a small step of
-- the clock nor a long statement finds its leaf gone.
select l.leaf, l.stage, l.owned
  from (select c.relname::text as leaf, pg_has_role(c.relowner, 'usage') as owned, d.past,
               case when i.inhrelid is null then 'detached'
                    when (to_jsonb(i) ->> 'inhdetachpending')::boolean then 'pending'
                    else 'attached' end as stage
          from pg_namespace n
          join pg_class c on c.relnamespace = n.oid
         cross join {schema}.leaf_days(c.relname) d
          left join pg_inherits i on i.inhrelid = c.oid
         where n.nspname = {schema_literal} and c.relkind = 'r' and c.relname ~ '^archive_[0-9]+_[0-9]+$') l
 where l.past + interval '1 hour' <= coalesce(%(now)s::timestamptz, statement_timestamp())
 order by l.stage = 'pending' desc, l.past
 limit 1

-- Forget unique keys whose window is over. One that a push is just taking is left to it.
with gone as (
    delete from {schema}.unique_keys
     where ctid = any (array(
           select k.ctid from {schema}.unique_keys k
            where k.expires_at <= statement_timestamp()
            order by k.expires_at
            limit 1000
              for update skip locked))
    returning 1
)
select count(*) from gone

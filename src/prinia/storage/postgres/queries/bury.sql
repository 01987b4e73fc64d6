-- Off the register once nothing of its is left to rescue.
delete from {schema}.workers w
 where w.id = %(instance)s::uuid and w.died_at is not null
   and not exists (select from {schema}.jobs j where j.owner = w.id and j.claimed_at is not null)
returning true

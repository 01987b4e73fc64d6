-- Off the register, and no leader any more. With jobs still claimed it counts as dead, and they are rescued.
with resigned as (
    update {schema}.leader set instance = null where instance = %(id)s::uuid
),
died as (
    update {schema}.workers w
       set died_at = clock_timestamp()
     where w.id = %(id)s::uuid and w.died_at is null
       and exists (select from {schema}.jobs j where j.owner = w.id and j.claimed_at is not null)
)
delete from {schema}.workers w
 where w.id = %(id)s::uuid and w.died_at is null
   and not exists (select from {schema}.jobs j where j.owner = w.id and j.claimed_at is not null)

-- Off the register, and no leader any more. With jobs still claimed the row stays, to be found dead and rescued.
with resigned as (
    update {schema}.leader set instance = null where instance = %(id)s::uuid
)
delete from {schema}.workers w
 where w.id = %(id)s::uuid and w.died_at is null
   and not exists (select from {schema}.jobs j where j.owner = w.id and j.claimed_at is not null)

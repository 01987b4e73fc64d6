-- What claims with these tokens got without their answer being heard. No index serves this on purpose (it would cost
-- every claim); it runs after a lost connection, for the claims that were in flight then.
select j.id, j.owner, j.token, '{}'::bigint[] as started, false as crashed
  from {schema}.jobs j
 where j.claimed_at is not null and j.owner = %(owner)s::uuid and j.token = any (%(tokens)s::bigint[])

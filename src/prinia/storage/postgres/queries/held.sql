-- What this instance still owns of these jobs, and by which claim.
select j.id, j.token
  from {schema}.jobs j
 where j.id = any (%(ids)s::bigint[]) and j.owner = %(owner)s::uuid and j.claimed_at is not null

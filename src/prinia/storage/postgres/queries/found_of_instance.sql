select j.id, j.owner, j.token, w.started, true as crashed
  from {schema}.workers w
  join {schema}.jobs j on j.owner = w.id
 where w.id = %(instance)s::uuid and w.died_at is not null and j.claimed_at is not null

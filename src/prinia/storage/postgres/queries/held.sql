-- Which of these claims this instance still owns.
select j.id
  from {schema}.jobs j
 where j.id = any (%(ids)s::bigint[]) and j.owner = %(owner)s::uuid and j.claimed_at is not null
   and exists (select from unnest(%(ids)s::bigint[], %(tokens)s::bigint[]) as a (id, token)
                where a.id = j.id and a.token = j.token)

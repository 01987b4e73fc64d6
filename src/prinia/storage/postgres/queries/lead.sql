update {schema}.leader
   set instance = %(instance)s::uuid, term = term + 1
 where instance is not distinct from %(leader)s::uuid and term = %(term)s
   and exists (select from {schema}.workers w where w.id = %(instance)s::uuid and w.died_at is null)
returning true

update {schema}.workers
   set died_at = clock_timestamp()
 where id = %(instance)s::uuid and died_at is null and beat = %(counter)s
returning true

-- What was done from outside, latest first.
select a.id, a.at, a.by, a.operation, a.target, a."values", a.changed, a.skipped
  from {schema}.audit a
 where (%(before)s::bigint is null or a.id < %(before)s::bigint)
   and (%(by)s::text is null or a.by = %(by)s::text)
   and (%(operation)s::text is null or a.operation = %(operation)s::text)
 order by a.id desc
 limit %(limit)s::bigint

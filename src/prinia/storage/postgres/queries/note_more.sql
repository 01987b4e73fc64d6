-- Part of operate: each further step counts up in the audit entry of the first.
noted as (
    update {schema}.audit a
       set changed = a.changed + t.changed, skipped = a.skipped + t.skipped
      from tally t
     where a.id = %(note)s::bigint
    returning a.id
)

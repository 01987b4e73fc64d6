-- Part of operate: the first step writes the audit entry.
noted as (
    insert into {schema}.audit (by, operation, target, "values", changed, skipped)
    select %(by)s, %(operation)s, %(target)s::jsonb, %(values)s::jsonb, t.changed, t.skipped from tally t
    returning id
)

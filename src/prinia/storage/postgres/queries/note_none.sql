-- Part of operate: a dry run is not noted.
noted as (
    select null::bigint as id
)

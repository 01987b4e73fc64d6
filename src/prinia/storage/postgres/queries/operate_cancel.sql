-- Part of operate: waiting jobs end as cancelled, running ones are marked.
{lock},
marked as (
    update {schema}.jobs j
       set cancel_requested_at = clock_timestamp(), cancel_requested_by = %(by)s
     where j.id = any (array(select m.id from mine m where m.verdict is null)) and j.claimed_at is not null
    returning j.id
),
{end_waiting},
done as (
    select id from marked union all select id from archived
),
woken as (
    select from announced
)

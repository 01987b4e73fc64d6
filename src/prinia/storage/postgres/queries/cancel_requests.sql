-- The claimed jobs of this instance that somebody asked to cancel.
select j.id, coalesce('cancelled by ' || j.cancel_requested_by, 'cancelled')
  from {schema}.jobs j
 where j.cancel_requested_at is not null and j.owner = %(owner)s::uuid and j.claimed_at is not null

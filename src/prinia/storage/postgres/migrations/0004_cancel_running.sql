-- Running jobs that somebody asked to cancel: their workers look for them about twice a second, while they run any.
-- Hardly any row is in here, and no claim writes the column: claims stay HOT updates.
create index jobs_cancelling on {schema}.jobs (cancel_requested_at) where cancel_requested_at is not null;

-- Ids for the next jobs of a bulk push, and the time at which those are stored that are due at once.
select array_agg(nextval({job_ids_literal})), clock_timestamp()
  from generate_series(1, %(number)s::integer)

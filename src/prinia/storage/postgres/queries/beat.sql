-- Count one up, report what is held, see how all the others stand.
with mine as (
    update {schema}.workers w
       set beat = w.beat + 1, previous_beat_at = w.beat_at, beat_at = statement_timestamp(),
           tokens = %(tokens)s::bigint[], started = %(started)s::bigint[],
           listener = %(listener)s, lag = %(lag)s::double precision, blocked = %(blocked)s::double precision
     where w.id = %(instance)s::uuid and w.died_at is null
    returning w.id, w.beat
)
select exists (select from mine),
       (select array_agg(w.id)
          from {schema}.workers w left join mine m on m.id = w.id where w.died_at is null),
       (select array_agg(coalesce(m.beat, w.beat))
          from {schema}.workers w left join mine m on m.id = w.id where w.died_at is null),
       (select array_agg(w.id) from {schema}.workers w where w.died_at is not null),
       l.instance, l.term
  from {schema}.leader l

-- Jobs whose owner is not registered (its row was deleted), or whose live owner has beaten twice since without
-- reporting their token: the answer of that claim was lost, which is no crash.
select j.id, j.owner, j.token, coalesce(w.started, array[j.id]) as started, w.id is null as crashed
  from {schema}.jobs j
  left join {schema}.workers w on w.id = j.owner
 where j.claimed_at is not null
   and (w.id is null
        or w.died_at is null and j.claimed_at < w.previous_beat_at and j.token <> all (w.tokens))

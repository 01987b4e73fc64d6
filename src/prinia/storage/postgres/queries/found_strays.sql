-- Jobs whose owner is not registered (its row was deleted), or whose live owner has beaten twice since without
-- reporting their token: the answer of that claim was lost. Nobody knows that anything ran, so no crash is counted.
select j.id, j.owner, j.token, '{}'::bigint[] as started, false as crashed
  from {schema}.jobs j
  left join {schema}.workers w on w.id = j.owner
 where j.claimed_at is not null
   and (w.id is null
        or w.died_at is null and j.claimed_at < w.previous_beat_at and j.token <> all (w.tokens))

-- After a flush that recorded less than it was given: which of its acks are lost, and which rows are merely busy.
-- A row that an earlier try of the same ack recorded still carries owner and token, live or in the archive.
select a.id,
       case when j.mine and j.claimed then 'busy'
            when j.mine then 'recorded'
            -- No "exists": that could be planned as one scan of the whole archive.
            when (select true from {schema}.archive f
                   where f.id = a.id and f.owner = %(owner)s::uuid and f.token = a.token limit 1) then 'recorded'
            else 'lost' end
  from unnest(%(ids)s::bigint[], %(tokens)s::bigint[]) as a (id, token)
  left join lateral (
       select r.owner = %(owner)s::uuid and r.token = a.token as mine, r.claimed_at is not null as claimed
         from {schema}.jobs r
        where r.id = a.id
        limit 1
  ) j on true

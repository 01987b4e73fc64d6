-- After a flush that recorded less than it was given: which of its acks are lost, and which rows are merely busy.
-- A row that an earlier try of the same ack recorded, or its handler in a transaction of its own, still carries owner and
-- token, live or in the archive. Of the archive the answer is the state in which the job ended.
select a.id,
       case when j.mine and j.claimed then 'busy'
            when j.mine then 'recorded'
            -- No join: that could be planned as one scan of the whole archive.
            else coalesce((select f.state from {schema}.archive f
                            where f.id = a.id and f.owner = %(owner)s::uuid and f.token = a.token limit 1), 'lost') end
  from unnest(%(ids)s::bigint[], %(tokens)s::bigint[]) as a (id, token)
  left join lateral (
       select r.owner = %(owner)s::uuid and r.token = a.token as mine, r.claimed_at is not null as claimed
         from {schema}.jobs r
        where r.id = a.id
        limit 1
  ) j on true

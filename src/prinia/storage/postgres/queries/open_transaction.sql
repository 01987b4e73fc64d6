-- What had not ended when this statement began its look is not visible to it; no xid is too old to ask, or too new.
select not pg_visible_in_snapshot(%(xid)s::bigint::text::xid8, pg_current_snapshot())

-- Jobs of a bulk push that cannot be copied in.
select id, created, xid from {schema}.enqueue(%(jobs)s, %(bell)s)

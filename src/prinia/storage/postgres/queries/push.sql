-- Through the one way in.
select id, created, xid from {schema}.enqueue({text})

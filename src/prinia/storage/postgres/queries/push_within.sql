-- Through the one way in, on a connection of the caller's.
select id, created, xid from {schema}.enqueue({text})

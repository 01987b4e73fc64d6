-- Through the one way in, on Prinia's own connection.
select id, created, xid from {schema}.enqueue(%(jobs)s, %(bell)s)

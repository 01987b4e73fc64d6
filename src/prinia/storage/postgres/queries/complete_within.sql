-- In the transaction of a handler's.
select {schema}.complete({text})

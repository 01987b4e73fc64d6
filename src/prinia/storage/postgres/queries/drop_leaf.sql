select {schema}.drop_leaf(%(leaf)s, coalesce(%(now)s::timestamptz, statement_timestamp()))

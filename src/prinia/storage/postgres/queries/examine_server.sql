select pg_is_in_recovery(), current_setting('default_transaction_read_only') = 'on',
       extract(epoch from clock_timestamp())::float8

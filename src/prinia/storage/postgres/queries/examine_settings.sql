-- As a session of this role begins with them.
select name, reset_val
  from pg_settings
 where name in ('autovacuum', 'track_counts', 'fsync', 'full_page_writes', 'synchronous_commit', 'statement_timeout',
                'transaction_timeout', 'idle_session_timeout', 'idle_in_transaction_session_timeout', 'lock_timeout',
                'default_transaction_isolation')

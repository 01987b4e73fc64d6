-- A bulk push begins: its transaction gets its id before the clock is read (see marks.py), and does not end because the
-- caller's iterable is slow. May this role copy rows in itself, or only call enqueue?
select pg_current_xact_id()::text::bigint,
       set_config('statement_timeout', '0', true) is not null
       and has_table_privilege(quote_ident({schema_literal}) || '.jobs', 'insert')
       and has_sequence_privilege(quote_ident({schema_literal}) || '.job_ids', 'usage')
       and has_function_privilege(quote_ident({schema_literal}) || '.ring(text[])', 'execute')

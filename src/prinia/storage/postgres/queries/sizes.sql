-- How many pages the live and the finished jobs take.
select pg_relation_size(to_regclass(format('%%I.jobs', {schema_literal}))) / current_setting('block_size')::bigint,
       (select coalesce(sum(pg_relation_size(relid)), 0)::bigint / current_setting('block_size')::bigint
          from pg_partition_tree(to_regclass(format('%%I.archive', {schema_literal}))))

-- What this instance was told, and what is paused.
select (select w.command from {schema}.workers w where w.id = %(owner)s::uuid),
       array(select q.name from {schema}.queues q where q.paused_at is not null and q.name = any (%(queues)s::text[])),
       array(select p.name from {schema}.pauses p where p.kind = 'task'),
       exists (select from {schema}.pauses p where p.kind = 'everything')

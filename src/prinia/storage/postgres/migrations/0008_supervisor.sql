-- Which run of a supervised worker an instance is, and how it is: what its last heartbeat said. Workers of an older
-- Prinia say neither. `listener` is listening, polling (it cannot listen) or off; `lag` is how many seconds the beat
-- before took to the database and back, `blocked` for how many its event loop had not answered.
alter table {schema}.workers
    add column run integer not null default 0,
    add column listener text check (listener in ('listening', 'polling', 'off')),
    add column lag double precision,
    add column blocked double precision;

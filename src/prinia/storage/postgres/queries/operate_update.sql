-- Part of operate: jobs that wait get other values. What that makes claimable lies above the marks of all workers,
-- because the clock is read after the rows were locked, which gave this transaction its id.
{lock},
done as (
    update {schema}.jobs j
       set {assignments}
     where j.id = any (array(select m.id from mine m where m.verdict is null))
    returning j.id, j.queue
),
woken as (
    select {schema}.ring(array_agg(distinct queue)) from done
)

-- In the order in which bulk.py writes them. What is left out is as in read_jobs: nothing, or 0.
copy {schema}.jobs (id, args, scheduled_at, created_at, expires_at, max_attempts, priority, max_crashes,
                    rerun_after_crash, timeout, queue, task, codec, retry, tags, meta)
from stdin (format binary)

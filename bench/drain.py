"""How many no-op jobs a second `prinia worker` drains, at its defaults.

Real processes of the real command, heartbeat and leader on, claims and acks durable, finished jobs kept. The clock runs
from the first job's start to the last job's end as the database recorded them; starting Python is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psycopg

from prinia import embedded
from prinia.storage.postgres.migrate import migrate

FILL = """
insert into prinia.jobs (id, task, args)
select nextval('prinia.job_ids'), 'noop',
       convert_to(format('{"user_id":%%s,"email":"user%%s@example.com","body":"%%s"}', g, g, repeat('x', 30)), 'UTF8')
  from generate_series(1, %s) g
"""
RESULT = """
select count(*), count(distinct id), count(*) filter (where state = 'completed' and attempt = 1),
       extract(epoch from max(finished_at) - min(started_at))::float8
  from prinia.archive
"""


def drain(dsn: str, jobs: int, processes: int, analyze: bool) -> dict[str, Any]:
    """One run: fill, work, count."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("truncate prinia.jobs, prinia.archive")
        connection.execute(FILL, (jobs,))
        if analyze:
            connection.execute("vacuum analyze prinia.jobs")
        connection.execute("checkpoint")
        command = [sys.executable, "-m", "prinia", "worker", "bench.jobs:app"]
        environment = os.environ | {"PRINIA_DATABASE_URL": dsn}
        before = os.times()
        workers = [subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) for _ in range(processes)]
        while connection.execute("select count(*) from prinia.archive").fetchone() != (jobs,):
            if any(worker.poll() is not None for worker in workers):
                raise SystemExit("a worker ended early: run the command above by hand to see why")
            time.sleep(0.05)
        for worker in workers:
            worker.send_signal(signal.SIGTERM)
        for worker in workers:
            worker.wait(30)
        after = os.times()
        row = connection.execute(RESULT).fetchone()
    if row is None or row[:3] != (jobs, jobs, jobs):
        raise SystemExit(f"not every job ran exactly once: {row}")
    worker_cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return {
        "jobs": jobs,
        "processes": processes,
        "analyzed": analyze,
        "jobs_per_second": round(jobs / row[3]),
        "worker_cpu_us_per_job": round(worker_cpu / jobs * 1e6, 1),
    }


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--analyze", action="store_true", help="take statistics after the fill")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="prinia-bench-"))
    folder.chmod(0o755)
    server = embedded.attach(folder / "data", options={"shared_buffers": "1GB", "max_wal_size": "4GB"})
    try:
        migrate(server.dsn)
        for _ in range(arguments.runs):
            result = drain(server.dsn, arguments.jobs, arguments.processes, arguments.analyze)
            print(json.dumps(result), flush=True)
    finally:
        server.detach(wait=30)
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()

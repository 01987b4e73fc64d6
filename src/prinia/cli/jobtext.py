"""A job in words and as JSON. Its arguments and its result are its owner's data: a list of jobs has neither."""

from __future__ import annotations

from typing import Any

import msgspec

from prinia.cli.times import shown
from prinia.job import AttemptError, JobRecord

#: Arguments that are longer go over several lines.
_ONE_LINE = 100
_INDENT = 2


def listed_json(job: JobRecord) -> dict[str, Any]:
    """As a list has it: without arguments, result and tracebacks."""
    errors = [_error_json(error, traceback=False) for error in job.errors]
    return {**_plain(job), "errors": errors}


def job_json(job: JobRecord) -> dict[str, Any]:
    """All of it. Arguments and result are null where their codec is not JSON; ``args_bytes`` says how much there is."""
    errors = [_error_json(error, traceback=True) for error in job.errors]
    return {
        **_plain(job),
        "errors": errors,
        "args": _raw(job.args, job.codec),
        "args_bytes": None if job.args is None else len(job.args),
        "result": _raw(job.result, job.codec),
        "result_bytes": None if job.result is None else len(job.result),
    }


def job_facts(job: JobRecord, owner: str | None) -> list[tuple[str, str]]:
    """All of it, line by line; what it does not have is left out. ``owner`` is its worker in words."""
    times = (
        ("enqueued", job.created_at), ("due", job.scheduled_at), ("started", job.started_at), ("ended", job.finished_at)
    )  # fmt: skip
    facts = [
        ("job", str(job.id)),
        ("state", job.state if job.reason is None else f"{job.state} ({job.reason})"),
        ("task", job.task),
        ("queue", job.queue),
        ("priority", str(job.priority)),
        ("attempt", f"{job.attempt} of {job.max_attempts}"),
        ("crashes", str(job.crashes) if job.crashes else ""),
        *((name, shown(moment) if moment is not None else "") for name, moment in times),
        ("worker", owner or ""),
        ("tags", ", ".join(job.tags)),
        ("meta", _laid_out(msgspec.json.encode(job.meta)) if job.meta else ""),
        ("arguments", data_text(job.args, job.codec, none="not kept")),
        ("result", data_text(job.result, job.codec, none="null") if job.state == "completed" else ""),
        *(("error", _error_text(error)) for error in job.errors),
    ]
    return [(name, text) for name, text in facts if text]


def data_text(data: bytes | None, codec: str, *, none: str) -> str:
    """Arguments or a result: JSON as it is, of another codec how much there is."""
    if data is None:
        return none
    if _raw(data, codec) is None:
        return f"{len(data):,} bytes, {codec}"
    return _laid_out(data)


def _plain(job: JobRecord) -> dict[str, Any]:
    """Everything else. Not `asdict`: that copies what is left out."""
    left_out = ("args", "result", "errors")
    return {name: getattr(job, name) for name in JobRecord.__dataclass_fields__ if name not in left_out}


def _error_json(error: AttemptError, *, traceback: bool) -> dict[str, Any]:
    simple = {"attempt": error.attempt, "kind": error.kind, "message": error.message, "at": error.at}
    return {**simple, "traceback": error.traceback} if traceback else simple


def _error_text(error: AttemptError) -> str:
    at = "" if error.at is None else f", {shown(error.at)}"
    told = f"{error.kind}: {error.message}"
    where = (error.traceback or "").rstrip().removesuffix(told).rstrip()
    return "\n".join(part for part in (f"attempt {error.attempt}{at}", told, where) if part)


def _raw(data: bytes | None, codec: str) -> msgspec.Raw | None:
    """JSON to the letter, None for what is not."""
    if data is None or codec != "json":
        return None
    try:
        msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # a row that was written by hand
        return None
    return msgspec.Raw(data)


def _laid_out(data: bytes) -> str:
    indent = 0 if len(data) <= _ONE_LINE else _INDENT
    return msgspec.json.format(data, indent=indent).decode()

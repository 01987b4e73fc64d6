"""Prinia: a background job queue on PostgreSQL. Everything an application needs is in this namespace.

Example::

    from prinia import INJECTED, Context, Prinia

    app = Prinia()

    @app.task(queue="email")
    async def send_reminder(order: int, ctx: Context = INJECTED) -> str:
        return f"reminded of order {order} on attempt {ctx.attempt}"
"""

from __future__ import annotations

import typing

from prinia.app import Prinia
from prinia.client import AppAWithin, AppWithin
from prinia.context import INJECTED, Context
from prinia.errors import (
    ColourError,
    ConfigurationError,
    ConnectionKindError,
    DecodeError,
    DuplicateJob,
    EmbeddedPostgresError,
    EnqueueError,
    InvalidArguments,
    InvalidOptions,
    JobCancelled,
    JobFailed,
    JobNotFound,
    MigrationError,
    MigrationsPending,
    NotStorable,
    PayloadTooLarge,
    PriniaError,
    ResultError,
    ResultTimeout,
    StorageError,
    StorageUnavailable,
    TaskDefinitionError,
    UniqueBusy,
)
from prinia.handle import Job
from prinia.job import AttemptError, JobRecord, JobState
from prinia.newjob import AWithin, NewJob, Within
from prinia.options import JobOptions, TaskOptions
from prinia.outcome import Cancel, Fail, Retry, Snooze, Steering
from prinia.retry import Delays, Exponential, Fixed, RetryPolicy
from prinia.task import AsyncTask, Decorator, SyncTask, Task

#: The version that is installed, "0+unknown" for a copy that is not.
__version__: str

__all__ = [
    "INJECTED",
    "AWithin",
    "AppAWithin",
    "AppWithin",
    "AsyncTask",
    "AttemptError",
    "Cancel",
    "ColourError",
    "ConfigurationError",
    "ConnectionKindError",
    "Context",
    "DecodeError",
    "Decorator",
    "Delays",
    "DuplicateJob",
    "EmbeddedPostgresError",
    "EnqueueError",
    "Exponential",
    "Fail",
    "Fixed",
    "InvalidArguments",
    "InvalidOptions",
    "Job",
    "JobCancelled",
    "JobFailed",
    "JobNotFound",
    "JobOptions",
    "JobRecord",
    "JobState",
    "MigrationError",
    "MigrationsPending",
    "NewJob",
    "NotStorable",
    "PayloadTooLarge",
    "Prinia",
    "PriniaError",
    "ResultError",
    "ResultTimeout",
    "Retry",
    "RetryPolicy",
    "Snooze",
    "Steering",
    "StorageError",
    "StorageUnavailable",
    "SyncTask",
    "Task",
    "TaskDefinitionError",
    "TaskOptions",
    "UniqueBusy",
    "Within",
]

if not typing.TYPE_CHECKING:  # for a type checker it would make any misspelt name an attribute

    def __getattr__(name: str) -> str:
        """``__version__``, looked up when it is asked for: that takes longer than importing Prinia."""
        if name != "__version__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import metadata

        try:
            return metadata.version("prinia")
        except metadata.PackageNotFoundError:
            return "0+unknown"

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
from prinia.changes import AuditEntry, Operated, Pause
from prinia.client import AppAWithin, AppWithin
from prinia.context import INJECTED, Context, WorkerContext
from prinia.errors import (
    ColourError,
    CompletedTwice,
    CompletionRolledBack,
    ConfigurationError,
    ConnectionKindError,
    ConnectionUnusable,
    DatabaseCopied,
    DecodeError,
    DuplicateJob,
    EmbeddedPostgresError,
    EnqueueError,
    HealthError,
    HookError,
    InvalidArguments,
    InvalidOptions,
    InvalidQuery,
    JobCancelled,
    JobFailed,
    JobLost,
    JobNotCommitted,
    JobNotFound,
    MigrationError,
    MigrationsPending,
    NotStorable,
    PayloadTooLarge,
    PriniaError,
    ProcessDied,
    ResourceError,
    ResultError,
    ResultTimeout,
    StorageError,
    StorageUnavailable,
    TaskDefinitionError,
    UniqueBusy,
    WorkerNotFound,
)
from prinia.events import Event, EventKind, Listener
from prinia.explanation import Explanation, Reason, ReasonCode
from prinia.handle import Finished, Job, Waiting
from prinia.job import AttemptError, JobRecord, JobState
from prinia.middleware import CallNext, Middleware
from prinia.newjob import AWithin, NewJob, Within
from prinia.options import DeclareOptions, JobOptions, StoredOptions, TaskOptions
from prinia.outcome import Cancel, Fail, Retry, Snooze, Steering
from prinia.overview import Count, QueueRecord, WorkerRecord
from prinia.payload.codec import Codec, JsonCodec, MessagePackCodec
from prinia.polling import Poll, PollBackoff
from prinia.query import JobQuery, Page
from prinia.reactions import OnFailure, OnSuccess
from prinia.registry import Tasks
from prinia.resources import Scope
from prinia.retention import Retention
from prinia.retry import Delays, Exponential, Fixed, RetryFunction, RetryMapping, RetryPolicy
from prinia.task import AsyncTask, DeclareDecorator, DeclaredTask, Decorator, SyncTask, Task

#: The version that is installed, "0+unknown" for a copy that is not.
__version__: str

__all__ = [
    "INJECTED",
    "AWithin",
    "AppAWithin",
    "AppWithin",
    "AsyncTask",
    "AttemptError",
    "AuditEntry",
    "CallNext",
    "Cancel",
    "Codec",
    "ColourError",
    "CompletedTwice",
    "CompletionRolledBack",
    "ConfigurationError",
    "ConnectionKindError",
    "ConnectionUnusable",
    "Context",
    "Count",
    "DatabaseCopied",
    "DeclareDecorator",
    "DeclareOptions",
    "DeclaredTask",
    "DecodeError",
    "Decorator",
    "Delays",
    "DuplicateJob",
    "EmbeddedPostgresError",
    "EnqueueError",
    "Event",
    "EventKind",
    "Explanation",
    "Exponential",
    "Fail",
    "Finished",
    "Fixed",
    "HealthError",
    "HookError",
    "InvalidArguments",
    "InvalidOptions",
    "InvalidQuery",
    "Job",
    "JobCancelled",
    "JobFailed",
    "JobLost",
    "JobNotCommitted",
    "JobNotFound",
    "JobOptions",
    "JobQuery",
    "JobRecord",
    "JobState",
    "JsonCodec",
    "Listener",
    "MessagePackCodec",
    "Middleware",
    "MigrationError",
    "MigrationsPending",
    "NewJob",
    "NotStorable",
    "OnFailure",
    "OnSuccess",
    "Operated",
    "Page",
    "Pause",
    "PayloadTooLarge",
    "Poll",
    "PollBackoff",
    "Prinia",
    "PriniaError",
    "ProcessDied",
    "QueueRecord",
    "Reason",
    "ReasonCode",
    "ResourceError",
    "ResultError",
    "ResultTimeout",
    "Retention",
    "Retry",
    "RetryFunction",
    "RetryMapping",
    "RetryPolicy",
    "Scope",
    "Snooze",
    "Steering",
    "StorageError",
    "StorageUnavailable",
    "StoredOptions",
    "SyncTask",
    "Task",
    "TaskDefinitionError",
    "TaskOptions",
    "Tasks",
    "UniqueBusy",
    "Waiting",
    "Within",
    "WorkerContext",
    "WorkerNotFound",
    "WorkerRecord",
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

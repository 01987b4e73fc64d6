"""Every exception that Prinia raises, in one tree.

::

    PriniaError
    ├── ConfigurationError            a setting is missing or makes no sense
    │   └── TaskDefinitionError       a function cannot be a task as it is written (also a TypeError)
    ├── EnqueueError                  nothing was stored
    │   ├── InvalidArguments          arguments do not fit the task (also a TypeError)
    │   ├── InvalidOptions            an option is unknown or out of range (also a ValueError)
    │   ├── PayloadTooLarge           encoded arguments are above the limit (also a ValueError)
    │   ├── DuplicateJob              a job holds the unique key, and the options say raise
    │   └── UniqueBusy                another transaction holds the unique key and has not ended
    ├── ConnectionKindError           that connection cannot carry a job (also a TypeError)
    ├── ConnectionUnusable            that connection is closed, or its transaction has failed
    ├── ColourError                   a blocking call inside a running event loop (also a RuntimeError)
    ├── DecodeError                   stored bytes do not fit the types they should have
    ├── NotStorable                   a result cannot be encoded
    ├── JobLost                       the job was taken from the worker that still runs it
    ├── CompletedTwice                ctx.complete() was called again in one attempt
    ├── CompletionRolledBack          the transaction of ctx.complete() was rolled back
    ├── ResourceError                 a resource could not be opened or closed
    ├── HookError                     a start hook failed, so the worker did not start
    ├── HealthError                   the address for health is in use or cannot be served
    ├── ProcessDied                   the process that ran a job's function ended under it
    ├── InvalidQuery                  a filter, a cursor or a limit makes no sense (also a ValueError)
    ├── WorkerNotFound                no live worker has that instance id (also a LookupError)
    ├── ResultError                   a job's result cannot be had
    │   ├── JobNotFound               no live and no kept finished job has that id (also a LookupError)
    │   │   └── JobNotCommitted       the transaction that enqueued it is still open
    │   ├── JobFailed                 the job ended as failed
    │   ├── JobCancelled              the job ended as cancelled
    │   └── ResultTimeout             the job did not end in time (also a TimeoutError)
    ├── StorageError                  the database refused or could not do something
    │   ├── StorageUnavailable        no connection, or it was lost: try again
    │   ├── DatabaseCopied            the jobs have come from another database, and may have run there
    │   └── MigrationError            a migration failed or the history does not fit
    │       └── MigrationsPending     the schema is older than this version of Prinia
    └── EmbeddedPostgresError         the embedded server cannot be found, started or used
"""

from __future__ import annotations


class PriniaError(Exception):
    """Base of all errors that Prinia raises.

    Example::

        try:
            send_reminder.enqueue(9)
        except PriniaError as error:
            log.error("not enqueued: %s", error)
    """


class ConfigurationError(PriniaError):
    """A setting is missing or makes no sense, for example no database URL."""


class TaskDefinitionError(ConfigurationError, TypeError):
    """A function cannot be a task as it is written; the text says what to change."""


class EnqueueError(PriniaError):
    """A job could not be enqueued; nothing was stored."""


class InvalidArguments(EnqueueError, TypeError):
    """The arguments do not fit the task's signature or types, or cannot be stored."""


class InvalidOptions(EnqueueError, ValueError):
    """An option of a job or task is unknown, of a wrong type or out of range."""


class PayloadTooLarge(EnqueueError, ValueError):
    """The encoded arguments are larger than the limit (1 MiB by default)."""


class DuplicateJob(EnqueueError):
    """Another job already holds this unique key, and ``on_conflict="raise"`` was asked for.

    ``job_id`` is the id of the holder.
    """

    def __init__(self, message: str, *, job_id: int) -> None:
        super().__init__(message)
        self.job_id = job_id


class UniqueBusy(EnqueueError):
    """Another transaction enqueued the same unique key and has not ended within ``lock_timeout``."""


class ConnectionKindError(PriniaError, TypeError):
    """The object given as a connection is of no kind that Prinia can enqueue on."""


class ConnectionUnusable(PriniaError):
    """The connection given is closed, its transaction has failed and has to be rolled back first, or, when strict, none
    is open; for ``ctx.complete()`` also: its transaction began too early.
    """


class ColourError(PriniaError, RuntimeError):
    """A blocking call was made inside a running event loop; the awaitable form starts with ``a``."""


class DecodeError(PriniaError):
    """Stored bytes do not decode to the types that the code expects."""


class NotStorable(PriniaError):
    """A handler's result cannot be encoded; the text has the path of the culprit."""


class JobLost(PriniaError):
    """The job is not this worker's any more: it was thought dead, and others run it again. Nothing was recorded."""


class CompletedTwice(PriniaError):
    """``ctx.complete()`` was called again in one attempt, after a call that went well."""


class CompletionRolledBack(PriniaError):
    """What an attempt failed of when its handler returned, but the transaction of its ``ctx.complete()`` had been
    rolled back. Not raised: it is seen in a job's errors, and a ``retry=`` mapping may name it.
    """


class ResourceError(PriniaError):
    """A resource that a task wants could not be opened or closed; its own error is the cause."""


class HookError(PriniaError):
    """A start hook raised, so the worker did not start; its own error is the cause."""


class HealthError(PriniaError):
    """The address on which health is to be served is in use, or cannot be had."""


class ProcessDied(PriniaError):
    """What an attempt failed of when the process that ran its function ended under it: killed by the system for its
    memory, crashed in foreign code, or ended by the function itself. Not raised: it is seen in a job's errors, and a
    ``retry=`` mapping may name it.
    """


class InvalidQuery(PriniaError, ValueError):
    """A filter, a cursor or a limit of a query makes no sense; nothing was read or changed."""


class WorkerNotFound(PriniaError, LookupError):
    """No live worker instance has this id: it has stopped, or was declared dead."""


class ResultError(PriniaError):
    """The result of a job cannot be had. ``job_id`` says of which."""

    def __init__(self, message: str, *, job_id: int) -> None:
        super().__init__(message)
        self.job_id = job_id


class JobNotFound(ResultError, LookupError):
    """No live job and no kept finished job has this id."""


class JobNotCommitted(JobNotFound):
    """The transaction that enqueued the job is still open, so nobody can run it: commit first, then wait."""


class JobFailed(ResultError):
    """The job ended as failed; the text has its last error."""


class JobCancelled(ResultError):
    """The job ended as cancelled; the text has the reason."""


class ResultTimeout(ResultError, TimeoutError):
    """The job did not end within the timeout. It goes on all the same."""


class StorageError(PriniaError):
    """The database refused or could not do what was asked; the driver's error is the cause."""


class StorageUnavailable(StorageError):
    """There is no connection to the database, or it was lost in mid-call. Trying again may help."""


class DatabaseCopied(StorageError):
    """Prinia's tables have come to this database from another one, with live jobs: a worker does not run them twice.

    The text says how to go on. Enqueueing goes on in any case.
    """


class MigrationError(StorageError):
    """A migration failed, or the recorded history does not fit this version of Prinia."""


class MigrationsPending(MigrationError):
    """Prinia's tables are missing or older than this version; the text has the command to run."""


class EmbeddedPostgresError(PriniaError):
    """The embedded PostgreSQL server cannot be found, started or used."""

"""A listener for tests."""

from __future__ import annotations

from prinia import (
    Event,
    EventKind,
)

OUTCOMES = (
    EventKind.COMPLETED,
    EventKind.FAILED,
    EventKind.RETRYING,
    EventKind.SNOOZED,
    EventKind.CANCELLED,
)


class Heard:
    """A listener that remembers."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    def kinds(self, job: int | None = None) -> list[EventKind]:
        """What it was told, of one job or of all."""
        return [event.kind for event in self.events if job is None or (event.job and event.job.job_id == job)]

    def only(self, kind: EventKind) -> Event:
        """The one event of this kind."""
        [event] = [event for event in self.events if event.kind is kind]
        return event

"""The closing figures of the demo, as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prinia.demo import Figures


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the report: a title, and rows of as many cells each."""

    title: str
    rows: Sequence[tuple[str, ...]]


def sections(figures: Figures) -> list[Section]:
    """What to show, in order."""
    return [
        Section("Jobs", _jobs(figures)),
        Section("Standard library", [
            ("files", f"{figures.files:,}"),
            ("lines", f"{figures.lines:,}"),
            ("classes", f"{figures.classes:,}"),
            ("functions", f"{figures.functions:,}"),
        ]),
        Section("Longest functions", [(f"{one.lines} lines", one.name, one.file) for one in figures.longest]),
        Section("Failed, as they should", [
            (one.file, f"{one.attempts} attempts", one.error) for one in figures.failed
        ]),
        Section("Out of line", [
            ("delayed job", f"due after {figures.delay:g} s, started {figures.delayed_started_after:.2f} s after its "
             "enqueue"),
            ("urgent job", f"enqueued last, started {figures.urgent_started_after:.2f} s later, before "
             f"{figures.urgent_overtook} jobs that were there first"),
        ]),
    ]  # fmt: skip


def _jobs(figures: Figures) -> list[tuple[str, ...]]:
    return [
        *((state, f"{number:,}") for state, number in sorted(figures.states.items())),
        ("rate", f"{figures.jobs_per_second:,.0f} jobs/s, by {figures.workers} worker processes"),
        ("run time", f"{_median(figures.run)}"),
        ("wait in line", f"{_median(figures.wait)}"),
    ]


def _median(times: tuple[float, float]) -> str:
    median, most = times
    return f"{_seconds(median)} median, {_seconds(most)} for the 95th of 100"


def _seconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"

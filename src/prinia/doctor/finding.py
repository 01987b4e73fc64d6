"""What a check says."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad it is. A problem is what stops jobs or loses them, a warning what will, or slows them down."""

    PROBLEM = "problem"
    WARNING = "warning"
    NOTE = "note"
    OK = "ok"


@dataclass(frozen=True, slots=True)
class Finding:
    """What the check of this name found, and what to do: None where nothing is to be done."""

    check: str
    level: Level
    found: str
    advice: str | None = None


@dataclass(frozen=True, slots=True)
class Remark:
    """A `Finding` to which the name of its check is still to be given."""

    level: Level
    found: str
    advice: str | None = None


def ok(found: str) -> Remark:
    """All is well."""
    return Remark(Level.OK, found)


def note(found: str, advice: str | None = None) -> Remark:
    """Good to know."""
    return Remark(Level.NOTE, found, advice)


def warning(found: str, advice: str) -> Remark:
    """It will do harm, or does some."""
    return Remark(Level.WARNING, found, advice)


def problem(found: str, advice: str) -> Remark:
    """Jobs do not run, or are lost."""
    return Remark(Level.PROBLEM, found, advice)

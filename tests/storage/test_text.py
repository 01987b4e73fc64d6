"""Any text becomes one that a storage can keep."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from prinia.job import MAX_ERROR_BYTES
from prinia.storage.text import storable


def test_plain_text_stays() -> None:
    assert storable("naïve 😀 %s \\x00") == "naïve 😀 %s \\x00"


def test_what_has_no_place_is_written_as_an_escape() -> None:
    assert storable("a\0b\ud800c") == "a\\x00b\\ud800c"


def test_long_text_is_cut_and_says_so() -> None:
    assert storable("é" * 100, limit=20) == "é" * 8 + "…"
    assert storable("x" * 20, limit=20) == "x" * 20
    assert storable("x" * 21, limit=20) == "x" * 17 + "…"


@given(st.text(st.characters(exclude_categories=()), max_size=200), st.integers(3, 300))
def test_any_text_fits(text: str, limit: int) -> None:
    kept = storable(text, limit=limit)
    assert "\0" not in kept
    assert len(kept.encode()) <= limit


def test_the_limit_is_that_of_errors() -> None:
    assert len(storable("x" * (MAX_ERROR_BYTES + 1)).encode()) == MAX_ERROR_BYTES

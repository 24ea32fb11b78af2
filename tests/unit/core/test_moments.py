"""Future times, as people write them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from fractions import Fraction

import pytest

from shadowprice.core.errors import InputError
from shadowprice.core.moments import SECOND, parse_moment_ahead

NOON = int(datetime(2026, 10, 24, 12, 0, tzinfo=UTC).timestamp())
"""A Saturday; in Berlin it is 14:00, and clocks are set back in the night."""


@pytest.fixture(params=["Europe/Berlin"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


def seconds(text: str) -> float:
    return parse_moment_ahead(text, NOON * SECOND, Fraction(10), "--until") / SECOND - NOON


@pytest.mark.usefixtures("zone")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("6h", 6 * 3600),
        ("0.5 slots", 5),
        ("20 slots", 200),
        ("18:00", 4 * 3600),
        ("18:00:30", 4 * 3600 + 30),
        ("14:00", 25 * 3600),
        ("9:00", 20 * 3600),
        ("12:30Z", 1800),
        ("12:00Z", 24 * 3600),
        ("13:00+02:00", 23 * 3600),
        ("2026-10-25", 10 * 3600),
        ("2026-10-25T09:00", 20 * 3600),
        ("2026-10-25T09:00:00Z", 21 * 3600),
    ],
)
def test_a_moment_is_read(text: str, expected: float) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("soon", "is not a time"),
        ("25:00", "is not a time"),
        ("", "is not a time"),
        ("12", "is not a time"),
        ("9" * 100, "is not a time"),
        ("2026-10-24T11:59:59Z", "has passed"),
        ("0s", "has passed"),
    ],
)
def test_invalid_and_past_moments_are_refused(text: str, what: str) -> None:
    with pytest.raises(InputError, match=what) as caught:
        seconds(text)
    assert "--until" in str(caught.value)

"""Clock times instead of slots in the texts of policies."""

import re
from fractions import Fraction
from pathlib import Path

import pytest

import shadowprice
from shadowprice.service.clock import SECOND, SlotCalendar, format_rfc3339
from shadowprice.service.state.ending import with_clock_times

CALENDAR = SlotCalendar.starting(
    1_767_225_600 * SECOND, Fraction(600)
)  # 2026-01-01, slots of 10 min


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("its utility by slot 0 is 3", "its utility by 2026-01-01T00:10:00Z is 3"),
        ("earns 3 if completed in slot 5", "earns 3 if completed by 2026-01-01T01:00:00Z"),
        ("planned for slot 2 at best", "planned for 2026-01-01T00:30:00Z at best"),
        (
            "it could complete in slot 2 at the earliest",
            "it could complete at 2026-01-01T00:30:00Z at the earliest",
        ),
        ("its utility is 0 from slot 6 on", "its utility is 0 from 2026-01-01T01:00:00Z on"),
        ("a slot on average until slot 6", "a slot on average until 2026-01-01T01:00:00Z"),
        ("timespan ending at slot 6", "timespan ending at 2026-01-01T01:00:00Z"),
        ("joins batch 2, decided in slot 6", "joins batch 2, decided at 2026-01-01T01:00:00Z"),
        ("slots 1 to 2", "2026-01-01T00:10:00Z to 2026-01-01T00:30:00Z"),
        (
            "promise moved from slot 1 to slot 2: late",
            "promise moved from 2026-01-01T00:20:00Z to 2026-01-01T00:30:00Z: late",
        ),
        ("promised by the end of slot 1", "promised by 2026-01-01T00:20:00Z"),
        (
            "limit of a promise, 7.5 slots (evidence 0.25 x 30 slots observed)",
            "limit of a promise, 7.5 slots (1.25h) (evidence 0.25 x 30 slots (5h) observed)",
        ),
        ("needs 6 slots with its", "needs 6 slots (1h) with its"),
        ("at least 3.2 slots of the", "at least 3.2 slots (32min) of the"),
        ("each move costs it 0.3 of a slot, and", "each move costs it 0.3 of a slot, and"),
        ("in slots 1 to 2", "from 2026-01-01T00:10:00Z to 2026-01-01T00:30:00Z"),
        ("joins a round, in slot 2 or later", "joins a round, at 2026-01-01T00:20:00Z or later"),
        ("if it begins by slot 2", "if it begins by 2026-01-01T00:20:00Z"),
        ("1e+03 slots of the whole cluster", "1e+03 slots of the whole cluster"),
        ("needs 6 slots (1h) at full width", "needs 6 slots (1h) at full width"),
        ("for only 3 slots (evidence)", "for only 3 slots (30min) (evidence)"),
        (
            "needs 18 slots, and nothing is left of its utility after 6",
            "needs 18 slots (3h), and nothing is left of its utility after 6 slots (1h)",
        ),
        (
            "it takes 18 slots, and 6 are left until its deadline",
            "it takes 18 slots (3h), and 6 slots (1h) are left until its deadline",
        ),
        (
            "takes 18 slots at best; the longest round has 6",
            "takes 18 slots (3h) at best; the longest round has 6 slots (1h)",
        ),
        ("nothing to see", "nothing to see"),
    ],
)
def test_slot_numbers_in_texts_become_clock_times(text: str, expected: str) -> None:
    assert with_clock_times(text, CALENDAR) == expected


def test_no_text_of_a_policy_keeps_a_slot_number() -> None:
    """The conversion knows every f-string of a policy that formats a slot."""
    policies = Path(shadowprice.__file__).parent / "policies"
    texts = [
        re.sub(r"\{[^{}]*\}", "7", match[1])
        for path in policies.rglob("*.py")
        for match in re.finditer(r'f"([^"]*\bslots? \{[^"]*)"', path.read_text("utf-8"))
    ]
    assert len(texts) > 15
    for text in texts:
        assert not re.search(r"\bslots? \d", with_clock_times(text, CALENDAR)), text


@pytest.mark.parametrize(
    ("year", "text"),
    [(9_998, "9998-"), (10_001, "9999-12-31T23:59:59.999999Z"), (-1, "0001-01-01T00:00:00Z")],
)
def test_times_beyond_the_calendar_become_its_limits(year: int, text: str) -> None:
    moment = (year - 1970) * 31_556_952 * SECOND + 180 * 86_400 * SECOND
    assert format_rfc3339(moment).startswith(text)

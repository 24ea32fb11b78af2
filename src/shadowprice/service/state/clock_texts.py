"""Clock times instead of slots in the texts of policies.

A policy has no calendar, so its texts name slots, and recorded decisions keep these texts. Clients
of the service know no slots.
"""

from __future__ import annotations

import re
from typing import Final

from shadowprice.core.amounts import format_seconds
from shadowprice.service.clock import SlotCalendar, format_rfc3339

_SPAN: Final = re.compile(r"\b(in )?slots (\d{1,15}) to (\d{1,15})\b")
_BEFORE: Final = re.compile(
    r"\b(?<!moved )(from|until|ending at|ends at|begins in|begins by|decided in|not before) slot "
    r"(\d{1,15})\b"
)
_BY: Final = re.compile(r"\b(?:(by|in|for) )?(the end of )?slot (\d{1,15})\b")
_EARLIEST: Final = re.compile(r"\bin slot (\d{1,15}) at the earliest\b")
_OR_LATER: Final = re.compile(r"\bin slot (\d{1,15}) or later\b")
_COUNT: Final = re.compile(r"(?<![\w.+-])(\d{1,12}(?:\.\d{1,12})?) slots?\b(?! \(\d)")
_BARE: Final = re.compile(
    r"\b(?:(after |the longest round has )(\d{1,12})(?=$|[;,)])|(\d{1,12})( are left\b))"
)
_AT: Final = {"begins in": "begins at", "decided in": "decided at"}
_LATER: Final = {"in": "by"}


def with_clock_times(text: str, calendar: SlotCalendar) -> str:
    """Replace slots by times in UTC, and add durations to counts of slots that have none.

    A slot in which something completes is its end; one from which or until which something holds
    is its start.
    """

    def start(slot: str) -> str:
        return format_rfc3339(calendar.begins(int(slot)))

    def end(slot: str) -> str:
        return format_rfc3339(calendar.ends(int(slot)))

    def span(match: re.Match[str]) -> str:
        return f"{'from ' if match[1] else ''}{start(match[2])} to {end(match[3])}"

    def by(match: re.Match[str]) -> str:
        word = match[1] or ""
        return f"{_LATER.get(word, word)} {end(match[3])}".lstrip()

    def count(match: re.Match[str]) -> str:
        return f"{match[0]} ({format_seconds(float(match[1]) * calendar.slot_seconds)})"

    def bare(match: re.Match[str]) -> str:
        return f"{match[1] or ''}{match[2] or match[3]} slots{match[4] or ''}"

    if "slot" not in text:
        return text
    text = _BARE.sub(bare, text)  # a second count of a sentence
    text = _SPAN.sub(span, text)
    text = _EARLIEST.sub(lambda match: f"at {end(match[1])} at the earliest", text)
    text = _OR_LATER.sub(lambda match: f"at {start(match[1])} or later", text)
    text = _BEFORE.sub(lambda match: f"{_AT.get(match[1], match[1])} {start(match[2])}", text)
    return _COUNT.sub(count, _BY.sub(by, text))

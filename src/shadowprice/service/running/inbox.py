"""What an executor told, kept until it is recorded. No I/O."""

from __future__ import annotations

import logging
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Final

from shadowprice.executors.background import monotonic
from shadowprice.executors.contract import (
    Ended,
    Misreported,
    Refused,
    Report,
    ServerGone,
    ServerSeen,
    Started,
)
from shadowprice.service.truth.reports import Lasting

log = logging.getLogger("shadowprice.service")

FIRST_PAUSE: Final = 1.0
"""Seconds before a report that could not be recorded is tried again."""

LAST_PAUSE: Final = 60.0
"""The longest of the growing pauses between such tries."""


@dataclass(slots=True)
class Kept:
    """A report that is not recorded yet.

    Parameters
    ----------
    report : Report
        What was told last.
    fault : str
        Why it could not be recorded; empty where that was not tried.
    due : float
        When that is tried, on the monotonic clock.
    pause : float
        Seconds from then to the next try.
    """

    report: Lasting | ServerSeen | ServerGone
    fault: str = ""
    due: float = 0.0
    pause: float = FIRST_PAUSE


class Inbox:
    """Reports that are not recorded.

    Executors tell nothing twice to who goes on listening, so a report stays until it is recorded.
    What cannot be is tried again, after longer and longer pauses, and holds up nothing else.

    Attributes
    ----------
    told : list of Report
        Those that nobody looked at yet.
    kept : dict of Kept
        Those to be recorded, by what they are of.
    """

    def __init__(self) -> None:
        self.told: list[Report] = []
        self.kept: dict[Hashable, Kept] = {}

    @property
    def fault(self) -> str | None:
        """Why a report cannot be recorded just now; None where all can."""
        return next((one.fault for one in self.kept.values() if one.fault), None)

    @property
    def due(self) -> list[Kept]:
        """What is to be recorded now."""
        now = monotonic()
        return [one for one in self.kept.values() if one.due <= now]

    def next_try(self, otherwise: float) -> float:
        """Return in how many seconds something that was put off is due, at most ``otherwise``."""
        now = monotonic()
        return min((one.due - now for one in self.kept.values() if one.fault), default=otherwise)

    def keep(self, report: Lasting | ServerSeen | ServerGone) -> None:
        """Keep a report until it is recorded, in place of an earlier one of the same."""
        before = self.kept.pop(_subject(report), None)
        if isinstance(report, ServerSeen | ServerGone):
            before = None
            self._overtake(_server_of(report))
        kept = Kept(report) if before is None else replace(before, report=report)
        self.kept[_subject(report)] = kept

    def _overtake(self, server: str) -> None:
        """Let go of what could not be recorded of a server, since something newer was told."""
        for kind in (ServerSeen, ServerGone):
            one = self.kept.get((kind, server))
            if one is not None and one.fault:
                del self.kept[kind, server]

    def drop(self, one: Kept) -> None:
        """Let go of what was recorded; a start is of no use after the end."""
        if self.kept.get(_subject(one.report)) is one:  # else it was told again meanwhile
            del self.kept[_subject(one.report)]
        if isinstance(one.report, Ended | Refused):
            self.kept.pop((Started, one.report.job, one.report.generation, ""), None)

    def put_off(self, one: Kept, error: Exception | None) -> None:
        """Let a report be recorded in a while, and say why not now."""
        why = "the log tells why" if error is None else f"{type(error).__name__}: {error}"
        one.fault = f"what was reported of {_about(one.report)} cannot be recorded: {why}"
        one.due, one.pause = monotonic() + one.pause, min(2.0 * one.pause, LAST_PAUSE)
        log.error("%s; it is tried again", one.fault, exc_info=error)


def _subject(report: Lasting | ServerSeen | ServerGone) -> Hashable:
    """Return what a report is of; a later one of the same takes its place."""
    if isinstance(report, ServerSeen | ServerGone):
        return type(report), _server_of(report)
    reason = report.reason if isinstance(report, Misreported) else ""
    kind = Ended if isinstance(report, Refused) else type(report)
    return kind, report.job, report.generation, reason


def _server_of(report: ServerSeen | ServerGone) -> str:
    return report.server if isinstance(report, ServerGone) else report.server.name


def _about(report: Lasting | ServerSeen | ServerGone) -> str:
    """Return what a report is of, for people."""
    if isinstance(report, ServerSeen | ServerGone):
        return f"server {_server_of(report)!r}"
    return f"generation {report.generation} of {report.job!r}"

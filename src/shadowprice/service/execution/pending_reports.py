"""Buffer of the executor's reports until they are recorded. No I/O."""

from __future__ import annotations

import logging
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Final

from shadowprice.executors import contract
from shadowprice.executors.background import monotonic
from shadowprice.service.state.report_operations import DurableReport

log = logging.getLogger("shadowprice.service")

INITIAL_BACKOFF_SECONDS: Final = 1.0  # of a report that can't be recorded
MAX_BACKOFF_SECONDS: Final = 60.0  # maximum backoff, in seconds


@dataclass(slots=True)
class PendingReport:
    """The newest unrecorded report of a subject, such as a generation's end or a server."""

    report: DurableReport | contract.ServerSeen | contract.ServerGone
    fault: str = ""  # why the last attempt failed; empty before the first one
    due: float = 0.0  # monotonic time of the next attempt
    pause: float = INITIAL_BACKOFF_SECONDS  # backoff in seconds after the next failure


class PendingReports:
    """Reports that are not recorded yet.

    An executor sends each report once on a stream, so reports are kept here until they are
    recorded. A report that can't be recorded is retried with backoff, and doesn't delay others.
    """

    def __init__(self) -> None:
        self.received: list[contract.Report] = []  # not yet in `unrecorded`
        self.unrecorded: dict[Hashable, PendingReport] = {}  # by subject

    @property
    def fault(self) -> str | None:
        """Why the first failed report can't be recorded; None if no report has failed."""
        return next((entry.fault for entry in self.unrecorded.values() if entry.fault), None)

    def obstacles(self) -> list[contract.Obstacle]:
        """Return the generations whose end or refused start can't be recorded."""
        obstacles = []
        for entry in self.unrecorded.values():
            report = entry.report
            if entry.fault and isinstance(report, contract.Ended | contract.StartRefused):
                subject = "end" if isinstance(report, contract.Ended) else "refused start"
                reason = (
                    f"the report of its {subject} can't be recorded, and is retried; see the log "
                    "of the service"
                )
                obstacles.append(contract.Obstacle(report.job, report.generation, (), reason))
        return obstacles

    @property
    def due(self) -> list[PendingReport]:
        """Reports to record now."""
        now = monotonic()
        return [entry for entry in self.unrecorded.values() if entry.due <= now]

    def seconds_to_next_retry(self, otherwise: float) -> float:
        """Return the seconds until the next retry; ``otherwise`` if there is none."""
        now = monotonic()
        return min(
            (entry.due - now for entry in self.unrecorded.values() if entry.fault),
            default=otherwise,
        )

    def keep(self, report: DurableReport | contract.ServerSeen | contract.ServerGone) -> None:
        """Add a report, in place of the earlier report of its subject, whose backoff is kept."""
        previous = self.unrecorded.pop(_subject(report), None)
        if isinstance(report, contract.ServerSeen | contract.ServerGone):
            previous = None  # tried at once: a newer state of a server may be recordable
            self._drop_superseded(_server_name(report))
        entry = PendingReport(report) if previous is None else replace(previous, report=report)
        self.unrecorded[_subject(report)] = entry

    def _drop_superseded(self, server: str) -> None:
        """Drop failed reports of a server, because a newer report supersedes them."""
        for kind in (contract.ServerSeen, contract.ServerGone):
            entry = self.unrecorded.get((kind, server))
            if entry is not None and entry.fault:
                del self.unrecorded[kind, server]

    def drop(self, entry: PendingReport) -> None:
        """Remove a recorded report. An end also removes its generation's start."""
        subject = _subject(entry.report)
        if self.unrecorded.get(subject) is entry:  # a newer report may have replaced it
            del self.unrecorded[subject]
        if isinstance(entry.report, contract.Ended | contract.StartRefused):
            self.unrecorded.pop(
                (contract.Started, entry.report.job, entry.report.generation, ""), None
            )

    def retry_later(self, entry: PendingReport, error: Exception | None) -> None:
        """Schedule a retry of a report, with backoff, and log the error."""
        reason = "see the log" if error is None else f"{type(error).__name__}: {error}"
        entry.fault = f"failed to record a report on {_describe_subject(entry.report)}: {reason}"
        entry.due, entry.pause = (
            monotonic() + entry.pause,
            min(2.0 * entry.pause, MAX_BACKOFF_SECONDS),
        )
        log.error("%s; retrying", entry.fault, exc_info=error)


def _subject(report: DurableReport | contract.ServerSeen | contract.ServerGone) -> Hashable:
    """Return the key by which a newer report replaces an older one."""
    if isinstance(report, contract.ServerSeen | contract.ServerGone):
        return type(report), _server_name(report)
    reason = report.reason if isinstance(report, contract.InvalidProgress) else ""
    kind = contract.Ended if isinstance(report, contract.StartRefused) else type(report)
    return kind, report.job, report.generation, reason


def _server_name(report: contract.ServerSeen | contract.ServerGone) -> str:
    return report.server if isinstance(report, contract.ServerGone) else report.server.name


def _describe_subject(report: DurableReport | contract.ServerSeen | contract.ServerGone) -> str:
    if isinstance(report, contract.ServerSeen | contract.ServerGone):
        return f"server {_server_name(report)!r}"
    return f"generation {report.generation} of {report.job!r}"

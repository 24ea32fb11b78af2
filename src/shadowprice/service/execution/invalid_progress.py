"""Events about invalid progress reports: once per reason and generation, up to a limit."""

from __future__ import annotations

import logging
from typing import Final

from shadowprice.core.errors import ShadowpriceError
from shadowprice.executors.contract import InvalidProgress
from shadowprice.executors.progress import format_report_error, same_kind
from shadowprice.service.clock import SECOND
from shadowprice.service.state.report_operations import MAX_REPORTED_ERRORS, RecordReports
from shadowprice.service.writer import Writer

log = logging.getLogger("shadowprice.service")

PURGE_ABOVE_JOBS: Final = 1_000  # number of cached jobs at which closed ones are removed


class InvalidProgressReporter:
    """Cache of emitted reasons, so that repeated invalid reports need no transaction."""

    def __init__(self) -> None:
        self._recorded: dict[str, tuple[int, set[str]]] = {}

    async def record(self, writer: Writer, job: str, generation: int, error: str) -> None:
        """Emit an event about an invalid report of a job's newest generation."""
        view = writer.published.jobs.get(job)
        if view is None or view.generation != generation:
            return
        cached_generation, reasons = self._recorded.get(job, (generation, set()))
        if cached_generation != generation:
            reasons = set()
        reason = format_report_error(error)
        if reason in reasons or len(same_kind(reason, reasons)) >= MAX_REPORTED_ERRORS:
            return
        if job not in self._recorded and len(self._recorded) >= PURGE_ABOVE_JOBS:
            open_jobs = writer.published.jobs
            self._recorded = {
                name: entry for name, entry in self._recorded.items() if name in open_jobs
            }
        reasons.add(reason)  # before the await, because concurrent reports may have the same reason
        self._recorded[job] = generation, reasons
        timestamp = writer.clock.now() / SECOND
        try:
            await writer.do(RecordReports([InvalidProgress(job, generation, timestamp, reason)]))
        except ShadowpriceError as failure:
            reasons.discard(reason)  # so that the next such report is recorded
            log.info("failed to record an invalid progress report of job %r: %s", job, failure)

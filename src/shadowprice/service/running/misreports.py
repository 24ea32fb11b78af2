"""What jobs post that is no progress: told in their stories, each once, and few of a generation."""

from __future__ import annotations

import logging
from typing import Final

from shadowprice.core.errors import ShadowpriceError
from shadowprice.executors.contract import Misreported
from shadowprice.executors.progress import told_fault
from shadowprice.service.clock import SECOND
from shadowprice.service.driver import Driver
from shadowprice.service.truth.reports import MOST_FAULTS, TakeReports

log = logging.getLogger("shadowprice.service")

SWEPT: Final = 1_000
"""Jobs after which those that are over are forgotten."""


class Misreports:
    """Remembers what was told, so that a job which posts without end costs no more than a look.

    The story itself is what counts: after a restart nothing that it tells is told again.
    """

    def __init__(self) -> None:
        self._told: dict[str, tuple[int, set[str]]] = {}

    async def tell(self, driver: Driver, job: str, generation: int, error: Exception) -> None:
        """Let a job's story tell what is wrong with what its running generation posts.

        Parameters
        ----------
        driver : Driver
            Who writes the story.
        job : str
            The job.
        generation : int
            The generation whose token came with it.
        error : Exception
            What is wrong.
        """
        view = driver.published.jobs.get(job)
        if view is None or view.generation != generation:
            return
        known, told = self._told.get(job, (generation, set()))
        if known != generation:
            told = set()
        reason = told_fault(str(error))
        if reason in told or len(told) >= MOST_FAULTS:
            return
        if job not in self._told and len(self._told) >= SWEPT:
            open_jobs = driver.published.jobs
            self._told = {name: one for name, one in self._told.items() if name in open_jobs}
        told.add(reason)  # before anything is waited for: the next ones may be here already
        self._told[job] = generation, told
        at = driver.clock.now() / SECOND
        try:
            await driver.do(TakeReports([Misreported(job, generation, at, reason)]))
        except ShadowpriceError as failure:
            told.discard(reason)
            log.info("what job %r posts is not told yet: %s", job, failure)

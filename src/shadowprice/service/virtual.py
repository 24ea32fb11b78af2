"""The live service in virtual time, without HTTP: for experiments and tests.

Durable state, store, writer, driver, execution controller and recovery are those of `serve`. Only
the event loop, the clock and the executor are virtual (`executors.virtual`).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import yaml
from sqlalchemy import Connection

from shadowprice.core.errors import ShadowpriceError
from shadowprice.executors.virtual import VirtualClock, VirtualExecutor
from shadowprice.policies.choice import PolicyChoice
from shadowprice.service.host import find_view
from shadowprice.service.service import Service
from shadowprice.service.settings import ServiceSettings
from shadowprice.service.state import margins
from shadowprice.service.state.job_views import JobView
from shadowprice.service.state.operations import SubmitJobs
from shadowprice.service.state.submission import read_submissions
from shadowprice.service.writer import Writer

Result = TypeVar("Result")

TICKS: Final = 4  # ticks of the driver, and polls of the execution controller, in a slot


class VirtualService:
    """A service that can be stopped, killed and restarted in its directory, while jobs continue."""

    def __init__(
        self,
        folder: Path,
        cluster: Mapping[str, Any],
        choice: PolicyChoice,
        clock: VirtualClock,
        executor: VirtualExecutor,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        path = folder / "cluster.yaml"
        path.write_text(yaml.safe_dump(dict(cluster)))
        self._settings = ServiceSettings(
            cluster=path, data=str(folder / "data"), policy=choice, **(settings or {})
        )
        self._clock = clock
        self._executor = executor
        self._service: Service | None = None

    async def start(self) -> None:
        """Start the service on the existing data, if any."""
        service = Service(self._settings, self._clock, self._executor)
        # Before any other task runs, because `serve` opens the service before the loop starts.
        assert service.open()
        await service.start()
        self._service = service
        # Fewer ticks, because without waiting between ticks they would dominate the run time.
        slot = float(service.cluster.slot_seconds)
        driver, execution = service.driver, service.execution
        assert driver is not None
        assert execution is not None
        driver.tick_seconds = max(driver.tick_seconds, slot / TICKS)
        driver.purge_interval_seconds = math.inf
        execution.poll_seconds = max(execution.poll_seconds, slot / TICKS)

    async def stop(self) -> None:
        """Stop the service as SIGTERM does; jobs continue."""
        service, self._service = self._service, None
        assert service is not None
        await service.stop()
        if service.failed:
            raise ShadowpriceError("the service failed; its log says why")

    async def kill(self) -> None:
        """Drop everything in memory, as SIGKILL does; jobs continue."""
        service, self._service = self._service, None
        assert service is not None
        current = asyncio.current_task()
        tasks = [task for task in asyncio.all_tasks() if task is not current]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        service.store.close()

    @property
    def service(self) -> Service:
        """The running service."""
        assert self._service is not None
        return self._service

    @property
    def writer(self) -> Writer:
        """The running service's writer."""
        return self.service.require_writer()

    def check(self) -> None:
        """Raise `ShadowpriceError` if the service failed or isn't ready."""
        reason = "it failed" if self.service.failed else self.service.ready()
        if reason is not None:
            raise ShadowpriceError(f"the service reports: {reason}")

    async def submit(self, *records: Mapping[str, Any], at_once: bool = True) -> None:
        """Submit jobs as `POST /v1/jobs` does; raise `ShadowpriceError` if a job isn't accepted."""
        submissions = read_submissions(
            records, self.service.cluster, tenant=None, runs=True, now=self.writer.clock.now()
        )
        for _, problem in await self.writer.do(SubmitJobs(submissions, at_once=at_once)):
            if problem is not None:
                raise problem

    async def view(self, key: str) -> JobView:
        """Return a job as clients see it."""
        view = await find_view(self.service, key)
        assert view is not None, key
        return view

    async def read(self, query: Callable[[Connection], Result]) -> Result:
        """Run a query of the store."""
        return await self.service.read(query)

    @property
    def open_jobs(self) -> Mapping[str, JobView]:
        """Open jobs, by key."""
        return self.writer.published.jobs

    @staticmethod
    def has_learnt_margin(view: JobView) -> bool:
        """Return whether the margin of a job's promise was learnt from enough finished jobs."""
        return view.margin_jobs >= margins.MIN_GROUP_JOBS

    async def run_until_over(self, seconds: float, every: float = 1.0) -> bool:
        """Let virtual time pass until every job is closed; return False on timeout."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while self.open_jobs or self.writer.published.servers.backlog:
            if loop.time() >= end:
                return False
            await asyncio.sleep(min(every, max(0.0, end - loop.time())))
        return True

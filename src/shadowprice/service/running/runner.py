"""Between the truth and an executor: carries orders out, and reports what became of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import quote

from shadowprice.core.cluster import Cluster
from shadowprice.core.errors import InputError
from shadowprice.core.program import Program
from shadowprice.core.specs import JobSpec
from shadowprice.core.specs.fields import plain
from shadowprice.executors.background import Background, all_of, monotonic
from shadowprice.executors.contract import (
    Ended,
    Ending,
    Executor,
    ExecutorError,
    Fresh,
    GenerationSpec,
    Held,
    Progressed,
    Receipt,
    Refused,
    Report,
    ReportsHealth,
    ServerGone,
    ServerSeen,
    Share,
)
from shadowprice.service.auth import order_identity, progress_token
from shadowprice.service.clock import SECOND
from shadowprice.service.driver import Driver
from shadowprice.service.problems import ProblemError
from shadowprice.service.running.inbox import Inbox, Kept
from shadowprice.service.running.modes import user_fault
from shadowprice.service.running.outbox import Begin, End, Outbox, Run
from shadowprice.service.running.servers import FoundServers, slices
from shadowprice.service.settings import Settings
from shadowprice.service.truth.outcome import Outcome
from shadowprice.service.truth.reports import Acknowledge, Lasting, TakeReports, TellForeign

log = logging.getLogger("shadowprice.service")

Asked = TypeVar("Asked")

AT_ONCE: Final = 16
"""Orders given, and ends told to be recorded, at the same time."""

A_ROUND: Final = 4 * AT_ONCE
"""Orders that are given before it is asked again which are still wanted."""

POLL_SECONDS: Final = 5.0
"""Longest wait before orders and reports are compared again, though nothing was reported."""

RETRY: Final = 1.0
"""Seconds before an executor that could not be reached is tried again."""


class Runner:
    """Keeps what runs equal to what the engine wants to run.

    Parameters
    ----------
    driver : Driver
        Who knows what is wanted.
    executor : Executor
        What runs jobs.
    key : bytes
        What jobs' own tokens are made with.
    stated : collection of str
        Servers of the cluster file: they have what it says, not what an executor finds there.

    Attributes
    ----------
    settings : Settings or None
        Which users jobs may run as; None checks none.
    inbox : Inbox
        What was told, and is not recorded.
    poll_seconds : float
        Longest wait before orders and reports are compared again.
    """

    poll_seconds = POLL_SECONDS

    def __init__(
        self, driver: Driver, executor: Executor, key: bytes, stated: Collection[str] = ()
    ) -> None:
        self.executor = executor
        self.address = ""
        self.settings: Settings | None = None
        self._health_error: str | None = None
        self._driver = driver
        self._key = key
        discovers = executor.capabilities.discovers_servers
        self._servers = FoundServers(driver, stated, discovers=discovers)
        self._outbox = Outbox()
        self.inbox = Inbox()
        self._untold: list[Held] = []
        self._wake = asyncio.Event()
        self._due = asyncio.Event()
        self._ordering = asyncio.Lock()
        self._cluster: Cluster | None = None
        self._resync = False
        self._retry_at = 0.0
        self._background = Background(log, driver.metrics.failed)
        driver.listeners.append(self._published)
        driver.discard = self.discard
        driver.fresh = self.fresh
        driver.unheard = self.unheard
        driver.foreign = self._outbox.is_foreign

    @property
    def health_error(self) -> str | None:
        """Why not all orders and reports are carried just now; None where they are."""
        executor = self.executor.health_error if isinstance(self.executor, ReportsHealth) else None
        return self._health_error or self._background.health_error or self.inbox.fault or executor

    # ---------------------------------------------------------------- life

    async def open(self) -> None:
        """Begin, and find again what runs; what ended meanwhile is taken in first.

        Raises
        ------
        ExecutorError
            If the executor cannot be reached.
        """
        await self.executor.open()
        await self._configure()
        await self._find()

    async def _find(self) -> None:
        """Find again what runs, and tell what of it the store never ordered.

        Of what is over, that it is comes with it, whoever was told before.
        """
        held = await self.executor.list()
        ordered = await self._driver.ordered([(one.job, one.generation) for one in held])
        foreign = [one for one in held if not self._is_ours(one, ordered)]
        for one in foreign:
            new = not self._outbox.is_foreign(one.job, one.generation)
            if new and one.end is None:
                log.warning(
                    "generation %d of %r runs on %s, but these data never ordered it (was a backup "
                    "restored?): it is stopped",
                    one.generation,
                    one.job,
                    ", ".join(share.server for share in one.placement),
                )
                self._untold.append(one)
        self._outbox.found(held, foreign)
        self.inbox.told += [one.end for one in held if one.end is not None]

    def _is_ours(self, held: Held, ordered: Mapping[tuple[str, int], int]) -> bool:
        key = held.job, held.generation
        if key not in ordered:
            return False
        # A stop that overtook its start leaves a generation without an identity.
        return held.identity in {"", order_identity(self._key, *key, ordered[key])}

    def lose_all(self, reason: str) -> None:
        """Take every generation that should run, and is not held, for lost."""
        at = self._driver.clock.now() / SECOND
        self.inbox.told += [
            Ended(0, job, order.generation, at, Ending.LOST, None, reason)
            for job, order in self._driver.published.running.items()
            if order.generation not in self._outbox.held.get(job, {})
        ]

    def begin(self) -> None:
        """Start carrying orders out."""
        self._background.again("watch", self._watch, "following what the executor tells")
        self._background.again("runner", self._listen, "taking reports in")
        self._background.again("runner", self._give, "giving orders")
        self._wake.set()

    async def close(self) -> None:
        """Let go; what runs goes on."""
        await all_of(self._background.end, self.executor.close)

    def _published(self, outcome: Outcome) -> None:
        for name, view in outcome.views.items():
            if not view.state.open:
                self._outbox.closed(name)
        self._wake.set()

    # ---------------------------------------------------------------- reports

    async def _watch(self) -> bool:
        try:
            async for report in self.executor.watch():
                self.inbox.told.append(report)
                self._wake.set()
        except ExecutorError as error:
            self._unreachable(error)
            await asyncio.sleep(RETRY)
            return False
        return True  # the executor was closed

    async def fresh(self) -> None:
        """Take in what jobs report at this moment: a slot is about to be counted."""
        if not isinstance(self.executor, Fresh):
            return
        with suppress(ExecutorError):  # whoever orders next will see what is wrong
            for report in await self.executor.progress():
                self._driver.report(report)

    def unheard(self) -> frozenset[str]:
        """Return the jobs of which it is not known how far they are at this moment."""
        return self.executor.unheard() if isinstance(self.executor, Fresh) else frozenset()

    async def settle(self) -> None:
        """Take in what was reported so far; what cannot be recorded waits in the inbox.

        Raises
        ------
        ProblemError
            If the store cannot be written.
        ExecutorError
            If the executor cannot be told what was recorded; it is once it is reached again.
        """
        if self._untold:
            untold = tuple(self._untold)
            await self._driver.do(TellForeign(untold))
            del self._untold[: len(untold)]
        await _each(self._forget, self._hear())
        due = self.inbox.due
        for one in due:
            if isinstance(one.report, ServerSeen | ServerGone):
                await self._recorded_server(one, one.report)
        lasting = [one for one in due if not isinstance(one.report, ServerSeen | ServerGone)]
        if lasting:
            await _each(self._forget, await self._recorded(lasting))

    def _hear(self) -> Sequence[Ended]:
        """Keep what was told until it is recorded; how far jobs are is told again by them.

        Returns
        -------
        sequence of Ended
            Ends of what the store never ordered: they need not be recorded.
        """
        now, foreign = self._driver.clock.now(), list[Ended]()
        for report in self.inbox.told:
            self._outbox.heard(report, now)
            if self._outbox.says_nothing(report):
                foreign += [report] if isinstance(report, Ended) else []
                continue
            if isinstance(report, Progressed):
                self._driver.report(report)
            else:
                self.inbox.keep(report)
        self.inbox.told.clear()
        return foreign

    async def _recorded_server(self, one: Kept, report: ServerSeen | ServerGone) -> None:
        try:
            await self._servers.take(report)
        except ProblemError:
            raise
        except Exception as error:
            self._put_off(one, error)
        else:
            self.inbox.drop(one)

    async def _recorded(self, kept: Sequence[Kept]) -> list[Ended | Refused]:
        """Have reports recorded; return the ends among those that were."""
        try:
            left = await self._take(kept)
        except ProblemError:
            raise  # the store is out; they wait
        except Exception as error:
            if len(kept) == 1:
                self._put_off(kept[0], error)
                return []
            half = len(kept) // 2  # one of them is at fault; the others are recorded without it
            return [*await self._recorded(kept[:half]), *await self._recorded(kept[half:])]
        over: list[Ended | Refused] = []
        for one in kept:
            if one.report in left:
                self._put_off(one, None)
                continue
            self.inbox.drop(one)
            if isinstance(one.report, Ended | Refused):
                over.append(one.report)
        return over

    async def _take(self, kept: Sequence[Kept]) -> Collection[Report]:
        """Have reports recorded, all or none; return those that the truth left out."""
        reports = [one.report for one in kept if isinstance(one.report, Lasting)]
        return await self._driver.do(TakeReports(reports)) or ()

    def _put_off(self, one: Kept, error: Exception | None) -> None:
        self.inbox.put_off(one, error)
        self._driver.metrics.failed("report")

    async def _forget(self, report: Ended | Refused) -> None:
        await self.executor.forget(report.job, report.generation)
        self._outbox.recorded(report.job, report.generation)

    # ---------------------------------------------------------------- orders

    async def _listen(self) -> None:
        """Take in what is told; orders that were given may wait for their answers meanwhile."""
        await self._sleep()
        if await self._tried(self.take_in):
            self._due.set()

    async def _give(self) -> None:
        """Give orders; what ends meanwhile is recorded beside."""
        await self._due.wait()
        self._due.clear()
        if await self._tried(self.order):
            self._health_error = None

    async def _tried(self, step: Callable[[], Awaitable[None]]) -> bool:
        """Make a step; whether it could be made. Both are tried again in a moment if not."""
        try:
            await step()
        except ExecutorError as error:
            self._unreachable(error)
        except ProblemError as error:
            log.info("orders wait: %s", error)
            self._again()
        except Exception:
            self._resync = True
            self._again()
            raise
        else:
            return True
        return False

    def _again(self) -> None:
        self._retry_at = monotonic() + RETRY
        self._wake.set()

    def _unreachable(self, error: ExecutorError) -> None:
        self._driver.metrics.executor_errors.inc()
        self._health_error = f"the executor cannot be reached: {error}"
        log.warning("%s", self._health_error)
        self._resync = True
        self._again()

    async def _sleep(self) -> None:
        wait = self.poll_seconds
        moment = self._outbox.next_moment(self._driver.published.running)
        if moment is not None:
            wait = min(wait, max(0.05, (moment - self._driver.clock.now()) / SECOND))
        wait = min(wait, max(0.05, self.inbox.next_try(wait)))
        with suppress(TimeoutError):
            async with asyncio.timeout(wait):
                await self._wake.wait()
        await asyncio.sleep(max(0.0, self._retry_at - monotonic()))
        self._wake.clear()

    async def take_in(self) -> None:
        """Take in what was reported, and acknowledge what was done."""
        if self._resync:
            async with self._ordering:  # an order that is on its way is in no list
                await self._find()
                self._resync = False
        await self._configure()
        await self.settle()
        published = self._driver.published
        done = self._outbox.acknowledged(published.running, published.unacknowledged)
        if done:
            await self._driver.do(Acknowledge(done))

    async def order(self) -> None:
        """Order what is missing."""
        async with self._ordering:
            published = self._driver.published
            now = self._driver.clock.now()
            actions = self._outbox.actions(published.running, published.unacknowledged, now)
            if len(actions) > A_ROUND:
                self._due.set()
            del actions[A_ROUND:]
            orders = [one.order for one in actions if isinstance(one, Begin)]
            ordered = await self._driver.ordered([(one.job, one.generation) for one in orders])
            await _each(partial(self._act, ordered), actions)

    async def _act(self, ordered: Mapping[tuple[str, int], int], action: Begin | End) -> None:
        if isinstance(action, End):
            await self.executor.stop(action.command, action.job, action.generation)
            self._outbox.stopping(action.job, action.generation)
            return
        order = action.order
        try:
            spec = self._spec(order, ordered[order.job, order.generation])
        except InputError as error:
            self._refuse(order, str(error))
            return
        self._outbox.accepted(order.job, order.generation)
        receipt = await self.executor.start(spec)
        if receipt is Receipt.BUSY:
            self._outbox.held.get(order.job, {}).pop(order.generation, None)
            self._resync = True
            self._again()
        elif receipt is Receipt.STALE or (
            receipt is Receipt.DUPLICATE and not await self._is_held(order)
        ):
            # Its records are newer than ours (a backup was restored): this number is used up.
            self._outbox.used_up(order.job, order.generation)
            why = "the executor knows a newer generation of the job, or another of this number"
            self._refuse(order, why)

    async def _is_held(self, order: Run) -> bool:
        held = await self.executor.list()
        return any((one.job, one.generation) == (order.job, order.generation) for one in held)

    def _refuse(self, order: Run, reason: str) -> None:
        at = self._driver.clock.now() / SECOND
        self.inbox.told.append(Refused(order.id, order.job, order.generation, at, reason))
        self._wake.set()

    def _spec(self, order: Run, ordered: int) -> GenerationSpec:
        """Return what an executor has to be told of an order, which was given at that moment."""
        servers = self._driver.published.servers
        spec = self.job_spec(order.job)
        if spec.run is None:
            raise InputError("the job does not say what it runs")
        if self.settings is not None:  # what is allowed may be other than when it was submitted
            fault = user_fault(self.settings, spec, "")
            if fault is not None:
                raise InputError(fault)
        program: Program = spec.run.resolve(servers.cluster.slot_seconds)
        placement = order.placement
        entries = zip(order.servers, placement.workers, placement.ps, strict=True)
        name = quote(order.job, safe="")
        return GenerationSpec(
            command=order.id,
            job=order.job,
            generation=order.generation,
            placement=tuple(Share(server, workers, ps) for server, workers, ps in entries),
            program=program,
            worker=plain(spec.worker),
            ps=plain(spec.ps or {}),
            progress_url=f"{self.address}/v1/jobs/{name}/progress" if self.address else "",
            progress_token=progress_token(self._key, order.job, order.generation),
            slot_end=servers.calendar.ends(order.slot) / SECOND,
            tenant=spec.tenant,
            labels=dict(spec.labels),
            identity=order_identity(self._key, order.job, order.generation, ordered),
        )

    def job_spec(self, name: str) -> JobSpec:
        """Return what was submitted of an open job."""
        record: Mapping[str, Any] | None = self._driver.specification(name)
        if record is None:
            raise InputError(f"job {name!r} is not open")
        return JobSpec.model_validate(record)

    def holds(self, job: str) -> bool:
        """Whether anything of a job runs, or ran and its end is not written down."""
        return bool(self._outbox.held.get(job))

    # ---------------------------------------------------------------- afterwards

    async def discard(self, jobs: Sequence[str]) -> list[str]:
        """Remove what the executor keeps of jobs that are over; return those that are rid of it.

        One of which anything is still held waits: its end was not recorded yet.
        """
        gone: list[str] = []
        try:
            held = {one.job for one in await self.executor.list()}
            for job in jobs:
                if job not in held:
                    await self.executor.discard(job)
                    gone.append(job)
        except ExecutorError as error:
            self._unreachable(error)
        return gone

    # ---------------------------------------------------------------- servers

    async def _configure(self) -> None:
        cluster = self._driver.published.servers.cluster
        if cluster is self._cluster:
            return
        await self.executor.configure(slices(cluster))
        self._cluster = cluster


async def _each(ask: Callable[[Asked], Awaitable[None]], items: Iterable[Asked]) -> None:
    """Ask an executor for each of several things, `AT_ONCE` at a time; raise the first error.

    A thousand jobs that end together would wait for a thousand answers, were they told of one after
    the other.
    """
    limit = asyncio.Semaphore(AT_ONCE)

    async def one(item: Asked) -> None:
        async with limit:
            await ask(item)

    told = await asyncio.gather(*map(one, items), return_exceptions=True)
    for error in told:
        if isinstance(error, BaseException):
            raise error

"""Between the truth and an executor: carries orders out, and reports what became of them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import quote

from shadowprice.core.amounts import UNLIMITED
from shadowprice.core.cluster import Cluster, Role
from shadowprice.core.errors import InputError, ShadowpriceError
from shadowprice.core.events import ServerState
from shadowprice.core.program import Program
from shadowprice.core.specs import JobSpec
from shadowprice.core.specs.fields import plain
from shadowprice.executors.contract import (
    Ended,
    Ending,
    Executor,
    ExecutorError,
    Fresh,
    GenerationSpec,
    Held,
    Misreported,
    Progressed,
    Receipt,
    Refused,
    Remote,
    Report,
    ServerGone,
    ServerSeen,
    ServerSlice,
    Share,
    Started,
)
from shadowprice.service.auth import order_identity, progress_token
from shadowprice.service.clock import SECOND
from shadowprice.service.driver import Driver
from shadowprice.service.problems import ProblemError
from shadowprice.service.running.modes import user_fault
from shadowprice.service.running.outbox import Begin, End, Outbox, Run
from shadowprice.service.settings import Settings
from shadowprice.service.truth.operations import ChangeServers, LoseServer
from shadowprice.service.truth.outcome import Outcome, Servers
from shadowprice.service.truth.reports import Acknowledge, TakeReports, TellForeign

log = logging.getLogger("shadowprice.service")

Asked = TypeVar("Asked")

AT_ONCE: Final = 16
"""Orders given, and ends told to be recorded, at the same time."""

A_ROUND: Final = 4 * AT_ONCE
"""Orders that are given before it is asked again which are still wanted."""

ROLE_LABEL: Final = "shadowprice.io/role"
"""Label of a server that says what may run there: worker, ps or any."""

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
    """

    def __init__(
        self, driver: Driver, executor: Executor, key: bytes, stated: Collection[str] = ()
    ) -> None:
        self.executor = executor
        self.address = ""
        self.settings: Settings | None = None
        self._trouble: str | None = None
        self._driver = driver
        self._key = key
        self._stated = frozenset(stated)
        self._outbox = Outbox()
        self._inbox: list[Report] = []
        self._untold: list[Held] = []
        self._wake = asyncio.Event()
        self._due = asyncio.Event()
        self._ordering = asyncio.Lock()
        self._cluster: Cluster | None = None
        self._resync = False
        self._closed: set[str] = set()
        self._retry_at = 0.0
        self._tasks: list[asyncio.Task[None]] = []
        driver.listeners.append(self._published)
        driver.discard = self.discard
        driver.fresh = self.fresh
        driver.unheard = self.unheard
        driver.foreign = self._outbox.is_foreign

    @property
    def trouble(self) -> str | None:
        """Why orders cannot be carried out just now; None where they can."""
        cut_off = self.executor.trouble if isinstance(self.executor, Remote) else None
        return self._trouble or cut_off

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
        held = await self._find()
        ends = [one.end for one in held if one.end is not None]
        self._inbox += ends

    async def _find(self) -> Sequence[Held]:
        """Find again what runs, and tell what of it the store never ordered."""
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
        return held

    def _is_ours(self, held: Held, ordered: Mapping[tuple[str, int], int]) -> bool:
        key = held.job, held.generation
        if key not in ordered:
            return False
        # One that an earlier version started says nothing.
        return held.identity in {"", order_identity(self._key, *key, ordered[key])}

    def lose_all(self, reason: str) -> None:
        """Take every generation that should run, and is not held, for lost."""
        at = self._driver.clock.now() / SECOND
        self._inbox += [
            Ended(0, job, order.generation, at, Ending.LOST, None, reason)
            for job, order in self._driver.published.running.items()
            if order.generation not in self._outbox.held.get(job, {})
        ]

    def begin(self) -> None:
        """Start carrying orders out."""
        work = (self._watch(), self._run(), self._order_forever())
        self._tasks = [asyncio.create_task(one) for one in work]
        self._wake.set()

    async def close(self) -> None:
        """Let go; what runs goes on."""
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with suppress(asyncio.CancelledError):
                await task
        await self.executor.close()

    def _published(self, outcome: Outcome) -> None:
        for name, view in outcome.views.items():
            if not view.state.open:
                self._outbox.closed(name)
        self._wake.set()

    # ---------------------------------------------------------------- reports

    async def _watch(self) -> None:
        while True:
            try:
                async for report in self.executor.watch():
                    self._inbox.append(report)
                    self._wake.set()
                return  # the executor was closed
            except ExecutorError as error:
                self._unreachable(error)
                await asyncio.sleep(RETRY)

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
        """Take in what was reported so far."""
        if self._untold:
            untold = tuple(self._untold)
            await self._driver.do(TellForeign(untold))
            del self._untold[: len(untold)]
        reports, self._inbox = self._inbox, []
        now = self._driver.clock.now()
        lasting: list[Started | Refused | Ended | Misreported] = []
        over: list[Ended | Refused] = []
        for report in reports:
            self._outbox.heard(report, now)
            if self._outbox.says_nothing(report):
                over += [report] if isinstance(report, Ended) else []
            elif isinstance(report, Started | Refused | Ended | Misreported):
                lasting.append(report)
            elif isinstance(report, Progressed):
                self._driver.report(report)
            else:
                await self._server(report)
        if lasting:
            try:
                await self._driver.do(TakeReports(lasting))
            except ProblemError:
                self._inbox = [*lasting, *over, *self._inbox]  # the store is out; they wait
                raise
        over += [report for report in lasting if isinstance(report, Ended | Refused)]
        await _each(self._forget, over)

    async def _forget(self, report: Ended | Refused) -> None:
        await self.executor.forget(report.job, report.generation)
        self._outbox.recorded(report.job, report.generation)

    async def _server(self, report: ServerSeen | ServerGone) -> None:
        """Let servers that join, change, leave or come back be such for the engine."""
        servers = self._driver.published.servers
        if isinstance(report, ServerGone):
            if report.server in servers.cluster.index and report.server not in servers.lost:
                await self._try(LoseServer(report.server))
            return
        name = report.server.name
        if name not in servers.cluster.index:
            state = found_state(report.server, servers.cluster)
            if any(state.capacity.values()) and report.server.takes_work:
                await self._try(ChangeServers({name: state}, "joined"))
            return
        if not report.server.takes_work or name in self._closed:
            servers = await self._opened_or_closed(report.server)
        if name in servers.lost and name not in servers.drained:
            await self._try(LoseServer(name, back=True))
        if name not in self._stated and self.executor.capabilities.discovers_servers:
            row = servers.cluster.index[name]
            state = found_state(report.server, servers.cluster)
            state = replace(state, role=servers.cluster.roles[row], drained=name in servers.drained)
            if slices(servers.cluster)[row].capacity != state.capacity:
                await self._try(ChangeServers({name: state}, "changed"))

    async def _opened_or_closed(self, server: ServerSlice) -> Servers:
        """Drain a server that takes nothing new any more, or take it back; return all servers.

        What an operator of the service drained stays so.
        """
        servers = self._driver.published.servers
        row = servers.cluster.index[server.name]
        drained = server.name in servers.drained
        if drained != server.takes_work:
            return servers
        capacity = slices(servers.cluster)[row].capacity
        state = ServerState(servers.cluster.roles[row], capacity, drained=not drained)
        await self._try(ChangeServers({server.name: state}, "closed" if not drained else "opened"))
        if server.takes_work:
            self._closed.discard(server.name)
        else:
            self._closed.add(server.name)
        return self._driver.published.servers

    async def _try(self, operation: LoseServer | ChangeServers) -> None:
        try:
            await self._driver.do(operation)
        except ShadowpriceError as error:
            log.warning("%s was left out: %s", operation, error)

    # ---------------------------------------------------------------- orders

    async def _run(self) -> None:
        """Take in what is told; orders that were given may wait for their answers meanwhile."""
        while True:
            await self._sleep()
            if await self._tried(self.take_in):
                self._due.set()

    async def _order_forever(self) -> None:
        """Give orders; what ends meanwhile is recorded beside."""
        while True:
            await self._due.wait()
            self._due.clear()
            if await self._tried(self.order):
                self._trouble = None

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
            log.exception("carrying orders out failed")
            self._driver.metrics.failures.labels("runner").inc()
            self._resync = True
            self._again()
        else:
            return True
        return False

    def _again(self) -> None:
        self._retry_at = time.monotonic() + RETRY
        self._wake.set()

    def _unreachable(self, error: ExecutorError) -> None:
        self._driver.metrics.executor_errors.inc()
        self._trouble = f"the executor cannot be reached: {error}"
        log.warning("%s", self._trouble)
        self._resync = True
        self._again()

    async def _sleep(self) -> None:
        wait = 5.0
        moment = self._outbox.next_moment(self._driver.published.running)
        if moment is not None:
            wait = min(wait, max(0.05, (moment - self._driver.clock.now()) / SECOND))
        with suppress(TimeoutError):
            async with asyncio.timeout(wait):
                await self._wake.wait()
        await asyncio.sleep(max(0.0, self._retry_at - time.monotonic()))
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
        self._inbox.append(Refused(order.id, order.job, order.generation, at, reason))
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


def found_state(server: ServerSlice, cluster: Cluster) -> ServerState:
    """Return what a server that an executor found is to a cluster, in what that counts.

    A cluster that tells kinds of GPUs apart counts a server's by kind, another as GPUs.
    """
    counted = {name: n for name, n in server.capacity.items() if n and name in cluster.column}
    if any(name.startswith("gpu/") for name in counted):
        counted.pop("gpu", None)
    told = server.labels.get(ROLE_LABEL, Role.ANY.value)
    role = Role(told) if told in {one.value for one in Role} else Role.ANY
    return ServerState(role, counted)


def slices(cluster: Cluster) -> Sequence[ServerSlice]:
    """Return the servers of a cluster as executors are told of them."""
    return [
        ServerSlice(
            name,
            {
                resource: amount
                for resource, amount in zip(cluster.resources, row, strict=True)
                if 0 < amount < UNLIMITED
            },
        )
        for name, row in zip(cluster.names, cluster.capacity.tolist(), strict=True)
    ]

"""The truth on real time: what is asked, what jobs report and slots that are over, as they come."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from shadowprice.executors.background import Background, monotonic
from shadowprice.executors.contract import Progressed
from shadowprice.service.budgets.budgeting import Renew
from shadowprice.service.clock import SECOND, SteadyClock, stamp
from shadowprice.service.metrics import Metrics
from shadowprice.service.problems import ProblemError
from shadowprice.service.store import history
from shadowprice.service.truth.operations import AskQuote, DecideBacklog
from shadowprice.service.truth.outcome import Operation
from shadowprice.service.truth.price_history import Sampler, sweep_prices
from shadowprice.service.truth.reports import TakeProgress, TakeReports
from shadowprice.service.truth.slots import Edge, MoveOrigin, Passed
from shadowprice.service.truth.truth import Truth
from shadowprice.service.writer import Waiting, Writer

log = logging.getLogger("shadowprice.service")

BATCH: Final = 256
"""Operations of one transaction, at most."""

QUOTES: Final = 8
"""Quotes among them, at most: each takes as long as many submissions, and they change nothing."""

CHUNK_SECONDS: Final = 0.03
"""Time that a chunk of the backlog may take while others wait for answers."""

FRESH_SECONDS: Final = 0.5
"""Time that a slot which is over waits for reports of this moment."""

LISTEN_SECONDS: Final = 1.0
"""Time for which word may come in, after an absence, before slots that passed are counted."""

SNAPSHOT_SECONDS: Final = 0.003
"""Time that a piece of a snapshot may take between two batches."""

SWEEP_AFTER_STEP: Final = 3_600.0
"""Seconds for which nothing leaves after the wall clock was set."""

SWEEP_PAUSE: Final = 0.5
"""Seconds between two transactions that let go of what is old, where there is more of it."""

TICK_SECONDS: Final = 1.0
"""Longest wait before the driver looks at the clock again."""

SWEEP_SECONDS: Final = 60.0
"""Seconds between two removals of what is older than `keep`."""

POINTS: Final = SECOND // 2
"""Nanoseconds between two points of a job's curve, at least."""

MOST_APART: Final = 3_600 * SECOND
"""Nanoseconds between them, at most: the clock may have been set by years since a job began."""

POINTS_SHARE: Final = 2_000
"""As many of them last as long as the job has run: a month of it is some 18,000 points."""

MANY_POINTS: Final = 1_000
"""Points of curves that are written before the slot is over."""


class Driver(Writer):
    """Runs the truth on real time.

    Parameters
    ----------
    truth : Truth
        Engine and store; from now on only this touches them.
    clock : SteadyClock
        The service's time.
    virtual : bool
        Whether nothing really runs.
    keep : int
        Nanoseconds that closed jobs are kept.

    Attributes
    ----------
    snapshot_seconds : float
        Time that a piece of a snapshot may take between two batches.
    tick_seconds : float
        Longest wait before it looks at the clock again.
    sweep_seconds : float
        Seconds between two removals of what is older than ``keep``.
    listen_seconds : float
        Seconds for which word may come in, after an absence, before slots are counted.
    sweep_pause : float
        Seconds between two transactions that let go of what is old.
    discard : callable or None
        Lets an executor remove what it keeps of jobs that are over, and returns those of which
        nothing is left; None where nothing runs.
    fresh : callable or None
        Lets reports of this moment come in before a slot is counted.
    unheard : callable or None
        Returns the jobs whose reports did not.
    foreign : callable or None
        Tells whether a generation of a job is one that the store never ordered.
    """

    snapshot_seconds = SNAPSHOT_SECONDS
    tick_seconds = TICK_SECONDS
    sweep_seconds = SWEEP_SECONDS
    listen_seconds = LISTEN_SECONDS
    sweep_pause = SWEEP_PAUSE

    def __init__(
        self, truth: Truth, clock: SteadyClock, *, virtual: bool, keep: int, metrics: Metrics
    ) -> None:
        super().__init__(truth, metrics)
        self.clock = clock
        self.virtual = virtual
        self._keep = keep
        self._reports: dict[str, Progressed] = {}
        self._points: list[Progressed] = []
        self._last_point: dict[str, int] = {}
        self._heard: dict[str, int] = {}
        self._catching_up = False
        self._begin_listening()
        self._edge_failed = 0.0
        self._chunk = 16
        self._second = 0.0
        self._snapshot_due = False
        self._swept = monotonic()
        self._background = Background(log, metrics.failed)
        self._sweeping: asyncio.Task[None] | None = None
        self.discard: Callable[[Sequence[str]], Awaitable[list[str]]] | None = None
        self.fresh: Callable[[], Awaitable[None]] | None = None
        self.unheard: Callable[[], frozenset[str]] | None = None
        self.foreign: Callable[[str, int], bool] | None = None
        self._sampler = Sampler(truth)

    # ---------------------------------------------------------------- hearing

    def report(self, report: Progressed) -> None:
        """Take in how far a job says it is; written with the next slot, or sooner."""
        if self.foreign is not None and self.foreign(report.job, report.generation):
            return
        self._heard[report.job] = max(self._heard.get(report.job, 0), int(report.at * SECOND))
        known = self._reports.get(report.job)
        if known is None or (report.generation, report.progress) > (
            known.generation,
            known.progress,
        ):
            self._reports[report.job] = report
        now = self.clock.now()
        since = now - self._last_point.get(report.job, -now)  # below 0 where it was set back
        soon = 0 <= since < self._between_points(report.job, now)
        if not soon and len(self._points) < 10_000:
            self._last_point[report.job] = now
            self._points.append(report)

    def _between_points(self, job: str, now: int) -> int:
        """Return how far points of a curve are apart: the more, the longer the job has run."""
        view = self.published.jobs.get(job)
        ran = 0 if view is None or view.first_start is None else now - view.first_start
        return max(POINTS, min(MOST_APART, ran // POINTS_SHARE))

    def _progress(self) -> TakeProgress:
        newest, points = self._reports, self._points
        self._reports, self._points = {}, []
        return TakeProgress(newest, points)

    # ---------------------------------------------------------------- running

    async def run(self) -> None:
        """Own the truth until `stop`."""
        self._background.again("events", self.hub.step, "delivering events")
        try:
            while not (self._stopping and not self._queue):
                await self._pause()
                if self.health_error is not None:
                    await self._mend()
                    continue
                await self._tick()
                await self._step()
                await self._snapshot()
        finally:
            self._stopping = True  # whatever ended it: nobody is left waiting
            while self._queue:
                answer = self._queue.popleft().answer
                if not answer.done():
                    answer.set_exception(ProblemError("stopping", "the service is ending"))
            await self._background.end()

    async def stop(self) -> None:
        """Finish what waits, and let `run` end."""
        self._stopping = True
        self._wake.set()

    async def _pause(self) -> None:
        """Wait until there is something to do.

        What is asked while nothing else is done is taken in at once; what comes during a commit
        shares the next one, so that there is more in it the busier the service is.
        """
        goes_on = self.published.servers.backlog or self._truth.snapshotting
        if self._queue or (goes_on and self.health_error is None):
            await asyncio.sleep(0)  # what has arrived by now is in the queue then
            return
        wait = min(self.tick_seconds, self._until_edge())
        if self.health_error is not None:
            wait = 1.0
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, wait)):
                await self._wake.wait()
        self._wake.clear()

    def _until_edge(self) -> float:
        servers, now = self.published.servers, self.clock.now()
        if self._edge_failed and monotonic() - self._edge_failed < 1.0:
            return 1.0
        running = servers.slot_running
        if running is not None:
            return (servers.calendar.ends(running) - now) / SECOND
        if self.published.jobs or servers.backlog:
            return (servers.calendar.begins(servers.coming) - now) / SECOND
        return self.tick_seconds

    async def _tick(self) -> None:
        """Once a second: look at the wall clock, tell how late things are, tidy up."""
        now = monotonic()
        if now - self._second < self.tick_seconds:
            return
        self._second = now
        step = self.clock.stepped()
        if step:
            self.metrics.clock_steps.inc()
            why = f"the clock was set {'forward' if step > 0 else 'back'}"
            outcome = await self._commit([MoveOrigin(step, why)])
            if outcome is not None:
                self.clock.follow(step)
            # One that was set wrongly is put right before anything leaves for being old.
            self._swept = now + SWEEP_AFTER_STEP
        if self._truth.accounts.soonest <= self.clock.now():
            await self._commit([Renew()])
        if now - self._swept > self.sweep_seconds:
            self._swept = now
            self._last_point = {
                job: at for job, at in self._last_point.items() if job in self.published.jobs
            }
            self._heard = {job: at for job, at in self._heard.items() if job in self.published.jobs}
            if self._sweeping is None or self._sweeping.done():
                said = "letting go of what is old"
                self._sweeping = self._background.spawn(
                    "retention", self.sweep(), said, vital=False
                )
        self._snapshot_due = self._truth.snapshot_due()
        if self._sampler.due:
            await self._in_thread(self._sampler.take)

    async def _snapshot(self) -> None:
        """Write a piece of a snapshot where one is due: nobody waits for the whole of it."""
        truth = self._truth
        if (self._snapshot_due or truth.snapshotting) and self.health_error is None:
            self._snapshot_due = False
            await self._in_thread(lambda: truth.snapshot_piece(self.snapshot_seconds))

    async def sweep(self) -> None:
        """Let go of what is older than is kept, while decisions go on.

        What an executor has of a job goes first: where this is cut off, the job is still known
        here, its name still taken, and all of it is done again.
        """
        now = self.clock.now()
        before = now - self._keep
        while await self._sweep_some(before):
            await asyncio.sleep(self.sweep_pause)
        await self._in_thread(lambda: sweep_prices(self._store, now, before))

    async def _sweep_some(self, before: int) -> bool:
        """Let go of so much as leaves at once; whether there may be more that can."""
        old = await self._in_thread(lambda: history.old_jobs(self._store, before))
        if old is None:
            return False
        gone = await self.discard(old) if old and self.discard is not None else old
        more = await self._in_thread(lambda: history.sweep(self._store, before, gone))
        if more is None:
            return False
        for name in gone:
            self.published.recent.pop(name, None)
        return more or bool(gone and len(old) == history.SWEPT_JOBS)

    async def _step(self) -> None:
        """Take in what waits, in one batch."""
        if self._until_edge() <= 0:
            await self._listen()
            await self._freshen()
        batch = self._taken()
        operations: list[Operation] = []
        told: list[Waiting] = []
        edge_at = backlog_at = None
        if self._until_edge() <= 0:  # what is due comes before what is asked
            if self._reports or self._points:
                operations.append(self._progress())
            edge_at = len(operations)
            told = [one for one in batch if isinstance(one.operation, TakeReports)]
            batch = [one for one in batch if not isinstance(one.operation, TakeReports)]
            operations.append(self._edge(told))
        elif len(self._points) > MANY_POINTS:
            operations.append(self._progress())
        first = len(operations)
        operations += [waiting.operation for waiting in batch]
        if self.published.servers.backlog:
            backlog_at = len(operations)
            operations.append(DecideBacklog(self._chunk))
        if not operations:
            return
        self.metrics.lag.set(monotonic() - batch[0].since if batch else 0.0)
        began = monotonic()
        asked = [waiting.answer for waiting in batch]
        outcome = await self._commit(operations, asked, first, [one.answer for one in told])
        if outcome is None:
            return
        spent = monotonic() - began
        self.metrics.commit.observe(spent)
        if backlog_at is not None:
            faster = spent < CHUNK_SECONDS
            self._chunk = min(256, self._chunk * 2) if faster else max(4, self._chunk // 2)
        if edge_at is not None:
            answer = outcome.answers[edge_at]
            self._edged(answer)
            self._catching_up = not (isinstance(answer, Passed) and answer.caught_up)
            if not self._catching_up:
                for one in told:
                    if not one.answer.done():
                        one.answer.set_result(answer.left)
            else:  # they belong to slots that have not ended yet; what was taken in is known
                self._queue.extendleft(reversed(told))

    def _taken(self) -> list[Waiting]:
        """Take what is asked from the queue, so much as fits into a batch."""
        batch: list[Waiting] = []
        later: list[Waiting] = []
        quotes = 0
        while self._queue and len(batch) < BATCH:
            waiting = self._queue.popleft()
            if waiting.answer.cancelled():
                continue
            quotes += isinstance(waiting.operation, AskQuote)
            enough = quotes > QUOTES and isinstance(waiting.operation, AskQuote)
            (later if enough else batch).append(waiting)
        self._queue.extendleft(reversed(later))
        return batch

    # ---------------------------------------------------------------- slots that are over

    def _edge(self, told: Sequence[Waiting]) -> Edge:
        """Return what time does to the truth now, and what happened meanwhile."""
        unheard = self.unheard() if self.unheard is not None else frozenset()
        known = (one.operation for one in told)
        reports = [one for some in known if isinstance(some, TakeReports) for one in some.reports]
        return Edge(self.virtual, unheard, reports, self._since, dict(self._heard))

    async def _listen(self) -> None:
        """Let word come in of what happened while nobody listened.

        The service was not there, or stood still: how far jobs are, and which of them are over, is
        told in a moment. Counted before, they would seem to have done nothing, and ends to come
        late.
        """
        if self.virtual or not self.published.running:
            return
        servers, now = self.published.servers, self.clock.now()
        running = servers.slot_running
        late = running is not None and now - servers.calendar.ends(running) > servers.calendar.slot
        if late and not self._catching_up:  # else it was listened for them all before
            self._begin_listening()
        left = self._listening + self.listen_seconds - monotonic()
        if left > 0.0 and self.fresh is not None:
            await asyncio.sleep(left)

    def _begin_listening(self) -> None:
        self._since, self._listening = self.clock.now(), monotonic()

    async def _freshen(self) -> None:
        """Let reports of this moment come in; the slot is counted whether they can or not.

        What was done since the last look would seem not done, and plans to fall short.
        """
        if self.fresh is None:
            return
        try:
            async with asyncio.timeout(FRESH_SECONDS):
                await self.fresh()
        except TimeoutError:
            pass  # what comes later is of the next slot
        except Exception:  # whatever an executor gets wrong, slots go on
            self.metrics.failures.labels("progress").inc()
            log.exception("jobs could not be asked how far they are before a slot was counted")

    def _edged(self, answer: Any) -> None:
        servers = self.published.servers
        if isinstance(answer, Exception):
            self._edge_failed = monotonic()
            self.metrics.failures.labels("slot").inc()
            log.error("a slot could not begin: %s", answer)
            return
        self._edge_failed = 0.0
        running = servers.slot_running
        if running is not None:
            begins = servers.calendar.begins(running)
            self.metrics.slot_lag.set((self.clock.now() - begins) / SECOND)
            ends = servers.calendar.ends(running)
            self.hub.mention(
                "slot", {"slot": running, "begins": stamp(begins), "ends": stamp(ends)}
            )

    @property
    def stuck(self) -> str | None:
        """What is wrong where slots do not begin, or a task fails; None where all is well."""
        if self._edge_failed:
            return "a slot could not begin; the log tells why"
        return self._background.health_error

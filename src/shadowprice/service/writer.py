"""The only one who touches the truth: commits what is asked, and publishes what came of it."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from shadowprice.core.errors import ShadowpriceError
from shadowprice.executors.background import all_of, monotonic
from shadowprice.rest.jobs import StoredEvent
from shadowprice.service.events import Hub
from shadowprice.service.metrics import Metrics
from shadowprice.service.problems import ProblemError
from shadowprice.service.published import Published
from shadowprice.service.store import Store, StoreError
from shadowprice.service.truth.outcome import Operation, Outcome
from shadowprice.service.truth.reading import list_events, orders_given
from shadowprice.service.truth.truth import Truth

log = logging.getLogger("shadowprice.service")

Result = TypeVar("Result")

WAITING: Final = 20_000
"""Operations that may wait; further ones are refused."""

RECENT: Final = 1_000
"""Closed jobs that are remembered beside the open ones."""


@dataclass(slots=True)
class Waiting:
    """An operation that waits, and who waits for its answer."""

    operation: Operation
    answer: asyncio.Future[Any]
    since: float = field(default_factory=monotonic)


class Writer:
    """Lets operations happen in a thread of its own, and readers see what they came to.

    A store that cannot be written is told as `health_error`, and tried again.

    Parameters
    ----------
    truth : Truth
        Engine and store; from now on only this touches them.
    metrics : Metrics
        Where it is counted.
    """

    def __init__(self, truth: Truth, metrics: Metrics) -> None:
        self.metrics = metrics
        self._truth = truth
        self._store: Store = truth.store
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="truth")
        self._queue: deque[Waiting] = deque()
        self._wake = asyncio.Event()
        self._asking = asyncio.Lock()
        self._stopping = False
        self.health_error: str | None = None
        self.hub = Hub(self._missed)
        self.listeners: list[Callable[[Outcome], None]] = []
        truth.decided = self.metrics.decision.observe
        first = truth.outcome()
        assert first.servers is not None
        self.published = Published(
            dict(first.views),
            OrderedDict(),
            first.running,
            first.unacknowledged,
            first.servers,
            first.sequence,
            first.accounts,
            first.specs,
        )
        self.hub.last = truth.next_told - 1

    # ---------------------------------------------------------------- asking

    async def do(self, operation: Operation) -> Any:
        """Let an operation happen, and return its answer once it is written.

        Raises
        ------
        ShadowpriceError
            If it cannot be done, or the store cannot be written.
        """
        if self._stopping:
            raise ProblemError("stopping", "the service is stopping; try again in a moment")
        if self.health_error is not None:
            raise ProblemError("storage", self.health_error, headers={"Retry-After": "2"})
        if len(self._queue) >= WAITING:
            raise ProblemError("overloaded", f"{WAITING} requests wait already")
        waiting = Waiting(operation, asyncio.get_running_loop().create_future())
        self._queue.append(waiting)
        self._wake.set()
        return await waiting.answer

    async def ask(self, question: Callable[[Truth], Result]) -> Result:
        """Return what a question that changes nothing is answered, between two batches.

        One is asked at a time: all that were asked already would come before the next batch.
        """
        loop = asyncio.get_running_loop()
        async with self._asking:
            return await loop.run_in_executor(self._thread, question, self._truth)

    async def ordered(
        self, generations: Sequence[tuple[str, int]]
    ) -> Mapping[tuple[str, int], int]:
        """Return when generations were ordered, in nanoseconds; those that never were have none.

        Raises
        ------
        ProblemError
            If the store cannot be read.
        """
        if not generations:
            return {}

        def look(truth: Truth) -> Mapping[tuple[str, int], int]:
            with truth.store.reading() as connection:
                return orders_given(connection, generations)

        try:
            return await self.ask(look)
        except StoreError as error:
            raise ProblemError("storage", f"the store cannot be read: {error}") from error

    def specification(self, name: str) -> Mapping[str, Any] | None:
        """Return what was submitted of an open job, None where there is none."""
        return self.published.specs.get(name)

    @property
    def policy(self) -> str:
        """Name of the policy."""
        return self._truth.choice.name

    def _missed(self, after: int, tenant: str | None) -> list[StoredEvent]:
        del tenant  # what is everybody's is in no tenant's index; it is told apart beside
        with self._store.reading() as connection:
            return list_events(connection, after=after, limit=500)

    # ---------------------------------------------------------------- writing

    async def _in_thread(self, work: Callable[[], Result]) -> Result | None:
        """Return what is answered there, None where the store failed."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except StoreError as error:
            self._failed(error)
            return None

    async def _commit(
        self,
        operations: Sequence[Operation],
        answers: Sequence[asyncio.Future[Any]] = (),
        first: int = 0,
        others: Sequence[asyncio.Future[Any]] = (),
    ) -> Outcome | None:
        """Commit in the thread, publish, and answer those asked from the ``first`` operation on.

        Returns None where the store failed; others wait for no answer of their own, but are told
        of that.
        """
        loop = asyncio.get_running_loop()
        try:
            outcome = await loop.run_in_executor(self._thread, self._truth.commit, operations)
        except Exception as error:
            if not isinstance(error, StoreError):
                log.exception("a batch failed")
            self._failed(error)
            problem = ProblemError("storage", "it may not have been written; ask again")
            for answer in (*answers, *others):
                if not answer.done():
                    answer.set_exception(problem)
            return None
        self._publish(outcome)
        for answer, result in zip(answers, outcome.answers[first:], strict=False):
            if answer.done():
                continue
            if isinstance(result, BaseException):
                answer.set_exception(result)
            else:
                answer.set_result(result)
        return outcome

    def _publish(self, outcome: Outcome) -> None:
        published = self.published
        published.specs |= outcome.specs
        for name, view in outcome.views.items():
            if view.state.open:
                published.jobs[name] = view
            else:
                published.jobs.pop(name, None)
                published.specs.pop(name, None)
                published.recent[name] = view
                published.recent.move_to_end(name)
        while len(published.recent) > RECENT:
            published.recent.popitem(last=False)
        published.running = outcome.running
        published.unacknowledged = outcome.unacknowledged
        assert outcome.servers is not None
        published.servers = outcome.servers
        published.sequence = outcome.sequence
        published.accounts = outcome.accounts
        self.metrics.sequence.set(outcome.sequence)
        self.metrics.took(outcome.told, outcome.views)
        for event in outcome.told:
            if event.kind == "warning":
                level = logging.WARNING if event.data["active"] else logging.INFO
                log.log(level, "%s", event.data["message"])
        self.hub.publish(outcome.told)
        for listener in self.listeners:
            listener(outcome)

    async def finish(self) -> None:
        """Write the state down for a quick start, after `run` ended, and let the thread go."""
        await all_of(self._last_snapshot, lambda: self._thread.shutdown(wait=True))

    async def _last_snapshot(self) -> None:
        if self.health_error is None:
            loop = asyncio.get_running_loop()
            try:
                await loop.run_in_executor(self._thread, self._truth.write_snapshot)
            except ShadowpriceError as error:
                log.warning("no snapshot at the end: %s", error)

    # ---------------------------------------------------------------- health

    def _failed(self, error: Exception) -> None:
        """Take note that the store cannot be written; from now on it is tried again."""
        self.metrics.failures.labels("store").inc()
        self.health_error = f"the store cannot be written: {error}"
        log.error("%s", self.health_error)
        problem = ProblemError("storage", self.health_error, headers={"Retry-After": "2"})
        while self._queue:
            answer = self._queue.popleft().answer
            if not answer.done():
                answer.set_exception(problem)

    async def _mend(self) -> None:
        """Try the store again, and read everything back once it can be written."""
        loop = asyncio.get_running_loop()
        try:
            mine = await loop.run_in_executor(self._thread, self._store.reopen)
            if not mine:
                self.health_error = "another instance writes now; restart this one to stand by"
                self.metrics.writer.set(0)
                return
            await loop.run_in_executor(self._thread, self._truth.recover)
        except ShadowpriceError as error:
            self.health_error = f"the store cannot be written: {error}"
            return
        log.warning("the store can be written again")
        self.health_error = None
        self._truth.damaged = False
        outcome = self._truth.outcome()
        self.published.jobs.clear()
        self.published.specs.clear()
        self._publish(outcome)

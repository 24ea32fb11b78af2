"""Single writer of the durable state: commits operations, and publishes the results."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, TypeVar

from shadowprice.core.errors import ShadowpriceError
from shadowprice.executors.background import run_all
from shadowprice.rest import StoredEvent
from shadowprice.service.event_stream import EventBroadcaster
from shadowprice.service.metrics import Metrics
from shadowprice.service.operation_queue import (
    BatchEntry,
    OperationQueue,
    fail_batch,
    resolve_batch,
)
from shadowprice.service.problems import ProblemError
from shadowprice.service.progress_buffer import ProgressBuffer
from shadowprice.service.read_model import ReadModel
from shadowprice.service.standing_queries import MAX_READ_WAIT_SECONDS, StandingQuery
from shadowprice.service.state.batch import Operation
from shadowprice.service.state.durable_engine import DurableEngine
from shadowprice.service.state.durable_state import CommitResult, DurableState
from shadowprice.service.state.store_queries import command_times, list_events
from shadowprice.service.store import Store, StoreError
from shadowprice.service.usage import Usage

log = logging.getLogger("shadowprice.service")

Result = TypeVar("Result")

RECENT_CLOSED_JOBS: Final = 1_000  # closed jobs that are cached in addition to the open ones


class Writer:
    """Queues operations, commits them in a thread of its own, and publishes the results.

    The `Driver` decides when a batch is committed. If the store can't be written, `health_error`
    is set until `recover` succeeds. Only the writer's thread changes ``durable`` and its engine and
    store. The event loop only reads single values of them.
    """

    def __init__(self, durable: DurableEngine, metrics: Metrics) -> None:
        self.metrics = metrics
        self.clock = durable.state.clock
        self._durable = durable
        self._store: Store = durable.store
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="writer")
        self.queue = OperationQueue()
        self._wake = asyncio.Event()
        self._query_lock = asyncio.Lock()
        self._standing: dict[Callable[[DurableState, int], Any], StandingQuery[Any]] = {}
        self._stopping = False
        self.health_error: str | None = None
        self.broadcaster = EventBroadcaster(self._missed_events, durable.state.next_event_id - 1)
        self._listeners: list[Callable[[CommitResult], None]] = []
        self.usage = Usage()
        present = durable.present_state()
        self.published = ReadModel(present.servers)
        self.progress = ProgressBuffer(self.clock, self.published)
        self._publish(present)

    async def do(self, operation: Operation[Result]) -> Result:
        """Queue an operation; after the commit, return its result or raise its error."""
        if self._stopping:
            raise ProblemError("stopping", "the service is stopping; try again in a moment")
        if self.health_error is not None:
            raise ProblemError("storage", self.health_error, headers={"Retry-After": "2"})
        result = self.queue.put(operation)
        self._wake.set()
        return await result

    async def query(self, query: Callable[[DurableState], Result]) -> Result:
        """Run a read-only query in the writer's thread between two batches, one at a time."""
        async with self._query_lock:
            return await self._start_query(query)

    def _start_query(self, query: Callable[[DurableState], Result]) -> asyncio.Future[Result]:
        loop, durable = asyncio.get_running_loop(), self._durable
        return loop.run_in_executor(self._thread, lambda: query(durable.state))

    async def query_standing(
        self, compute: Callable[[DurableState, int], Result], slots: int
    ) -> Result:
        """Return the answer of a query about a number of coming slots; see `StandingQuery`.

        ``compute`` identifies the query, so it must be a module's function, no lambda. The answer
        may cover more slots. An outdated answer is returned if the writer is busy for longer than
        `MAX_READ_WAIT_SECONDS`.
        """
        query: StandingQuery[Result] = self._standing.setdefault(compute, StandingQuery(compute))
        next_slot = self.published.servers.next_slot_at(self.clock.now())
        query.note_read(slots, next_slot)
        while not query.is_current(slots, self.published.sequence, next_slot):
            # Again, because after a long wait the earlier read may no longer count.
            query.note_read(slots, next_slot)
            task = query.task or query.begin(asyncio.ensure_future(self.query(query.compute)))
            previous = query.answer
            if previous is None or previous.slots < slots:
                await query.wait(task, None)
            elif await query.wait(task, MAX_READ_WAIT_SECONDS) is None:
                return previous.result
        assert query.answer is not None
        return query.answer.result

    async def fetch_command_times(
        self, generations: Sequence[tuple[str, int]]
    ) -> Mapping[tuple[str, int], int]:
        """Return when generations were commanded, in nanoseconds; orphans are absent."""
        if not generations:
            return {}

        def read_times(state: DurableState) -> Mapping[tuple[str, int], int]:
            with state.store.reading() as connection:
                return command_times(connection, generations)

        try:
            return await self.query(read_times)
        except StoreError as error:
            raise ProblemError("storage", f"the store cannot be read: {error}") from error

    @property
    def policy(self) -> str:
        """Name of the policy."""
        return self._durable.state.choice.name

    def subscribe(self, listener: Callable[[CommitResult], None]) -> None:
        """Call a listener with the result of each commit, after it was published."""
        self._listeners.append(listener)

    def unsubscribe(self, listener: Callable[[CommitResult], None]) -> None:
        """Stop calling a listener; no effect on one that isn't subscribed."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    def _missed_events(self, after: int) -> list[StoredEvent]:
        with self._store.reading() as connection:
            return list_events(connection, after=after, limit=500)

    @property
    def is_finished(self) -> bool:
        """Whether `stop` was called and all operations were taken since."""
        return self._stopping and not self.queue

    async def wait(self, seconds: float) -> None:
        """Wait until an operation is queued or `stop` is called, at most for some seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, seconds)):
                await self._wake.wait()
        self._wake.clear()

    def stop(self) -> None:
        """Refuse operations from now on; the queued ones can still be committed."""
        self._stopping = True
        self._wake.set()

    def refuse_pending(self) -> None:
        """Refuse new and queued operations, because no batch follows."""
        self._stopping = True
        self.queue.fail(ProblemError("stopping", "the service is ending"))

    async def run_in_thread(self, work: Callable[[], Result]) -> Result | None:
        """Run a call in the writer's thread; return None if the store failed."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except StoreError as error:
            self._on_store_error(error)
            return None

    async def commit(self, batch: Sequence[BatchEntry]) -> bool:
        """Commit and publish a batch; return success. Callers get their results, or the error."""
        loop = asyncio.get_running_loop()
        try:
            operations = [entry.operation for entry in batch]
            committed = await loop.run_in_executor(self._thread, self._durable.commit, operations)
        except Exception as error:
            if not isinstance(error, StoreError | MemoryError):
                log.exception("a batch failed")
            self._on_store_error(error)
            detail = "the write may not have been committed; send the request again"
            fail_batch(batch, ProblemError("storage", detail))
            return False
        self._publish(committed)
        for failure in resolve_batch(batch, committed.answers):
            self.metrics.count_failure("operation")
            log.error("an operation of the service failed: %s", failure)
        self._renew()
        return True

    def _renew(self) -> None:
        """Queue the renewal of answers that are read, so that it runs before the next batch."""
        for query in self._standing.values():
            if query.is_renewed():
                query.begin(self._start_query(query.compute))

    def _publish(self, committed: CommitResult) -> None:
        """Update what readers see, and notify subscribers and listeners."""
        published = self.published
        published.specs |= committed.specs
        for name, record in committed.specs.items():
            self.usage.set(name, record)
        for name, view in committed.views.items():
            self.metrics.count_job(published.jobs.get(name), view if view.state.open else None)
            if view.state.open:
                published.put_job(view)
            else:
                published.remove_job(name)
                published.specs.pop(name, None)
                self.usage.remove(name)
                published.recent[name] = view
                published.recent.move_to_end(name)
        while len(published.recent) > RECENT_CLOSED_JOBS:
            published.recent.popitem(last=False)
        published.desired, published.unacknowledged = committed.desired, committed.unacknowledged
        published.servers, published.sequence = committed.servers, committed.sequence
        published.accounts, published.prices = committed.accounts, committed.prices
        self.metrics.sequence.set(committed.sequence)
        self.metrics.record_events(committed.events, committed.views)
        for event in committed.events:
            if event.kind == "warning":
                level = logging.WARNING if event.data["active"] else logging.INFO
                log.log(level, "%s", event.data["message"])
        self.broadcaster.publish(committed.events)
        for listener in self._listeners:
            listener(committed)

    async def finish(self) -> None:
        """Write a final snapshot for a fast start, and stop the thread. No batch may follow."""
        for query in self._standing.values():
            if query.task is not None:
                query.task.cancel()
        await run_all(self._last_snapshot, lambda: self._thread.shutdown(wait=True))

    async def _last_snapshot(self) -> None:
        if self.health_error is None:
            loop = asyncio.get_running_loop()
            try:
                await loop.run_in_executor(self._thread, self._durable.write_snapshot)
            except ShadowpriceError as error:
                log.warning("no snapshot at the end: %s", error)

    def _on_store_error(self, error: Exception) -> None:
        """Refuse all operations until the driver has recovered the store."""
        self.metrics.failures.labels("store").inc()
        reason = str(error) or "out of memory"  # a MemoryError has no text
        self.health_error = f"the store cannot be written: {reason}"
        log.error("%s", self.health_error)
        self.queue.fail(ProblemError("storage", self.health_error, headers={"Retry-After": "2"}))

    def _recover_state(self) -> CommitResult:
        self._durable.recover()
        return self._durable.present_state()

    async def recover(self) -> None:
        """Reopen the store; if that succeeds, recover the durable state from it."""
        loop = asyncio.get_running_loop()
        try:
            is_writer = await loop.run_in_executor(self._thread, self._store.reopen)
            if not is_writer:
                self.health_error = (
                    "another instance is now the leader; restart this one as a standby"
                )
                self.metrics.writer.set(0)
                return
            committed = await loop.run_in_executor(self._thread, self._recover_state)
        except ShadowpriceError as error:
            self.health_error = f"the store cannot be written: {error}"
            return
        log.warning("the store is writable again")
        # The failed commit may have stored events, which no subscriber got.
        self.broadcaster.resync(self._durable.state.next_event_id - 1)
        self.health_error = None
        # The failed commit may have been stored, so publish the recovered state from scratch.
        for view in list(self.published.jobs.values()):
            self.metrics.count_job(view, None)
            self.published.remove_job(view.key)
        self.published.specs.clear()
        self.usage.clear()
        self._standing.clear()
        self._publish(committed)

"""Operations that wait for the writer, and the batches in which it commits them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from shadowprice.executors.background import monotonic
from shadowprice.service.problems import ProblemError
from shadowprice.service.state.batch import Answer, Operation
from shadowprice.service.state.operations import fork_engine, quote_job, revise_job
from shadowprice.service.state.tenant_lanes import TenantLanes
from shadowprice.service.turns import requester

MAX_PENDING_OPERATIONS: Final = 20_000  # maximum number of queued operations; more are refused
MAX_BATCH_OPERATIONS: Final = 256  # maximum number of operations in one transaction
SLOW_OPERATIONS: Final = (quote_job, fork_engine, revise_job)
"""Operations that take as long as many submissions."""
MAX_BATCH_SLOW_OPERATIONS: Final = 2  # per transaction, because other requests wait for its end


@dataclass(slots=True)
class PendingOperation:
    """A queued operation, and the future of its result."""

    operation: Operation[Any]
    future: asyncio.Future[Any]
    tenant: str | None = field(default_factory=requester.get)  # that requested it
    since: float = field(default_factory=monotonic)  # monotonic time in seconds

    def to_entry(self) -> BatchEntry:
        """Return the operation as an entry of a batch; its caller gets the result."""
        return BatchEntry(self.operation, self.resolve, [self])

    def resolve(self, result: Any) -> None:
        """Pass the result to the caller, or raise it there if it is an error."""
        if self.future.done():
            return  # the caller was cancelled
        if isinstance(result, BaseException):
            self.future.set_exception(result)
        else:
            self.future.set_result(result)


class BatchEntry(NamedTuple):
    """An operation of a batch."""

    operation: Operation[Any]
    on_result: Callable[[Any], None] | None = None  # gets the result or error
    callers: Sequence[PendingOperation] = ()  # get the error if the commit fails


def resolve_batch(batch: Sequence[BatchEntry], results: Sequence[Any]) -> list[Exception]:
    """Pass results and errors to the entries' handlers; return the errors without a handler."""
    unhandled: list[Exception] = []
    for entry, result in zip(batch, results, strict=True):
        if entry.on_result is not None:
            entry.on_result(result)
        elif isinstance(result, Exception):
            unhandled.append(result)
    return unhandled


def fail_batch(batch: Sequence[BatchEntry], error: Exception) -> None:
    """Raise an error in all callers, because the commit failed."""
    for entry in batch:
        for caller in entry.callers:
            caller.resolve(error)


class OperationQueue:
    """Operations that wait for the next batch; tenants take turns."""

    def __init__(self, pending: Iterable[PendingOperation] = ()) -> None:
        self._pending = deque(pending)
        self._slow_count = 0  # slow operations served so far
        self._slow_served: dict[str | None, int] = {}
        """`_slow_count` at the last slow operation of each tenant in the queue."""

    def __bool__(self) -> bool:
        return bool(self._pending)

    def put(self, operation: Operation[Answer]) -> asyncio.Future[Answer]:
        """Queue an operation; return its future, or raise `ProblemError` if the queue is full."""
        if len(self._pending) >= MAX_PENDING_OPERATIONS:
            detail = f"{MAX_PENDING_OPERATIONS} requests are already waiting"
            raise ProblemError("overloaded", detail)
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._pending.append(PendingOperation(operation, future))
        return future

    def put_back(self, pending: Sequence[PendingOperation]) -> None:
        """Put operations that `take` removed back in front of all others."""
        self._pending.extendleft(reversed(pending))

    def take(self) -> list[PendingOperation]:
        """Remove the operations of the next batch; slow ones above the limit remain."""
        waiting = [entry for entry in self._pending if not entry.future.cancelled()]
        tenants = dict.fromkeys(entry.tenant for entry in waiting)
        # The tenant whose slow operation was served longest ago comes first, also across batches.
        served = {tenant: self._slow_served.get(tenant, 0) for tenant in tenants}
        lanes = TenantLanes[PendingOperation]()
        for entry in sorted(waiting, key=lambda entry: served[entry.tenant]):
            lanes.push(entry.tenant, entry)
        self._slow_served = served
        taken: list[PendingOperation] = []
        slow = 0
        while lanes and len(taken) < MAX_BATCH_OPERATIONS:
            entry = lanes.pop()
            if getattr(entry.operation, "kind", None) in SLOW_OPERATIONS:
                slow += 1
                if slow > MAX_BATCH_SLOW_OPERATIONS:
                    continue  # stays in the queue
                self._slow_count += 1
                served[entry.tenant] = self._slow_count
            taken.append(entry)
        is_taken = set(map(id, taken))
        self._pending = deque(entry for entry in waiting if id(entry) not in is_taken)
        return taken

    def fail(self, error: Exception) -> None:
        """Remove all operations, and raise an error in their callers."""
        while self._pending:
            self._pending.popleft().resolve(error)

"""Assignment of chunks to workers: every mini-batch of every epoch counts exactly once.

A chunk is assigned to one worker at a time, under a token. A mini-batch counts when it is committed
in order under the current token. All servers then apply its gradient. When a worker is lost, its
tokens expire. Its committed mini-batches stay, and the rest of its chunk is assigned again. So no
mini-batch is skipped or counted twice, even if a worker dies or continues late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shadowprice.training.sampling import Order

Key = tuple[int, int]
"""Identifier of a pushed gradient: its token, and the number of its mini-batch."""


@dataclass(frozen=True, slots=True)
class Work:
    """The next assignment of a worker.

    Pushes and commits of the results carry ``token``. In synchronous training, ``chunk`` is the
    step. ``first`` and ``last`` are a half-open range of mini-batches of the chunk, or of parts of
    the step. ``ahead`` is the chunk that the worker will probably get next, for prefetching; -1 if
    there is none.
    """

    token: int
    epoch: int
    chunk: int
    first: int
    last: int
    ahead: int = -1


def equally_near(worker: int, chunk: int) -> int:
    """Return 0, the distance of all chunks if the storage reports no locations."""
    del worker, chunk
    return 0


class AsyncAssigner:
    """Assigns chunks for asynchronous training.

    Once all chunks of the current epoch are assigned, chunks of the next epoch follow. A chunk is
    never assigned to a second worker while the first still processes it. Within an epoch a worker
    gets the nearest free chunk, by ``distance``; of equally near chunks, the first in the epoch's
    order.
    """

    def __init__(
        self,
        minibatches: Sequence[int],
        epochs: int,
        order: Callable[[int], Sequence[int]],
        record: Mapping[str, Any] | None = None,
        distance: Callable[[int, int], int] = equally_near,
    ) -> None:
        self._distance = distance
        self._minibatches = tuple(minibatches)
        self._epochs = epochs
        self._order = order
        self._leases: dict[int, tuple[int, int, int]] = {}  # worker, epoch and chunk, by token
        self._reserved: dict[int, tuple[int, int]] = {}  # prefetched epoch and chunk, by worker
        self._tokens = 0  # number of tokens so far, which is the newest token
        self.committed: int = 0
        """Mini-batches committed since the start of the job."""
        self._opened = 0  # number of epochs that have been opened
        # Committed mini-batches of each unfinished chunk, by epoch and chunk:
        self._progress: dict[int, dict[int, int]] = {}
        if record is not None:
            self.committed = int(record["committed"])
            self._opened = int(record["opened"])
            self._progress = {
                int(epoch): {int(chunk): int(done) for chunk, done in chunks}
                for epoch, chunks in record["remaining"]
            }

    @property
    def epoch(self) -> int:
        """The first incomplete epoch, or the number of epochs if all are complete."""
        return min(self._progress, default=self._opened)

    @property
    def finished(self) -> bool:
        """True if all mini-batches of all epochs are committed."""
        return self._opened >= self._epochs and not self._unfinished()

    def record(self) -> dict[str, Any]:
        """Return the committed state as plain values; tokens expire with the generation."""
        remaining = [
            [epoch, [list(entry) for entry in chunks.items()]]
            for epoch, chunks in self._progress.items()
        ]
        return {"committed": self.committed, "opened": self._opened, "remaining": remaining}

    def assign(self, worker: int, workers: int) -> Work | None:
        """Assign a free chunk to a worker, if there is one; its earlier assignment expires."""
        del workers
        self._expire_leases(worker)
        chosen = self._choose(worker, self._reserved.pop(worker, None))
        if chosen is None:
            return None
        self._reserved = {
            holder: reservation
            for holder, reservation in self._reserved.items()
            if reservation != chosen
        }
        self._tokens += 1
        epoch, chunk = chosen
        self._leases[self._tokens] = (worker, epoch, chunk)
        ahead = self._choose(worker, only_unreserved=True)
        if ahead is not None:
            self._reserved[worker] = ahead
        done = self._progress[epoch][chunk]
        ahead_chunk = -1 if ahead is None else ahead[1]
        return Work(self._tokens, epoch, chunk, done, self._minibatches[chunk], ahead_chunk)

    def commit(self, worker: int, token: int, index: int) -> tuple[Key, ...] | None:
        """Commit a mini-batch; return the gradients to apply now, None if its token is stale."""
        lease = self._leases.get(token)
        if lease is None or lease[0] != worker:
            return None
        _, epoch, chunk = lease
        if index != self._progress[epoch][chunk]:
            return None
        self.committed += 1
        self._progress[epoch][chunk] += 1
        if self._progress[epoch][chunk] == self._minibatches[chunk]:
            del self._leases[token], self._progress[epoch][chunk]
            if not self._progress[epoch]:
                del self._progress[epoch]
        return ((token, index),)

    def release_worker(self, worker: int) -> None:
        """Release the assignments of a lost worker."""
        self._expire_leases(worker)
        self._reserved.pop(worker, None)

    def holders(self) -> frozenset[int]:
        """Return the workers with an assignment."""
        return frozenset(worker for worker, _, _ in self._leases.values())

    def _expire_leases(self, worker: int) -> None:
        self._leases = {token: lease for token, lease in self._leases.items() if lease[0] != worker}

    def _choose(
        self, worker: int, reserved: tuple[int, int] | None = None, *, only_unreserved: bool = False
    ) -> tuple[int, int] | None:
        """Return the chunk to assign next: ``reserved``, or the nearest chunk of the oldest epoch.

        Chunks that other workers have reserved come last, or not at all if ``only_unreserved``.
        """
        while True:
            for epoch in self._unfinished():
                free = self._free(epoch)
                if reserved is not None and reserved[0] == epoch and reserved[1] in free:
                    return reserved
                chunk = self._nearest(worker, self._unreserved(epoch, free))
                if chunk is None and not only_unreserved:
                    chunk = self._nearest(worker, free)
                if chunk is not None:
                    return epoch, chunk
            if not self._open_next_epoch():
                return None

    def _nearest(self, worker: int, chunks: Iterable[int]) -> int | None:
        """Return the first of the chunks that are nearest to a worker; None without chunks."""
        nearest, minimum = None, 0
        for chunk in chunks:
            distance = self._distance(worker, chunk)
            if nearest is None or distance < minimum:
                nearest, minimum = chunk, distance
            if not minimum:
                break
        return nearest

    def _unreserved(self, epoch: int, chunks: Sequence[int]) -> Iterator[int]:
        """Yield the chunks of an epoch that no worker has reserved."""
        reserved = {
            chunk for reserved_epoch, chunk in self._reserved.values() if reserved_epoch == epoch
        }
        return (chunk for chunk in chunks if chunk not in reserved)

    def _free(self, epoch: int) -> list[int]:
        """Return the unfinished, unassigned chunks of an epoch, in the epoch's order."""
        unfinished = self._progress[epoch]
        busy = {assigned for _, _, assigned in self._leases.values()}
        return [chunk for chunk in self._order(epoch) if chunk in unfinished and chunk not in busy]

    def _unfinished(self) -> list[int]:
        """Return the open epochs; a restored job may have fewer epochs than before."""
        return sorted(epoch for epoch in self._progress if epoch < self._epochs)

    def _open_next_epoch(self) -> bool:
        """Open the next epoch, unless two are open or none remains."""
        if self._opened >= self._epochs or len(self._progress) > 1:
            return False
        self._progress[self._opened] = dict.fromkeys(range(len(self._minibatches)), 0)
        self._opened += 1
        return True


class SyncAssigner:
    """Assigns the parts of each step, one step at a time, for synchronous training.

    Every worker gets a share of the step's parts; the share of a lost worker goes to another. The
    step is applied once all shares are committed, in the order of its parts.
    """

    def __init__(self, order: Order, epochs: int, record: Mapping[str, Any] | None = None) -> None:
        self._order = order
        self._steps = order.steps * epochs
        self._tokens = 0
        self.committed: int = int(record["committed"]) if record is not None else 0
        """Steps completed since the start of the job."""
        self._free: list[tuple[int, int]] = []  # unassigned shares: ranges of parts
        self._leases: dict[int, tuple[int, tuple[int, int]]] = {}  # worker and share, by token
        self._committed_shares: dict[int, Key] = {}  # by first part
        self._is_open = False  # whether the current step is divided into shares

    @property
    def epoch(self) -> int:
        """The first incomplete epoch, or the number of epochs if all are complete."""
        return self._order.epoch(self.committed)

    @property
    def finished(self) -> bool:
        """True if all steps are completed."""
        return self.committed >= self._steps

    def record(self) -> dict[str, Any]:
        """Return the committed state as plain values, without the incomplete step."""
        return {"committed": self.committed}

    def assign(self, worker: int, workers: int) -> Work | None:
        """Assign parts of the current step to a worker, if any remain."""
        self._expire_leases(worker)
        if not self._is_open and not self.finished:
            parts = len(self._order.split_step(self.committed))
            self._free = list(_even_ranges(parts, max(1, min(workers, parts))))
            self._is_open = True
        if not self._free:
            return None
        self._tokens += 1
        first, last = share = self._free.pop(0)
        self._leases[self._tokens] = (worker, share)
        return Work(self._tokens, self.epoch, self.committed, first, last)

    def commit(self, worker: int, token: int, index: int) -> tuple[Key, ...] | None:
        """Commit a share; return the gradients with the last share, None if its token is stale."""
        lease = self._leases.get(token)
        if lease is None or lease[0] != worker or index != lease[1][0]:
            return None
        del self._leases[token]
        self._committed_shares[index] = (token, index)
        if self._free or self._leases:
            return ()
        keys = tuple(self._committed_shares[first] for first in sorted(self._committed_shares))
        self._committed_shares.clear()
        self._is_open = False
        self.committed += 1
        return keys

    def release_worker(self, worker: int) -> None:
        """Release the assignments of a lost worker."""
        self._expire_leases(worker)

    def holders(self) -> frozenset[int]:
        """Return the workers with an assignment."""
        return frozenset(worker for worker, _ in self._leases.values())

    def _expire_leases(self, worker: int) -> None:
        for token, (holder, share) in list(self._leases.items()):
            if holder == worker:
                del self._leases[token]
                self._free.append(share)


def _even_ranges(parts: int, shares: int) -> Iterator[tuple[int, int]]:
    for number in range(shares):
        yield parts * number // shares, parts * (number + 1) // shares

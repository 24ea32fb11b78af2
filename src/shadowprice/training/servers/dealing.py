"""Which chunk is with whom, and what of it counts: every mini-batch of every epoch, once.

A chunk is dealt to one worker at a time, under a token. A mini-batch counts when it is committed
under the token that is in force, in its turn; what it changes is then applied on all servers. When
a worker is lost its tokens lapse: what it committed stays, and the rest of its chunk is dealt
again. So nothing is left out and nothing counts twice, whenever a worker dies or wakes up late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shadowprice.training.sampling import Order

Key = tuple[int, int]
"""What was pushed: under which token, and the mini-batch's number."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a worker is to do next.

    Parameters
    ----------
    token : int
        Under which its results are pushed and committed.
    epoch : int
        The epoch, from 0 on.
    chunk : int
        The chunk; of synchronous training the step.
    first, last : int
        Mini-batches of the chunk, or parts of the step: from the first on, before the last.
    ahead : int
        The chunk that this worker will probably be dealt next, to be fetched ahead; -1 for none.
    """

    token: int
    epoch: int
    chunk: int
    first: int
    last: int
    ahead: int = -1


class Ledger:
    """Deals chunks for asynchronous training.

    Of the epoch that follows, chunks are dealt as soon as all of the present one are dealt, but
    none that is still being worked on.

    Parameters
    ----------
    minibatches : sequence of int
        Mini-batches of every chunk.
    epochs : int
        How often all chunks are gone through.
    order : callable
        Gives the order of the chunks in an epoch.
    record : mapping, optional
        What `record` returned, to go on from there.
    """

    def __init__(
        self,
        minibatches: Sequence[int],
        epochs: int,
        order: Callable[[int], Sequence[int]],
        record: Mapping[str, Any] | None = None,
    ) -> None:
        self._minibatches = tuple(minibatches)
        self._epochs = epochs
        self._order = order
        self._leases: dict[int, tuple[int, int, int]] = {}
        self._reserved: dict[int, tuple[int, int]] = {}
        self._tokens = 0
        self.committed: int = 0
        """Mini-batches that count, since the job's beginning."""
        self._opened = 0
        self._left: dict[int, dict[int, int]] = {}
        if record is not None:
            self.committed = int(record["committed"])
            self._opened = int(record["opened"])
            self._left = {
                int(epoch): {int(chunk): int(done) for chunk, done in chunks}
                for epoch, chunks in record["left"]
            }

    @property
    def epoch(self) -> int:
        """The first epoch that is not complete; once all are, their number."""
        return min(self._left, default=self._opened)

    @property
    def finished(self) -> bool:
        """Whether every mini-batch of every epoch counts."""
        return self._opened >= self._epochs and not self._unfinished()

    def record(self) -> dict[str, Any]:
        """Return what counts, as plain values; tokens lapse with the generation."""
        left = [[epoch, [list(one) for one in part.items()]] for epoch, part in self._left.items()]
        return {"committed": self.committed, "opened": self._opened, "left": left}

    def deal(self, worker: int, workers: int) -> Work | None:
        """Deal a chunk to a worker that has none, if one is free now.

        Parameters
        ----------
        worker : int
            Who asks; what it had before lapses.
        workers : int
            How many there are.
        """
        del workers
        self._lapse(worker)
        chosen = self._chosen(self._reserved.pop(worker, None))
        if chosen is None:
            return None
        self._reserved = {who: one for who, one in self._reserved.items() if one != chosen}
        self._tokens += 1
        epoch, chunk = chosen
        self._leases[self._tokens] = (worker, epoch, chunk)
        ahead = self._ahead()
        if ahead is not None:
            self._reserved[worker] = ahead
        done = self._left[epoch][chunk]
        following = -1 if ahead is None else ahead[1]
        return Work(self._tokens, epoch, chunk, done, self._minibatches[chunk], following)

    def commit(self, worker: int, token: int, index: int) -> tuple[Key, ...] | None:
        """Count a mini-batch; return what is to be applied now, None where it does not count.

        Parameters
        ----------
        worker, token : int
            Who computed it, and under which token.
        index : int
            The number of the mini-batch in its chunk.
        """
        lease = self._leases.get(token)
        if lease is None or lease[0] != worker:
            return None
        _, epoch, chunk = lease
        if index != self._left[epoch][chunk]:
            return None
        self.committed += 1
        self._left[epoch][chunk] += 1
        if self._left[epoch][chunk] == self._minibatches[chunk]:
            del self._leases[token], self._left[epoch][chunk]
            if not self._left[epoch]:
                del self._left[epoch]
        return ((token, index),)

    def lost(self, worker: int) -> None:
        """Take back what a worker has."""
        self._lapse(worker)
        self._reserved.pop(worker, None)

    def holders(self) -> frozenset[int]:
        """Return the workers that have something to do."""
        return frozenset(worker for worker, _, _ in self._leases.values())

    def _lapse(self, worker: int) -> None:
        self._leases = {token: lease for token, lease in self._leases.items() if lease[0] != worker}

    def _chosen(self, reserved: tuple[int, int] | None) -> tuple[int, int] | None:
        """Return what to deal next: of the oldest epoch, and rather what nobody else reserved."""
        while True:
            for epoch in self._unfinished():
                free = self._free(epoch)
                if reserved is not None and reserved[0] == epoch and reserved[1] in free:
                    return reserved
                others = {chunk for at, chunk in self._reserved.values() if at == epoch}
                if free:
                    return epoch, next((one for one in free if one not in others), free[0])
            if not self._opened_another():
                return None

    def _ahead(self) -> tuple[int, int] | None:
        """Return what is free and nobody meant to do."""
        while True:
            for epoch in self._unfinished():
                others = {chunk for at, chunk in self._reserved.values() if at == epoch}
                for chunk in self._free(epoch):
                    if chunk not in others:
                        return epoch, chunk
            if not self._opened_another():
                return None

    def _free(self, epoch: int) -> list[int]:
        """Return what is left of an epoch and with nobody, in its order."""
        left = self._left[epoch]
        busy = {held for _, _, held in self._leases.values()}
        return [chunk for chunk in self._order(epoch) if chunk in left and chunk not in busy]

    def _unfinished(self) -> list[int]:
        """Return the epochs that are open; what was begun of more than there are now is left."""
        return sorted(epoch for epoch in self._left if epoch < self._epochs)

    def _opened_another(self) -> bool:
        """Begin the next epoch, unless two are open or none is left."""
        if self._opened >= self._epochs or len(self._left) > 1:
            return False
        self._left[self._opened] = dict.fromkeys(range(len(self._minibatches)), 0)
        self._opened += 1
        return True


class Rounds:
    """Deals the parts of one step after the other, for synchronous training.

    Every worker gets a share of the step's parts; those of one that is lost go to another. The step
    is applied once all of them are in, in the order of its parts.

    Parameters
    ----------
    order : Order
        Which samples a step takes, in which parts.
    epochs : int
        How often all samples are gone through.
    record : mapping, optional
        What `record` returned, to go on from there.
    """

    def __init__(self, order: Order, epochs: int, record: Mapping[str, Any] | None = None) -> None:
        self._order = order
        self._steps = order.steps * epochs
        self._tokens = 0
        self.committed: int = int(record["committed"]) if record is not None else 0
        """Steps that count, since the job's beginning."""
        self._free: list[tuple[int, int]] = []
        self._leases: dict[int, tuple[int, tuple[int, int]]] = {}
        self._in: dict[int, Key] = {}
        self._open = False

    @property
    def epoch(self) -> int:
        """The first epoch that is not complete; once all are, their number."""
        return self._order.epoch(self.committed)

    @property
    def finished(self) -> bool:
        """Whether every step counts."""
        return self.committed >= self._steps

    def record(self) -> dict[str, Any]:
        """Return what counts, as plain values; a step that is not complete does not."""
        return {"committed": self.committed}

    def deal(self, worker: int, workers: int) -> Work | None:
        """Deal parts of the present step to a worker, if any are left; see `Ledger.deal`."""
        self._lapse(worker)
        if not self._open and not self.finished:
            parts = len(self._order.divided(self.committed))
            self._free = list(_divided(parts, max(1, min(workers, parts))))
            self._open = True
        if not self._free:
            return None
        self._tokens += 1
        first, last = share = self._free.pop(0)
        self._leases[self._tokens] = (worker, share)
        return Work(self._tokens, self.epoch, self.committed, first, last)

    def commit(self, worker: int, token: int, index: int) -> tuple[Key, ...] | None:
        """Take a share in; return what is to be applied now, None where it does not count."""
        lease = self._leases.get(token)
        if lease is None or lease[0] != worker or index != lease[1][0]:
            return None
        del self._leases[token]
        self._in[index] = (token, index)
        if self._free or self._leases:
            return ()
        whole = tuple(self._in[first] for first in sorted(self._in))
        self._in.clear()
        self._open = False
        self.committed += 1
        return whole

    def lost(self, worker: int) -> None:
        """Take back what a worker has."""
        self._lapse(worker)

    def holders(self) -> frozenset[int]:
        """Return the workers that have something to do."""
        return frozenset(worker for worker, _ in self._leases.values())

    def _lapse(self, worker: int) -> None:
        for token, (holder, share) in list(self._leases.items()):
            if holder == worker:
                del self._leases[token]
                self._free.append(share)


def _divided(parts: int, shares: int) -> Iterator[tuple[int, int]]:
    for number in range(shares):
        yield parts * number // shares, parts * (number + 1) // shares

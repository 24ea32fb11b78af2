"""Assignment of chunks and shares of steps: every mini-batch counts once, whoever dies when."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice.training import Order
from shadowprice.training.servers.assignment import (
    AsyncAssigner,
    Key,
    SyncAssigner,
    Work,
    equally_near,
)
from shadowprice.training.servers.locality import Distance, Localities, Replica
from shadowprice.training.servers.ordering import ChunkOrder
from tests.support.examples import example_count

events = st.lists(
    st.tuples(
        st.sampled_from(["work", "work", "work", "work", "die", "late", "again", "save", "crash"]),
        st.integers(0, 3),
    ),
    max_size=120,
)
"""Kind of event, and its worker; a crash returns to the last saved state."""


WORKERS, HOSTS, MOST_CHUNKS = 4, 4, 6


class Cluster(NamedTuple):
    """Locations of chunks and workers, by number; the host `HOSTS` isn't part of the storage.

    A rack of 0 isn't known. The blocks of a chunk of unknown location are None.
    """

    racks: list[int]
    chunks: list[list[set[int]] | None]
    workers: list[tuple[int, int]]

    def localities(self) -> Localities:
        """Return it as the leader records it."""
        known = Localities()
        for worker, (host, rack) in enumerate(self.workers):
            known.add_worker(worker, f"node-{host}", f"/rack-{rack}" if rack else "")
        for chunk, blocks in enumerate(self.chunks):
            if blocks is not None:
                known.add_chunk(chunk, [[self.replica(host) for host in block] for block in blocks])
        return known

    def replica(self, host: int) -> Replica:
        """Return the storage's record of a host."""
        rack = f"/rack-{self.racks[host]}" if self.racks[host] else ""
        return Replica(f"Node-{host}.Example.org", f"10.0.0.{host}", rack)

    def distance(self, worker: int, chunk: int) -> int:
        """Compute the distance from the definition."""
        blocks = self.chunks[chunk]
        if blocks is None:
            return 2
        host, rack = self.workers[worker]
        if all(host in block for block in blocks):
            return 0
        if not rack and any(host in block for chunk in self.chunks for block in chunk or ()):
            rack = self.racks[host]
        on_rack = [any(self.racks[other] == rack for other in block) for block in blocks]
        return 1 if rack and all(on_rack) else 2


def cluster_of(random: Random) -> Cluster:
    """Draw a cluster in which most chunks are near some workers and far from others."""

    def block() -> set[int]:
        return set(random.sample(range(HOSTS), random.choice([1, 1, 2])))

    return Cluster(
        [random.randrange(3) for _ in range(HOSTS)],
        [
            [block() for _ in range(random.choice([1, 1, 2]))] if random.random() < 0.9 else None
            for _ in range(MOST_CHUNKS)
        ],
        [(random.randrange(HOSTS + 1), random.choice([0, 0, 1, 2])) for _ in range(WORKERS)],
    )


clusters = st.builds(cluster_of, st.randoms(use_true_random=True))


class World:
    """Workers that compute their chunks, die, wake up late, and repeat messages."""

    def __init__(
        self,
        minibatches: list[int],
        epochs: int,
        seed: int,
        distance: Callable[[int, int], int] = equally_near,
    ) -> None:
        self.minibatches, self.epochs, self.distance = minibatches, epochs, distance
        self.order = ChunkOrder(minibatches, seed)  # one sample a mini-batch
        self.counted: list[tuple[int, int, int]] = []
        self.saved: tuple[dict[str, object] | None, list[tuple[int, int, int]]] = (None, [])
        self.begin(None)

    def begin(self, record: dict[str, object] | None) -> None:
        self.ledger = AsyncAssigner(
            self.minibatches, self.epochs, self.order.chunks, record, self.distance
        )
        self.with_worker: dict[int, tuple[Work, int]] = {}
        self.old: dict[int, tuple[Work, int]] = {}

    def step(self, event: str, worker: int) -> None:
        if event == "work":
            self.work(worker)
        elif event == "die":
            if worker in self.with_worker:
                self.old[worker] = self.with_worker.pop(worker)
            self.ledger.release_worker(worker)
        elif event == "late" and worker in self.old:  # it was considered dead, and commits now
            work, index = self.old[worker]
            assert self.ledger.commit(worker, work.token, index) is None
        elif event == "again" and worker in self.with_worker:
            work, index = self.with_worker[worker]
            assert self.ledger.commit(worker, work.token, index - 1) is None
            assert self.ledger.commit(worker + 1, work.token, index) is None
        elif event == "save":
            self.saved = (copy.deepcopy(self.ledger.record()), list(self.counted))
        elif event == "crash":
            record, self.counted = self.saved[0], list(self.saved[1])
            self.begin(record)

    def work(self, worker: int) -> None:
        if worker not in self.with_worker:
            work = self.ledger.assign(worker, 4)
            if work is None:
                assert self.ledger.finished or self.with_worker  # no worker waits without a reason
                return
            held = [one.chunk for one, _ in self.with_worker.values()]
            assert work.chunk not in held  # no two workers on one chunk
            assert work.first < work.last
            self.with_worker[worker] = (work, work.first)
        work, index = self.with_worker[worker]
        assert self.ledger.commit(worker, work.token, index) == ((work.token, index),)
        self.counted.append((work.epoch, work.chunk, index))
        if index + 1 == work.last:
            del self.with_worker[worker]
        else:
            self.with_worker[worker] = (work, index + 1)


@settings(max_examples=example_count(200), deadline=None)
@given(
    minibatches=st.lists(st.integers(1, 4), min_size=1, max_size=MOST_CHUNKS),
    epochs=st.integers(1, 3),
    seed=st.integers(0, 3),
    happened=events,
    cluster=st.none() | clusters,
)
def test_every_mini_batch_of_every_epoch_counts_once(
    minibatches: list[int],
    epochs: int,
    seed: int,
    happened: list[tuple[str, int]],
    cluster: Cluster | None,
) -> None:
    near = equally_near if cluster is None else cluster.localities().distance
    world = World(minibatches, epochs, seed, near)
    for event, worker in happened:
        world.step(event, worker)
    for worker in range(4):  # all but one die; that one does the rest
        if worker != 1:
            world.step("die", worker)
    for _ in range(epochs * sum(minibatches)):
        world.work(1)
    wanted = {
        (epoch, chunk, index)
        for epoch in range(epochs)
        for chunk, count in enumerate(minibatches)
        for index in range(count)
    }
    assert Counter(world.counted) == dict.fromkeys(wanted, 1)
    assert world.ledger.finished
    assert world.ledger.committed == len(wanted)
    assert world.ledger.epoch == epochs


class Naive:
    """The assignment, computed from all chunks of all epochs each time."""

    def __init__(self, chunks: int, epochs: int, order: Any, distance: Any) -> None:
        self.open: list[set[int]] = []
        self.chunks, self.epochs, self.order, self.distance = chunks, epochs, order, distance
        self.held: dict[int, tuple[int, int]] = {}
        self.ahead: dict[int, tuple[int, int]] = {}

    def deal(self, worker: int) -> tuple[int, int, int] | None:
        self.held.pop(worker, None)
        promised = self.ahead.pop(worker, None)
        chosen = self.best(worker, promised, also_reserved=True)
        if chosen is None:
            return None
        self.held[worker] = chosen
        self.ahead = {other: one for other, one in self.ahead.items() if one != chosen}
        following = self.best(worker, None, also_reserved=False)
        if following is not None:
            self.ahead[worker] = following
        return (*chosen, -1 if following is None else following[1])

    def best(
        self, worker: int, promised: tuple[int, int] | None, *, also_reserved: bool
    ) -> tuple[int, int] | None:
        for epoch in range(self.epochs):
            if epoch == len(self.open):
                if sum(map(bool, self.open)) > 1:
                    return None
                self.open.append(set(range(self.chunks)))
            held = {chunk for _, chunk in self.held.values()}
            free = [(epoch, chunk) for chunk in self.order(epoch)]
            free = [entry for entry in free if entry[1] in self.open[epoch] - held]
            if promised in free:
                return promised
            unreserved = [entry for entry in free if entry not in self.ahead.values()]
            pool = unreserved or (free if also_reserved else [])
            if pool:
                ranked = [(self.distance(worker, entry[1]), free.index(entry)) for entry in pool]
                return free[min(ranked)[1]]
        return None


@settings(max_examples=example_count(200), deadline=None)
@given(
    minibatches=st.lists(st.integers(1, 2), min_size=3, max_size=MOST_CHUNKS),
    epochs=st.integers(1, 3),
    seed=st.integers(0, 3),
    happened=st.lists(
        st.tuples(st.sampled_from(["work", "work", "work", "die"]), st.integers(0, WORKERS - 1)),
        min_size=20,
        max_size=60,
    ),
    cluster=st.none() | clusters,
)
def test_a_worker_gets_the_nearest_free_chunk_and_of_several_the_first(
    minibatches: list[int],
    epochs: int,
    seed: int,
    happened: list[tuple[str, int]],
    cluster: Cluster | None,
) -> None:
    order = ChunkOrder(minibatches, seed).chunks
    if cluster is None:
        ledger = AsyncAssigner(minibatches, epochs, order)  # as the leader does without locations
        naive = Naive(len(minibatches), epochs, order, lambda worker, chunk: 0)
    else:
        ledger = AsyncAssigner(minibatches, epochs, order, None, cluster.localities().distance)
        naive = Naive(len(minibatches), epochs, order, cluster.distance)
    works: dict[int, tuple[Work, int]] = {}
    for event, worker in happened:
        if event == "die":
            works.pop(worker, None)
            ledger.release_worker(worker)
            naive.held.pop(worker, None)
            naive.ahead.pop(worker, None)
            continue
        if worker not in works:
            work = ledger.assign(worker, WORKERS)
            dealt = None if work is None else (work.epoch, work.chunk, work.ahead)
            assert dealt == naive.deal(worker)
            if work is not None:
                works[worker] = work, work.first
            continue
        work, index = works.pop(worker)
        assert ledger.commit(worker, work.token, index) is not None
        if index + 1 < work.last:
            works[worker] = work, index + 1
        else:
            naive.open[work.epoch].discard(naive.held.pop(worker)[1])


@settings(max_examples=example_count(200), deadline=None)
@given(cluster=clusters)
def test_distances_are_those_of_the_definition(cluster: Cluster) -> None:
    known = cluster.localities()
    for chunk, blocks in enumerate(cluster.chunks):
        assert known.is_known(chunk) == (blocks is not None)
        for worker in range(WORKERS):
            assert known.distance(worker, chunk) == cluster.distance(worker, chunk)
    assert known.distance(WORKERS, 0) == Distance.REMOTE  # a worker that has sent nothing


def test_a_host_is_known_by_its_name_and_by_its_address() -> None:
    known = Localities()
    known.add_chunk(0, [[Replica("node-7.example.org", "10.0.0.7", "")]])
    names = ["NODE-7", "node-7.other.net", "10.0.0.7", "10.0.0.8", "10", "node-70", ""]
    for worker, host in enumerate(names):
        known.add_worker(worker, host, "")
    results = [known.distance(worker, 0) == Distance.LOCAL for worker in range(len(names))]
    assert results == [True, True, True, False, False, False, False]


def test_fewer_epochs_than_done_end_at_once_and_more_continue() -> None:
    def dealt(epochs: int, record: dict[str, object] | None, most: int) -> AsyncAssigner:
        ledger = AsyncAssigner([1, 1, 1], epochs, lambda _: (0, 1, 2), record)
        for _ in range(most):
            work = ledger.assign(0, 1)
            assert work is not None
            ledger.commit(0, work.token, work.first)
        return ledger

    before = dealt(4, None, 7)  # one chunk of the third epoch is done
    fewer = dealt(2, before.record(), 0)
    assert fewer.finished
    assert fewer.assign(0, 1) is None
    assert not dealt(4, fewer.record(), 4).finished
    assert dealt(4, fewer.record(), 5).finished


def test_the_announced_transfer_comes_next() -> None:
    order = ChunkOrder([2] * 12, 0)
    ledger = AsyncAssigner([2] * 12, 2, order.chunks)
    ahead: dict[int, int] = {}
    kept = dealt = 0
    for turn in range(16):
        worker = turn % 3
        work = ledger.assign(worker, 3)
        assert work is not None
        for index in range(work.first, work.last):
            ledger.commit(worker, work.token, index)
        dealt += worker in ahead
        kept += ahead.get(worker) == work.chunk
        ahead[worker] = work.ahead
    assert (kept, dealt) == (13, 13)


def test_an_epoch_ends_before_the_chunks_of_the_next_run_out() -> None:
    ledger = AsyncAssigner([1, 1, 1], 5, lambda _: (0, 1, 2))
    slow = ledger.assign(0, 2)
    assert slow is not None
    done = []
    while (work := ledger.assign(1, 2)) is not None:
        ledger.commit(1, work.token, work.first)
        done.append((work.epoch, work.chunk))
    assert sorted(done) == [(0, 1), (0, 2), (1, 1), (1, 2)]
    assert ledger.epoch == 0
    assert ledger.commit(0, slow.token, 0) is not None
    assert ledger.epoch == 1


@settings(max_examples=example_count(150), deadline=None)
@given(
    samples=st.integers(1, 20),
    batch=st.integers(1, 6),
    parts=st.integers(1, 4),
    happened=events,
)
def test_every_part_of_every_step_counts_once_and_steps_come_in_order(
    samples: int, batch: int, parts: int, happened: list[tuple[str, int]]
) -> None:
    order = Order(samples, batch, min(parts, batch), shuffle=False)
    rounds = SyncAssigner(order, 2)
    saved, applied, kept = None, [], []
    at: dict[int, Work] = {}
    dealt: dict[Key, Work] = {}
    rest = [("work", worker) for _ in range(3 * 2 * order.steps * parts) for worker in range(4)]
    for event, worker in [*happened, *rest]:
        if event == "work":
            if worker not in at:
                work = rounds.assign(worker, 4)
                if work is not None:
                    at[worker] = work
                    dealt[work.token, work.first] = work
                continue
            work = at.pop(worker)
            assert work.chunk == len(applied)
            whole = rounds.commit(worker, work.token, work.first)
            assert whole is not None
            assert rounds.commit(worker, work.token, work.first) is None  # sent twice
            if whole:
                taken = [dealt[key] for key in whole]
                assert [entry.first for entry in taken] == [
                    0,
                    *(entry.last for entry in taken[:-1]),
                ]
                assert taken[-1].last == len(order.split_step(work.chunk))
                applied.append(work.chunk)
        elif event == "die":
            gone = at.pop(worker, None)
            rounds.release_worker(worker)
            if gone is not None:
                assert rounds.commit(worker, gone.token, gone.first) is None
        elif event == "save":
            saved, kept = rounds.record(), list(applied)
        elif event == "crash":
            rounds, applied = SyncAssigner(order, 2, saved), list(kept)
            at.clear()
    assert applied == list(range(2 * order.steps))
    assert rounds.finished

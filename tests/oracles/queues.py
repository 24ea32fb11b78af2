"""Preemptive queues and backfilling on one pool of equal GPUs, without optimisation.

Nothing is shared with the policies: a job is a worker count and a number of slots, a cluster is a
number of GPUs, and every slot is computed from the lists of open jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tests.oracles.round_robin import Table


@dataclass
class Asked:
    """A job's request and result."""

    name: str
    arrival: int
    width: int
    slots: int
    priority: float = 0.0
    walltime: int | None = None
    faster: int = 1
    """How many times longer it takes on more than one server."""
    done: int = 0
    began: int | None = None

    @property
    def left(self) -> int:
        return self.slots - self.done

    @property
    def length(self) -> int:
        return self.walltime or self.left


Timeline = dict[int, set[str]]


def preemptive(
    jobs: list[Asked],
    places: int,
    order: Callable[[list[Asked], set[str]], list[Asked]],
    cancels: Mapping[str, int],
) -> Timeline:
    """Run jobs slot by slot; ``order`` gets the open jobs and those that ran in the slot before."""
    ran: dict[int, set[str]] = {}
    there: list[Asked] = []
    slot, running = 0, set[str]()
    coming = sorted(jobs, key=lambda job: job.arrival)
    while coming or there:
        there = [job for job in there if cancels.get(job.name, slot + 1) > slot]
        while coming and coming[0].arrival == slot:
            there.append(coming.pop(0))
        free = places
        names = {job.name for job in there}
        ranked = order(list(there), running & names)
        running = set()
        for job in ranked:
            if job.width <= free:
                free -= job.width
                running.add(job.name)
        if running:
            ran[slot] = set(running)
        for job in there:
            job.done += job.name in running
        there = [job for job in there if job.left > 0]
        slot += 1
    return ran


def in_line(jobs: list[Asked], places: int, reach: int, cancels: Mapping[str, int]) -> Timeline:
    """Run jobs to their end in order of arrival: the first of a few waiting jobs that fits is next.

    Parameters
    ----------
    reach : int
        How many jobs behind the first waiting one are considered.
    cancels : mapping of str to int
        Slots before which jobs are cancelled, one after the other.
    """
    ran: dict[int, set[str]] = {}
    coming = sorted(jobs, key=lambda job: job.arrival)
    waiting: list[Asked] = []
    running: list[Asked] = []

    def start() -> None:
        while True:
            free = places - sum(job.width for job in running)
            fitting = [job for job in waiting[: reach + 1] if job.width <= free]
            if not fitting:
                return
            waiting.remove(fitting[0])
            running.append(fitting[0])

    slot = 0
    while coming or waiting or running:
        for name in [name for name, when in cancels.items() if when == slot]:
            for some in (waiting, running):
                some[:] = [job for job in some if job.name != name]
            start()
        while coming and coming[0].arrival == slot:
            waiting.append(coming.pop(0))
        start()
        if running:
            ran[slot] = {job.name for job in running}
        for job in running:
            job.done += 1
        running[:] = [job for job in running if job.left > 0]
        start()
        slot += 1
    return ran


def shortest(by_service: bool) -> Callable[[list[Asked], set[str]], list[Asked]]:
    """Return the order by remaining work of each job."""
    return lambda there, _: sorted(
        there, key=lambda job: job.left * (job.width if by_service else 1)
    )


class TwoQueues:
    """Tiresias's discretised LAS, with lists that jobs are moved between."""

    def __init__(self, threshold: float, promote: float) -> None:
        self.threshold = threshold
        self.promote = promote
        self.queues: list[list[str]] = [[], []]
        self.executed: dict[str, int] = {}
        self.pending: dict[str, int] = {}
        self.known: dict[str, Asked] = {}
        self.last: set[str] | None = None

    def __call__(self, there: list[Asked], ran: set[str]) -> list[Asked]:
        before = set(self.known)
        self.known = {job.name: job for job in there}
        # Count the slot that ended.
        for name in before & set(self.known):
            if name in ran:
                self.executed[name] += 1
            elif self.executed[name] > 0:
                self.pending[name] += 1
        for queue in self.queues:
            queue[:] = [name for name in queue if name in self.known]
            queue[:] = [n for n in queue if n in ran] + [n for n in queue if n not in ran]
        for job in there:
            name = job.name
            if name not in before:
                self.executed[name] = self.pending[name] = 0
                self.queues[0].append(name)
        for job in there:
            name = job.name
            served = self.executed[name] * job.width
            if name in ran and name in self.queues[0] and served >= self.threshold:
                self.queues[0].remove(name)
                self.queues[1].append(name)
        for job in there:
            name = job.name
            if name in ran or name not in self.queues[1] or not self.promote:
                continue
            if self.pending[name] >= self.promote * self.executed[name]:
                self.executed[name] = self.pending[name] = 0
                self.queues[1].remove(name)
                self.queues[0].append(name)
        return [self.known[name] for queue in self.queues for name in queue]


def batch(
    jobs: list[Asked],
    places: int,
    conservative: bool,
    priority: Callable[[Asked, int], float],
    cancels: Mapping[str, int],
) -> tuple[Timeline, set[str]]:
    """Run jobs to their end in order of priority, with backfilling; return the dropped ones too."""
    ran: dict[int, set[str]] = {}
    dropped: set[str] = set()
    coming = sorted(jobs, key=lambda job: job.arrival)
    queue: list[Asked] = []
    running: list[Asked] = []
    ends: dict[str, int] = {}
    slot = 0
    while coming or queue or running:
        for some in (queue, running):
            some[:] = [job for job in some if cancels.get(job.name, slot + 1) > slot]
        while coming and coming[0].arrival == slot:
            queue.append(coming.pop(0))
        over = [job for job in running if job.walltime and ends[job.name] <= slot]
        dropped |= {job.name for job in over}
        running = [job for job in running if job not in over]
        ranked = sorted(queue, key=lambda job: -priority(job, slot))
        choose = _conservative if conservative else _easy
        for job in choose(ranked, running, ends, places, slot):
            queue.remove(job)
            running.append(job)
            ends[job.name] = slot + job.length
        if running:
            ran[slot] = {job.name for job in running}
        for job in running:
            job.done += 1
        running = [job for job in running if job.left > 0]
        slot += 1
    return ran, dropped


def _easy(
    ranked: list[Asked], running: list[Asked], ends: Mapping[str, int], places: int, now: int
) -> list[Asked]:
    """Start jobs from the head while they fit.

    Behind a blocked head, start what ends before its reservation or fits beside it.
    """
    free = places - sum(job.width for job in running)
    due = [(ends[job.name], job.width) for job in running]
    started: list[Asked] = []
    waiting = list(ranked)
    while waiting and waiting[0].width <= free:
        job = waiting.pop(0)
        started.append(job)
        free -= job.width
        due.append((now + job.length, job.width))
    if not waiting:
        return started
    head = waiting.pop(0)
    shadow = min(end for end, _ in due if free + sum(w for e, w in due if e <= end) >= head.width)
    extra = free + sum(width for end, width in due if end <= shadow) - head.width
    for job in waiting:
        if job.width > free:
            continue
        if now + job.length <= shadow:
            free -= job.width
            started.append(job)
        elif job.width <= extra:
            free -= job.width
            extra -= job.width
            started.append(job)
    return started


def _conservative(
    ranked: list[Asked], running: list[Asked], ends: Mapping[str, int], places: int, now: int
) -> list[Asked]:
    """Give every job its earliest run of slots in a table of free capacity."""
    horizon = sum(job.length for job in ranked) + max(ends.values(), default=0) + now + 1
    free = [
        places - sum(job.width for job in running if ends[job.name] > slot)
        for slot in range(now, horizon)
    ]
    started = []
    for job in ranked:
        at = next(
            begin
            for begin in range(len(free))
            if all(room >= job.width for room in free[begin : begin + job.length])
        )
        for slot in range(at, min(at + job.length, len(free))):
            free[slot] -= job.width
        if at == 0:
            started.append(job)
    return started


def reservations(
    now: int,
    ends: list[tuple[int, list[list[int]]]],
    free: list[list[int]],
    hosts: list[tuple[bool, bool]],
    cursors: list[int],
    jobs: list[tuple[list[int], list[int], int, int, int]],
    most: int,
) -> tuple[list[int], dict[int, list[tuple[int, int, int]]], list[int]]:
    """Backfill on several servers, with a table of free capacity in every slot.

    Parameters
    ----------
    now : int
        The slot.
    ends : list of (slot, amounts given back by server)
        Running jobs.
    free : list of list of int
        Free capacity now.
    hosts, cursors
        As `Table` takes them.
    jobs : list of (worker, ps, workers, servers needed, length)
        In order of priority.
    most : int
        Maximum number of reservations.

    Returns
    -------
    (starts, placements of those that start now, cursors)
    """
    last = max([now, *(end for end, _ in ends)]) + sum(job[4] for job in jobs) + 1
    table = {}
    for slot in range(now, last):
        table[slot] = [list(row) for row in free]
        for end, back in ends:
            if end <= slot:
                for row, more in zip(table[slot], back, strict=True):
                    row[:] = [have + given for have, given in zip(row, more, strict=True)]
    changes = {now, *(end for end, _ in ends)}
    starts, placed, held = [], {}, 0
    for number, (worker, ps, workers, needed, length) in enumerate(jobs):
        start = -1
        for begin in sorted(changes):
            if begin > now and held >= most:
                break
            window = [table[slot] for slot in range(begin, min(begin + length, last))]
            least = [
                [min(column) for column in zip(*rows, strict=True)]
                for rows in zip(*window, strict=True)
            ]
            trial = Table(least, hosts)
            trial.cursors = list(cursors)
            got = trial.place(worker, ps, workers, needed)
            if not got:
                continue
            start = begin
            for rows in window:
                for server, count, servers in got:
                    rows[server] = [
                        have - count * w - servers * p
                        for have, w, p in zip(rows[server], worker, ps, strict=True)
                    ]
            changes.add(begin + length)
            if begin == now:
                cursors = list(trial.cursors)
                placed[number] = got
            else:
                held += 1
            break
        starts.append(start)
    return starts, placed, cursors

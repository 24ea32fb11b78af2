"""Observer that collects a run in flat arrays."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Final, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from shadowprice.core import bounds, events
from shadowprice.core.cluster import Cluster
from shadowprice.core.events import Charge, Completed, Decided, Resize, Start, Stop
from shadowprice.core.job import Job
from shadowprice.core.policy import Policy, Status, as_holding_policy, as_priced_policy
from shadowprice.core.refusal import Refusal
from shadowprice.core.schedule import Placement
from shadowprice.engine import Engine
from shadowprice.engine.job_record import JobRecord
from shadowprice.results.observer import Observer

_FEWER_ROWS_HINT: Final = "end the run earlier with `until`, or make slots longer"

_MAX_PRICES: Final = 2**17
"""Maximum number of prices of servers in slots that are computed at once."""

HEAT_BINS: Final = 2000
"""Maximum number of columns of a heat map; longer runs average neighbouring slots."""

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


class HeatBins:
    """Rows of numbers by slot, averaged over neighbouring slots if there are too many.

    A row has ``width`` numbers. If a slot lies beyond ``maximum`` bins, the slots per bin double.
    """

    def __init__(self, width: int, maximum: int = HEAT_BINS) -> None:
        self.slots_per_bin = 1
        self.origin: int | None = None
        self.maximum = maximum
        self._sums = np.zeros((0, width))
        self._counts = np.zeros(0, dtype=np.int64)

    def add(self, slots: range, rows: Floats) -> None:
        """Add the rows of slots; the first bin starts with the first added slot."""
        if self.origin is None:
            self.origin = slots.start
        # Number of the added slots within the maximum number of bins.
        covered = max(0, self.origin + self.maximum * self.slots_per_bin - slots.start)
        if covered < len(slots):
            if covered:
                self.add(slots[:covered], rows[:covered])
            self.halve()
            self.add(slots[covered:], rows[covered:])
            return
        bins = np.arange(slots.start - self.origin, slots.stop - self.origin) // self.slots_per_bin
        if bins[-1] >= len(self._counts):
            self._grow(int(bins[-1]) + 1)
        np.add.at(self._sums, bins, rows)
        np.add.at(self._counts, bins, 1)

    def means(self) -> Floats:
        """Return the mean row of each bin, shape (bins, width); NaN for bins without slots."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(self._sums / self._counts[:, None], dtype=np.float64)

    def _grow(self, needed: int) -> None:
        size = min(self.maximum, max(needed, 2 * len(self._counts), 64))
        added = size - len(self._counts)
        self._sums = np.pad(self._sums, ((0, added), (0, 0)))
        self._counts = np.pad(self._counts, (0, added))

    def halve(self) -> None:
        """Merge neighbouring bins."""
        self.slots_per_bin *= 2
        odd = len(self._counts) % 2
        sums = np.pad(self._sums, ((0, odd), (0, 0)))
        counts = np.pad(self._counts, (0, odd))
        self._sums = sums[0::2] + sums[1::2]
        self._counts = counts[0::2] + counts[1::2]


@dataclass(frozen=True, slots=True)
class PlacementSegments:
    """Placements with their durations, as parallel arrays.

    ``jobs`` are positions in the workload, and ``servers`` are rows of the cluster. A segment
    covers the slots from ``starts`` to before ``ends``.
    """

    jobs: Integers
    servers: Integers
    workers: Integers
    ps: Integers
    starts: Integers
    ends: Integers


class JobOutcome(NamedTuple):
    """Result of a job: first slot in which it ran, completion slot and progress units.

    ``refusal`` is the reason why it was refused, dropped or cancelled.
    """

    status: Status
    started: int | None
    completion: int | None
    progress: int
    refusal: Refusal | None

    @classmethod
    def of(cls, record: JobRecord) -> JobOutcome:
        """Return the result in an engine's record."""
        return cls(
            record.status, record.started, record.completion, record.progress, record.refusal
        )


class BagAttempts:
    """The attempts at a bag of tasks: each plan starts new copies of the unfinished tasks.

    ``repeated`` is the number of slots, summed over tasks, that tasks ran before they started over.
    """

    def __init__(self) -> None:
        self.restarts = self.repeated = 0
        self._plan: int | None = None
        self._unfinished = 0
        self._slots = 0

    def follow(self, command: Start | Resize) -> None:
        """Record a command; a new plan starts an attempt."""
        if command.plan == self._plan:
            return  # a smaller placement of the same plan, in which the other copies run on
        if self._plan is not None:
            self.restarts += 1
            self.repeated += self._unfinished * self._slots
        self._plan, self._slots = command.plan, 0
        self._unfinished = sum(entry.tasks for entry in command.copies)

    def end_slot(self, finished: Sequence[int]) -> None:
        """Record the tasks that finished in a slot."""
        self._slots += 1
        self._unfinished -= sum(finished)


# Decisions about a job that its history shows.
JobDecision = events.Commit | events.Promise | events.Reject | events.Queue | events.Drop
_JOB_DECISIONS: Final = frozenset(get_args(JobDecision))


class Recorder(Observer):
    """Observer that records everything that the results of a run are built from.

    A placement takes one row of six integers per server for its whole duration. A run of millions
    of job-slots therefore stays within tens of megabytes.

    Parameters
    ----------
    jobs : sequence of Job
        The workload, in file order.
    policy : Policy
        Queried for its prices in every slot if it posts any.

    Attributes
    ----------
    decisions : list of (int, decision)
        Commit, Promise, Reject, Queue and Drop decisions with their slots.
    charges : list of Charge
        Payments, in order.
    incidents : list of ServerLost, ServerBack or JobCancelled
        External events.
    latencies : array of float
        Seconds that the policy took for each decision.
    attempts : dict of str to BagAttempts
        Attempts at bags of tasks, by job.
    earned, completions : dict of str to float, dict of str to int
        Utility and completion slot of completed jobs.
    prices : dict of int to ndarray
        Mean price of each resource over the servers that have it, by slot.
    heat : HeatBins
        Price of each whole server by slot; empty for policies without prices.
    """

    collects = True

    def __init__(self, cluster: Cluster, jobs: Sequence[Job], policy: Policy) -> None:
        self.cluster = cluster
        self.jobs = jobs
        self.order = {job.name: index for index, job in enumerate(jobs)}
        self.decisions: list[tuple[int, JobDecision]] = []
        self.charges: list[Charge] = []
        self.incidents: list[events.ServerLost | events.ServerBack | events.JobCancelled] = []
        self.latencies = array("d")
        self.attempts: dict[str, BagAttempts] = {}
        self.arrived: set[str] = set()
        self.earned: dict[str, float] = {}
        self.completions: dict[str, int] = {}
        self.prices: dict[int, Floats] = {}
        self.heat = HeatBins(cluster.servers)
        self.slots = array("q")
        self.running = array("q")
        self.waiting = array("q")
        self._priced = as_priced_policy(policy)
        self._holding = as_holding_policy(policy)
        # Prices of quiet slots are only available from a policy that records them.
        self.takes_quiet_slots = self._priced is None or self._holding is not None
        self._owners = array("q")
        self._servers = array("q")
        self._workers = array("q")
        self._ps = array("q")
        self._starts = array("q")
        self._ends = array("q")
        self._open: dict[str, tuple[int, int]] = {}
        self._closed: dict[str, JobOutcome] = {}
        """Results of jobs that were removed from the engine."""
        self._next_slot = 0
        # Rows of the allocation table: of the running placements in each slot, and of ended slots.
        self._rows_per_slot = self._rows = 0
        # Version of the capacity, and the result of `_owned_resources` for it.
        self._owned: tuple[int, Flags, Integers] | None = None
        self.engine: Engine | None = None

    # ------------------------------------------------------------ hooks

    def on_start(self, engine: Engine) -> None:
        """Store the engine, which holds the records of open jobs."""
        self.engine = engine

    def on_event(self, event: events.DriverEvent, commands: Sequence[events.Command]) -> None:
        """Record an event and its commands."""
        match event:
            case events.SlotEnded(slot):
                for name, finished in event.finished.items():
                    self.attempts[name].end_slot(finished)
                self._count_rows(range(slot, slot + 1))
            case events.JobsArrived():
                self.arrived.update(job.name for job in event.jobs)
            case events.ServerLost() | events.ServerBack() | events.JobCancelled():
                self.incidents.append(event)
            case _:
                pass
        command: Any
        for command in commands:
            # Test types by frequency: this loop dominates simulations of many jobs.
            kind = type(command)
            if kind is Decided:
                decision = command.decision
                if type(decision) in _JOB_DECISIONS:
                    self.decisions.append((command.slot, decision))
                elif type(decision) is Charge:
                    self.charges.append(decision)
            elif kind is Start or kind is Resize:
                job = command.job
                if command.copies:
                    self.attempts.setdefault(job, BagAttempts()).follow(command)
                self._close(job, command.slot)
                self._begin(job, command.slot, command.placement)
            elif kind is Stop:
                self._close(command.job, command.slot)
            elif kind is Completed:
                self.earned[command.job] = command.utility
                self.completions[command.job] = command.slot

    def on_slot(self, engine: Engine, slot: int) -> None:
        """Record the numbers of running and waiting jobs, and the policy's prices."""
        self._record_slots(engine, range(slot, slot + 1))
        if self._priced is not None:
            prices = self._priced.slot_prices(engine.view)
            self._record_prices(engine, range(slot, slot + 1), prices[None])

    def on_quiet_slots(self, engine: Engine, slots: range) -> None:
        """Record slots in which jobs only made progress."""
        self._count_rows(slots)
        self._record_slots(engine, slots)
        if self._priced is not None:
            assert self._holding is not None
            for part in _split(slots, self.cluster.capacity.size):
                self._record_prices(engine, part, self._holding.held_prices(part))

    def _count_rows(self, slots: range) -> None:
        """Count the allocations of ended slots; refuse a run with more than tables can hold."""
        self._next_slot = slots.stop
        rows = self._rows + self._rows_per_slot * len(slots)
        if rows > bounds.ROWS.maximum:
            # Report the first slot beyond the limit.
            fitting = int(bounds.ROWS.maximum - self._rows) // self._rows_per_slot
            rows = self._rows + self._rows_per_slot * (fitting + 1)
            bounds.ROWS.check(rows, f"the run, slot {slots[fitting]}", _FEWER_ROWS_HINT)
        self._rows = rows

    def _record_slots(self, engine: Engine, slots: range) -> None:
        """Record the numbers of running and waiting jobs, which are the same in these slots."""
        running, open_jobs = len(engine.running), len(engine.open_jobs)
        self.slots.extend(slots)
        self.running.extend(repeat(running, len(slots)))
        self.waiting.extend(repeat(open_jobs - running, len(slots)))

    def _record_prices(self, engine: Engine, slots: range, prices: Floats) -> None:
        """Record the prices of slots, shape (slots, servers, resources)."""
        owned, count = self._owned_resources(engine)
        means = np.where(owned, prices, 0.0).sum(axis=1) / count
        self.prices.update(zip(slots, means, strict=True))
        self.heat.add(slots, prices.sum(axis=2))

    def _owned_resources(self, engine: Engine) -> tuple[Flags, Integers]:
        """Return whether each server has each resource, and how many have each, at least 1."""
        version = engine.ledger.capacity_version
        if self._owned is None or self._owned[0] != version:
            owned = engine.ledger.limits > 0
            self._owned = version, owned, np.maximum(owned.sum(axis=0), 1)
        return self._owned[1:]

    def on_decision(self, seconds: float) -> None:
        """Record the duration of a decision."""
        self.latencies.append(seconds)

    def on_jobs_closed(self, records: Sequence[JobRecord]) -> None:
        """Record the results of closed jobs."""
        self._closed.update((record.job.name, JobOutcome.of(record)) for record in records)

    def outcome(self, name: str) -> JobOutcome | None:
        """Return the result of a job; None if it never arrived."""
        if name in self._closed:
            return self._closed[name]
        record = self.engine.jobs.get(name) if self.engine is not None else None
        return JobOutcome.of(record) if record is not None and name in self.arrived else None

    # ------------------------------------------------------------ segments

    @property
    def next_slot(self) -> int:
        """First slot that hasn't ended."""
        return self._next_slot

    def segments(self) -> PlacementSegments:
        """Return the segments up to the last slot that has ended."""
        starts, ends = _integers(self._starts), _integers(self._ends)
        ends = np.where(ends < 0, self._next_slot, np.minimum(ends, self._next_slot))
        ran = starts < ends  # without placements that start in the slot that hasn't ended
        columns = (self._owners, self._servers, self._workers, self._ps)
        owners, servers, workers, ps = (_integers(column)[ran] for column in columns)
        return PlacementSegments(owners, servers, workers, ps, starts[ran], ends[ran])

    def _begin(self, job: str, slot: int, placement: Placement) -> None:
        count = len(placement.servers)
        first = len(self._starts)
        self._owners.extend((self.order[job],) * count)
        self._servers.extend(placement.servers)
        self._workers.extend(placement.workers)
        self._ps.extend(placement.ps)
        self._starts.extend((slot,) * count)
        self._ends.extend((-1,) * count)  # -1 until they end
        self._open[job] = (first, first + count)
        self._rows_per_slot += count

    def _close(self, job: str, slot: int) -> None:
        rows = self._open.pop(job, None)
        if rows is not None:
            self._rows_per_slot -= rows[1] - rows[0]
            for row in range(*rows):
                self._ends[row] = slot


def _split(slots: range, size: int) -> Iterator[range]:
    """Split slots so that an array with ``size`` prices per slot has at most `_MAX_PRICES`."""
    step = max(1, _MAX_PRICES // max(size, 1))
    for start in range(0, len(slots), step):
        yield slots[start : start + step]


def _integers(values: array[int]) -> Integers:
    return np.array(values, dtype=np.int64)

"""Good schedules of a job set, by rounding the mix that belongs to the bound's prices.

Jobs are placed one after another on real servers. Each gets its exact best schedule at a fraction
of the bound's prices, on the remaining capacity: the prices keep it out of slots that are worth
more to other jobs. Several orders and fractions are tried. Then a few competing jobs at a time are
removed and placed again (ruin and recreate: Schrimpf et al., *Record breaking optimization results
using the ruin and recreate principle*, Journal of Computational Physics 2000). Every schedule is
feasible server by server, so their total utility is a lower bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shadowprice.certificate.bound import Stop
from shadowprice.certificate.relaxation import Relaxation
from shadowprice.core.cluster import Cluster
from shadowprice.core.job import Job
from shadowprice.core.schedule import Schedule
from shadowprice.kernels.horizon.search import best_schedule
from shadowprice.kernels.slots.rooms import room_costs, stand_in_slots, take_off
from shadowprice.policies.oasis.policy import server_pools

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_PARTS: Final = (1.0, 0.8, 0.5, 0.0)
"""Fractions of the prices at which a whole job set is placed."""
_TRYING: Final = 0.25
"""Share of the time for that; the rest is for improvements."""
_PAYOFF_GAP: Final = 1e-3
"""Relative gap of a job's schedule; a smaller one doesn't help a heuristic."""
_EXACT: Final = 1e-8
"""Relative gap that no search can close, because payoffs include a rounding error."""
_NOTHING: Final = 1e-9
"""Share of the largest utility below which an improvement isn't searched for."""
_TRIES: Final = 3
"""Number of times that a schedule is planned again with more work, to cover restart costs."""
_NEIGHBOURS: Final = 8
"""Largest number of jobs that are removed at once."""
_LOOKED_AT: Final = 32
"""Number of jobs drawn to find those."""
_EXTRA: Final = 4
"""Further jobs without a schedule that may fill the remaining capacity."""
_HEAT: Final = 0.3
"""Initial temperature, as a share of a job's mean utility."""
_COOLED: Final = 0.02
"""Final temperature, as a share of the initial one."""
_ENOUGH: Final = 1000
_ENOUGH_A_JOB: Final = 100
"""Moves without an improvement after which the search ends, and further ones per job.

Few jobs would otherwise take minutes with nothing left to find; with hundreds, time ends first.
"""


@dataclass(frozen=True, slots=True)
class PlacedSchedule:
    """Schedule and utility of a job."""

    schedule: Schedule
    utility: float


@dataclass(frozen=True, slots=True)
class _Member:
    """Values of a job that searches need repeatedly."""

    first: int
    """Start of its window, counted from the relaxation's first slot."""
    slots: int
    """Length of its window."""
    workers: Integers
    """Worker counts with progress at the slower rate, which holds for every placement."""
    servers: Integers
    """Numbers of parameter servers of these choices."""
    gains: Integers
    """Progress of these choices per slot."""
    worth: Floats
    """Utility of completing in each slot of the window."""
    worker: Integers
    """Demand of a worker."""
    ps: Integers
    """Demand of a parameter server; zeros if the job has none."""
    price: tuple[Floats, Floats]
    """Price of a worker and of a parameter server in each slot."""


class Rounding:
    """Schedules on real servers, which are placed and removed one by one.

    ``prices`` are those of the bound, shape (slots, pools, resources). Schedules of other sources
    may use ``slots`` slots from the relaxation's first on.
    """

    def __init__(
        self, cluster: Cluster, relaxation: Relaxation, prices: Floats, slots: int = 1
    ) -> None:
        self._relaxation, self._prices = relaxation, prices
        self._jobs = relaxation.members
        self._cluster = cluster
        self._free = np.repeat(cluster.capacity[None], max(slots, relaxation.slots), axis=0)
        with_ps = any(job.ps is not None for job in self._jobs)
        self._pools = [np.flatnonzero(members) for members in server_pools(cluster, halved=with_ps)]
        self._members: dict[int, _Member] = {}
        self.placed: dict[int, PlacedSchedule] = {}
        self.utility = 0.0
        self.start = np.zeros(len(self._jobs), np.int64)
        self.end = np.full(len(self._jobs), -1, np.int64)
        self.earned = np.zeros(len(self._jobs))

    def without_schedules(self, slots: int = 1) -> Rounding:
        """Return a copy without schedules; the values of jobs are shared."""
        fresh = Rounding(self._cluster, self._relaxation, self._prices, slots)
        fresh._members = self._members
        return fresh

    def place(self, at: int, part: float) -> bool:
        """Place a job without a schedule, at a fraction of the prices; return whether it fits."""
        job = self._jobs[at]
        required = job.required
        for _ in range(_TRIES):
            placed = self._search(at, part, required)
            if placed is None:
                return False
            progress = _progress(job, placed.schedule, first=self._cluster.restart_first)
            if progress >= job.required:
                return self.put_back(at, placed)
            required += job.required - progress
        return False

    def take_out(self, at: int) -> PlacedSchedule:
        """Remove the schedule of a job, and return it."""
        placed = self.placed.pop(at)
        self._shift(at, placed.schedule, -1)
        self.utility -= placed.utility
        self.end[at], self.earned[at] = -1, 0.0
        return placed

    def put_back(self, at: int, placed: PlacedSchedule) -> bool:
        """Restore a schedule of a job; return whether there is capacity for it."""
        if not self._shift(at, placed.schedule, 1):
            return False
        self.placed[at] = placed
        self.utility += placed.utility
        self.start[at], self.end[at] = placed.schedule.start, placed.schedule.completion
        self.earned[at] = placed.utility
        return True

    def begin(self, at: int, schedule: Schedule) -> bool:
        """Place a given schedule of a job; return whether it earns and there is capacity."""
        first, slots = self._relaxation.start, len(self._free)
        if not len(schedule) or schedule.start < first or schedule.completion >= first + slots:
            return False
        utility = earned(self._jobs, [(at, schedule)])
        return utility > 0 and self.put_back(at, PlacedSchedule(schedule, utility))

    def _shift(self, at: int, schedule: Schedule, times: int) -> bool:
        member = self._member(at)
        entries = np.column_stack(
            (
                schedule.slots - self._relaxation.start,
                schedule.servers,
                schedule.workers,
                schedule.ps,
            )
        )
        return bool(take_off(self._free, entries, member.worker, member.ps, times))

    def _member(self, at: int) -> _Member:
        if at not in self._members:
            self._members[at] = self._look_at(at)
        return self._members[at]

    def _look_at(self, at: int) -> _Member:
        relaxation, job = self._relaxation, self._jobs[at]
        window = relaxation.windows[at]
        counts = relaxation.choices(at)[0]
        choices = np.searchsorted(job.worker_counts, counts)
        choices = choices[job.gains[choices] > 0]
        slots, first = max(0, window.end - window.first), window.first - relaxation.start
        worker, ps = relaxation.unit_costs(at, self._prices[first : first + slots])
        none = np.zeros(len(job.worker), np.int64)
        return _Member(
            first,
            slots,
            np.array(job.worker_counts[choices], np.int64),
            np.array(job.ps_counts[choices] if job.ps is not None else 0 * choices, np.int64),
            np.array(job.gains[choices], np.int64),
            job.utility.values(np.arange(slots)),
            np.array(job.worker, np.int64),
            none if job.ps is None else np.array(job.ps, np.int64),
            (np.maximum(worker, 0.0), np.maximum(ps, 0.0)),
        )

    def _search(self, at: int, part: float, required: int) -> PlacedSchedule | None:
        member = self._member(at)
        if not len(member.gains) or int(member.gains.max()) * member.slots < required:
            return None
        worker, ps = member.price
        sides = (self._pools[0], member.worker), (self._pools[1], member.ps)
        cost = room_costs(
            self._free, member.first, *sides[0], part * worker, *sides[1], part * ps,
            member.workers, member.servers,
        )  # fmt: skip
        result = best_schedule(cost, member.gains, required, member.worth, gap=_PAYOFF_GAP)
        if not result.feasible or result.payoff <= 0:
            return None
        entries = stand_in_slots(
            self._free,
            member.first,
            *sides[0],
            *sides[1],
            member.workers,
            member.servers,
            result.choice,
        )
        schedule = Schedule(
            entries[:, 0] + self._relaxation.start,
            *(np.ascontiguousarray(entries[:, column]) for column in (1, 2, 3)),
        )
        return PlacedSchedule(schedule, float(member.worth[result.completion]))


def _progress(job: Job, schedule: Schedule, *, first: bool) -> int:
    """Return the progress units of a schedule, less the restart costs."""
    workers, _, _ = schedule.totals()
    choices = np.searchsorted(job.worker_counts, workers)
    gains = job.gains[choices]
    if not job.restart:
        return int(gains.sum())
    moved = schedule.moved(None, ran=first)
    return int(np.where(moved, job.moved_gains[choices], gains).sum())


@dataclass(frozen=True, slots=True)
class BestSchedules:
    """Best schedules found."""

    utility: float
    """Their total utility."""
    schedules: dict[int, Schedule]
    """Schedules by index of the job."""


def best_schedules(
    cluster: Cluster,
    relaxation: Relaxation,
    prices: Floats,
    bound: float,
    *,
    gap: float,
    stop: Stop,
    spent: Callable[[], float],
    report: Callable[[float], None],
    starts: Iterable[Mapping[int, Schedule]] = (),
    seed: int = 0,
) -> BestSchedules:
    """Search for schedules of a whole job set until the gap is closed or the time is spent.

    ``prices`` and ``bound`` are those of the upper bound; the search ends at the relative distance
    ``gap`` from it, or when ``stop`` returns True between jobs. ``spent`` returns the share of the
    time that has passed, 0 to 1, and ``report`` is called with the total utility of every better
    set. ``starts`` yields initial schedules by index of the job.
    """
    best = BestSchedules(0.0, {})
    enough = bound - max(gap, _EXACT) * abs(bound)
    state = Rounding(cluster, relaxation, prices)
    if not relaxation.slots:
        return best
    trying = spent() + _TRYING * (1.0 - spent())
    for trial in _trials(state, relaxation, prices, starts, lambda: stop() or spent() > trying):
        if trial.utility > best.utility:
            best, state = _snapshot(trial), trial
            report(best.utility)
        if stop() or best.utility >= enough:
            return best
    before = spent()
    return _improve(
        state,
        relaxation,
        enough,
        stop,
        lambda: (spent() - before) / max(1.0 - before, _NOTHING),
        report,
        np.random.default_rng(seed),
    )


def _trials(
    empty: Rounding,
    relaxation: Relaxation,
    prices: Floats,
    starts: Iterable[Mapping[int, Schedule]],
    stop: Stop,
) -> Iterator[Rounding]:
    """Yield sets of schedules: the initial ones, then jobs placed one after another."""
    utility = np.array([_most(job) for job in relaxation.members])
    for schedules in starts:
        # A run may be longer than every best schedule; its late completions count too.
        ends = (plan.completion + 1 for plan in schedules.values() if len(plan))
        trial = empty.without_schedules(max(ends, default=relaxation.start + 1) - relaxation.start)
        for at, schedule in schedules.items():
            trial.begin(at, schedule)
        _fill(trial, np.argsort(-utility, kind="stable").tolist(), 0.0, stop)
        yield trial
    orders: list[list[int]] = []
    for part in _PARTS:
        orders = orders or _orders(relaxation, prices)
        for order in orders:
            if stop():
                return
            trial = empty.without_schedules()
            for step in (part, 0.0):  # remaining capacity goes to any job that can use it
                _fill(trial, order, step, stop)
            yield trial


def _fill(trial: Rounding, order: Sequence[int], part: float, stop: Stop) -> None:
    """Place all jobs without a schedule, in order, at a fraction of the prices."""
    for index in order:
        if stop():
            return
        if index not in trial.placed:
            trial.place(index, part)


def _orders(relaxation: Relaxation, prices: Floats) -> list[list[int]]:
    """Return orders of the jobs: by payoff per cost, and by utility per cost at the prices."""
    mean = prices.mean(axis=0).reshape(-1) + 1e-12
    density, payoff = np.zeros(relaxation.jobs), np.zeros(relaxation.jobs)
    for index in range(relaxation.jobs):
        proven, column = relaxation.price(index, prices)
        utility = 0.0 if column is None else column.utility
        counts, gains, use = relaxation.choices(index)
        payoff[index] = proven
        if len(counts):
            work = (
                relaxation.members[index].required / gains * (use.reshape(len(counts), -1) @ mean)
            )
            density[index] = utility / max(float(work.min()), 1e-12)
    return [
        np.argsort(-density, kind="stable").tolist(),
        np.argsort(-payoff, kind="stable").tolist(),
    ]


def _improve(
    state: Rounding,
    relaxation: Relaxation,
    enough: float,
    stop: Stop,
    spent: Callable[[], float],
    report: Callable[[float], None],
    rng: np.random.Generator,
) -> BestSchedules:
    """Remove competing jobs and place them in another order, with a job that could earn more.

    A small loss may be accepted (simulated annealing). The temperature is a share of a job's mean
    utility, and falls as time is spent or as moves find nothing better, until the search ends.
    """
    best = _snapshot(state)
    heat = _HEAT * best.utility / max(1, len(best.schedules))
    utility = np.array([_most(job) for job in relaxation.members])
    first = np.array([window.first for window in relaxation.windows])
    end = np.array([window.end for window in relaxation.windows])
    idle = 0
    max_idle = _ENOUGH + _ENOUGH_A_JOB * relaxation.jobs
    while not stop() and state.utility < enough and idle < max_idle:
        idle += 1
        # Jobs are drawn in proportion to what they could gain, with or without a schedule.
        missing = np.maximum(utility - state.earned, 0.0)
        if missing.max(initial=0.0) <= _NOTHING * utility.max():
            break
        new = _draw(missing, rng)
        until = end[new] if state.end[new] < 0 else state.end[new] + 1
        slot = int(rng.integers(first[new], max(first[new] + 1, until)))
        rivals = np.flatnonzero((state.start <= slot) & (state.end >= slot))
        rivals = rivals[rivals != new]
        count = min(len(rivals), int(rng.integers(1, _NEIGHBOURS + 1)))
        removed_rivals: list[int] = (
            rng.choice(rivals, count, replace=False).tolist() if count else []
        )
        before = state.utility
        removed = {
            index: state.take_out(index)
            for index in [new, *removed_rivals]
            if index in state.placed
        }
        drawn = rng.integers(relaxation.jobs, size=_LOOKED_AT)
        drawn = drawn[(state.end[drawn] < 0) & (utility[drawn] > 0)]
        extra = [
            index
            for index in dict.fromkeys(drawn.tolist())
            if index != new and index not in removed
        ]
        order = [new, *rng.permutation(removed_rivals).tolist(), *extra[:_EXTRA]]
        part = float(rng.choice(_PARTS))
        added = [index for index in order if state.place(index, part)]
        added += [index for index in order if index not in state.placed and state.place(index, 0.0)]
        # The temperature falls with time, and with moves that found nothing.
        cooled = _COOLED ** min(1.0, max(spent(), idle / max_idle))
        if state.utility - before > heat * cooled * math.log(1 - rng.random()):
            if state.utility > best.utility + 1e-9:
                best, idle = _snapshot(state), 0
                report(best.utility)
            continue
        for index in added:
            state.take_out(index)
        for index, placed in removed.items():
            state.put_back(index, placed)
    return best


def _most(job: Job) -> float:
    """Return the largest utility of a job."""
    return max(0.0, float(job.utility.values(np.array([job.min_slots_colocated - 1]))[0]))


def _draw(weight: Floats, rng: np.random.Generator) -> int:
    """Draw an index in proportion to weights."""
    sums = np.cumsum(weight)
    return int(np.searchsorted(sums, rng.random() * sums[-1], side="right"))


def _snapshot(state: Rounding) -> BestSchedules:
    return BestSchedules(
        math.fsum(placed.utility for placed in state.placed.values()),
        {index: placed.schedule for index, placed in state.placed.items()},
    )


def earned(jobs: Sequence[Job], schedules: Iterable[tuple[int, Schedule]]) -> float:
    """Return the total utility of schedules, from their completion slots."""
    total = 0.0
    for at, schedule in schedules:
        job = jobs[at]
        total += float(job.utility.values(np.array([schedule.completion - job.arrival]))[0])
    return total

"""Good schedules of a whole job set, by rounding the mix that the bound's prices come with.

Jobs are placed one after another on real servers, each with its exact best schedule at a part of
the bound's prices over the room that is left: the prices keep a job out of slots that are worth
more to others. Several orders and parts are tried. Then jobs are taken out and put back, a few
competitors at a time (ruin and recreate: Schrimpf et al., *Record breaking optimization results
using the ruin and recreate principle*, Journal of Computational Physics 2000). Every schedule held
is feasible server by server, so what they earn together is a lower bound.
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
from shadowprice.policies.oasis.policy import pools

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_PARTS: Final = (1.0, 0.8, 0.5, 0.0)
"""Parts of the prices at which a whole job set is placed."""
_TRYING: Final = 0.25
"""Part of the time for that; the rest is for improving the best."""
_PAYOFF_GAP: Final = 1e-3
"""Relative gap of a job's schedule: what follows is a heuristic anyway."""
_EXACT: Final = 1e-8
"""Relative gap that no search can close: the payoffs proved have a rounding error added."""
_NOTHING: Final = 1e-9
"""Part of the largest utility that is not worth looking for."""
_TRIES: Final = 3
"""Times that a schedule which restarts eat into is planned anew with more work."""
_NEIGHBOURS: Final = 8
"""Most jobs that are taken out at once."""
_LOOKED_AT: Final = 32
"""Jobs drawn in search of those."""
_EXTRA: Final = 4
"""Further jobs that are left out and may fill what is left."""
_HEAT: Final = 0.3
"""Temperature at first, as a part of what a job earns on average."""
_COOLED: Final = 0.02
"""Part of it that is left at the end."""
_ENOUGH: Final = 1000
_ENOUGH_A_JOB: Final = 100
"""Moves without a better result, and further ones a job, after which the search ends: on a few jobs
it would go on for minutes with nothing left to find, on hundreds time ends it first."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A job's schedule and what it earns."""

    schedule: Schedule
    utility: float


@dataclass(frozen=True, slots=True)
class _Member:
    """What searches ask of a job again and again."""

    first: int
    """Its window, counted from the relaxation's first slot."""
    slots: int
    """Its window, counted from the relaxation's first slot."""
    workers: Integers
    """Choices that bring progress at the slower rate, which holds wherever a job stands."""
    servers: Integers
    """Choices that bring progress at the slower rate, which holds wherever a job stands."""
    gains: Integers
    """Choices that bring progress at the slower rate, which holds wherever a job stands."""
    worth: Floats
    """Utility of completing in each slot of the window."""
    worker: Integers
    """Demands; zeros without parameter servers."""
    ps: Integers
    """Demands; zeros without parameter servers."""
    price: tuple[Floats, Floats]
    """What a worker and a parameter server cost at the prices."""


class Rounding:
    """Schedules on real servers, placed and taken out one by one.

    Parameters
    ----------
    cluster : Cluster
        The servers.
    relaxation : Relaxation
        The job set, with the slots and prices of its bound.
    prices : ndarray of float64, shape (slots, pools, resources)
        The bound's prices.
    slots : int
        Slots from the relaxation's first on in which schedules may lie that others made.

    Attributes
    ----------
    placed : dict of int to Placed
        Schedules by position of the job.
    utility : float
        What they earn together.
    start, end, earned : ndarray, shape (jobs,)
        First and last slot of each schedule, ``end`` -1 for those without one, and what it earns.
    """

    def __init__(
        self, cluster: Cluster, relaxation: Relaxation, prices: Floats, slots: int = 1
    ) -> None:
        self._relaxation, self._prices = relaxation, prices
        self._jobs = relaxation.members
        self._cluster = cluster
        self._free = np.repeat(cluster.capacity[None], max(slots, relaxation.slots), axis=0)
        with_ps = any(job.ps is not None for job in self._jobs)
        self._pools = [np.flatnonzero(members) for members in pools(cluster, halved=with_ps)]
        self._members: dict[int, _Member] = {}
        self.placed: dict[int, Placed] = {}
        self.utility = 0.0
        self.start = np.zeros(len(self._jobs), np.int64)
        self.end = np.full(len(self._jobs), -1, np.int64)
        self.earned = np.zeros(len(self._jobs))

    def emptied(self, slots: int = 1) -> Rounding:
        """Return the same without schedules; what is known of jobs is shared."""
        fresh = Rounding(self._cluster, self._relaxation, self._prices, slots)
        fresh._members = self._members
        return fresh

    def place(self, at: int, part: float) -> bool:
        """Place a job that is not placed, at a part of the prices; return whether it now is."""
        job = self._jobs[at]
        required = job.required
        for _ in range(_TRIES):
            found = self._search(at, part, required)
            if found is None:
                return False
            made = _progress(job, found.schedule, first=self._cluster.restart_first)
            if made >= job.required:
                return self.put_back(at, found)
            required += job.required - made
        return False

    def take_out(self, at: int) -> Placed:
        """Take a job out."""
        placed = self.placed.pop(at)
        self._shift(at, placed.schedule, -1)
        self.utility -= placed.utility
        self.end[at], self.earned[at] = -1, 0.0
        return placed

    def put_back(self, at: int, placed: Placed) -> bool:
        """Give a job a schedule; return whether there is room for it."""
        if not self._shift(at, placed.schedule, 1):
            return False
        self.placed[at] = placed
        self.utility += placed.utility
        self.start[at], self.end[at] = placed.schedule.start, placed.schedule.completion
        self.earned[at] = placed.utility
        return True

    def begin(self, at: int, schedule: Schedule) -> bool:
        """Give a job a schedule of somebody else; return whether it earns, and there is room."""
        first, slots = self._relaxation.start, len(self._free)
        if not len(schedule) or schedule.start < first or schedule.completion >= first + slots:
            return False
        utility = earned(self._jobs, [(at, schedule)])
        return utility > 0 and self.put_back(at, Placed(schedule, utility))

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

    def _search(self, at: int, part: float, required: int) -> Placed | None:
        member = self._member(at)
        if not len(member.gains) or int(member.gains.max()) * member.slots < required:
            return None
        worker, ps = member.price
        on = (self._pools[0], member.worker), (self._pools[1], member.ps)
        cost = room_costs(
            self._free, member.first, *on[0], part * worker, *on[1], part * ps,
            member.workers, member.servers,
        )  # fmt: skip
        found = best_schedule(cost, member.gains, required, member.worth, gap=_PAYOFF_GAP)
        if not found.feasible or found.payoff <= 0:
            return None
        entries = stand_in_slots(
            self._free, member.first, *on[0], *on[1], member.workers, member.servers, found.choice
        )
        schedule = Schedule(
            entries[:, 0] + self._relaxation.start,
            *(np.ascontiguousarray(entries[:, column]) for column in (1, 2, 3)),
        )
        return Placed(schedule, float(member.worth[found.completion]))


def _progress(job: Job, schedule: Schedule, *, first: bool) -> int:
    """Return the progress units of a schedule, less what restarts take."""
    workers, _, _ = schedule.totals()
    choices = np.searchsorted(job.worker_counts, workers)
    gains = job.gains[choices]
    if not job.restart:
        return int(gains.sum())
    moved = schedule.moved(None, ran=first)
    return int(np.where(moved, job.moved_gains[choices], gains).sum())


@dataclass(frozen=True, slots=True)
class Best:
    """The best schedules found."""

    utility: float
    """What they earn together."""
    schedules: dict[int, Schedule]
    """By position of the job."""


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
) -> Best:
    """Place a whole job set as well as time allows.

    Parameters
    ----------
    cluster : Cluster
        The servers.
    relaxation : Relaxation
        The job set.
    prices : ndarray of float64, shape (slots, pools, resources)
        The bound's prices.
    bound : float
        No schedule earns more.
    gap : float
        Relative distance from the bound at which to stop.
    stop : callable
        Asked between jobs whether to stop.
    spent : callable
        Gives the part of the time that is over, 0 to 1.
    report : callable
        Told what every better set of schedules earns.
    starts : iterable of mapping of int to Schedule
        Schedules of others to begin with, by position of the job.
    seed : int
        Of the draws.
    """
    best = Best(0.0, {})
    enough = bound - max(gap, _EXACT) * abs(bound)
    kept = Rounding(cluster, relaxation, prices)
    if not relaxation.slots:
        return best
    trying = spent() + _TRYING * (1.0 - spent())
    for trial in _trials(kept, relaxation, prices, starts, lambda: stop() or spent() > trying):
        if trial.utility > best.utility:
            best, kept = _snapshot(trial), trial
            report(best.utility)
        if stop() or best.utility >= enough:
            return best
    before = spent()
    return _improve(
        kept,
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
    """Yield sets of schedules: those of others, then jobs placed one after another."""
    worth = np.array([_most(job) for job in relaxation.members])
    for schedules in starts:
        # A run may go on for longer than any best schedule does: what it earns then, it earns.
        ends = (plan.completion + 1 for plan in schedules.values() if len(plan))
        trial = empty.emptied(max(ends, default=relaxation.start + 1) - relaxation.start)
        for at, schedule in schedules.items():
            trial.begin(at, schedule)
        _fill(trial, np.argsort(-worth, kind="stable").tolist(), 0.0, stop)
        yield trial
    orders: list[list[int]] = []
    for part in _PARTS:
        orders = orders or _orders(relaxation, prices)
        for order in orders:
            if stop():
                return
            trial = empty.emptied()
            for step in (part, 0.0):  # what is left goes to whoever can still use it
                _fill(trial, order, step, stop)
            yield trial


def _fill(trial: Rounding, order: Sequence[int], part: float, stop: Stop) -> None:
    """Place all jobs that are not placed, in order, at a part of the prices."""
    for at in order:
        if stop():
            return
        if at not in trial.placed:
            trial.place(at, part)


def _orders(relaxation: Relaxation, prices: Floats) -> list[list[int]]:
    """Return orders in which to place jobs: payoff per cost, and utility per cost at the prices."""
    mean = prices.mean(axis=0).reshape(-1) + 1e-12
    density, payoff = np.zeros(relaxation.jobs), np.zeros(relaxation.jobs)
    for at in range(relaxation.jobs):
        proven, column = relaxation.price(at, prices)
        worth = 0.0 if column is None else column.utility
        counts, gains, use = relaxation.choices(at)
        payoff[at] = proven
        if len(counts):
            work = relaxation.members[at].required / gains * (use.reshape(len(counts), -1) @ mean)
            density[at] = worth / max(float(work.min()), 1e-12)
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
) -> Best:
    """Take competitors out and put them back in another order, with a job that could earn more.

    A little may be lost on the way (simulated annealing): the temperature is a part of what a job
    earns on average, and falls as time is spent, or as moves find nothing better, until so many
    found nothing that the search ends.
    """
    best = _snapshot(state)
    heat = _HEAT * best.utility / max(1, len(best.schedules))
    worth = np.array([_most(job) for job in relaxation.members])
    first = np.array([window.first for window in relaxation.windows])
    end = np.array([window.end for window in relaxation.windows])
    idle = 0
    patience = _ENOUGH + _ENOUGH_A_JOB * relaxation.jobs
    while not stop() and state.utility < enough and idle < patience:
        idle += 1
        # What could earn more is tried in proportion to that, whether it is placed or not.
        missing = np.maximum(worth - state.earned, 0.0)
        if missing.max(initial=0.0) <= _NOTHING * worth.max():
            break
        new = _draw(missing, rng)
        until = end[new] if state.end[new] < 0 else state.end[new] + 1
        slot = int(rng.integers(first[new], max(first[new] + 1, until)))
        rivals = np.flatnonzero((state.start <= slot) & (state.end >= slot))
        rivals = rivals[rivals != new]
        count = min(len(rivals), int(rng.integers(1, _NEIGHBOURS + 1)))
        out: list[int] = rng.choice(rivals, count, replace=False).tolist() if count else []
        before = state.utility
        held = {at: state.take_out(at) for at in [new, *out] if at in state.placed}
        drawn = rng.integers(relaxation.jobs, size=_LOOKED_AT)
        drawn = drawn[(state.end[drawn] < 0) & (worth[drawn] > 0)]
        more = [at for at in dict.fromkeys(drawn.tolist()) if at != new and at not in held]
        again = [new, *rng.permutation(out).tolist(), *more[:_EXTRA]]
        part = float(rng.choice(_PARTS))
        added = [at for at in again if state.place(at, part)]
        added += [at for at in again if at not in state.placed and state.place(at, 0.0)]
        # The end is near where time runs out, or where nothing was found for long.
        cooled = _COOLED ** min(1.0, max(spent(), idle / patience))
        if state.utility - before > heat * cooled * math.log(1 - rng.random()):
            if state.utility > best.utility + 1e-9:
                best, idle = _snapshot(state), 0
                report(best.utility)
            continue
        for at in added:
            state.take_out(at)
        for at, placed in held.items():
            state.put_back(at, placed)
    return best


def _most(job: Job) -> float:
    """Return the most that a job can earn."""
    return max(0.0, float(job.utility.values(np.array([job.fastest_slots - 1]))[0]))


def _draw(weight: Floats, rng: np.random.Generator) -> int:
    """Draw a position in proportion to weights."""
    sums = np.cumsum(weight)
    return int(np.searchsorted(sums, rng.random() * sums[-1], side="right"))


def _snapshot(state: Rounding) -> Best:
    return Best(
        math.fsum(placed.utility for placed in state.placed.values()),
        {at: placed.schedule for at, placed in state.placed.items()},
    )


def earned(jobs: Sequence[Job], schedules: Iterable[tuple[int, Schedule]]) -> float:
    """Return what schedules earn, from their completion slots alone."""
    total = 0.0
    for at, schedule in schedules:
        job = jobs[at]
        total += float(job.utility.values(np.array([schedule.completion - job.arrival]))[0])
    return total

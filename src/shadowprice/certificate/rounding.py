"""Heuristic schedules of a job set: placed greedily at the bound's prices, then improved.

Jobs are placed one after another on real servers. Each gets its best schedule at a fraction of the
bound's prices, on the remaining capacity: the prices keep the job out of slots that other jobs need
more. Several orders and fractions are tried. Then a few competing jobs at a time are
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

from shadowprice.certificate.bound import Bound, Stop
from shadowprice.certificate.relaxation import Relaxation, demand_key, ps_counts_for
from shadowprice.core.arrays import Floats, Integers
from shadowprice.core.cluster import Cluster
from shadowprice.core.job import Job
from shadowprice.core.schedule import Schedule
from shadowprice.kernels.horizon.search import best_schedule
from shadowprice.kernels.slots.rooms import choice_costs, choose_servers, subtract_entries
from shadowprice.policies.oasis.policy import server_pools

_PRICE_FRACTIONS: Final = (1.0, 0.8, 0.5, 0.0)  # fractions of the prices at which jobs are placed
_TRIAL_TIME_SHARE: Final = 0.25  # share of the time for placing whole job sets, before improvements
_PAYOFF_GAP: Final = 1e-3
"""Relative optimality gap of the search for one schedule.

A smaller gap doesn't help a heuristic.
"""
_MIN_GAP: Final = 1e-8  # no search can close a smaller relative gap, because of rounding errors
_NEGLIGIBLE: Final = 1e-9  # share of the largest utility that isn't worth a search
_MAX_PLANS: Final = 3  # plans per job and fraction; each has more work, to cover restart costs
_MAX_RIVALS: Final = 8  # maximum number of competing jobs that a move removes
_CANDIDATES: Final = 32  # number of jobs drawn to find up to `_EXTRA` jobs
_EXTRA: Final = 4  # jobs without a schedule that a move may add
_LATE_SLOTS: Final = 256  # minimum number of slots that `place_late` searches at once
_REGRET_SHARE: Final = 0.7
"""Share of moves for jobs that earn less than their best payoff at the prices.

The other moves are for any job that could earn more.
"""
_INITIAL_TEMPERATURE: Final = 0.3  # as a share of a job's mean utility
_COOLING: Final = 0.02  # final temperature, as a share of the initial temperature
_MAX_IDLE_MOVES: Final = 1000
_MAX_IDLE_MOVES_PER_JOB: Final = 100
"""Moves without an improvement after which the search ends: a constant, plus a number per job.

Without this limit, a search with few jobs would go on for minutes after its last improvement.
"""


@dataclass(frozen=True, slots=True)
class PlacedSchedule:
    """Schedule and utility of a job."""

    entries: Integers
    """Rows of (slot, server, workers, parameter servers) in order of slot.

    Slot 0 is the relaxation's first slot.
    """
    utility: float

    def schedule(self, start: int) -> Schedule:
        """Return the schedule; ``start`` is the relaxation's first slot."""
        slots, servers, workers, ps = (np.array(column) for column in self.entries.T)
        return Schedule(slots + start, servers, workers, ps)


@dataclass(frozen=True, slots=True)
class _Member:
    """Values of a job that searches need repeatedly."""

    first: int  # start of the job's window, counted from the relaxation's first slot
    slots: int  # length of the window
    workers: Integers
    """The choices: worker counts that progress at the external rate, which every placement has."""
    servers: Integers  # number of parameter servers of each choice
    gains: Integers  # progress of each choice per slot
    worth: Floats  # utility of completing in each slot of the window
    worker: Integers  # demand of a worker
    ps: Integers  # demand of a parameter server; zeros if the job has none
    price: tuple[Floats, Floats]
    """Price of a worker and of a parameter server in every slot of the free capacity."""
    restarts: bool  # whether a move costs progress


class Rounding:
    """Schedules on real servers, which are placed and removed one by one.

    Methods take a job's index in the relaxation. ``slots`` is the minimum number of slots, for
    initial schedules that end after the relaxation.
    """

    def __init__(
        self, cluster: Cluster, relaxation: Relaxation, proved: Bound, slots: int = 1
    ) -> None:
        self._relaxation, self._proved = relaxation, proved
        self._jobs = relaxation.members
        self._cluster = cluster
        slots = max(slots, relaxation.slots, relaxation.late_slots)
        self._free = np.repeat(cluster.capacity[None], slots, axis=0)
        with_ps = any(job.ps is not None for job in self._jobs)
        self._pools = [np.flatnonzero(members) for members in server_pools(cluster, halved=with_ps)]
        self._members: dict[int, _Member] = {}
        self._prices: dict[bytes, tuple[Floats, Floats]] = {}
        self.placed: dict[int, PlacedSchedule] = {}
        self.utility = 0.0
        self.start = np.zeros(len(self._jobs), np.int64)  # first and last slots of schedules
        self.end = np.full(len(self._jobs), -1, np.int64)  # -1 without a schedule
        self.earned = np.zeros(len(self._jobs))
        self.regret = proved.payoffs.copy()
        """Best payoff of each job at the prices minus the payoff of its schedule.

        The sum, plus the price of unused capacity, is the distance to the bound.
        """

    def without_schedules(self, slots: int = 1) -> Rounding:
        """Return a copy without schedules; the values of jobs are shared."""
        fresh = Rounding(self._cluster, self._relaxation, self._proved, slots)
        if len(fresh._free) == len(self._free):  # prices have a row per slot of the free capacity
            fresh._members, fresh._prices = self._members, self._prices
        return fresh

    def place(self, index: int, price_fraction: float) -> bool:
        """Place a job without a schedule, at a fraction of the prices; return whether it fits."""
        required = self._jobs[index].required
        # Restart costs are only known with the placement. If they leave a deficit, plan more work.
        for _ in range(_MAX_PLANS):
            placed, progress = self._search(index, price_fraction, required)
            if placed is None:
                return False
            if progress >= self._jobs[index].required:
                return self.add(index, placed)
            required += self._jobs[index].required - progress
        return False

    def place_late(self, index: int) -> bool:
        """Place a job without a schedule after its window, as early as capacity allows."""
        member, job = self._member(index), self._jobs[index]
        begin = member.first + member.slots
        while len(member.gains) and begin < len(self._free):
            slots = min(max(_LATE_SLOTS, 2 * job.shortest_slots), len(self._free) - begin)
            fits = np.isfinite(self._costs(member, begin, np.zeros(slots), np.zeros(slots)))
            gains = np.where(fits, member.gains, 0)
            best = gains.argmax(axis=1)
            gathered = np.cumsum(gains.max(axis=1))
            needed = int(np.searchsorted(gathered, job.required)) + 1
            if needed <= slots:
                choice = np.where(gains.max(axis=1) > 0, best, -1)[:needed]
                entries = self._choose_servers(member, begin, choice)
                completion = self._relaxation.start + begin + needed - 1
                utility = float(job.utility.values(np.array([completion - job.arrival]))[0])
                late = PlacedSchedule(entries, utility)
                done = not member.restarts or self._progress(index, entries) >= job.required
                return done and utility > 0 and self.add(index, late)
            # Too full: search later slots. A schedule across two ranges isn't worth the search.
            begin += slots
        return False

    def remove(self, index: int) -> PlacedSchedule:
        """Remove the schedule of a job, and return it."""
        placed = self.placed.pop(index)
        member = self._member(index)
        subtract_entries(self._free, placed.entries, member.worker, member.ps, -1)
        self.utility -= placed.utility
        self.end[index], self.earned[index] = -1, 0.0
        self.regret[index] = self._proved.payoffs[index]
        return placed

    def add(self, index: int, placed: PlacedSchedule) -> bool:
        """Add a schedule of a job, if there is capacity for it; return whether there is."""
        member, entries = self._member(index), placed.entries
        if not subtract_entries(self._free, entries, member.worker, member.ps, 1):
            return False
        self.placed[index] = placed
        self.utility += placed.utility
        self.start[index] = entries[0, 0] + self._relaxation.start
        self.end[index] = entries[-1, 0] + self._relaxation.start
        self.earned[index] = placed.utility
        slots = entries[:, 0]
        cost = member.price[0][slots] @ entries[:, 2] + member.price[1][slots] @ entries[:, 3]
        self.regret[index] = max(0.0, self._proved.payoffs[index] - placed.utility + float(cost))
        return True

    def add_initial(self, index: int, schedule: Schedule) -> bool:
        """Add an initial schedule of a job; return whether it earns a utility and fits."""
        first, slots = self._relaxation.start, len(self._free)
        if not len(schedule) or schedule.start < first or schedule.completion >= first + slots:
            return False
        job = self._jobs[index]
        utility = float(job.utility.values(np.array([schedule.completion - job.arrival]))[0])
        entries = np.column_stack(
            (schedule.slots - first, schedule.servers, schedule.workers, schedule.ps)
        )
        return utility > 0 and self.add(index, PlacedSchedule(entries, utility))

    def _member(self, index: int) -> _Member:
        if index in self._members:
            return self._members[index]
        relaxation, job = self._relaxation, self._jobs[index]
        window = relaxation.windows[index]
        counts = relaxation.choices(index)[0]
        choices = np.searchsorted(job.worker_counts, counts)
        # The relaxation's choices may only progress with the workers on one server.
        counts, choices = counts[job.gains[choices] > 0], choices[job.gains[choices] > 0]
        slots, first = max(0, window.end - window.first), window.first - relaxation.start
        counts, ps_counts, gains, worker, ps = (
            np.array(column, np.int64)  # a copy that kernels may write
            for column in (
                counts,
                ps_counts_for(job, counts),
                job.gains[choices],
                job.worker,
                np.zeros(len(job.worker)) if job.ps is None else job.ps,
            )
        )
        utilities, prices = relaxation.utilities(index), self._unit_prices(index)
        self._members[index] = _Member(
            first, slots, counts, ps_counts, gains, utilities, worker, ps, prices, bool(job.restart)
        )
        return self._members[index]

    def _unit_prices(self, index: int) -> tuple[Floats, Floats]:
        """Return the prices of a worker and of a parameter server in every slot.

        Jobs with equal demands share the arrays.
        """
        job = self._jobs[index]
        key = demand_key(job)
        if key not in self._prices:
            costs = self._relaxation.unit_costs(index, self._proved.prices)
            rest = np.zeros(len(self._free) - self._relaxation.slots)  # later slots have no price
            worker, ps = (np.concatenate((np.maximum(cost, 0.0), rest)) for cost in costs)
            self._prices[key] = worker, ps
        return self._prices[key]

    def _costs(self, member: _Member, first: int, worker: Floats, ps: Floats) -> Floats:
        """Return the cost of a job's choices from slot ``first`` on; ``inf`` if one doesn't fit."""
        return choice_costs(
            self._free, first, self._pools[0], member.worker, worker, self._pools[1], member.ps,
            ps, member.workers, member.servers,
        )  # fmt: skip

    def _choose_servers(self, member: _Member, first: int, choice: Integers) -> Integers:
        """Return entries on servers for the choices of slots from ``first`` on; -1 is none."""
        return choose_servers(
            self._free, first, self._pools[0], member.worker, self._pools[1], member.ps,
            member.workers, member.servers, choice,
        )  # fmt: skip

    def _search(
        self, index: int, price_fraction: float, required: int
    ) -> tuple[PlacedSchedule | None, int]:
        """Return the best schedule on the free capacity, and its progress after restarts."""
        member = self._member(index)
        if not len(member.gains) or int(member.gains.max()) * member.slots < required:
            return None, 0
        window = slice(member.first, member.first + member.slots)
        worker, ps = (price_fraction * price[window] for price in member.price)
        cost = self._costs(member, member.first, worker, ps)
        result = best_schedule(cost, member.gains, required, member.worth, gap=_PAYOFF_GAP)
        if not result.feasible or result.payoff <= 0:
            return None, 0
        entries = self._choose_servers(member, member.first, result.choice)
        placed = PlacedSchedule(entries, float(member.worth[result.completion]))
        return placed, self._progress(index, entries) if member.restarts else required

    def _progress(self, index: int, entries: Integers) -> int:
        """Return the progress units of a schedule, less the restart costs."""
        job, schedule = self._jobs[index], PlacedSchedule(entries, 0.0).schedule(0)
        choices = np.searchsorted(job.worker_counts, schedule.totals()[0])
        moved = schedule.moved(None, ran=self._cluster.restart_first)
        return int(np.where(moved, job.moved_gains[choices], job.gains[choices]).sum())


@dataclass(frozen=True, slots=True)
class BestSchedules:
    """The best set of schedules that was found."""

    utility: float  # total utility
    schedules: dict[int, Schedule]  # by index of the job


def best_schedules(
    cluster: Cluster,
    relaxation: Relaxation,
    proved: Bound,
    *,
    gap: float,
    stop: Stop,
    spent: Callable[[], float],
    report: Callable[[float], None],
    starts: Iterable[Mapping[int, Schedule]] = (),
    seed: int = 0,
) -> BestSchedules:
    """Search for schedules of a whole job set until the gap is closed or the time is spent.

    ``spent`` returns the share of the time that has passed, and ``report`` is called with the total
    utility of every better set. ``starts`` yields initial schedules by index of the job.
    """
    enough = proved.value - max(gap, _MIN_GAP) * abs(proved.value)
    state = Rounding(cluster, relaxation, proved)
    if not relaxation.slots:
        return BestSchedules(0.0, {})
    limit = spent() + _TRIAL_TIME_SHARE * (1.0 - spent())
    for trial in _trials(state, relaxation, proved, starts, lambda: stop() or spent() > limit):
        if trial.utility > state.utility:
            state = trial
            report(state.utility)
        if stop() or state.utility >= enough:
            return _snapshot(state, relaxation)
    before = spent()
    return _improve(
        state,
        relaxation,
        enough,
        stop,
        lambda: (spent() - before) / max(1.0 - before, _NEGLIGIBLE),
        report,
        np.random.default_rng(seed),
    )


def _trials(
    empty: Rounding,
    relaxation: Relaxation,
    proved: Bound,
    starts: Iterable[Mapping[int, Schedule]],
    stop: Stop,
) -> Iterator[Rounding]:
    """Yield sets of schedules: the initial ones, then jobs placed one after another."""
    utility = np.array([_max_utility(job) for job in relaxation.members])
    for schedules in starts:
        # Initial schedules may end after the relaxation's last slot; those completions count too.
        ends = (plan.completion + 1 for plan in schedules.values() if len(plan))
        trial = empty.without_schedules(max(ends, default=relaxation.start + 1) - relaxation.start)
        for index, schedule in schedules.items():
            trial.add_initial(index, schedule)
        _fill(trial, np.argsort(-utility, kind="stable").tolist(), 0.0, stop)  # most useful first
        _fill_late(trial, relaxation, stop)
        yield trial
    orders: list[list[int]] = []
    for price_fraction in _PRICE_FRACTIONS:
        orders = orders or _job_orders(relaxation, proved)
        for order in orders:
            if stop():
                return
            trial = empty.without_schedules()
            for fraction in (price_fraction, 0.0):  # any job may use the remaining capacity
                _fill(trial, order, fraction, stop)
            _fill_late(trial, relaxation, stop)
            yield trial


def _fill(trial: Rounding, order: Sequence[int], price_fraction: float, stop: Stop) -> None:
    """Place all jobs without a schedule, in order, at a fraction of the prices."""
    for index in order:
        if stop():
            return
        if index not in trial.placed:
            trial.place(index, price_fraction)


def _fill_late(trial: Rounding, relaxation: Relaxation, stop: Stop) -> None:
    """Place jobs without a schedule after their windows, if they still earn something there."""
    tail = np.array([window.tail for window in relaxation.windows])
    for index in np.argsort(-tail, kind="stable").tolist():
        if stop() or tail[index] <= 0:
            return
        if index not in trial.placed:
            trial.place_late(index)


def _job_orders(relaxation: Relaxation, proved: Bound) -> list[list[int]]:
    """Return orders of the jobs: by utility per cost at the mean prices, and by payoff."""
    mean = proved.prices.mean(axis=0).reshape(-1) + 1e-12  # no cost is 0, so densities are finite
    density = np.zeros(relaxation.jobs)
    for index in range(relaxation.jobs):
        counts, gains, use = relaxation.choices(index)
        if len(counts):
            slots = relaxation.members[index].required / gains
            costs = slots * (use.reshape(len(counts), -1) @ mean)
            density[index] = proved.utilities[index] / max(float(costs.min()), 1e-12)
    return [
        np.argsort(-density, kind="stable").tolist(),
        np.argsort(-proved.payoffs, kind="stable").tolist(),
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
    """Remove competing jobs and place them in another order, after a job that could earn more.

    A small loss may be accepted (simulated annealing).
    """
    best = state.utility
    temperature = _INITIAL_TEMPERATURE * best / max(1, len(state.placed))
    # Jobs that may have changed since the best state, with their schedule in that state.
    changed: dict[int, PlacedSchedule | None] = {}
    utility = np.array([_max_utility(job) for job in relaxation.members])
    first = np.array([window.first for window in relaxation.windows])
    end = np.array([window.end for window in relaxation.windows])
    idle = 0
    max_idle = _MAX_IDLE_MOVES + _MAX_IDLE_MOVES_PER_JOB * relaxation.jobs
    while not stop() and state.utility < enough and idle < max_idle:
        idle += 1
        # Draw a job in proportion to its regret, or to its maximum utility minus what it earns.
        missing = np.maximum(utility - state.earned, 0.0)
        if missing.max(initial=0.0) <= _NEGLIGIBLE * utility.max():
            break
        by_regret = (
            rng.random() < _REGRET_SHARE and state.regret.max() > _NEGLIGIBLE * utility.max()
        )
        new = _draw(state.regret if by_regret else missing, rng)
        # Rivals run in a random slot that could bring the job's completion forward.
        until = end[new] if state.end[new] < 0 else state.end[new] + 1
        slot = int(rng.integers(first[new], max(first[new] + 1, until)))
        rivals = np.flatnonzero((state.start <= slot) & (state.end >= slot))
        rivals = rivals[rivals != new]
        count = min(len(rivals), int(rng.integers(1, _MAX_RIVALS + 1)))
        removed_rivals: list[int] = (
            rng.choice(rivals, count, replace=False).tolist() if count else []
        )
        before = state.utility
        for index in [new, *removed_rivals]:
            changed.setdefault(index, state.placed.get(index))
        removed = {
            index: state.remove(index) for index in [new, *removed_rivals] if index in state.placed
        }
        drawn = rng.integers(relaxation.jobs, size=_CANDIDATES)
        drawn = drawn[(state.end[drawn] < 0) & (utility[drawn] > 0)]
        extra = [
            index
            for index in dict.fromkeys(drawn.tolist())
            if index != new and index not in removed
        ]
        order = [new, *rng.permutation(removed_rivals).tolist(), *extra[:_EXTRA]]
        price_fraction = float(rng.choice(_PRICE_FRACTIONS))
        for index in order:
            changed.setdefault(index, state.placed.get(index))
        added = [index for index in order if state.place(index, price_fraction)]
        added += [index for index in order if index not in state.placed and state.place(index, 0.0)]
        # The temperature falls with time, and with moves that found nothing.
        cooling = _COOLING ** min(1.0, max(spent(), idle / max_idle))
        # Metropolis rule: a loss is accepted with probability exp(-loss / temperature).
        if state.utility - before > temperature * cooling * math.log(1 - rng.random()):
            if state.utility > best + 1e-9:
                best, idle = state.utility, 0
                changed.clear()
                report(best)
            continue
        for index in added:
            state.remove(index)
        for index, placed in removed.items():
            state.add(index, placed)
    # Return to the best state. Take out all changed jobs first, so that none blocks another.
    for index in changed:
        if index in state.placed:
            state.remove(index)
    for index, kept in changed.items():
        if kept is not None:
            state.add(index, kept)
    return _snapshot(state, relaxation)


def _max_utility(job: Job) -> float:
    """Return a job's utility if it runs at its maximum speed from its arrival, at least 0."""
    return max(0.0, float(job.utility.values(np.array([job.min_slots_colocated - 1]))[0]))


def _draw(weight: Floats, rng: np.random.Generator) -> int:
    sums = np.cumsum(weight)
    return int(np.searchsorted(sums, rng.random() * sums[-1], side="right"))


def _snapshot(state: Rounding, relaxation: Relaxation) -> BestSchedules:
    return BestSchedules(
        math.fsum(placed.utility for placed in state.placed.values()),
        {index: placed.schedule(relaxation.start) for index, placed in state.placed.items()},
    )

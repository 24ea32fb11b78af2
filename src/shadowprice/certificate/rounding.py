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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shadowprice.certificate.bound import Stop
from shadowprice.certificate.relaxation import Relaxation
from shadowprice.core.cluster import Cluster
from shadowprice.core.job import Job
from shadowprice.core.ledger import Ledger, LedgerView
from shadowprice.core.schedule import Schedule
from shadowprice.kernels.horizon.search import best_schedule
from shadowprice.kernels.slots.costs import expand_choices, slot_costs
from shadowprice.policies.oasis.policy import pools
from shadowprice.policies.pricing.board import PriceBoard
from shadowprice.policies.pricing.constants import Pool, PriceConstants

Floats = NDArray[np.float64]

_PARTS: Final = (1.0, 0.8, 0.5, 0.0)
"""Parts of the prices at which a whole job set is placed."""
_PAYOFF_GAP: Final = 1e-3
"""Relative gap of a job's schedule: what follows is a heuristic anyway."""
_EXACT: Final = 1e-8
"""Relative gap that no search can close: the payoffs proved have a rounding error added."""
_TRIES: Final = 3
"""Times that a schedule which restarts eat into is planned anew with more work."""
_NEIGHBOURS: Final = 8
"""Most jobs that are taken out at once."""
_EXTRA: Final = 4
"""Further jobs that are left out and may fill what is left."""
_HEAT: Final = 0.02
"""Temperature at first, as a part of what a job earns on average."""
_PATIENCE: Final = 200
"""Moves without a better result after which the temperature has halved."""
_ENOUGH: Final = 1000
_ENOUGH_A_JOB: Final = 100
"""Moves without a better result, and further ones a job, after which the search ends: on a few jobs
it would go on for minutes with nothing left to find, on hundreds time ends it first."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A job's schedule and what it earns."""

    schedule: Schedule
    utility: float


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
    """

    def __init__(self, cluster: Cluster, relaxation: Relaxation, prices: Floats) -> None:
        self._relaxation, self._prices = relaxation, prices
        self._jobs = relaxation.members
        self._first = cluster.restart_first
        slots = max(1, relaxation.slots)
        self._ledger = Ledger(cluster, slots, relaxation.start)
        self._view = LedgerView(self._ledger)
        with_ps = any(job.ps is not None for job in self._jobs)
        free = PriceConstants(-math.inf, np.full(len(cluster.resources), -math.inf))
        self._boards = [
            PriceBoard(cluster, Pool.of(cluster, members), free, slots)
            for members in pools(cluster, halved=with_ps)
        ]
        self.placed: dict[int, Placed] = {}
        self.utility = 0.0

    def place(self, at: int, part: float) -> bool:
        """Place a job that is not placed, at a part of the prices; return whether it now is."""
        job = self._jobs[at]
        required = job.required
        for _ in range(_TRIES):
            found = self._search(at, part, required)
            if found is None:
                return False
            made = _progress(job, found.schedule, first=self._first)
            if made >= job.required:
                break
            required += job.required - made
        else:
            return False
        self._ledger.reserve(job.name, found.schedule, job.worker, job.ps)
        self.placed[at] = found
        self.utility += found.utility
        return True

    def take_out(self, at: int) -> Placed:
        """Take a job out."""
        placed = self.placed.pop(at)
        self._ledger.release(self._jobs[at].name)
        self.utility -= placed.utility
        return placed

    def put_back(self, at: int, placed: Placed) -> None:
        """Put a job back where it was."""
        job = self._jobs[at]
        self._ledger.reserve(job.name, placed.schedule, job.worker, job.ps)
        self.placed[at] = placed
        self.utility += placed.utility

    def _search(self, at: int, part: float, required: int) -> Placed | None:
        relaxation, job = self._relaxation, self._jobs[at]
        window = relaxation.windows[at]
        counts = relaxation.choices(at)[0]
        slots = window.end - window.first
        # The slower, external rate holds wherever the job stands.
        choices = np.searchsorted(job.worker_counts, counts)
        gains = job.gains[choices]
        useful = gains > 0
        if slots <= 0 or not useful.any() or int(gains.max()) * slots < required:
            return None
        first = window.first - relaxation.start
        workers, servers = (self._window(board, first, slots) for board in self._boards)
        shares = [board.shares(job.worker) for board in self._boards[:1]]
        if job.ps is None:
            demands = (workers, job.worker, shares[0], workers, job.worker, shares[0])
        else:
            share = self._boards[1].shares(job.ps)
            demands = (workers, job.worker, shares[0], servers, job.ps, share)
        ps_counts = job.ps_counts[choices]
        room = slot_costs(*demands, counts[useful], ps_counts[useful])
        cost = part * relaxation.costs(at, self._prices[first : first + slots])[:, useful] + room
        utility = job.utility.values(np.arange(slots))
        found = best_schedule(cost, gains[useful], required, utility, gap=_PAYOFF_GAP)
        if not found.feasible or found.payoff <= 0:
            return None
        entries = expand_choices(
            *demands[:3],
            self._boards[0].servers,
            *demands[3:],
            self._boards[1].servers if job.ps is not None else self._boards[0].servers,
            counts[useful],
            ps_counts[useful],
            found.choice,
        )
        schedule = Schedule.from_arrays(
            entries[:, 0] + window.first,
            entries[:, 1].copy(),
            entries[:, 2].copy(),
            entries[:, 3].copy(),
        )
        return Placed(schedule, float(utility[found.completion]))

    def _window(self, board: PriceBoard, first: int, slots: int):  # type: ignore[no-untyped-def]
        board.follow(self._view)
        groups = board.window(first + slots)
        return groups._replace(row_of=groups.row_of[first:])


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
    """The best schedules found.

    Parameters
    ----------
    utility : float
        What they earn together.
    schedules : mapping of int to Schedule
        By position of the job.
    """

    utility: float
    schedules: dict[int, Schedule]


def best_schedules(
    cluster: Cluster,
    relaxation: Relaxation,
    prices: Floats,
    bound: float,
    *,
    gap: float,
    stop: Stop,
    report: Callable[[float], None],
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
    report : callable
        Told what every better set of schedules earns.
    seed : int
        Of the draws.
    """
    best = Best(0.0, {})
    enough = bound - max(gap, _EXACT) * abs(bound)
    orders = _orders(relaxation, prices)
    kept: Rounding | None = None
    for part in _PARTS:
        for order in orders:
            trial = Rounding(cluster, relaxation, prices)
            for step in (part, 0.0):  # what is left goes to whoever can still use it
                for at in order:
                    if stop():
                        break
                    if at not in trial.placed:
                        trial.place(at, step)
            if trial.utility > best.utility:
                best, kept = _snapshot(trial), trial
                report(best.utility)
            if stop() or best.utility >= enough:
                return best
    if kept is not None:
        best = _improve(kept, relaxation, enough, stop, report, np.random.default_rng(seed))
    return best


def _orders(relaxation: Relaxation, prices: Floats) -> list[list[int]]:
    """Return orders in which to place jobs: payoff per cost, and utility per cost at the prices."""
    if not relaxation.slots:
        return [[]]
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
    report: Callable[[float], None],
    rng: np.random.Generator,
) -> Best:
    """Take competitors out and put them back in another order, with a job that is left out.

    A little may be lost on the way (simulated annealing): the temperature is a part of what a job
    earns on average, lower the longer nothing better was found, until so many moves found nothing
    that the search ends.
    """
    best = _snapshot(state)
    heat = _HEAT * best.utility / max(1, len(best.schedules))
    worth = np.array([_most(job) for job in relaxation.members])
    cold = idle = 0
    patience = _ENOUGH + _ENOUGH_A_JOB * relaxation.jobs
    while not stop() and best.utility < enough and idle < patience:
        idle += 1
        outside = np.array([at for at in range(relaxation.jobs) if at not in state.placed])
        if not len(outside):
            break
        new = int(rng.choice(outside, p=_likely(worth[outside])))
        window = relaxation.windows[new]
        slot = int(rng.integers(window.first, max(window.first + 1, window.end)))
        rivals = [at for at, placed in state.placed.items() if _runs(placed.schedule, slot)]
        count = min(len(rivals), int(rng.integers(1, _NEIGHBOURS + 1)))
        out = [int(at) for at in rng.permutation(rivals)[:count]]
        before = state.utility
        held = {at: state.take_out(at) for at in out}
        more = [int(at) for at in rng.permutation(outside)[:_EXTRA] if at != new]
        again = [new, *(int(at) for at in rng.permutation(out)), *more]
        part = float(rng.choice(_PARTS))
        added = [at for at in again if state.place(at, part)]
        added += [at for at in again if at not in state.placed and state.place(at, 0.0)]
        if state.utility - before > heat / (1 + cold / _PATIENCE) * math.log(1 - rng.random()):
            if state.utility > best.utility + 1e-9:
                best, cold, idle = _snapshot(state), 0, 0
                report(best.utility)
            cold += 1
            continue
        for at in added:
            state.take_out(at)
        for at, placed in held.items():
            state.put_back(at, placed)
    return best


def _most(job: Job) -> float:
    """Return the most that a job can earn."""
    return max(0.0, float(job.utility.values(np.array([job.fastest_slots - 1]))[0]))


def _likely(worth: Floats) -> Floats:
    total = float(worth.sum())
    return worth / total if total > 0 else np.full(len(worth), 1.0 / len(worth))


def _runs(schedule: Schedule, slot: int) -> bool:
    """Return whether a schedule runs in or around a slot."""
    return schedule.start <= slot <= schedule.completion


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

"""Slow, obvious twins of OASiS: (27) as one MILP, Algorithm 2 as printed, prices as printed.

They share nothing with the code that they check: prices are (22) in plain floats, the MILP has a
variable for every server and slot, and Algorithm 2 recurses over chunks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import highspy
import numpy as np
from numpy.typing import NDArray

from shadowprice.core.job import Job
from shadowprice.core.schedule import Schedule
from shadowprice.core.utility import utility_value

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
UNLIMITED = 2**62


@dataclass(frozen=True)
class Side:
    """One pool: the servers that carry workers, or those that carry parameter servers.

    Parameters
    ----------
    servers : list of int
        Rows of the cluster.
    capacity, used : list of list of int; list of list of list of int
        By server and resource; by slot, server and resource. A lost server has capacity 0.
    scale : list of int
        Maximum limited capacity by resource of the pool's servers, lost ones included.
    low, high : float, list of float
        L, and U by resource.
    """

    servers: list[int]
    capacity: list[list[int]]
    used: list[list[list[int]]]
    scale: list[int]
    low: float
    high: list[float]

    @classmethod
    def of(
        cls, members: Sequence[bool], declared: Ints, capacity: Ints, used: Ints, low: float,
        high: Sequence[float],
    ) -> Side:  # fmt: skip
        """Return one pool of a whole cluster's arrays."""
        rows = [index for index, inside in enumerate(members) if inside]
        limited = np.where(declared[rows] == UNLIMITED, 0, declared[rows])
        return cls(
            rows,
            capacity[rows].tolist(),
            used[:, rows].tolist(),
            limited.max(axis=0, initial=0).tolist(),
            low,
            list(high),
        )

    def price(self, slot: int, at: int, resource: int) -> float:
        """Return L (U / L)^(g / c), (22), for a share of 1."""
        capacity = self.capacity[at][resource]
        if capacity == UNLIMITED:
            return 0.0
        if capacity == 0:
            return self.high[resource] if self.scale[resource] else 0.0
        used = self.used[slot][at][resource]
        return self.low * (self.high[resource] / self.low) ** (used / capacity)

    def unit(self, slot: int, at: int, demand: Sequence[int]) -> float:
        """Return the cost of one worker (or parameter server) on a server in a slot."""
        return sum(
            self.price(slot, at, r) * amount / self.scale[r]
            for r, amount in enumerate(demand)
            if amount and self.scale[r]
        )

    def room(self, slot: int, at: int, demand: Sequence[int]) -> int:
        """Return how many fit on a server, (30), (31)."""
        fits = 10**9
        for r, amount in enumerate(demand):
            if amount and self.capacity[at][r] != UNLIMITED:
                free = max(0, self.capacity[at][r] - self.used[slot][at][r])
                fits = min(fits, free // amount)
        return fits


def schedule_cost(job: Job, schedule: Schedule, now: int, workers: Side, servers: Side) -> float:
    """Return the cost of a schedule, the sums of (27)."""
    total = 0.0
    for slot, server, y, z in schedule.rows():
        if y:
            at = workers.servers.index(server)
            total += y * workers.unit(slot - now, at, job.worker.tolist())
        if z:
            assert job.ps is not None
            at = servers.servers.index(server)
            total += z * servers.unit(slot - now, at, job.ps.tolist())
    return total


class _Model:
    """A MILP built entry by entry."""

    def __init__(self) -> None:
        self.cost: list[float] = []
        self.upper: list[float] = []
        self.rows: list[tuple[float, float]] = []
        self.entries: list[tuple[int, int, float]] = []

    def column(self, cost: float, upper: float) -> int:
        self.cost.append(cost)
        self.upper.append(upper)
        return len(self.cost) - 1

    def row(self, low: float, terms: Sequence[tuple[int, float]], high: float) -> None:
        at = len(self.rows)
        self.rows.append((low, high))
        self.entries += [(at, column, value) for column, value in terms if value]

    def solve(self) -> list[int] | None:
        """Return the integers of a solution of minimum cost, None if there is none."""
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = len(self.cost), len(self.rows)
        lp.col_cost_ = np.array(self.cost)
        lp.col_lower_ = np.zeros(len(self.cost))
        lp.col_upper_ = np.array(self.upper)
        lp.row_lower_ = np.array([low for low, _ in self.rows])
        lp.row_upper_ = np.array([high for _, high in self.rows])
        lp.integrality_ = [highspy.HighsVarType.kInteger] * len(self.cost)
        row, column, value = (np.array(part) for part in zip(*self.entries, strict=True))
        order = np.argsort(row, kind="stable")
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = np.searchsorted(row[order], np.arange(lp.num_row_ + 1))
        lp.a_matrix_.index_ = column[order]
        lp.a_matrix_.value_ = value[order].astype(np.float64)
        solver = highspy.Highs()
        for name, setting in (
            ("output_flag", False),
            ("threads", 1),
            ("mip_rel_gap", 0.0),
            ("mip_abs_gap", 1e-9),
            ("mip_feasibility_tolerance", 1e-9),
            ("primal_feasibility_tolerance", 1e-9),
        ):
            solver.setOptionValue(name, setting)
        solver.passModel(lp)
        solver.run()
        status = solver.getModelStatus()
        if status == highspy.HighsModelStatus.kInfeasible:
            return None
        assert status == highspy.HighsModelStatus.kOptimal, status
        return [round(value) for value in solver.getSolution().col_value]


def milp_payoff(
    job: Job, now: int, slots: int, remaining: int, workers: Side, servers: Side
) -> float | None:
    """Return the optimum of (27): y[h, t], z[k, t] integers, and the completion slot a choice.

    Returns
    -------
    float or None
        The payoff; None if no schedule completes the work.
    """
    model = _Model()
    worth = [utility_value(job.utility, now + t - job.arrival) for t in range(slots)]
    ends = [model.column(-worth[t], 1.0) for t in range(slots)]
    model.row(1.0, [(end, 1.0) for end in ends], 1.0)
    gathered: list[tuple[int, float]] = []
    scaled = 1.0 / max(job.gains.max(), 1)
    for t in range(slots):
        counts = [model.column(0.0, 1.0) for _ in job.worker_counts]
        gathered += [(n, g * scaled) for n, g in zip(counts, job.gains.tolist(), strict=True)]
        # One number of workers (3), and nothing after the completion slot (8).
        model.row(-np.inf, [*((n, 1.0) for n in counts), *((end, -1.0) for end in ends[t:])], 0.0)
        y = _carried(model, workers, t, job.worker.tolist())
        chosen = [
            (n, -float(count)) for n, count in zip(counts, job.worker_counts.tolist(), strict=True)
        ]
        model.row(0.0, [*((h, 1.0) for h in y), *chosen], 0.0)
        if job.ps is None:
            continue
        z = _carried(model, servers, t, job.ps.tolist())
        if job.worker_bandwidth and job.ps_bandwidth:  # (6)
            ratio = job.worker_bandwidth / job.ps_bandwidth
            model.row(-np.inf, [*((h, ratio) for h in y), *((k, -1.0) for k in z)], 0.0)
        else:
            model.row(-np.inf, [*((n, 1.0) for n in counts), *((k, -1.0) for k in z)], 0.0)
        model.row(-np.inf, [*((h, -1.0) for h in y), *((k, 1.0) for k in z)], 0.0)  # (7)
    model.row(remaining * scaled, gathered, np.inf)  # (2)
    solution = model.solve()
    if solution is None:
        return None
    return -sum(cost * value for cost, value in zip(model.cost, solution, strict=True))


def _carried(model: _Model, side: Side, slot: int, demand: Sequence[int]) -> list[int]:
    """Add one integer a server, within (4) or (5) of every resource."""
    columns = []
    for index in range(len(side.servers)):
        column = model.column(side.unit(slot, index, demand), 1e4)
        columns.append(column)
        for r, amount in enumerate(demand):
            if amount and side.capacity[index][r] != UNLIMITED:
                free = max(0, side.capacity[index][r] - side.used[slot][index][r])
                model.row(-np.inf, [(column, 1.0)], free / amount)
    return columns


def literal_payoff(
    job: Job, now: int, slots: int, slot_seconds: Fraction, workers: Side, servers: Side
) -> tuple[float, int] | None:
    """Return payoff and completion slot of Algorithm 2, line by line.

    Returns
    -------
    (float, int) or None
        Of the best schedule, even if negative; None if every cost is infinite.
    """
    theta = Fraction(job.step_seconds) / slot_seconds
    most = job.max_workers

    @cache
    def cost_t(t: int, d: int) -> float:  # lines 21-44
        wanted = math.ceil(d * job.minibatches * theta)  # line 24
        placed, total = _fill(workers, t, job.worker.tolist(), min(wanted, most))  # lines 25-29
        if placed < wanted:
            return math.inf  # lines 30-32
        if job.ps is None:
            return total
        needed = -(-placed * job.worker_bandwidth // job.ps_bandwidth)
        served, more = _fill(servers, t, job.ps.tolist(), min(needed, placed))  # lines 33-38
        return total + more if served >= needed else math.inf  # lines 39-43

    @cache
    def dp_cost(t: int, chunks: int) -> float:  # lines 10-20
        if chunks == 0:
            return 0.0
        if t < 0:
            return math.inf
        return min(cost_t(t, d) + dp_cost(t - 1, chunks - d) for d in range(chunks + 1))

    best: tuple[float, int] | None = None
    for t in range(slots):  # lines 2-8
        cost = dp_cost(t, job.epochs * job.chunks)
        payoff = utility_value(job.utility, now + t - job.arrival) - cost
        if math.isfinite(cost) and (best is None or payoff > best[0]):
            best = payoff, now + t
    return best


def _fill(side: Side, slot: int, demand: Sequence[int], wanted: int) -> tuple[int, float]:
    """Deploy on the servers of a slot, the cheapest first; return the number and the cost."""
    order = sorted((side.unit(slot, index, demand), index) for index in range(len(side.servers)))
    placed, total = 0, 0.0
    for unit, at in order:
        here = min(side.room(slot, at, demand), wanted - placed)
        placed += here
        total += here * unit
    return placed, total


def constants_as_printed(
    jobs: Sequence[Job],
    demand_of: Callable[[Job], Ints | None],
    capacity: Ints,
    timespan: int,
    slot_seconds: Fraction,
) -> tuple[float, list[float]]:
    """Return L and U by resource from (23)-(26) in plain floats, for linear jobs.

    Parameters
    ----------
    jobs : sequence of Job
        With any number of workers from 1 to ``chunks``, and one rate.
    demand_of : callable
        Returns a job's worker or parameter-server demand, None if it has none.
    capacity : ndarray of int64, shape (pool servers, resources)
        Of the pool.
    timespan : int
        T.
    slot_seconds : Fraction
        Length of a slot.
    """
    scale = np.where(capacity == UNLIMITED, 0, capacity).max(axis=0).tolist()
    shares_of_all = sum(
        amount / scale[r] for row in capacity.tolist() for r, amount in enumerate(row) if scale[r]
    )
    upper = [0.0] * len(scale)
    rates: list[float] = []
    uses: list[float] = []
    for job in jobs:
        demand = demand_of(job)
        if demand is None:
            continue
        shares = [amount / scale[r] if scale[r] else 0.0 for r, amount in enumerate(demand)]
        step = Fraction(job.step_seconds) / slot_seconds
        fastest = math.ceil(job.epochs * job.minibatches * step)
        for r, share in enumerate(shares):
            if share:
                upper[r] = max(upper[r], utility_value(job.utility, fastest) / share)
        work = math.ceil(job.epochs * job.chunks * job.minibatches * step)
        uses.append(work * sum(shares))
        rates.append(utility_value(job.utility, timespan - 1 - job.arrival) / uses[-1])
    eta = timespan * shares_of_all / min(uses)
    return min(rates) / (4 * eta), upper

"""Recomputation of Dorm's worker counts: the MILP, groups of servers, and placements.

*Utilisation* is the sum over resources of used / capacity. A job's *loss* is the absolute
difference of its dominant share and its max-min fair share.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from shadowprice.core.amounts import UNLIMITED
from shadowprice.core.arrays import Flags, Floats, Integers
from shadowprice.core.cluster import Cluster
from shadowprice.core.job import Job
from shadowprice.core.schedule import Placement
from shadowprice.kernels.reactive.dominant_share import fill
from shadowprice.kernels.reactive.places import PlacementTable
from shadowprice.policies.dorm import DormParameters
from shadowprice.policies.milp import LinearProgram
from shadowprice.policies.placements import dense_placement, distribute, fit_counts
from shadowprice.policies.reactive.free_capacity import FreeCapacity
from shadowprice.policies.reactive.table import build_widths, useful_counts

_SLACK: Final = 1e-9  # tolerated rounding errors of utilisation and loss


@dataclass(frozen=True, slots=True)
class JobItem:
    """One job of the program."""

    counts: Integers  # numbers of workers, one for each choice
    ps_counts: Integers  # numbers of parameter servers, one for each choice
    worker: Integers  # demand of a worker
    ps: Integers  # demand of a parameter server; zero if the job has none
    utilisation: Floats  # of each choice
    loss: Floats  # of each choice
    current: tuple[Integers, Integers] | None
    """Current workers and PS on each group; None for a queued job."""
    current_utilisation: float
    current_loss: float  # a queued job's is its fair share


@dataclass(frozen=True, slots=True)
class DormInstance:
    """Input of the program."""

    items: Sequence[JobItem]
    free: Integers  # of each group if the items used nothing, shape (groups, resources)
    limited: Flags  # whether the group has a limit on the resource, shape (groups, resources)
    max_workers_by_group: Integers
    """Workers of an item that fit on a group's empty servers, shape (items, groups)."""
    max_ps_by_group: Integers  # the same for parameter servers
    fairness: float  # bound on the sum of the items' losses
    adjustments: int  # maximum number of running items that change


@dataclass(frozen=True, slots=True)
class DormSolution:
    """Solution of the program."""

    targets: list[tuple[Integers, Integers] | None]
    """New workers and PS by group, for every item; None for an item that doesn't change."""
    utilisation: float  # of the items alone
    optimal: bool  # whether the search ended within the gap instead of at its node limit


def solve(instance: DormInstance, *, node_limit: int, gap: float) -> DormSolution:
    """Solve the program, starting from the current placements, which satisfy the bounds.

    After ``node_limit`` branch-and-bound nodes, the best solution so far is taken.
    """
    current = sum(item.current_utilisation for item in instance.items)
    unchanged: list[tuple[Integers, Integers] | None] = [None] * len(instance.items)
    model = _Program(instance)
    if not model.program.columns:
        return DormSolution(unchanged, current, optimal=True)
    # To keep all placements is a feasible solution.
    start = [0.0] * model.program.columns
    for terms in model.terms:
        if terms.keep is not None:
            start[terms.keep] = 1.0
    result = model.program.solve(gap=gap, node_limit=node_limit, start=start)
    if result.feasible:
        targets, utilisation = model.read(np.rint(result.values))
        if utilisation > current + _SLACK:
            return DormSolution(targets, utilisation, result.optimal)
    return DormSolution(unchanged, current, result.optimal)


@dataclass(slots=True)
class _Terms:
    """Columns of one item in the program."""

    keep: int | None  # column: 1 if a running job doesn't change; None for a queued job
    choices: list[int]  # a column for each choice: 1 if it is taken
    workers: list[list[tuple[int, float]]]  # by group: the sum of these terms is its workers
    ps: list[list[tuple[int, float]]]  # by group: the sum of these terms is its PS


@dataclass
class _Program:
    """Dorm's mixed-integer linear program (Sun et al. 2017, section on the optimizer).

    Maximise the utilisation over the jobs' worker counts and placements, such that

    - no group of servers is overbooked;
    - a running job has an allowed number of workers; a queued job has an allowed number or waits;
    - the sum of the jobs' losses is within the bound on the fairness loss;
    - at most ``adjustments`` running jobs change their number or placement.

    A group is one server (the program of the paper) or a class of servers taken as one.
    """

    instance: DormInstance
    program: LinearProgram = field(default_factory=LinearProgram)
    terms: list[_Terms] = field(default_factory=list)

    def __post_init__(self) -> None:
        for index in range(len(self.instance.items)):
            self.terms.append(self._add_item(index))
        self._add_capacity_rows()
        self._add_fairness_row()
        kept = [(terms.keep, 1.0) for terms in self.terms if terms.keep is not None]
        min_kept = len(kept) - self.instance.adjustments
        if min_kept > 0:
            self.program.row(kept, lower=min_kept)

    def read(self, values: Floats) -> tuple[list[tuple[Integers, Integers] | None], float]:
        """Return the items' targets, and their utilisation."""
        targets: list[tuple[Integers, Integers] | None] = []
        utilisation = 0.0
        for item, terms in zip(self.instance.items, self.terms, strict=True):
            chosen = [index for index, column in enumerate(terms.choices) if values[column] > 0]
            if not chosen:
                targets.append(None)
                utilisation += item.current_utilisation
                continue
            utilisation += float(item.utilisation[chosen[0]])
            workers, ps = (
                np.array(
                    [
                        round(sum(values[column] * count for column, count in group))
                        for group in groups
                    ],
                    dtype=np.int64,
                )
                for groups in (terms.workers, terms.ps)
            )
            same = item.current is not None and (
                np.array_equal(workers, item.current[0]) and np.array_equal(ps, item.current[1])
            )
            targets.append(None if same else (workers, ps))
        return targets, utilisation

    def _add_item(self, index: int) -> _Terms:
        item = self.instance.items[index]
        keep = None
        if item.current is not None:
            keep = self.program.column(cost=item.current_utilisation, upper=1)
        choices = [self.program.column(cost=float(used), upper=1) for used in item.utilisation]
        picked = [(column, 1.0) for column in choices]
        if keep is None:
            self.program.row(picked, lower=0, upper=1)
        else:
            self.program.row([(keep, 1.0), *picked], lower=1, upper=1)
        workers = self._add_spread(choices, item.counts, self.instance.max_workers_by_group[index])
        ps = self._add_spread(choices, item.ps_counts, self.instance.max_ps_by_group[index])
        return _Terms(keep, choices, workers, ps)

    def _add_spread(
        self, choices: list[int], counts: Integers, maximum: Integers
    ) -> list[list[tuple[int, float]]]:
        """Add columns for the processes on each group; return the terms of each group.

        All groups together get the number of processes of the taken choice.
        """
        needs = [(column, float(n)) for column, n in zip(choices, counts, strict=True) if n]
        spread: list[list[tuple[int, float]]] = [[] for _ in maximum]
        hosts = np.flatnonzero(maximum)
        if len(hosts) == 1:  # the choice determines the number on the only group
            spread[int(hosts[0])] = needs
            return spread
        max_count = int(counts.max(initial=0))
        if not max_count:
            return spread
        columns = [
            (self.program.column(upper=float(min(maximum[host], max_count))), 1.0) for host in hosts
        ]
        for group, term in zip(hosts.tolist(), columns, strict=True):
            spread[group] = [term]
        self.program.row([*columns, *((column, -n) for column, n in needs)], lower=0, upper=0)
        return spread

    def _add_capacity_rows(self) -> None:
        free = self.instance.free
        for group, resource in zip(*np.nonzero(self.instance.limited), strict=True):
            terms: list[tuple[int, float]] = []
            room = int(free[group, resource])
            for item, columns in zip(self.instance.items, self.terms, strict=True):
                worker, ps = int(item.worker[resource]), int(item.ps[resource])
                if worker:
                    terms += [(c, worker * n) for c, n in columns.workers[group]]
                if ps:
                    terms += [(c, ps * n) for c, n in columns.ps[group]]
                if columns.keep is not None and item.current is not None:
                    reserved = (
                        int(item.current[0][group]) * worker + int(item.current[1][group]) * ps
                    )
                    if reserved:
                        terms.append((columns.keep, reserved))
            if terms:
                # Scaled, because the solver's tolerances are absolute.
                scale = max(room, *(value for _, value in terms))
                scaled = [(column, value / scale) for column, value in terms]
                self.program.row(scaled, upper=room / scale)

    def _add_fairness_row(self) -> None:
        terms: list[tuple[int, float]] = []
        waiting = 0.0
        for item, columns in zip(self.instance.items, self.terms, strict=True):
            base = 0.0
            if columns.keep is None:
                # A queued job has this loss unless it starts, so its choices add the difference.
                waiting += item.current_loss
                base = item.current_loss
            else:
                terms.append((columns.keep, item.current_loss))
            terms += [
                (column, float(loss) - base)
                for column, loss in zip(columns.choices, item.loss, strict=True)
            ]
        self.program.row(terms, upper=self.instance.fairness - waiting + _SLACK)


@dataclass(slots=True, eq=False)
class OpenJob:
    """A running or queued job."""

    job: Job
    order: int  # position among all arrivals
    counts: Integers  # numbers of workers that are faster than every smaller one, ascending
    ps_counts: Integers  # their numbers of parameter servers
    ps: Integers  # demand of a parameter server; zero if the job has none
    choice: int = -1  # index in `counts`; -1 while the job is queued

    @classmethod
    def of(cls, job: Job, order: int) -> OpenJob:
        """Build a queued job."""
        ps = np.zeros_like(job.worker) if job.ps is None else job.ps
        return cls(job, order, *useful_counts(job), ps)


def _classes(cluster: Cluster, rows: Integers, maximum: int) -> Integers:
    """Return the class of each server: equal servers, or servers of one role and resources.

    The latter if there are more than ``maximum`` kinds of equal servers, because a program over
    dozens of classes takes seconds.
    """
    kinds = cluster.kinds[rows]
    if len(np.unique(kinds)) <= maximum:
        return kinds
    capacity = cluster.capacity[rows]
    traits = np.column_stack(
        (cluster.hosts_workers[rows], cluster.hosts_ps[rows], capacity > 0, capacity >= UNLIMITED)
    )
    return np.unique(traits, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)


class DormServerGroups:
    """Groups of the available servers: single servers, or classes beyond ``exact_servers``."""

    def __init__(self, cluster: Cluster, up: Flags, exact_servers: int) -> None:
        rows = np.flatnonzero(up)
        kinds = rows if len(rows) <= exact_servers else _classes(cluster, rows, exact_servers)
        self._group = np.full(cluster.servers, -1, dtype=np.int64)
        names, self._group[rows] = np.unique(kinds, return_inverse=True)
        # Masks of the servers of each group.
        self.members = [self._group == group for group in range(len(names))]
        self._capacity = cluster.capacity
        self._hosts = (cluster.hosts_workers, cluster.hosts_ps)
        firsts = [int(np.flatnonzero(member)[0]) for member in self.members]
        self._group_hosts = tuple(hosts[firsts] for hosts in self._hosts)
        width = len(cluster.resources)
        # Whether the servers of a group limit a resource, shape (groups, resources).
        self.limited = cluster.capacity[firsts].reshape(len(firsts), width) < UNLIMITED
        total = cluster.capacity[up].astype(np.float64).sum(axis=0)
        counted = self.limited.all(axis=0) & (total > 0)
        # Number of resources that all groups limit: m in the bound on the fairness loss.
        self.resources = int(counted.sum())
        self._total = np.where(counted, total, 0.0)
        self._weights = np.divide(1.0, total, out=np.zeros(width), where=counted)
        self._max_by_group: dict[bytes, tuple[Integers, Integers]] = {}

    @property
    def has_single_group(self) -> bool:
        """Whether at most one group can carry workers, and one parameter servers."""
        return all(int(hosts.sum()) <= 1 for hosts in self._group_hosts)

    def fractions(self, entry: OpenJob) -> tuple[Floats, Floats]:
        """Return the utilisation and the dominant share of each choice."""
        amounts = entry.counts[:, None] * entry.job.worker + entry.ps_counts[:, None] * entry.ps
        fractions = amounts * self._weights
        return fractions.sum(axis=1), fractions.max(axis=1)

    def max_by_group(self, entry: OpenJob) -> tuple[Integers, Integers]:
        """Return how many of a job's workers and PS fit on each empty group."""
        key = entry.job.worker.tobytes() + entry.ps.tobytes()
        if key not in self._max_by_group:
            workers, ps = (
                self._sums(fit_counts(self._capacity, demand, hosts))
                for demand, hosts in zip((entry.job.worker, entry.ps), self._hosts, strict=True)
            )
            self._max_by_group[key] = (workers, ps)
        return self._max_by_group[key]

    def gather(self, free: Integers) -> Integers:
        """Return the free capacity of each group, ``UNLIMITED`` if it isn't limited."""
        rows = [
            np.where(limited, free[member].sum(axis=0), UNLIMITED)
            for member, limited in zip(self.members, self.limited, strict=True)
        ]
        return np.array(rows, dtype=np.int64).reshape(self.limited.shape)

    def counts_by_group(self, placement: Placement) -> tuple[Integers, Integers]:
        """Return a placement's workers and parameter servers on each group."""
        workers = np.zeros(len(self.members), dtype=np.int64)
        ps = np.zeros(len(self.members), dtype=np.int64)
        groups = self._group[list(placement.servers)]
        np.add.at(workers, groups, placement.workers)
        np.add.at(ps, groups, placement.ps)
        return workers, ps

    def fair_shares(self, entries: Sequence[OpenJob]) -> list[float]:
        """Return the jobs' max-min fair dominant shares on empty servers, computed as by `drf`."""
        jobs, groups = len(entries), len(self.members)
        if not jobs or not groups:
            return [0.0] * jobs
        empty = np.zeros((jobs, groups), dtype=np.int64)
        placements = PlacementTable(
            np.array([entry.job.worker for entry in entries]),
            np.array([entry.ps for entry in entries]), self._group_hosts[0], self._group_hosts[1],
            empty, empty, np.zeros_like(empty), np.zeros_like(empty),
            np.zeros(jobs, dtype=np.bool_),
        )  # fmt: skip
        useful = [(entry.counts, entry.ps_counts) for entry in entries]
        widths = build_widths(np.arange(jobs), useful, np.arange(jobs))
        shares = fill(
            self.gather(self._capacity), self._total, np.arange(jobs), placements, widths,
            np.zeros(2, dtype=np.int64), np.zeros(jobs, dtype=np.int64),
        )  # fmt: skip
        return [float(share) for share in shares]

    def _sums(self, counts: Integers) -> Integers:  # of each group, from counts on servers
        return np.array([counts[member].sum() for member in self.members], dtype=np.int64)


_ROUNDING = 1e-9  # tolerated rounding errors

_WORKERS, _PS = 0, 1
_KINDS = (_WORKERS, _PS)
"""Indices in pairs whose elements are for workers and for parameter servers."""

NumbersByGroup = tuple[Sequence[int] | Integers, Sequence[int] | Integers]
"""Numbers of workers and of parameter servers on each group of servers."""


@dataclass(slots=True)
class MutablePlacement:
    """Placement of one job that can change; ``free`` always excludes its resources.

    Pairs have an element for workers and one for parameter servers; a ``kind`` is their index.
    """

    free: Integers  # of each server, changed in place
    demands: tuple[Integers, Integers]
    hosts: tuple[Flags, Flags]
    counts: tuple[Integers, Integers]  # number on each server

    @property
    def placement(self) -> Placement:
        """The present placement."""
        return dense_placement(*self.counts)

    def reach(self, workers: int, ps: int) -> bool:
        """Change to these numbers on any servers; return False and change nothing if that fails."""
        return self.fit([np.ones(len(self.free), np.bool_)], ([workers], [ps]))

    def fit(self, groups: Sequence[Flags], target: NumbersByGroup) -> bool:
        """Change to numbers on groups of servers; return False and change nothing if that fails."""
        before = (self.counts[_WORKERS].copy(), self.counts[_PS].copy())
        for order in (
            _KINDS,
            _KINDS[::-1],
        ):  # either may take the other's only servers
            self.trim(groups, target)
            if all(
                self._extend(kind, int(number - self.counts[kind][group].sum()), group)
                for kind in order
                for group, number in zip(groups, target[kind], strict=True)
            ):
                return True
            self.restore(before)
        return False

    def trim(self, groups: Sequence[Flags], target: NumbersByGroup) -> None:
        """Remove surplus processes, first from servers with the fewest, to use fewer servers."""
        for kind in _KINDS:
            counts = self.counts[kind]
            for group, number in zip(groups, target[kind], strict=True):
                surplus = int(counts[group].sum() - number)
                used = np.flatnonzero(counts * group)
                for server in used[np.argsort(counts[used], kind="stable")].tolist():
                    if surplus <= 0:
                        break
                    removed = min(surplus, int(counts[server]))
                    self._add(kind, server, -removed)
                    surplus -= removed

    def _extend(self, kind: int, more: int, group: Flags) -> bool:
        """Add processes by best fit on one server, or else on the emptiest; False if none fit."""
        if more <= 0:
            return True
        fits = fit_counts(self.free, self.demands[kind], self.hosts[kind] & group)
        enough = np.flatnonzero(fits >= more)
        if len(enough):
            # Prefer a server of the job, then the tightest fit, then the first server.
            own = self.counts[_WORKERS][enough] + self.counts[_PS][enough] > 0
            best = np.lexsort((enough, fits[enough], ~own))[0]
            self._add(kind, int(enough[best]), more)
            return True
        added = distribute(fits, np.argsort(-fits, kind="stable"), more)
        if added is None:
            return False
        self.free -= added[:, None] * self.demands[kind]
        self.counts[kind][:] += added
        return True

    def restore(self, before: tuple[Integers, Integers]) -> None:
        """Restore an earlier placement whose capacity is still free."""
        for kind in _KINDS:
            change = before[kind] - self.counts[kind]
            self.free -= change[:, None] * self.demands[kind]
            self.counts[kind][:] = before[kind]

    def _add(self, kind: int, server: int, count: int) -> None:
        self.free[server] -= count * self.demands[kind]
        self.counts[kind][server] += count


PlacementChanges = dict[OpenJob, tuple[int, MutablePlacement]]
"""Changed jobs, with the index of the new worker count and the new placement."""


@dataclass
class Recomputation:
    """Recomputation of the worker counts of running jobs and of a window of queued jobs."""

    capacity: FreeCapacity  # not changed
    groups: DormServerGroups
    parameters: DormParameters
    running: Sequence[OpenJob]  # all running jobs, in order of arrival
    movable: Sequence[OpenJob]  # those that may change, in order of arrival
    queued: Sequence[OpenJob]  # the window of queued jobs, in order of arrival
    statistics: dict[str, int] = field(default_factory=dict)
    """Increments of the statistics that `Dorm.parameters_in_force` describes."""

    def __post_init__(self) -> None:
        # In order of arrival, which breaks ties between equal shares.
        entries = sorted([*self.running, *self.queued], key=lambda entry: entry.order)
        self._fair = dict(zip(entries, self.groups.fair_shares(entries), strict=True))
        self._fractions = {entry: self.groups.fractions(entry) for entry in entries}
        allowed = ceiling(self.parameters.fairness_loss * 2 * self.groups.resources)
        self.bound = max(allowed, self._total_loss({}))

    def solve(self) -> PlacementChanges:
        """Return changes that satisfy the bounds on fairness loss and adjustments."""
        by_loss = sorted(
            self.movable, key=lambda entry: (-self._loss(entry, entry.choice), entry.order)
        )
        free_to_change = set(by_loss[: self.parameters.adjustable])
        entries = [entry for entry in self.movable if entry in free_to_change]
        entries += self.queued
        fixed = math.fsum(
            self._loss(entry, entry.choice) for entry in self.running if entry not in free_to_change
        )
        solution = solve(
            self._instance(entries, fixed),
            node_limit=self.parameters.node_limit,
            gap=self.parameters.gap,
        )
        self.statistics["programs"] = 1
        self.statistics["stopped_at_node_limit"] = int(not solution.optimal)
        outcome = self._place_solution(entries, solution)
        if outcome is None or self._total_loss(outcome) > self.bound + _ROUNDING:
            self.statistics["fell_back"] = 1
            outcome = self._start_queued()
        return outcome

    # ---------------------------------------------------------------- the program

    def _instance(self, entries: Sequence[OpenJob], fixed: float) -> DormInstance:
        free = self.groups.gather(self.capacity.free)
        items = [self._item(entry) for entry in entries]
        for item in items:
            if item.current is not None:
                workers, ps = item.current
                free += workers[:, None] * item.worker + ps[:, None] * item.ps
        limits = [self.groups.max_by_group(entry) for entry in entries]
        return DormInstance(
            items=items,
            free=free,
            limited=self.groups.limited,
            max_workers_by_group=np.array([workers for workers, _ in limits]),
            max_ps_by_group=np.array([ps for _, ps in limits]),
            fairness=self.bound - fixed,
            adjustments=ceiling(self.parameters.adjustment_overhead * len(self.running)),
        )

    def _item(self, entry: OpenJob) -> JobItem:
        groups, choice = self.groups, entry.choice
        utilisations, shares = self._fractions[entry]
        offered = np.ones(len(entry.counts), dtype=np.bool_)
        current = None
        if choice >= 0:
            current = groups.counts_by_group(self.capacity.placed[entry.job.name][1])
            # With a single group, to choose the current number is to keep the placement.
            offered[choice] = not groups.has_single_group
        return JobItem(
            counts=entry.counts[offered],
            ps_counts=entry.ps_counts[offered],
            worker=entry.job.worker,
            ps=entry.ps,
            utilisation=utilisations[offered],
            loss=np.abs(shares[offered] - self._fair[entry]),
            current=current,
            current_utilisation=0.0 if choice < 0 else float(utilisations[choice]),
            current_loss=self._loss(entry, choice),
        )

    # ---------------------------------------------------------------- placements

    def _place_solution(
        self, entries: Sequence[OpenJob], solution: DormSolution
    ) -> PlacementChanges | None:
        """Place the program's solution; return None if a running job can't be placed."""
        free = self.capacity.free.copy()
        changed = [
            (entry, target, mutable_placement(self.capacity, entry, free))
            for entry, target in zip(entries, solution.targets, strict=True)
            if target is not None
        ]
        for _, target, layout in changed:  # shrink jobs first, so that others can grow
            layout.trim(self.groups.members, target)
        # Place running jobs before new ones, and jobs with large workers (by utilisation) first.
        changed.sort(
            key=lambda change: (
                change[0].choice < 0,
                -float(self._fractions[change[0]][0][0]) / int(change[0].counts[0]),
                change[0].order,
            )
        )
        outcome: PlacementChanges = {}
        for entry, target, layout in changed:
            choice = self._place_job(entry, target, layout)
            if choice is not None:
                outcome[entry] = (choice, layout)
            elif entry.choice >= 0:
                return None
        return outcome

    def _place_job(
        self, entry: OpenJob, target: tuple[Integers, Integers], layout: MutablePlacement
    ) -> int | None:
        """Extend a trimmed placement to its target, or a smaller choice; return the choice."""
        choice = int(np.searchsorted(entry.counts, target[0].sum()))
        if layout.fit(self.groups.members, target):
            return choice
        self.statistics["placed_otherwise"] = self.statistics.get("placed_otherwise", 0) + 1
        for smaller in range(choice, -1, -1):
            if layout.reach(int(entry.counts[smaller]), int(entry.ps_counts[smaller])):
                return smaller
        return None

    def _start_queued(self) -> PlacementChanges:
        """Start queued jobs whose loss doesn't rise by it; change no running job."""
        free = self.capacity.free.copy()
        outcome: PlacementChanges = {}
        for entry in self.queued:
            layout = mutable_placement(self.capacity, entry, free)
            for choice in range(len(entry.counts) - 1, -1, -1):
                if self._loss(entry, choice) <= self._loss(entry, -1) and layout.reach(
                    int(entry.counts[choice]), int(entry.ps_counts[choice])
                ):
                    outcome[entry] = (choice, layout)
                    break
        return outcome

    # ---------------------------------------------------------------- fairness

    def _loss(self, entry: OpenJob, choice: int) -> float:
        share = 0.0 if choice < 0 else float(self._fractions[entry][1][choice])
        return abs(share - self._fair[entry])

    def _total_loss(self, outcome: Mapping[OpenJob, tuple[int, MutablePlacement]]) -> float:
        return math.fsum(
            self._loss(entry, outcome[entry][0] if entry in outcome else entry.choice)
            for entry in self._fair
        )


def mutable_placement(capacity: FreeCapacity, entry: OpenJob, free: Integers) -> MutablePlacement:
    """Return a job's current placement as a `MutablePlacement` that updates ``free``."""
    counts = (np.zeros(len(free), dtype=np.int64), np.zeros(len(free), dtype=np.int64))
    if entry.choice >= 0:
        placement = capacity.placed[entry.job.name][1]
        servers = list(placement.servers)
        counts[_WORKERS][servers], counts[_PS][servers] = placement.workers, placement.ps
    return MutablePlacement(
        free, (entry.job.worker, entry.ps), (capacity.hosts_workers, capacity.hosts_ps), counts
    )


def ceiling(value: float) -> int:
    """Return the ceiling, ignoring rounding errors: 0.07 * 100, which is above 7, gives 7."""
    return math.ceil(value - _ROUNDING)

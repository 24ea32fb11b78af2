"""Dorm's mixed-integer linear program (Sun et al. 2017, section on the optimizer).

Maximise, over the jobs' worker counts and placements, the sum over resources of used / capacity,
such that

- no group of servers is overbooked;
- a running job keeps an allowed number of workers, a queued job has an allowed number or waits;
- the sum over jobs of |dominant share - fair share| is within the bound on the fairness loss;
- at most ``adjustments`` running jobs change in number or placement.

A group is one server (the program of the paper) or a class of equal servers taken as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from shadowprice.core.arrays import Flags, Floats, Integers
from shadowprice.policies.milp import INFINITY, LinearProgram

_SLACK: Final = 1e-9


@dataclass(frozen=True, slots=True)
class JobItem:
    """One job of the program."""

    counts: Integers  # allowed numbers of workers
    ps_counts: Integers  # parameter servers that they need
    worker: Integers
    ps: Integers  # zero if the job has no parameter servers
    gain: Floats  # contribution of each choice to the sum over resources of used / capacity
    loss: Floats  # |dominant share - fair share| of each choice
    standing: tuple[Integers, Integers] | None
    """Current workers and PS on each group; None for a queued job."""
    standing_gain: float  # of the current placement
    standing_loss: float  # of the current placement; a waiting job's is its fair share


@dataclass(frozen=True, slots=True)
class DormInstance:
    """Input of the program."""

    items: Sequence[JobItem]
    free: Integers  # of each group, without the items but with all other jobs
    limited: Flags  # whether the group has a limit on the resource
    max_workers_by_group: Integers
    """Workers of an item that fit on a group's empty servers, shape (items, groups); likewise for
    PS."""
    max_ps_by_group: Integers
    fairness: float  # bound on the sum of the items' losses
    adjustments: int  # maximum number of running items that change


@dataclass(frozen=True, slots=True)
class DormSolution:
    """Decision of the program."""

    targets: list[tuple[Integers, Integers] | None]
    """Workers and PS by group, for every item; None if it doesn't change."""
    utilisation: float  # sum over resources of used / capacity, of the items alone
    optimal: bool  # whether the search ended within the gap, not at its node limit


def solve(instance: DormInstance, *, node_limit: int, gap: float) -> DormSolution:
    """Solve the program from the current placements, which must satisfy the bounds.

    After ``node_limit`` branch-and-bound nodes, the best solution so far is taken.
    """
    current = sum(item.standing_gain for item in instance.items)
    unchanged = DormSolution([None] * len(instance.items), current, optimal=True)
    program = _Program(instance)
    if not program.program.columns:
        return unchanged
    values, optimal = program.solve(node_limit, gap)
    solution = (
        DormSolution(*program.read(values), optimal=optimal) if values is not None else unchanged
    )
    if solution.utilisation > current + _SLACK:
        return solution
    return DormSolution(unchanged.targets, current, optimal)


@dataclass(slots=True)
class _Terms:
    """Columns of one item, and its (column, count) terms of workers and PS by group."""

    keep: int | None
    choices: list[int]
    workers: list[list[tuple[int, float]]]
    ps: list[list[tuple[int, float]]]


@dataclass
class _Program:
    """The program as columns and rows."""

    instance: DormInstance
    program: LinearProgram = field(default_factory=LinearProgram)
    terms: list[_Terms] = field(default_factory=list)

    def __post_init__(self) -> None:
        for index in range(len(self.instance.items)):
            self.terms.append(self._add_item(index))
        self._add_capacity_rows()
        self._add_fairness_row()
        self._add_adjustment_row()

    def solve(self, node_limit: int, gap: float) -> tuple[Floats | None, bool]:
        """Return the best values, None if there are none, and whether they are optimal."""
        result = self.program.solve(gap=gap, node_limit=node_limit, start=self._current_values())
        return (np.rint(result.values) if result.feasible else None), result.optimal

    def read(self, values: Floats) -> tuple[list[tuple[Integers, Integers] | None], float]:
        """Return the items' targets, and their utilisation."""
        targets: list[tuple[Integers, Integers] | None] = []
        utilisation = 0.0
        for item, terms in zip(self.instance.items, self.terms, strict=True):
            chosen = [index for index, column in enumerate(terms.choices) if values[column] > 0]
            if not chosen:
                targets.append(None)
                utilisation += item.standing_gain
                continue
            utilisation += float(item.gain[chosen[0]])
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
            same = item.standing is not None and (
                np.array_equal(workers, item.standing[0]) and np.array_equal(ps, item.standing[1])
            )
            targets.append(None if same else (workers, ps))
        return targets, utilisation

    def _add_row(self, terms: Sequence[tuple[int, float]], lower: float, upper: float) -> None:
        columns, values = [column for column, _ in terms], [value for _, value in terms]
        self.program.row(columns, values, lower=lower, upper=upper)

    def _add_item(self, at: int) -> _Terms:
        item = self.instance.items[at]
        keep = (
            None if item.standing is None else self.program.column(cost=item.standing_gain, upper=1)
        )
        choices = [self.program.column(cost=float(gain), upper=1) for gain in item.gain]
        picked = [(column, 1.0) for column in choices]
        if keep is None:
            self._add_row(picked, 0, 1)
        else:
            self._add_row([(keep, 1.0), *picked], 1, 1)
        workers = self._add_spread(choices, item.counts, self.instance.max_workers_by_group[at])
        ps = self._add_spread(choices, item.ps_counts, self.instance.max_ps_by_group[at])
        return _Terms(keep, choices, workers, ps)

    def _add_spread(
        self, choices: list[int], counts: Integers, maximum: Integers
    ) -> list[list[tuple[int, float]]]:
        """Return, by group, the terms whose sum over groups is what the choices need."""
        needs = [(column, float(n)) for column, n in zip(choices, counts, strict=True) if n]
        spread: list[list[tuple[int, float]]] = [[] for _ in maximum]
        hosts = np.flatnonzero(maximum)
        if len(hosts) == 1:
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
        self._add_row([*columns, *((column, -n) for column, n in needs)], 0, 0)
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
                if columns.keep is not None and item.standing is not None:
                    reserved = (
                        int(item.standing[0][group]) * worker + int(item.standing[1][group]) * ps
                    )
                    if reserved:
                        terms.append((columns.keep, reserved))
            if terms:
                # Scaled to the free capacity, so that the solver's tolerances are relative.
                scale = max(room, *(value for _, value in terms))
                scaled = [(column, value / scale) for column, value in terms]
                self._add_row(scaled, -INFINITY, room / scale)

    def _add_fairness_row(self) -> None:
        terms: list[tuple[int, float]] = []
        waiting = 0.0
        for item, columns in zip(self.instance.items, self.terms, strict=True):
            base = 0.0
            if columns.keep is None:
                # A queued job has this loss unless it starts, so its choices count the difference.
                waiting += item.standing_loss
                base = item.standing_loss
            else:
                terms.append((columns.keep, item.standing_loss))
            terms += [
                (column, float(loss) - base)
                for column, loss in zip(columns.choices, item.loss, strict=True)
            ]
        self._add_row(terms, -INFINITY, self.instance.fairness - waiting + _SLACK)

    def _add_adjustment_row(self) -> None:
        kept = [(terms.keep, 1.0) for terms in self.terms if terms.keep is not None]
        min_kept = len(kept) - self.instance.adjustments
        if min_kept > 0:
            self._add_row(kept, min_kept, INFINITY)

    def _current_values(self) -> list[float]:
        values = [0.0] * self.program.columns
        for terms in self.terms:
            if terms.keep is not None:
                values[terms.keep] = 1.0
        return values

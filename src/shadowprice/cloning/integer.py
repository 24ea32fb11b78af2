"""Exact integer optimum of CSD: a Lagrangian bound, then a search of the choices near it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from shadowprice.cloning.problem import ROUNDING_MARGIN, miss_terms
from shadowprice.core.arrays import Flags, Floats, Integers
from shadowprice.core.errors import ShadowpriceError
from shadowprice.kernels.cloning import integer as kernel
from shadowprice.kernels.cloning.bound import integer_bound
from shadowprice.kernels.cloning.continuous import min_copies
from shadowprice.kernels.cloning.curves import Columns, Program

FIRST_GROUPS = 8  # groups whose copies the first, narrowest search may change
SMALL_STATE_COUNT = 200
"""States below which a search is cheap, so that the gap may widen in large steps."""
MAX_MOVES = 64  # numbers of copies of a task that are tried first; more follow if within the gap
MAX_OPTIONS = 200_000
MAX_STATES = 100_000  # held at once
MAX_LISTED_STATES = 20_000_000
"""States listed in all searches, some seconds of work, after which fewer are held."""
FEW_STATES = 1_000  # held at once after that
MAX_COMBINATIONS = 16_384
"""Maximum of listed combinations of a group's tasks; above it, each task is a step."""


@dataclass(frozen=True, slots=True)
class IntegerCopies:
    """Integer numbers of copies, with the bound that proves how good they are."""

    groups: Integers
    """Group of each row; a group has one row for every number of copies that its tasks have."""
    copies: Integers  # number of copies of each row
    tasks: Integers  # number of tasks of the group that have these copies
    bound: float  # lower bound on the cost of integer copies
    proved: bool  # whether the search proves that the choice is optimal
    states: int  # largest number of states held at once


@dataclass(frozen=True, slots=True)
class _Options:
    """Possible changes of a group, in order of their penalty.

    ``chosen`` counts the tasks that make each of ``moves``. A balanced group (``moves`` is empty)
    distributes its change of copies evenly over its ``tasks``.
    """

    penalty: Floats
    late: Floats
    machines: Integers
    chosen: Integers
    moves: Integers
    tasks: int

    def moved(self, option: int) -> list[tuple[int, int]]:
        """Return (change of copies, tasks) of an option."""
        if len(self.moves):
            row = self.chosen[option]
            return [(int(m), int(n)) for m, n in zip(self.moves, row, strict=True) if n]
        each, rest = divmod(int(self.machines[option]), self.tasks)
        pairs = [(each, self.tasks - rest), (each + 1, rest)]
        return [(change, tasks) for change, tasks in pairs if change and tasks]


@dataclass(frozen=True, slots=True)
class _Layer:
    """Options of one group, and the predecessors of the states after it."""

    group: int
    options: _Options
    parent: Integers
    option: Integers


class _Core:
    """Search of the choices whose penalties are within a gap of the bound."""

    def __init__(
        self, program: Program, convex: Flags, prices: tuple[float, float], base: Integers
    ) -> None:
        arrays = program.columns
        self.program = program
        self.convex = convex
        self.k, self.l = prices
        self.base = base
        late = float(arrays.tasks @ miss_terms(arrays.decay, base, program.relaxed))
        self.slack_late = program.budget * ROUNDING_MARGIN - late
        self.slack_machines = int(program.machines - arrays.tasks @ base)
        self.least = np.empty(len(base))
        kernel.min_penalties(program, self.k, self.l, base, self.least)
        # The bound is valid only if every task's choice is optimal at these prices.
        if np.any(self.least < -1e-9 * np.abs(arrays.minimum * base + arrays.scale)):
            raise ShadowpriceError("a task's best number of copies was missed: this is a bug")
        np.maximum(self.least, 0.0, out=self.least)
        self.widest = 1
        self.listed = 0
        self.whole = True

    def first_gap(self) -> float:
        """Return a gap within which only a few groups can change."""
        near = np.sort(self.least)[: FIRST_GROUPS + 1]
        finite = near[np.isfinite(near)]
        return float(finite[-1]) if finite.size else 0.0

    def _options(self, group: int, gap: float) -> list[_Options]:
        """Return the changes of a group's tasks, combined or one task after another."""
        count = int(self.program.columns.tasks[group])
        # A single task has no shares to balance: its options are all its numbers of copies.
        if self.convex[group] or count == 1:
            return [self._balanced_options(group, gap, count)]
        combined = self._combine(group, gap, count)
        if combined is not None:
            return [combined]
        return [self._balanced_options(group, gap, 1)] * count

    def _balanced_options(self, group: int, gap: float, tasks: int) -> _Options:
        size = 256
        while True:
            penalty, late = np.empty(size), np.empty(size)
            change = np.empty(size, dtype=np.int64)
            count = self._list_options(group, tasks, gap, penalty, late, change)
            if count <= size:
                break
            if size >= MAX_OPTIONS:
                self.whole = False
                count = size
                break
            size *= 8
        order = np.argsort(penalty[:count], kind="stable")
        none = np.zeros((0, 0), dtype=np.int64)
        return _Options(penalty[order], late[order], change[order], none, none.ravel(), tasks)

    def _list_options(
        self, group: int, tasks: int, gap: float, penalty: Floats, late: Floats, change: Integers
    ) -> int:
        base = int(self.base[group])
        return kernel.balanced_options(
            group, tasks, self.program, self.k, self.l, base, gap, penalty, late, change
        )

    def _combine(self, group: int, gap: float, count: int) -> _Options | None:
        """Return every combination of a group's tasks, None if there are too many."""
        size = MAX_MOVES
        while True:
            penalty, late = np.empty(size), np.empty(size)
            change = np.empty(size, dtype=np.int64)
            options = self._list_options(group, 1, gap, penalty, late, change)
            if options <= size:
                break
            size *= 8
        # The first option changes nothing.
        moves = options - 1
        penalty, late, change = penalty[1:options], late[1:options], change[1:options]
        size = min(256, MAX_COMBINATIONS)
        while True:
            chosen = np.zeros((size, moves), dtype=np.int64)
            sums = np.empty(size), np.empty(size), np.empty(size, dtype=np.int64)
            total = kernel.multisets(count, moves, penalty, late, change, gap, size, chosen, *sums)
            if total <= size:
                break
            if size >= MAX_COMBINATIONS:
                return None
            size *= 8
        order = np.argsort(sums[0][:total], kind="stable")
        by_penalty = kernel.Sums(sums[0][order], sums[1][order], sums[2][order])
        return _Options(*by_penalty, chosen[order], change, count)

    def search(self, gap: float) -> tuple[float, list[tuple[int, int, int]]] | None:
        """Find the best choice within the gap of the bound; None if there is none.

        Returns the cost exceeds the limit, and (group, change of copies, tasks) of every change.
        """
        self.whole = True
        self.widest = 1
        active = np.flatnonzero(self.least <= gap)
        active = active[np.argsort(self.least[active], kind="stable")]
        steps = [
            (int(group), options) for group in active for options in self._options(int(group), gap)
        ]
        # Largest change that the remaining groups can make: sums over the rest of the list.
        bounds = np.zeros((len(steps) + 1, 4))
        for i in range(len(steps) - 1, -1, -1):
            late, machines = steps[i][1].late, steps[i][1].machines
            bounds[i] = bounds[i + 1] + (late.min(), late.max(), machines.min(), machines.max())
        by_machines = self.l > 0.0 or bounds[0, 3] > self.slack_machines
        states = kernel.Sums(np.zeros(1), np.zeros(1), np.zeros(1, dtype=np.int64))
        layers: list[_Layer] = []
        for i, (group, option) in enumerate(steps):
            states, layer = self._step(states, group, option, gap, bounds[i + 1], by_machines)
            layers.append(layer)
            if not len(states.penalty):
                return None
        penalty, late, machines = states
        if (self.slack_late < late.max() or self.slack_machines < machines.max()) and not layers:
            return None
        excess = (
            penalty
            + self.k * np.maximum(self.slack_late - late, 0.0)
            + self.l * (self.slack_machines - machines)
        )
        best = int(np.argmin(excess))
        moves: Counter[tuple[int, int]] = Counter()
        state = best
        for layer in reversed(layers):
            for change, tasks in layer.options.moved(int(layer.option[state])):
                moves[layer.group, change] += tasks
            state = int(layer.parent[state])
        return float(excess[best]), [(*key, tasks) for key, tasks in moves.items()]

    def _step(
        self,
        states: kernel.Sums,
        group: int,
        options: _Options,
        gap: float,
        bounds: Floats,
        by_machines: bool,
    ) -> tuple[kernel.Sums, _Layer]:
        limits = kernel.Limits(
            gap, self.k, self.l, self.slack_late, self.slack_machines, bounds[0], bounds[1],
            int(bounds[2]), int(bounds[3]),
        )  # fmt: skip
        choices = kernel.Sums(options.penalty, options.late, options.machines)
        size = min(len(states.penalty) * len(options.penalty), 4096)
        while True:
            new = kernel.Sums(np.empty(size), np.empty(size), np.empty(size, dtype=np.int64))
            parent, picked = np.empty(size, dtype=np.int64), np.empty(size, dtype=np.int64)
            total = kernel.extend(states, choices, limits, new, parent, picked)
            if total <= size:
                break
            if size >= 16 * MAX_STATES:
                self.whole = False
                total = size
                break
            size *= 8
        penalty, late, machines = new.penalty[:total], new.late[:total], new.machines[:total]
        order = np.lexsort((late, machines)) if by_machines else np.argsort(late, kind="stable")
        keep = np.empty(total, dtype=np.int64)
        remaining = kernel.list_undominated(
            order, penalty, late, machines, self.k, self.l, by_machines, keep
        )
        keep = keep[:remaining]
        self.listed += total
        limit = MAX_STATES if self.listed <= MAX_LISTED_STATES else FEW_STATES
        if remaining > limit:
            self.whole = False
            keep = keep[np.argpartition(penalty[keep], limit)[:limit]]
        self.widest = max(self.widest, len(keep))
        layer = _Layer(group, options, parent[keep], picked[keep])
        return kernel.Sums(penalty[keep], late[keep], machines[keep]), layer


def integer_optimum(
    program: Program, convex: Flags, prices: tuple[float, float], ratios: Floats
) -> IntegerCopies:
    """Find the integer numbers of copies with the smallest expected machine time.

    A feasible choice must exist. ``convex`` marks groups whose g is convex in r (Lemma 1).
    ``prices`` are the multipliers (k, l) of the continuous optimum, and ``ratios`` its copies, at
    which the search starts. Beyond `MAX_STATES` states at once, or `MAX_LISTED_STATES` in total,
    the result is feasible with a certified gap.
    """
    arrays = program.columns
    base = np.empty(len(arrays.tasks), dtype=np.int64)
    total = int(arrays.tasks.sum())
    near = prices[0]
    if near <= 0.0:
        near = float(arrays.tasks @ (1.0 / arrays.decay)) / program.budget
        near *= float(arrays.tasks @ (arrays.minimum + arrays.scale)) / total
    k, l, bound = integer_bound(program, near, prices[1], ratios.copy(), base)
    core = _Core(program, convex, (k, l), base)
    floor = 1e-13 * abs(bound)
    gap = max(core.first_gap(), 1e-6 * abs(bound) / total, floor)
    proved_above = 0.0
    # No choice is within the gap, so the bound rises by it. The last search takes most time.
    for _ in range(64):
        result = core.search(gap)
        if result is not None:
            excess, moves = result
            proved = core.whole
            best = bound + (excess if proved else proved_above)
            groups, copies, tasks = _rows(arrays, base, moves)
            return IntegerCopies(groups, copies, tasks, best, proved, core.widest)
        if not core.whole:
            break
        proved_above = gap
        gap *= 3.0 if core.widest < SMALL_STATE_COUNT else 1.4
    return _fallback(program, bound + proved_above, core.widest)


def _rows(
    arrays: Columns, base: Integers, moves: list[tuple[int, int, int]]
) -> tuple[Integers, Integers, Integers]:
    unmoved = arrays.tasks.copy()
    for group, _, number in moves:
        unmoved[group] -= number
    home = np.flatnonzero(unmoved)
    groups = np.concatenate([home, np.array([move[0] for move in moves], dtype=np.int64)])
    copies = np.concatenate(
        [base[home], np.array([base[move[0]] + move[1] for move in moves], dtype=np.int64)]
    )
    tasks = np.concatenate([unmoved[home], np.array([move[2] for move in moves], dtype=np.int64)])
    order = np.lexsort((-copies, groups))
    return groups[order], copies[order], tasks[order]


def _fallback(program: Program, bound: float, states: int) -> IntegerCopies:
    """Return the choice with the fewest machines, which is feasible but not optimal."""
    arrays = program.columns
    copies = np.ones(len(arrays.tasks), dtype=np.int64)
    _, used, last = min_copies(
        arrays.tasks, arrays.decay, int(program.machines), program.relaxed, program.budget, copies
    )
    extra = int(used - arrays.tasks @ copies)
    moves = [(int(last), 1, extra)] if last >= 0 and extra else []
    groups, copies, tasks = _rows(arrays, copies, moves)
    return IntegerCopies(groups, copies, tasks, bound, False, states)

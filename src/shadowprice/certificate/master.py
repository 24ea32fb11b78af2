"""Restricted master program of column generation: the best mix of known schedules.

    max  sum utility x   s.t.  each group of jobs uses one of its columns,
    shares of each pool's resource in each slot sum to <= 1

Jobs may be grouped: a group's column is the sum of its jobs' schedules at the same prices. That
makes the program smaller. Its prices stay valid, but it takes longer to converge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import highspy
import numpy as np
from numpy.typing import NDArray

from shadowprice.core.arrays import Floats
from shadowprice.core.errors import ShadowpriceError

_PRIMAL_SIMPLEX: Final = 4
_IDLE: Final = 8  # rounds after which an unused column is dropped


@dataclass(frozen=True, slots=True)
class GroupColumn:
    """Schedules of a group of jobs at some prices."""

    utility: float  # total utility of the group
    cells: NDArray[np.int32]  # indices of the flattened prices that the group uses, ascending
    shares: Floats  # share of the pool's resource in each of these cells


class Master:
    """Linear program that keeps its basis while columns are added.

    ``cells`` is the number of flattened prices.
    """

    def __init__(self, groups: int, cells: int) -> None:
        self._groups = groups
        solver = highspy.Highs()  # type: ignore[no-untyped-call]  # it ships no types
        solver.setOptionValue("output_flag", False)
        solver.setOptionValue("threads", 1)
        solver.setOptionValue("simplex_strategy", _PRIMAL_SIMPLEX)
        solver.changeObjectiveSense(highspy.ObjSense.kMaximize)
        rows = groups + cells
        upper = np.ones(rows)
        none = np.zeros(0, dtype=np.int32)
        lower = np.full(rows, -highspy.kHighsInf)
        starts = np.zeros(rows, dtype=np.int32)
        solver.addRows(rows, lower, upper, 0, starts, none, np.zeros(0))
        self._solver = solver
        self._known: set[tuple[int, float, bytes, bytes]] = set()
        self._keys: list[tuple[int, float, bytes, bytes]] = []
        self._idle = np.zeros(0, dtype=np.int64)
        self.value = 0.0
        self.weights: Floats = np.zeros(0)

    @property
    def columns(self) -> int:
        """Number of columns in the program."""
        return len(self._keys)

    def add(self, columns: Sequence[tuple[int, GroupColumn]]) -> int:
        """Add the new ones among columns, each with its group; return their number."""
        costs, starts, indices, values = [], [], [], []
        size = 0
        for group, column in columns:
            key = (group, column.utility, column.cells.tobytes(), column.shares.tobytes())
            if key in self._known:
                continue
            self._known.add(key)
            self._keys.append(key)
            costs.append(column.utility)
            starts.append(size)
            indices.append(
                np.concatenate(
                    (np.array([group], dtype=np.int32), column.cells + np.int32(self._groups))
                )
            )
            values.append(np.concatenate((np.ones(1), column.shares)))
            size += len(column.cells) + 1
        if not costs:
            return 0
        count = len(costs)
        self._solver.addCols(
            count,
            np.array(costs),
            np.zeros(count),
            np.full(count, highspy.kHighsInf),
            size,
            np.array(starts, dtype=np.int32),
            np.concatenate(indices).astype(np.int32),
            np.concatenate(values),
        )
        self._idle = np.concatenate((self._idle, np.zeros(count, dtype=np.int64)))
        return count

    def solve(self, seconds: float) -> Floats | None:
        """Solve the program; return the prices of all cells, or None if time ran out.

        Raises `ShadowpriceError` if the solver fails.
        """
        solver = self._solver
        solver.setOptionValue("time_limit", solver.getRunTime() + max(0.01, seconds))
        solver.run()
        status = solver.getModelStatus()
        states = highspy.HighsModelStatus
        if status == states.kTimeLimit:
            return None
        if status not in {states.kOptimal, states.kModelEmpty}:
            raise ShadowpriceError(f"HiGHS stopped: {solver.modelStatusToString(status)}")
        solution = solver.getSolution()
        self.value = float(solver.getInfo().objective_function_value)
        self.weights = np.array(solution.col_value)
        prices = np.maximum(0.0, np.array(solution.row_dual)[self._groups :])
        self._drop(np.array(solution.col_dual))
        return np.asarray(prices, dtype=np.float64)

    def _drop(self, reduced: Floats) -> None:
        """Drop columns that have been unused for long."""
        self._idle = np.where((self.weights > 0) | (reduced > -1e-9), 0, self._idle + 1)
        stale = np.flatnonzero(self._idle >= _IDLE)
        if len(stale) < max(1000, len(self._keys) // 3):
            return
        self._solver.deleteCols(len(stale), stale.astype(np.int32))
        dropped = set(stale.tolist())
        self._known -= {self._keys[index] for index in dropped}
        self._keys = [key for index, key in enumerate(self._keys) if index not in dropped]
        self._idle = np.delete(self._idle, stale)
        self.weights = np.delete(self.weights, stale)

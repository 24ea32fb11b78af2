"""Mixed-integer programs for oracles, by scipy, independent of the package's own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array


class Answer(NamedTuple):
    """Whether the optimum was proved, and its value."""

    optimal: bool
    objective: float


class Program:
    """A program over non-negative integers, to be maximised; columns and rows count from 0."""

    def __init__(self) -> None:
        self._cost: list[float] = []
        self._upper: list[float] = []
        self._entries: list[tuple[int, int, float]] = []
        self._rows: list[tuple[float, float]] = []

    def column(self, *, cost: float = 0.0, upper: float = np.inf) -> int:
        """Add a variable; return its number."""
        self._cost.append(cost)
        self._upper.append(upper)
        return len(self._cost) - 1

    def row(
        self,
        columns: Iterable[int],
        values: Iterable[float],
        *,
        lower: float = -np.inf,
        upper: float = np.inf,
    ) -> None:
        """Add ``lower <= values . columns <= upper``; values of one column are added up."""
        at = len(self._rows)
        self._entries += [(at, c, float(v)) for c, v in zip(columns, values, strict=True)]
        self._rows.append((lower, upper))

    def solve(self, *, time_limit: float) -> Answer:
        """Maximise."""
        if not self._cost:
            return Answer(True, 0.0)
        constraints = []
        if self._entries:
            row, column, value = zip(*self._entries, strict=True)
            shape = (len(self._rows), len(self._cost))
            matrix = coo_array((value, (row, column)), shape=shape).tocsr()
            constraints.append(LinearConstraint(matrix, *np.array(self._rows).T))
        result = milp(
            -np.array(self._cost),
            integrality=np.ones(len(self._cost)),
            bounds=Bounds(0.0, np.array(self._upper)),
            constraints=constraints,
            options={"time_limit": time_limit, "mip_rel_gap": 1e-7},
        )
        return Answer(result.status == 0, -np.inf if result.fun is None else -float(result.fun))

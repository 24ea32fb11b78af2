"""Mixed-integer linear programs, built row by row and solved by HiGHS."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import highspy
import numpy as np

from shadowprice.core.arrays import Floats
from shadowprice.core.errors import ShadowpriceError
from shadowprice.core.time_limit import Clock, Deadline

INFINITY: Final = float(highspy.kHighsInf)
_FEASIBLE_POINT: Final = 2  # HiGHS's ``kSolutionStatusFeasible``

Terms = list[tuple[int, int]]  # a weighted sum: pairs of a column and its integer coefficient


@dataclass(frozen=True, slots=True)
class SolverResult:
    """Result of a solver run."""

    optimal: bool  # whether the solver proved the solution optimal, or the program infeasible
    feasible: bool  # whether a solution was found
    values: Floats  # the best solution, by column; empty if none was found
    objective: float  # of the best solution; -inf if none was found
    bound: float
    """Upper bound on the objective of every solution; -inf if the program is infeasible."""


class LinearProgram:
    """A mixed-integer linear program that is maximised.

    Columns and rows are numbered from 0 in the order in which they are added.
    """

    def __init__(self) -> None:
        self._cost = array("d")
        self._upper = array("d")
        self._integer: list[bool] = []
        self._row_lower = array("d")
        self._row_upper = array("d")
        self._starts = array("i", [0])
        self._columns = array("i")
        self._values = array("d")

    @property
    def columns(self) -> int:
        """Number of columns."""
        return len(self._cost)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self._row_lower)

    @property
    def has_integers(self) -> bool:
        """Whether any variable is integral."""
        return any(self._integer)

    def column(self, *, cost: float = 0.0, upper: float = INFINITY, integer: bool = True) -> int:
        """Add a variable between 0 and ``upper``, and return its column number."""
        self._cost.append(cost)
        self._upper.append(upper)
        self._integer.append(integer)
        return len(self._cost) - 1

    def row(
        self,
        terms: Iterable[tuple[int, float]],
        *,
        lower: float = -INFINITY,
        upper: float = INFINITY,
    ) -> int:
        """Add ``lower <= sum of terms <= upper`` and return the row number.

        Coefficients of a repeated column are summed, because HiGHS rejects repetitions or hangs.
        """
        merged = _merge(terms)
        self._columns.extend(merged)
        self._values.extend(merged.values())
        self._starts.append(len(self._columns))
        self._row_lower.append(lower)
        self._row_upper.append(upper)
        return len(self._row_lower) - 1

    def limit(self, terms: Terms, upper: int) -> None:
        """Add ``sum of terms <= upper``, reduced by its common divisor; nothing without terms."""
        if terms:
            reduced, upper = _reduced(terms, upper)
            self.row(reduced, upper=upper)

    def solve(
        self,
        *,
        time_limit: float = INFINITY,
        clock: Clock = Clock.WALL,
        node_limit: int | None = None,
        gap: float = 1e-6,
        relaxed: bool = False,
        start: Sequence[float] | Floats | None = None,
    ) -> SolverResult:
        """Maximise the program.

        After ``time_limit`` seconds of the clock, or ``node_limit`` branch-and-bound nodes, the
        best solution so far is returned. A solution is optimal if its relative distance from the
        bound is at most ``gap``. With ``relaxed``, integrality is ignored. ``start`` is a feasible
        solution. Raises `ShadowpriceError` if the solver fails.
        """
        solver = _solver(gap)
        if time_limit < INFINITY and clock is Clock.WALL:  # the only clock that HiGHS has
            solver.setOptionValue("time_limit", max(0.0, time_limit))
        elif time_limit < INFINITY:
            _interrupt(solver, Deadline.after(max(0.0, time_limit), clock))
        if node_limit is not None:
            solver.setOptionValue("mip_max_nodes", node_limit)
        solver.passModel(self.model(relaxed=relaxed))
        if start is not None:
            solution = highspy.HighsSolution()
            solution.col_value = list(start)
            solver.setSolution(solution)
        solver.run()
        return _read_result(solver, mixed=self.has_integers and not relaxed)

    def model(self, *, relaxed: bool) -> highspy.HighsLp:
        """Return the program, or its linear relaxation, in the form that HiGHS reads."""
        model = highspy.HighsLp()
        model.num_col_ = self.columns
        model.num_row_ = self.rows
        model.sense_ = highspy.ObjSense.kMaximize
        model.col_cost_ = np.array(self._cost)
        model.col_lower_ = np.zeros(self.columns)
        model.col_upper_ = np.array(self._upper)
        model.row_lower_ = np.array(self._row_lower)
        model.row_upper_ = np.array(self._row_upper)
        matrix = model.a_matrix_
        matrix.format_ = highspy.MatrixFormat.kRowwise
        matrix.start_ = np.array(self._starts, dtype=np.int32)
        matrix.index_ = np.array(self._columns, dtype=np.int32)
        matrix.value_ = np.array(self._values)
        if not relaxed:
            kinds = highspy.HighsVarType
            model.integrality_ = [
                kinds.kInteger if integer else kinds.kContinuous for integer in self._integer
            ]
        return model


def weighted(columns: Iterable[int], weight: float = 1.0) -> list[tuple[int, float]]:
    """Return the terms of a sum of columns, each times a weight."""
    return [(column, weight) for column in columns]


def _merge(terms: Iterable[tuple[int, float]]) -> dict[int, float]:
    merged: dict[int, float] = {}
    for column, value in terms:
        merged[column] = merged.get(column, 0.0) + value
    return merged


def _reduced(terms: Terms, upper: int) -> tuple[Terms, int]:
    """Divide ``sum of terms <= upper`` by its common divisor.

    With small integers the solver's tolerances can't hide an overbooking.
    """
    divisor = int(np.gcd.reduce([amount for _, amount in terms]))
    return [(column, amount // divisor) for column, amount in terms], upper // divisor


class IncrementalProgram:
    """A copy of a program that is changed and solved repeatedly.

    Each run starts from the last basis or solution, and ends at the deadline with its best one.
    """

    def __init__(
        self, program: LinearProgram, deadline: Deadline, *, relaxed: bool = False
    ) -> None:
        self._solver = _solver(gap=1e-6)
        self._mixed = program.has_integers and not relaxed
        if deadline.end < INFINITY:
            _interrupt(self._solver, deadline)
        self._solver.passModel(program.model(relaxed=relaxed))

    def set_costs(self, columns: Sequence[int], costs: Sequence[float]) -> None:
        """Change coefficients of the objective."""
        self._solver.changeColsCost(
            len(columns), np.array(columns, dtype=np.int32), np.array(costs, dtype=np.float64)
        )

    def limit_columns(self, columns: Sequence[int], upper: Sequence[float]) -> None:
        """Change the upper limits of columns; their lower limit stays 0."""
        limits = np.array(upper, dtype=np.float64)
        positions = np.array(columns, dtype=np.int32)
        self._solver.changeColsBounds(len(columns), positions, np.zeros_like(limits), limits)

    def limit_row(self, row: int, lower: float, upper: float) -> None:
        """Change the limits of a row."""
        self._solver.changeRowBounds(row, lower, upper)

    def row(self, terms: Iterable[tuple[int, float]], upper: float) -> None:
        """Add ``sum of terms <= upper``, with repeated columns summed."""
        merged = _merge(terms)
        positions = np.array(list(merged), dtype=np.int32)
        coefficients = np.array(list(merged.values()), dtype=np.float64)
        status = self._solver.addRow(-INFINITY, upper, len(merged), positions, coefficients)
        if status == highspy.HighsStatus.kError:
            raise ShadowpriceError("HiGHS rejected a row")

    def limit(self, terms: Terms, upper: int) -> None:
        """Add ``sum of terms <= upper``, reduced by its common divisor."""
        self.row(*_reduced(terms, upper))

    def solve(self) -> SolverResult:
        """Maximise the program with all changes so far."""
        self._solver.run()
        if self._solver.getModelStatus() == highspy.HighsModelStatus.kNotset:
            # A run from the last basis can fail numerically; one from scratch then succeeds.
            self._solver.clearSolver()
            self._solver.run()
        return _read_result(self._solver, mixed=self._mixed)


class QuietHighs(highspy.Highs):
    """HiGHS on one thread, which prints nothing."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # it ships no types
        self.silent()
        self.setOptionValue("threads", 1)

    def enableCallbacks(self) -> None:  # noqa: N802  # a name of HiGHS
        """Enable callbacks; the constructor calls this."""
        self.silent()  # HiGHS 1.16 prints its name and version here, unless it is silent
        super().enableCallbacks()  # type: ignore[no-untyped-call]


def _solver(gap: float) -> highspy.Highs:
    solver = QuietHighs()
    solver.setOptionValue("mip_rel_gap", gap)
    solver.setOptionValue("mip_abs_gap", 1e-7)
    for tolerance in ("mip_feasibility_tolerance", "primal_feasibility_tolerance"):
        solver.setOptionValue(tolerance, 1e-9)
    return solver


def _interrupt(solver: highspy.Highs, deadline: Deadline) -> None:
    """Stop each run of the solver that reaches the deadline."""

    def check(event: highspy.highs.HighsCallbackEvent) -> None:
        if deadline.passed:
            event.interrupt()

    for callback in (solver.cbSimplexInterrupt, solver.cbMipInterrupt):
        callback.subscribe(check)


def _read_result(solver: highspy.Highs, *, mixed: bool) -> SolverResult:
    status = solver.getModelStatus()
    states = highspy.HighsModelStatus
    nothing = np.zeros(0)
    if status == states.kInfeasible:
        return SolverResult(True, False, nothing, -np.inf, -np.inf)
    if status not in {
        states.kOptimal,
        states.kTimeLimit,
        states.kSolutionLimit,
        states.kIterationLimit,
        states.kInterrupt,
        states.kModelEmpty,
    }:
        raise ShadowpriceError(f"HiGHS stopped: {solver.modelStatusToString(status)}")
    info = solver.getInfo()
    optimal = status in {states.kOptimal, states.kModelEmpty}
    feasible = bool(info.primal_solution_status == _FEASIBLE_POINT)
    values = np.array(solver.getSolution().col_value) if feasible else nothing
    objective = float(info.objective_function_value) if feasible else -np.inf
    bound = float(info.mip_dual_bound) if mixed else np.inf
    if not np.isfinite(bound):  # a linear program, or a run without a bound yet
        bound = objective if optimal else np.inf
    return SolverResult(optimal, feasible, values, objective, max(bound, objective))

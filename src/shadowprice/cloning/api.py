"""Public names for solving and simulating CSD."""

from shadowprice.cloning.copies import CopyPlan, CopyPlanner, fit_durations
from shadowprice.cloning.montecarlo import MonteCarloResult, SamplingMethod, simulate
from shadowprice.cloning.problem import CloningProblem, DeadlineConstraint, TaskGroup
from shadowprice.cloning.solver import CloningSolution, SolveMethod, solve
from shadowprice.distributions.empirical import Empirical, ParetoTail, fit_pareto_tail
from shadowprice.distributions.parametric import (
    Distribution,
    HyperExponential,
    LogNormal,
    Pareto,
    Weibull,
)

__all__ = [
    "CloningProblem",
    "CloningSolution",
    "CopyPlan",
    "CopyPlanner",
    "DeadlineConstraint",
    "Distribution",
    "Empirical",
    "HyperExponential",
    "LogNormal",
    "MonteCarloResult",
    "Pareto",
    "ParetoTail",
    "SamplingMethod",
    "SolveMethod",
    "TaskGroup",
    "Weibull",
    "fit_durations",
    "fit_pareto_tail",
    "simulate",
    "solve",
]

"""Exports for solving and simulating CSD."""

from shadowprice.cloning.copies import CopyPlan, CopyPlanner, fit_durations
from shadowprice.cloning.montecarlo import Draw, Measured, simulate
from shadowprice.cloning.problem import CloningProblem, Constraint, TaskGroup
from shadowprice.cloning.solver import Method, Solution, solve
from shadowprice.laws.distributions import (
    Distribution,
    HyperExponential,
    LogNormal,
    Pareto,
    Weibull,
)
from shadowprice.laws.empirical import Empirical
from shadowprice.laws.tail import ParetoTail, fit_pareto_tail

__all__ = [
    "CloningProblem",
    "Constraint",
    "CopyPlan",
    "CopyPlanner",
    "Distribution",
    "Draw",
    "Empirical",
    "HyperExponential",
    "LogNormal",
    "Measured",
    "Method",
    "Pareto",
    "ParetoTail",
    "Solution",
    "TaskGroup",
    "Weibull",
    "fit_durations",
    "fit_pareto_tail",
    "simulate",
    "solve",
]

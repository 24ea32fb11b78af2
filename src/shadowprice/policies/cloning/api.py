"""Everything that solving and simulating CSD takes."""

from shadowprice.policies.cloning.distributions import (
    Distribution,
    HyperExponential,
    LogNormal,
    Pareto,
    Weibull,
)
from shadowprice.policies.cloning.empirical import Empirical
from shadowprice.policies.cloning.montecarlo import Draw, Measured, simulate
from shadowprice.policies.cloning.problem import CloningProblem, Constraint, TaskGroup
from shadowprice.policies.cloning.solver import Method, Solution, solve
from shadowprice.policies.cloning.tail import ParetoTail, fit_pareto_tail

__all__ = [
    "CloningProblem",
    "Constraint",
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
    "fit_pareto_tail",
    "simulate",
    "solve",
]

"""The laws that a bag names, as CSD's distributions."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from shadowprice.core.bag import TaskGroup
from shadowprice.laws.distributions import (
    Distribution,
    HyperExponential,
    LogNormal,
    Pareto,
    Weibull,
)

LAWS: Final[Mapping[str, type[Any]]] = {
    law.label: law for law in (Pareto, Weibull, HyperExponential, LogNormal)
}
"""Distributions by the name that a bag's groups give them."""


def law_of(group: TaskGroup) -> Distribution:
    """Return the law of a group's durations, times in seconds."""
    return _law(group.law, tuple(sorted(group.parameters.items())))


@lru_cache(maxsize=4096)
def _law(name: str, parameters: tuple[tuple[str, Any], ...]) -> Distribution:
    law: Distribution = LAWS[name](**dict(parameters))
    return law

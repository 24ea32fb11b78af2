"""Mapping of uniform numbers to durations, for many distributions at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from scipy.special import ndtri

from shadowprice.cloning.problem import TaskGroup
from shadowprice.core.arrays import Floats, Integers
from shadowprice.distributions.parametric import (
    Distribution,
    HyperExponential,
    LogNormal,
    Pareto,
    Weibull,
)

_ALMOST_ONE = 1.0 - 2.0**-53


class DurationSampler:
    """Maps uniform numbers to durations of the tasks of given groups, one column per task."""

    def __init__(self, groups: Sequence[TaskGroup]) -> None:
        self._distributions = [group.duration for group in groups]
        self._counts = np.array([group.count for group in groups], dtype=np.int64)
        self._columns: dict[type[Distribution], Integers] = {}
        owner = np.repeat(np.arange(len(groups), dtype=np.int64), self._counts)
        forms = np.array([type(distribution).__name__ for distribution in self._distributions])[
            owner
        ]
        for distribution in self._distributions:
            if type(distribution) not in self._columns:
                self._columns[type(distribution)] = np.flatnonzero(
                    forms == type(distribution).__name__
                )
        self._owner = owner
        # No closed inverse of S^r: the copies of these tasks are drawn one by one.
        self.by_copy = forms == HyperExponential.__name__

    def phases(self, drawn: Integers) -> Iterator[tuple[int, int, HyperExponential]]:
        """Yield (first draw, end of the draws, distribution) of every hyper-exponential group.

        ``drawn`` are the draws of each task, shape (tasks,).
        """
        ends = np.concatenate([[0], np.cumsum(drawn)])[
            np.concatenate([[0], np.cumsum(self._counts)])
        ]
        for position, distribution in enumerate(self._distributions):
            if isinstance(distribution, HyperExponential):
                yield int(ends[position]), int(ends[position + 1]), distribution

    def times(self, uniforms: Floats, exponents: Integers | None = None) -> Floats:
        """Return times in seconds for uniform numbers, both of shape (trials, tasks).

        The numbers are values of the distribution function 1 - S, in [0, 1); a hyper-exponential's
        column already holds times. With ``exponents`` r, shape (tasks,), the survival function is
        S^r, that of the minimum of r draws.
        """
        times = uniforms
        for form, columns in self._columns.items():
            if form is HyperExponential:
                continue
            all_columns = len(columns) == uniforms.shape[1]
            part = uniforms if all_columns else uniforms[:, columns]
            logs = np.log1p(-part)
            if exponents is not None:
                logs /= exponents[columns]
            inverse = self._invert(form, columns, logs)
            if all_columns:
                return inverse
            times[:, columns] = inverse
        return times

    def _invert(self, form: type[Distribution], columns: Integers, logs: Floats) -> Floats:
        """Return S^-1 at ln S = ``logs``, one distribution per column."""
        distributions = [self._distributions[position] for position in self._owner[columns]]

        def column(name: str) -> Floats:
            return np.array([getattr(distribution, name) for distribution in distributions])

        if form is Pareto:
            logs *= -1.0 / column("shape")
            np.exp(logs, out=logs)
            logs *= column("minimum")
            return logs
        if form is Weibull:
            np.negative(logs, out=logs)
            np.power(logs, 1.0 / column("shape"), out=logs)
            logs *= column("time_scale")
            logs += column("minimum")
            return logs
        if form is LogNormal:
            normal = ndtri(np.minimum(np.exp(logs), _ALMOST_ONE))
            times = column("median") * np.exp(-column("sigma") * normal)
            return np.asarray(times + column("minimum"))
        survival = np.exp(logs)
        for position in np.unique(self._owner[columns]):
            of_distribution = self._owner[columns] == position
            survival[:, of_distribution] = self._distributions[position].inverse_survival(
                survival[:, of_distribution]
            )
        return survival

"""The figures by which runs are compared, and what each is called: one line a figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from shadowprice.results.report.scales import number, span

Read = Callable[[Mapping[str, Any]], float | None]


class Unit(Enum):
    """In what a measure is written."""

    NUMBER = "number"
    SHARE = "share"
    SECONDS = "seconds"


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure of a run.

    Parameters
    ----------
    key : str
        Its column in tables of runs.
    name : str
        What people read.
    read : callable
        Takes it from ``run.json``; None where the run has none.
    better : int
        1 higher, -1 lower, 0 neither.
    unit : Unit
        In what it is written.
    over_seeds : bool
        Whether its mean over many seeds is told as well.
    unless_zero : bool
        Whether nobody needs to be told of it where it is 0.
    """

    key: str
    name: str
    read: Read
    better: int = 0
    unit: Unit = Unit.NUMBER
    over_seeds: bool = False
    unless_zero: bool = False

    @property
    def share(self) -> bool:
        """Whether it is a share of 1."""
        return self.unit is Unit.SHARE

    def written(self, value: float, figures: Callable[[float], str] = number) -> str:
        """Return a value for a person; plain numbers as ``figures`` writes them."""
        if self.unit is Unit.SHARE:
            return f"{value:.1%}"
        return span(value) if self.unit is Unit.SECONDS else figures(value)


def _at(*path: str) -> Read:
    """Return how to read what stands there in ``run.json``."""

    def read(info: Mapping[str, Any]) -> float | None:
        value: Any = info
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else None
        return None if value is None else float(value)

    return read


def _summary(*path: str) -> Read:
    return _at("summary", *path)


def _latency(percentile: str) -> Read:
    return _at("timing", "decision_latency", percentile)


def _utility_of(*path: str) -> Read:
    """Return how to read what part of something the total utility is."""
    whole = _at(*path)

    def read(info: Mapping[str, Any]) -> float | None:
        of = whole(info)
        return float(info["summary"]["total_utility"]) / of if of else None

    return read


RESTRICTED: Final = "restricted_mean_jct"
"""Key of the measure that runs share only up to one and the same end; see `up_to`."""

_SHARE, _SECONDS = Unit.SHARE, Unit.SECONDS

_EARNED: Final = (
    Measure("total_utility", "total utility", _summary("total_utility"), 1, over_seeds=True),
    Measure(
        "value_share", "of the value on offer", _utility_of("summary", "value"), 1, _SHARE, True
    ),
    # The most that any schedule could earn, where somebody asked for it.
    Measure("bound_share", "of the bound", _utility_of("bound", "bound"), 1, _SHARE),
)
_OUTCOMES: Final = (
    Measure("arrived", "jobs that arrived", _summary("arrived")),
    Measure("admitted", "admitted", _summary("admitted")),
    Measure("finished", "finished", _summary("finished"), 1, over_seeds=True),
    Measure("refused", "refused", _summary("refused"), over_seeds=True),
    Measure("dropped", "dropped", _summary("dropped"), -1, unless_zero=True),
    Measure("cancelled", "cancelled", _summary("cancelled"), unless_zero=True),
    Measure("unfinished", "unfinished", _summary("unfinished"), unless_zero=True),
    Measure("not_arrived", "not arrived", _summary("not_arrived"), unless_zero=True),
)
_TIMES: Final = (
    Measure(
        "in_time", "in time, of all with a target", _summary("met_target", "share"), 1, _SHARE, True
    ),
    # Of finished jobs alone: no end is better, for a policy may finish only the short ones.
    Measure("mean_jct", "mean JCT of finished, slots", _summary("jct", "mean"), over_seeds=True),
    Measure("median_jct", "median JCT of finished, slots", _summary("jct", "median")),
    Measure(
        RESTRICTED,
        "restricted mean JCT, slots",
        _summary("jct", "restricted_mean"),
        -1,
        over_seeds=True,
    ),
    Measure("makespan", "makespan, slots", _summary("makespan"), over_seeds=True),
    Measure("resizes", "resizes", _summary("resizes"), -1, over_seeds=True),
    Measure(
        "resize_seconds",
        "lost to resizes",
        _summary("resize_seconds"),
        -1,
        _SECONDS,
        unless_zero=True,
    ),
)
_MONEY: Final = (
    Measure("cost_used", "cost of what jobs used", _summary("money", "used"), over_seeds=True),
    Measure(
        "cost_occupied",
        "cost of servers in use",
        _summary("money", "occupied"),
        -1,
        over_seeds=True,
    ),
    Measure("cost_whole", "cost of the whole cluster", _summary("money", "whole"), over_seeds=True),
    Measure(
        "utility_per_cost",
        "utility per cost used",
        _summary("money", "utility_per_used"),
        1,
        over_seeds=True,
    ),
)
_COMPUTING: Final = (
    Measure("decision_p50", "decision, median", _latency("p50"), -1, _SECONDS),
    Measure("decision_p99", "decision, p99", _latency("p99"), -1, _SECONDS, True),
    Measure("wall_seconds", "wall time", _at("timing", "wall_seconds"), -1, _SECONDS),
)

OVER_SEEDS: Final = tuple(
    one for one in (*_EARNED, *_OUTCOMES, *_TIMES, *_MONEY, *_COMPUTING) if one.over_seeds
)
"""Measures whose means over many seeds are told, in the order of reading."""


def measures_of(infos: Sequence[Mapping[str, Any]]) -> list[Measure]:
    """Return the measures worth telling of runs on one cluster, in the order of reading.

    Parameters
    ----------
    infos : sequence of mapping
        ``run.json`` of each.
    """
    use = [
        Measure(
            f"in_use_{name}", f"{name} in use", _summary("utilisation", name), unit=_SHARE
        )
        for name in infos[0]["summary"]["utilisation"]
    ]  # fmt: skip
    told = []
    for one in (*_EARNED, *_OUTCOMES, *_TIMES, *use, *_MONEY, *_COMPUTING):
        values = [value for info in infos if (value := one.read(info)) is not None]
        if any(values) if one.unless_zero else values:
            told.append(one)
    return told


def measured(info: Mapping[str, Any]) -> dict[str, float | None]:
    """Return every measure over seeds of a run, by key."""
    return {measure.key: measure.read(info) for measure in OVER_SEEDS}


def best_of(values: Sequence[float | None], better: int) -> frozenset[int]:
    """Return the positions of the best values; none where all are equal or neither is better."""
    known = [value for value in values if value is not None]
    if not better or len(set(known)) < 2:
        return frozenset()
    best = max(known) if better > 0 else min(known)
    return frozenset(at for at, value in enumerate(values) if value == best)


def up_to(info: Mapping[str, Any], end: int) -> float | None:
    """Return the restricted mean completion time of a run up to a later end than its own.

    Each job that it left unfinished, refused ones included, has waited so much longer by then.

    Parameters
    ----------
    info : mapping
        ``run.json`` of the run.
    end : int
        First slot that does not count; none before the run's own.

    Returns
    -------
    float or None
        Slots; None where no job arrived.
    """
    summary = info["summary"]
    mean = summary["jct"]["restricted_mean"]
    if mean is None:
        return None
    left = (summary["arrived"] - summary["finished"]) / summary["arrived"]
    return float(mean + left * (end - summary["end"]))

"""The figures by which runs are compared over many seeds, and what each is called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

Read = Callable[[Mapping[str, Any]], float | None]


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
    share : bool
        Whether it is a share of 1.
    """

    key: str
    name: str
    read: Read
    better: int = 0
    share: bool = False


def _summary(*path: str) -> Read:
    def read(info: Mapping[str, Any]) -> float | None:
        value: Any = info["summary"]
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else None
        return None if value is None else float(value)

    return read


def _value_share(info: Mapping[str, Any]) -> float | None:
    summary = info["summary"]
    return summary["total_utility"] / summary["value"] if summary["value"] else None


def _latency(percentile: str) -> Read:
    def read(info: Mapping[str, Any]) -> float | None:
        value: float | None = info["timing"]["decision_latency"].get(percentile)
        return value

    return read


RESTRICTED: Final = "restricted_mean_jct"
"""Key of the measure that runs share only up to one and the same end; see `up_to`."""

MEASURES: Final = (
    Measure("total_utility", "total utility", _summary("total_utility"), 1),
    Measure("value_share", "of the value on offer", _value_share, 1, share=True),
    Measure("finished", "finished", _summary("finished"), 1),
    Measure("refused", "refused", _summary("refused")),
    Measure("in_time", "in time, of all with a target", _summary("met_target", "share"), 1, True),
    Measure("mean_jct", "mean JCT of finished, slots", _summary("jct", "mean")),
    Measure(RESTRICTED, "restricted mean JCT, slots", _summary("jct", "restricted_mean"), -1),
    Measure("makespan", "makespan, slots", _summary("makespan")),
    Measure("resizes", "resizes", _summary("resizes"), -1),
    Measure("cost_used", "cost of what jobs used", _summary("money", "used")),
    Measure("cost_occupied", "cost of servers in use", _summary("money", "occupied"), -1),
    Measure("cost_whole", "cost of the whole cluster", _summary("money", "whole")),
    Measure("utility_per_cost", "utility per cost used", _summary("money", "utility_per_used"), 1),
    Measure("decision_p99", "decision, p99, s", _latency("p99"), -1),
)
"""In the order of reading."""


def measured(info: Mapping[str, Any]) -> dict[str, float | None]:
    """Return every measure of a run, by key."""
    return {measure.key: measure.read(info) for measure in MEASURES}


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

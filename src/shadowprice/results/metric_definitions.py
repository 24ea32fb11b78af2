"""Metrics by which runs are compared, and their labels."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from shadowprice.results.report.number_format import format_duration, format_number

if TYPE_CHECKING:
    from shadowprice.results.significance import ConfidenceInterval

Read = Callable[[Mapping[str, Any]], float | None]


@dataclass(frozen=True, slots=True)
class MetricDefinition:
    """One metric of a run."""

    key: str  # column name in tables of runs
    name: str  # label
    read: Read  # from ``run.json``; None if the run has no value
    better: int = 0  # 1 if higher is better, -1 if lower is better, else 0
    unit: Literal["number", "share", "seconds"] = "number"
    over_seeds: bool = False  # means over several seeds include it
    unless_zero: bool = False  # omitted if every value is 0

    def written(self, value: float, figures: Callable[[float], str] = format_number) -> str:
        """Format a value; ``figures`` formats values whose unit is ``number``."""
        if self.unit == "share":
            return f"{value:.1%}"
        return format_duration(value) if self.unit == "seconds" else figures(value)

    def written_mean(self, mean: ConfidenceInterval) -> str:
        """Format a mean and half the width of its confidence interval."""
        if not math.isfinite(mean.half):
            return self.written(mean.mean, _four_digits)
        return f"{self.written(mean.mean, _four_digits)} ± {self.written(mean.half, _four_digits)}"


def _four_digits(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.4g}"


def _read_path(*path: str) -> Read:
    """Return a reader of the value at a path of ``run.json``."""

    def read(info: Mapping[str, Any]) -> float | None:
        value: Any = info
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else None
        return None if value is None else float(value)

    return read


def _summary(
    key: str, name: str, path: str = "", better: int = 0, *options: Any, **flags: Any
) -> MetricDefinition:
    """Return a metric at a dotted path of the summary, by default its key."""
    read = _read_path("summary", *(path or key).split("."))
    return MetricDefinition(key, name, read, better, *options, **flags)


def _latency(percentile: str) -> Read:
    return _read_path("timing", "decision_latency", percentile)


def _utility_share(key: str, name: str, *path: str, over_seeds: bool = False) -> MetricDefinition:
    """Return the metric of the total utility as a fraction of the value at a path."""
    whole = _read_path(*path)

    def read(info: Mapping[str, Any]) -> float | None:
        total = whole(info)
        return float(info["summary"]["total_utility"]) / total if total else None

    return MetricDefinition(key, name, read, 1, "share", over_seeds)


def _completion_ratio(info: Mapping[str, Any]) -> float | None:
    """Return the mean JCT of jobs that state no utility over its lower bound; None if unknown."""
    minimum, mean = (
        _read_path("bound", "completion", key)(info) for key in ("mean_slots", "mean_jct")
    )
    return None if not minimum or mean is None else mean / minimum


RESTRICTED: Final = "restricted_mean_jct"
"""Key of the metric that is only comparable up to a common end; see `restricted_mean_until`."""

_EARNED: Final = (
    _summary("total_utility", "total utility", better=1, over_seeds=True),
    _utility_share("value_share", "of the value on offer", "summary", "value", over_seeds=True),
    # The upper bound on the total utility is only known if it was requested.
    _utility_share("bound_share", "of the upper bound", "bound", "bound"),
)
_OUTCOMES: Final = (
    _summary("arrived", "jobs that arrived"),
    _summary("admitted", "admitted"),
    _summary("finished", "finished", better=1, over_seeds=True),
    _summary("refused", "refused", over_seeds=True),
    _summary("dropped", "dropped", better=-1, unless_zero=True),
    _summary("cancelled", "cancelled", unless_zero=True),
    _summary("unfinished", "unfinished", unless_zero=True),
    _summary("not_arrived", "not arrived", unless_zero=True),
)
_TIMES: Final = (
    _summary("in_time", "in time, of all with a target", "met_target.share", 1, "share", True),
    # No direction is better, because a policy may finish only short jobs.
    _summary("mean_jct", "mean JCT of finished, slots", "jct.mean", over_seeds=True),
    MetricDefinition("completion_ratio", "mean JCT over its lower bound", _completion_ratio, -1),
    _summary("median_jct", "median JCT of finished, slots", "jct.median"),
    _summary(RESTRICTED, "restricted mean JCT, slots", "jct.restricted_mean", -1, over_seeds=True),
    _summary("makespan", "makespan, slots", over_seeds=True),
)
_FAIRNESS: Final = tuple(
    _summary(
        f"finish_time_fairness_{which}",
        f"finish-time fairness, {which}",
        f"finish_time_fairness.{which}",
        -1,
        over_seeds=True,
    )
    for which in ("mean", "worst")
)
_LOST: Final = (
    _summary("restarts", "restarts", better=-1, over_seeds=True),
    _summary("lost_gpu_hours", "lost GPU-hours", "", -1, over_seeds=True, unless_zero=True),
    _summary("abandoned_work", "work of unfinished jobs", "", -1, "share", True, unless_zero=True),
)
_MONEY: Final = (
    _summary("cost_used", "cost of what jobs used", "money.used", over_seeds=True),
    _summary("cost_occupied", "cost of servers in use", "money.occupied", -1, over_seeds=True),
    _summary("cost_whole", "cost of the whole cluster", "money.whole", over_seeds=True),
    _summary(
        "utility_per_cost", "utility per cost used", "money.utility_per_used", 1, over_seeds=True
    ),
)
_COMPUTING: Final = (
    MetricDefinition("decision_p50", "decision, median", _latency("p50"), -1, "seconds"),
    MetricDefinition("decision_p99", "decision, p99", _latency("p99"), -1, "seconds", True),
    MetricDefinition(
        "wall_seconds", "wall time", _read_path("timing", "wall_seconds"), -1, "seconds"
    ),
)
_BEFORE_RESOURCES: Final = (*_EARNED, *_OUTCOMES, *_TIMES, *_FAIRNESS, *_LOST)

TIMING_METRICS: Final = frozenset(metric.key for metric in _COMPUTING)
"""Keys of metrics of elapsed time, which differ in every run."""

OVER_SEEDS: Final = tuple(
    metric for metric in (*_BEFORE_RESOURCES, *_MONEY, *_COMPUTING) if metric.over_seeds
)
"""Metrics with means over several seeds, in display order."""


def metrics_for(infos: Sequence[Mapping[str, Any]]) -> list[MetricDefinition]:
    """Return the metrics to show for runs on one cluster, in display order."""
    use = [
        MetricDefinition(
            f"in_use_{name}",
            f"{name} in use",
            # The name of a resource may contain dots.
            _read_path("summary", "utilisation", name),
            unit="share",
        )
        for name in infos[0]["summary"]["utilisation"]
    ]
    shown = []
    for metric in (*_BEFORE_RESOURCES, *use, *_MONEY, *_COMPUTING):
        values = [value for info in infos if (value := metric.read(info)) is not None]
        if any(values) if metric.unless_zero else values:
            shown.append(metric)
    return shown


def read_metrics(info: Mapping[str, Any]) -> dict[str, float | None]:
    """Return every metric in `OVER_SEEDS` of a run, by key."""
    return {metric.key: metric.read(info) for metric in OVER_SEEDS}


def best_positions(values: Sequence[float | None], better: int) -> frozenset[int]:
    """Return the positions of the best values; empty if all are equal or ``better`` is 0."""
    present = [value for value in values if value is not None]
    if not better or len(set(present)) < 2:
        return frozenset()
    best = max(present) if better > 0 else min(present)
    return frozenset(index for index, value in enumerate(values) if value == best)


def restricted_mean_until(info: Mapping[str, Any], end: int) -> float | None:
    """Return the restricted mean completion time of a run, extended to a later end.

    Every unfinished job, including refused ones, waits until the later end. ``end`` is the common
    end of the compared runs (exclusive), and at least that of the run itself. The result is in
    slots; None if no job arrived.
    """
    summary = info["summary"]
    mean = summary["jct"]["restricted_mean"]
    if mean is None:
        return None
    unfinished = (summary["arrived"] - summary["finished"]) / summary["arrived"]
    return float(mean + unfinished * (end - summary["end"]))

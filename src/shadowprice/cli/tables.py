"""Tables that the commands print."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from shadowprice.cli.console import SafeText
from shadowprice.results.files import Run
from shadowprice.results.metrics import common_completion, restricted_mean
from shadowprice.results.report.scales import span


@dataclass(frozen=True, slots=True)
class Row:
    """One metric: how to read it from a run, write it, and which end is better.

    Parameters
    ----------
    name : str
        What the table calls it.
    value : callable
        Reads it from a run; None where it has none.
    text : callable
        Writes it.
    better : int
        1 higher, -1 lower, 0 neither.
    """

    name: str
    value: Callable[[Run], float | None]
    text: Callable[[float], str]
    better: int = 0


def _number(value: float) -> str:
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:,.2f}"


def _share(value: float) -> str:
    return f"{value:.1%}"


def metric_rows(runs: Sequence[Run]) -> list[Row]:
    """Return the metrics worth showing for these runs, in the order of reading."""

    def of(name: str) -> Callable[[Run], float | None]:
        return lambda run: run.summary[name]

    def jct(name: str) -> Callable[[Run], float | None]:
        return lambda run: run.summary["jct"][name]

    def met(run: Run) -> float | None:
        share: float | None = run.summary["met_target"]["share"]
        return share

    end = max(run.summary["end"] for run in runs)
    shared, means = common_completion([run.jobs for run in runs])
    by_run = dict(zip(map(id, runs), means, strict=True))
    alike = f"mean JCT of {shared:,} all finished"

    def value_share(run: Run) -> float | None:
        value = run.summary["value"]
        return run.summary["total_utility"] / value if value else None

    def bound_share(run: Run) -> float | None:
        """Return what part of the most that any schedule could earn was earned."""
        bound = run.info.get("bound", {}).get("bound")
        return run.summary["total_utility"] / bound if bound else None

    def decision(name: str) -> Callable[[Run], float | None]:
        return lambda run: run.info["timing"]["decision_latency"].get(name)

    def money(name: str) -> Callable[[Run], float | None]:
        return lambda run: run.summary.get("money", {}).get(name)

    rows = [
        Row("total utility", of("total_utility"), _number, 1),
        Row("of the value on offer", value_share, _share, 1),
        Row("of the bound", bound_share, _share, 1),
        Row("jobs that arrived", of("arrived"), _number),
        Row("admitted", of("admitted"), _number),
        Row("finished", of("finished"), _number, 1),
        Row("refused", of("refused"), _number),
        Row("dropped", of("dropped"), _number, -1),
        Row("cancelled", of("cancelled"), _number),
        Row("unfinished", of("unfinished"), _number),
        Row("not arrived", of("not_arrived"), _number),
        Row("in time, of all with a target", met, _share, 1),
        # Of finished jobs alone: no end is better, for a policy may finish only the short ones.
        Row("mean JCT of finished, slots", jct("mean"), _number),
        Row("median JCT of finished, slots", jct("median"), _number),
        *([Row(alike, lambda run: by_run[id(run)], _number, -1)] if len(runs) > 1 else []),
        Row("restricted mean JCT, slots", lambda run: restricted_mean(run.jobs, end), _number, -1),
        Row("makespan, slots", of("makespan"), _number),
        Row("resizes", of("resizes"), _number, -1),
        Row("lost to resizes", of("resize_seconds"), span, -1),
    ]
    rows += [
        Row(f"{resource} in use", _utilisation(resource), _share)
        for resource in runs[0].summary["utilisation"]
    ]
    if any("money" in run.summary for run in runs):
        rows += [
            Row("cost of what jobs used", money("used"), _number),
            Row("cost of servers in use", money("occupied"), _number, -1),
            Row("cost of the whole cluster", money("whole"), _number),
            Row("utility per cost used", money("utility_per_used"), _number, 1),
        ]
    rows += [
        Row("decision, median", decision("p50"), span, -1),
        Row("decision, p99", decision("p99"), span, -1),
        Row("wall time", lambda run: run.info["timing"]["wall_seconds"], span, -1),
    ]
    optional = {"dropped", "cancelled", "unfinished", "not arrived", "lost to resizes"}
    return [
        row
        for row in rows
        if any(row.value(run) is not None for run in runs)
        and (row.name not in optional or any(row.value(run) for run in runs))
    ]


def _utilisation(resource: str) -> Callable[[Run], float | None]:
    def value(run: Run) -> float | None:
        share: float | None = run.summary["utilisation"].get(resource)
        return share

    return value


def summary_table(runs: Sequence[Run]) -> Table:
    """Return the metrics of runs side by side, the best of each marked where there are several."""
    table = Table(header_style="bold", box=None, pad_edge=False)
    table.add_column("")
    for run in runs:
        name = f"{run.policy} (partial)" if run.info["partial"] else run.policy
        table.add_column(name, justify="right")
    for row in metric_rows(runs):
        values = [row.value(run) for run in runs]
        best = best_of(values, row.better) if len(runs) > 1 else set()
        cells: list[Any] = [
            SafeText("-" if value is None else row.text(value), "bold green" if at in best else "")
            for at, value in enumerate(values)
        ]
        table.add_row(SafeText(row.name), *cells)
    return table


def best_of(values: Sequence[float | None], better: int) -> set[int]:
    """Return the positions of the best values; none where all are equal or neither is better."""
    known = [value for value in values if value is not None]
    if not better or len(set(known)) < 2:
        return set()
    best = max(known) if better > 0 else min(known)
    return {at for at, value in enumerate(values) if value == best}

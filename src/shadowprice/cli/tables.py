"""Tables that the commands print."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.table import Table
from rich.text import Text

from shadowprice.cli.console import SafeText, make_table
from shadowprice.results.comparison import MetricRow, display_rows
from shadowprice.results.difference import HEADS, CapacityGain
from shadowprice.results.metric_definitions import MetricDefinition
from shadowprice.results.run_directory import RunData
from shadowprice.results.significance import PairedTest
from shadowprice.simulator.trials import SeedRuns

SIGNIFICANT = 0.05  # level of the p values that are marked and coloured


def summary_table(runs: Sequence[RunData]) -> Table:
    """Return the metrics of runs side by side; among several runs, the best is highlighted."""
    names = [f"{run.policy} (partial)" if run.info["partial"] else run.policy for run in runs]
    return _metric_table("", names, display_rows(runs), marked=len(runs) > 1)


def seeds_table(trials: SeedRuns) -> Table:
    """Return a table of each metric's mean by policy; the best means are highlighted."""
    heading = f"mean of {len(trials.seeds)} seeds ± 95 %"
    return _metric_table(heading, trials.policies, trials.mean_rows(), marked=True)


def _metric_table(
    heading: str, names: Iterable[str], metrics: Iterable[MetricRow], *, marked: bool
) -> Table:
    rows: list[list[str | Text]] = []
    for metric in metrics:
        cells = [
            SafeText(text, "bold green" if marked and index in metric.best else "")
            for index, text in enumerate(metric.texts)
        ]
        rows.append([metric.name, *cells])
    return make_table([heading, *names], rows)


def gains_table(gains: Sequence[CapacityGain]) -> Table:
    """Return the gains of more servers, a row for each change and policy."""
    return make_table(HEADS, (gain.cells() for gain in gains), left=(0, 1))


def comparison_table(trials: SeedRuns) -> Table:
    """Return a table of each policy's differences from the first, with paired tests."""
    first, *others = trials.policies
    rows: list[list[str | Text]] = []
    for metric in trials.metrics:
        tests = trials.against_first(metric.key) if metric.better else {}
        if tests:
            cells = (
                SafeText(*format_difference(metric, tests[name])) if name in tests else "-"
                for name in others
            )
            rows.append([metric.name, *cells])
    table = make_table([f"difference from {first}", *others], rows)
    table.caption = (
        "p: paired permutation test over the seeds, with Holm's correction for the policies of "
        "a row; * below 0.05"
    )
    table.caption_justify = "left"
    return table


def format_difference(metric: MetricDefinition, test: PairedTest) -> tuple[str, str]:
    """Return a difference with its p value, and the style to print it in."""
    sign = "+" if test.difference.mean >= 0 else ""
    star = "*" if test.adjusted < SIGNIFICANT else " "
    good = test.difference.mean * metric.better > 0
    style = ("green" if good else "red") if test.adjusted < SIGNIFICANT else ""
    return f"{sign}{metric.written_mean(test.difference)}, p {test.adjusted:.2g}{star}", style

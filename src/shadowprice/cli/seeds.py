"""Tables of means over several seeds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from shadowprice.cli.console import SafeText, plain_table

if TYPE_CHECKING:
    from shadowprice.results.metric_definitions import MetricDefinition
    from shadowprice.results.significance import PairedTest
    from shadowprice.simulator.trials import SeedRuns

SIGNIFICANT = 0.05


def seeds_table(trials: SeedRuns) -> Table:
    """Return a table of each metric's mean by policy; the best means are highlighted."""
    table = plain_table()
    table.add_column(f"mean of {len(trials.seeds)} seeds ± 95 %")
    for name in trials.policies:
        table.add_column(SafeText(name), justify="right")
    for row in trials.mean_rows():
        cells = [
            SafeText(text, "bold green" if index in row.best else "")
            for index, text in enumerate(row.texts)
        ]
        table.add_row(SafeText(row.name), *cells)
    return table


def comparison_table(trials: SeedRuns) -> Table:
    """Return a table of each policy's differences from the first, with paired tests."""
    first, *others = trials.policies
    table = plain_table()
    table.add_column(SafeText(f"beyond {first}, seed by seed"))
    for name in others:
        table.add_column(SafeText(name), justify="right")
    for metric in trials.metrics:
        if not metric.better:
            continue
        tests = trials.against_first(metric.key)
        if tests:
            cells = (
                SafeText(*format_difference(metric, tests[name]))
                if name in tests
                else SafeText("-")
                for name in others
            )
            table.add_row(SafeText(metric.name), *cells)
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

"""Tables that the commands print."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from shadowprice.cli.console import SafeText, plain_table
from shadowprice.results.capacity_gains import HEADS, CapacityGain
from shadowprice.results.comparison import display_rows
from shadowprice.results.run_directory import RunData


def summary_table(runs: Sequence[RunData]) -> Table:
    """Return the metrics of runs side by side; of several runs the best is highlighted."""
    table = plain_table()
    table.add_column("")
    for run in runs:
        name = f"{run.policy} (partial)" if run.info["partial"] else run.policy
        table.add_column(name, justify="right")
    for row in display_rows(runs):
        cells = [
            SafeText(text, "bold green" if len(runs) > 1 and index in row.best else "")
            for index, text in enumerate(row.texts)
        ]
        table.add_row(SafeText(row.name), *cells)
    return table


def gains_table(gains: Sequence[CapacityGain]) -> Table:
    """Return the gains of more servers, a row for each change and policy."""
    table = plain_table()
    for index, head in enumerate(HEADS):
        table.add_column(head, justify="left" if index < 2 else "right")
    for gain in gains:
        table.add_row(*map(SafeText, gain.cells()))
    return table

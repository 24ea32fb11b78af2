"""``shadowprice experiment``: regenerate a figure of a paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shadowprice.cli.completion import complete_experiment
from shadowprice.core import bounds


def experiment(
    name: Annotated[
        str,
        typer.Argument(
            help="Its name, such as oasis-fig3; `list` shows them all.",
            autocompletion=complete_experiment,
        ),
    ] = "list",
    quick: Annotated[
        bool, typer.Option("--quick", help="A smaller version: same shape, about a minute.")
    ] = False,
    seed: Annotated[
        int, typer.Option(min=0, max=bounds.SEED.most, help="Seed of everything drawn.")
    ] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Directory to write to.", show_default="experiments/NAME")
    ] = None,
) -> None:
    """Measure and draw a figure of a paper: CSV tables, a PNG and a manifest."""
    # Experiments pull in polars and numba: the command's help must not wait for them.
    from rich.console import Console
    from rich.progress import Progress, TextColumn, TimeElapsedColumn
    from rich.table import Table

    from shadowprice.experiments.framework import (
        Settings,
        experiments,
        find_experiment,
        run_experiment,
    )

    if name == "list":
        table = Table("name", "shows", "source", title="Experiments", title_justify="left")
        for declared in experiments().values():
            table.add_row(declared.name, declared.title, declared.source)
        Console().print(table)
        return
    chosen = find_experiment(name)
    console = Console(stderr=True)
    columns = (*Progress.get_default_columns()[:2], TextColumn("{task.completed}/{task.total}"))
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as bar:
        task = bar.add_task(chosen.name, total=None)

        def progress(done: int, total: int, label: str) -> None:
            bar.update(task, completed=done, total=total, description=label)

        directory = out or Path("experiments") / name
        figure = run_experiment(chosen, directory, Settings(quick, seed, progress))
    Console().print(f"{chosen.title} ({chosen.source})\n[bold]{figure}[/bold]", soft_wrap=True)

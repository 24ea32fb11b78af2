"""``shadowprice experiment``: regenerate figures of papers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shadowprice.cli.completion import complete_experiment
from shadowprice.core import bounds
from shadowprice.core.errors import Fault, InputError, MissingExtraError, ShadowpriceError

if TYPE_CHECKING:
    from rich.console import Console

    from shadowprice.experiments.framework import Experiment, Progress, Settings
    from shadowprice.experiments.spreading import Times

ALL = "all"
RAN, SKIPPED, FAILED = "ran", "skipped", "failed"


def experiment(
    name: Annotated[
        str,
        typer.Argument(
            help="Its name, such as oasis-fig3; `list` shows them all, `all` makes them all.",
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
    on: Annotated[
        str,
        typer.Option(
            "--on",
            help="Spread the runs over a Ray cluster: ray, HOST:PORT or ray://HOST:PORT.",
            metavar="RAY",
        ),
    ] = "",
    executor: Annotated[
        str,
        typer.Option(
            help="What runs the jobs of experiments whose jobs really run: of `testbed` local, "
            "kubernetes or ray, of `elastic-training` local or ray.",
            show_default="local",
        ),
    ] = "",
    address: Annotated[
        str, typer.Option(help="Where they run, as after `shadowprice serve --address`.")
    ] = "",
    executor_set: Annotated[
        list[str] | None,
        typer.Option(
            "--executor-set",
            metavar="KEY=VALUE",
            help="A setting of the executor; may be given several times.",
        ),
    ] = None,
    listen: Annotated[
        str, typer.Option(help="Address of this machine at which jobs reach their service.")
    ] = "127.0.0.1:0",
) -> None:
    """Measure and draw a figure of a paper: CSV tables, a PNG and a manifest.

    Runs that are done are kept in OUT.runs until all are: after Ctrl-C, the same command goes on.
    Of `all`, an experiment that needs what is not here is skipped, and one that fails keeps no
    other from being made; what became of each is told at the end, and the status is 1 if any
    failed.

    [bold]Examples[/bold]

    shadowprice experiment oasis-fig3 --quick

    shadowprice experiment all --on ray://head:10001 --out figures

    shadowprice experiment testbed --executor kubernetes --executor-set image=registry/train:1
    """
    # Experiments pull in polars and numba: the command's help must not wait for them.
    from rich.console import Console
    from rich.table import Table

    from shadowprice.experiments.framework import (
        Settings,
        check_drawing,
        experiments,
        find_experiment,
        forget_runs,
        is_experiment,
    )
    from shadowprice.experiments.live import Where
    from shadowprice.experiments.spreading import InTurn, OnRay
    from shadowprice.results.directory import check_directory

    if name == "list":
        table = Table("name", "shows", "source", title="Experiments", title_justify="left")
        for declared in experiments().values():
            table.add_row(declared.name, declared.title, declared.source)
        Console().print(table)
        return
    chosen = [*experiments().values()] if name == ALL else [find_experiment(name)]
    where = None
    if executor or address or executor_set:
        _check_executor(name, executor or "local")
        where = Where(executor or "local", address, tuple(executor_set or ()), listen)
    folder = out or (Path("experiments") if name == ALL else Path("experiments") / name)
    errors = Console(stderr=True)
    made: list[_Made] = []
    places = {one.name: folder / one.name if name == ALL else folder for one in chosen}
    for place in places.values():  # of all, before the first: the last may be days away
        check_directory(place, is_experiment)
    check_drawing()  # or none of them could be made
    with OnRay(on) if on else nullcontext(InTurn()) as spread:
        for one in chosen:
            target = places[one.name]
            settings = partial(Settings, quick, seed, spread=spread, where=where)
            if name != ALL:
                _make(one, target, settings, errors, keep=False)
            else:
                made.append(_attempt(one, target, settings, errors))
                if made[-1].why:
                    errors.print(f"{one.name} {made[-1]}", soft_wrap=True, markup=False)
                    continue
            figure = target / f"{one.name}.png"
            Console().print(f"{one.title} ({one.source})\n[bold]{figure}[/bold]", soft_wrap=True)
    if name == ALL:
        Console().print(_table(made))
        left = [row for row in made if row.why]
        for row in left:
            Console().print(f"{row.name} {row}", soft_wrap=True, markup=False)
        if any(row.outcome == FAILED for row in left):
            raise typer.Exit(1)  # what others did is kept: the same command makes what failed only
        # Until here, so that what is cut off makes no experiment again that was done.
        for target in places.values():
            forget_runs(target)


@dataclass(frozen=True)
class _Made:
    """What became of one experiment of all."""

    name: str
    outcome: str
    took: float
    times: Times | None = None
    why: str = ""

    def __str__(self) -> str:
        return f"{self.outcome} after {self.took:.1f} s: {self.why}"


def _attempt(one: Experiment, out: Path, chosen: Callable[..., Settings], errors: Console) -> _Made:
    """Make one of all, and say what became of it."""
    from shadowprice.experiments.framework import UnavailableError

    began = time.perf_counter()
    try:
        took, times = _make(one, out, chosen, errors, keep=True)
    except (MissingExtraError, UnavailableError) as error:
        outcome, why = SKIPPED, str(error)
    except ShadowpriceError as error:
        outcome, why = FAILED, str(error)
    except Exception as error:  # of whatever: the others are still to be made
        outcome, why = FAILED, f"{type(error).__name__}: {error}"
    else:
        return _Made(one.name, RAN, took, times)
    return _Made(one.name, outcome, time.perf_counter() - began, None, why)


def _check_executor(name: str, executor: str) -> None:
    """Refuse an executor that does not run the jobs of an experiment."""
    from shadowprice.experiments.framework import experiments

    able = {one.name: one.executors for one in experiments().values() if one.executors}
    if name not in able:
        said = f"the jobs of {name!r} run on no executor"
        raise InputError(Fault("--executor", said, f"name {' or '.join(able)}, or leave it out"))
    if executor not in able[name]:
        said = f"the jobs of {name!r} do not run on {executor!r}"
        raise InputError(Fault("--executor", said, f"name {' or '.join(able[name])}"))


def _make(
    experiment: Experiment,
    out: Path,
    chosen: Callable[..., Settings],
    errors: Console,
    *,
    keep: bool,
) -> tuple[float, Times]:
    """Run one, and return how long it took here and in all."""
    from shadowprice.experiments.framework import kept_beside, run_experiment

    began = time.perf_counter()
    with _bar(experiment.name, errors) as progress:
        settings = chosen(progress=progress)
        try:
            run_experiment(experiment, out, settings, keep=keep)
        except KeyboardInterrupt:
            if any(kept_beside(out).glob("*.pickle")):
                errors.print(
                    f"what is done is kept in {kept_beside(out)}; the same command goes on there",
                    soft_wrap=True,
                )
            raise
    return time.perf_counter() - began, settings.times


@contextmanager
def _bar(name: str, errors: Console) -> Iterator[Progress]:
    from rich.progress import Progress, TextColumn, TimeElapsedColumn

    columns = (*Progress.get_default_columns()[:2], TextColumn("{task.completed}/{task.total}"))
    with Progress(*columns, TimeElapsedColumn(), console=errors, transient=True) as bar:
        task = bar.add_task(name, total=None)

        def progress(done: int, total: int, label: str) -> None:
            bar.update(task, completed=done, total=total, description=label)

        yield progress


def _table(made: list[_Made]) -> object:
    """Return what became of everything, how long it took, and would on two cores and on 64."""
    from rich.table import Table

    table = Table(title="Seconds", title_justify="left")
    headings = ("experiment", "", "runs", "CPU", "took here", "on 2 cores", "on 64 cores")
    for at, heading in enumerate(headings):
        # Names are kept whole, on 80 columns too: headings break instead.
        table.add_column(heading, justify="left" if at < 2 else "right", no_wrap=at == 0)
    total = [0.0] * 5
    for one in made:
        times = one.times
        if times is None:
            total[2] += one.took
            table.add_row(one.name, one.outcome, "", "", f"{one.took:.1f}")
            continue
        worked = sum(times.runs) + times.rest
        row = (len(times.runs), worked, one.took, times.on(2), times.on(64))
        total = [before + value for before, value in zip(total, row, strict=True)]
        table.add_row(one.name, one.outcome, f"{row[0]}", *(f"{value:.1f}" for value in row[1:]))
    table.add_section()
    ran = sum(one.outcome == RAN for one in made)
    table.add_row(
        "all", f"{ran}/{len(made)}", f"{total[0]:.0f}", *(f"{value:.1f}" for value in total[1:])
    )
    table.caption = "on 2 and on 64 cores: predicted from the measured times, the longest run first"
    return table

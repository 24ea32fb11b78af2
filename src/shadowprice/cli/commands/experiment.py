"""``shadowprice experiment``: regenerate figures of papers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from shadowprice.cli.completion import complete_experiment
from shadowprice.cli.console import (
    Output,
    SafeText,
    print_json,
    print_line,
    print_note,
    stderr,
    stdout,
)
from shadowprice.cli.options import ExecutorSetOption, PlainOutputOption, PlainSeedOption
from shadowprice.core.errors import Fault, InputError, MissingExtraError, ShadowpriceError
from shadowprice.results.output_paths import check_directory

if TYPE_CHECKING:
    from shadowprice.experiments.framework import Experiment, ExperimentSettings, Progress
    from shadowprice.experiments.spreading import CpuTimes

ALL = "all"
RAN, SKIPPED, FAILED = "ran", "skipped", "failed"  # outcomes of an experiment of `all`


def experiment(
    name: Annotated[
        str,
        typer.Argument(
            help="Name of the experiment, such as oasis-fig3; `list` lists all, `all` runs all.",
            autocompletion=complete_experiment,
        ),
    ] = "list",
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="Run a smaller version of the experiment; takes about a minute."
        ),
    ] = False,
    seed: PlainSeedOption = 0,
    out: Annotated[
        Path | None, typer.Option(help="Output directory.", show_default="experiments/NAME")
    ] = None,
    on: Annotated[
        str,
        typer.Option(
            help="Ray cluster to distribute the runs over: ray, HOST:PORT or ray://HOST:PORT.",
            metavar="RAY",
        ),
    ] = "",
    executor: Annotated[
        str,
        typer.Option(
            help="Executor of experiments that run real jobs: local, kubernetes or ray for "
            "`testbed`, local or ray for `elastic-training`.",
            show_default="local",
        ),
    ] = "",
    address: Annotated[
        str,
        typer.Option(
            help="Cluster that the executor runs jobs on, as in `shadowprice serve --address`."
        ),
    ] = "",
    executor_set: ExecutorSetOption = None,
    listen: Annotated[
        str,
        typer.Option(
            help="Address and port of the service on this machine that jobs connect to; port 0 "
            "picks a free port."
        ),
    ] = "127.0.0.1:0",
    output: PlainOutputOption = "table",
) -> None:
    """Regenerate a figure of a paper as CSV tables, a PNG and a manifest.

    Completed runs stay in OUT.runs until all runs are complete; after Ctrl-C, the same command
    resumes. `all` skips experiments whose requirements are missing and continues after a failure.
    It lists the result of each experiment at the end, and exits with status 1 if any failed.

    [bold]Examples[/bold]
        shadowprice experiment oasis-fig3 --quick
        shadowprice experiment all --on ray://head:10001 --out figures
        shadowprice experiment testbed --executor kubernetes --executor-set image=registry/train:1
    """
    # Experiments import polars and numba, which would delay the command's help.
    from shadowprice.experiments import framework
    from shadowprice.experiments.live import ExecutorTarget
    from shadowprice.experiments.spreading import RayBackend, SequentialBackend

    if name == "list":
        _print_list([*framework.experiments().values()], output)
        return
    chosen = (
        [*framework.experiments().values()] if name == ALL else [framework.find_experiment(name)]
    )
    target = None
    if executor or address or executor_set:
        _check_executor(name, executor or "local")
        target = ExecutorTarget(executor or "local", address, tuple(executor_set or ()), listen)
    folder = out or (Path("experiments") if name == ALL else Path("experiments") / name)
    results: list[_ExperimentResult] = []
    figures: dict[str, str] = {}
    directories = {entry.name: folder / entry.name if name == ALL else folder for entry in chosen}
    # Check before the first experiment starts, because a run can take days.
    for directory in directories.values():
        check_directory(directory, framework.is_experiment)
    framework.check_drawing()
    with RayBackend(on) if on else nullcontext(SequentialBackend()) as spread:
        for entry in chosen:
            directory = directories[entry.name]
            settings = partial(
                framework.ExperimentSettings, quick, seed, spread=spread, target=target
            )
            if name != ALL:
                _run(entry, directory, settings, keep=False)
            else:
                results.append(_attempt(entry, directory, settings))
                if results[-1].reason:
                    print_note(f"{entry.name} {results[-1]}")
                    continue
            figure = directory / f"{entry.name}.png"
            figures[entry.name] = str(figure)
            if output == "json":
                continue
            stdout().print(
                SafeText.assemble(f"{entry.title} ({entry.source})\n", (str(figure), "bold")),
                soft_wrap=True,
            )
    incomplete = [row for row in results if row.reason]
    if output == "json":
        failures = {row.name: str(row) for row in incomplete}
        print_json({"figures": figures, "failures": failures})
    elif name == ALL:
        stdout().print(_table(results))
        for row in incomplete:
            print_line(f"{row.name} {row}")
    if name == ALL:
        if any(row.outcome == FAILED for row in incomplete):
            raise typer.Exit(1)  # keep cached runs: the same command only repeats failures
        # Until here runs stay cached, so that a repeated command skips finished experiments.
        for directory in directories.values():
            framework.remove_cached_runs(directory)


def _print_list(declared: Sequence[Experiment], output: Output) -> None:
    if output == "json":
        names = ("name", "title", "source")
        print_json([{name: getattr(entry, name) for name in names} for entry in declared])
        return
    table = Table("name", "shows", "source", title="Experiments", title_justify="left")
    for entry in declared:
        table.add_row(entry.name, entry.title, entry.source)
    stdout().print(table)


@dataclass(frozen=True)
class _ExperimentResult:
    """Result of one experiment of ``all``."""

    name: str
    outcome: str
    seconds: float  # elapsed time
    times: CpuTimes | None = None
    reason: str = ""  # of a skipped or failed experiment

    def __str__(self) -> str:
        return f"{self.outcome} after {self.seconds:.1f} s: {self.reason}"


def _attempt(
    experiment: Experiment, out: Path, make_settings: Callable[..., ExperimentSettings]
) -> _ExperimentResult:
    """Run one experiment of ``all``; record a failure instead of raising it."""
    from shadowprice.experiments.framework import UnavailableError

    start = time.perf_counter()
    try:
        seconds, times = _run(experiment, out, make_settings, keep=True)
    except (MissingExtraError, UnavailableError) as error:
        outcome, reason = SKIPPED, str(error)
    except ShadowpriceError as error:
        outcome, reason = FAILED, str(error)
    except Exception as error:  # any failure: the remaining experiments must still run
        outcome, reason = FAILED, f"{type(error).__name__}: {error}"
    else:
        return _ExperimentResult(experiment.name, RAN, seconds, times)
    return _ExperimentResult(experiment.name, outcome, time.perf_counter() - start, None, reason)


def _check_executor(name: str, executor: str) -> None:
    """Refuse an executor that can't run the jobs of an experiment."""
    from shadowprice.experiments.framework import experiments

    by_name = {item.name: item.executors for item in experiments().values() if item.executors}
    if name not in by_name:
        message = f"the jobs of {name!r} run on no executor"
        fault = Fault("--executor", message, f"name {' or '.join(by_name)}, or leave it out")
        raise InputError(fault)
    if executor not in by_name[name]:
        message = f"the jobs of {name!r} do not run on {executor!r}"
        raise InputError(Fault("--executor", message, f"name {' or '.join(by_name[name])}"))


def _run(
    experiment: Experiment,
    out: Path,
    make_settings: Callable[..., ExperimentSettings],
    *,
    keep: bool,
) -> tuple[float, CpuTimes]:
    """Run one experiment; return its elapsed seconds and the CPU times of its runs.

    ``keep`` keeps the cache of its runs.
    """
    from shadowprice.experiments.framework import cache_dir, run_experiment

    start = time.perf_counter()
    try:
        with _bar(experiment.name) as progress:
            settings = make_settings(progress=progress)
            run_experiment(experiment, out, settings, keep=keep)
    except KeyboardInterrupt:
        if any(cache_dir(out).glob("*.pickle")):
            print_note(f"completed runs are kept in {cache_dir(out)}; the same command resumes")
        raise
    return time.perf_counter() - start, settings.times


@contextmanager
def _bar(name: str) -> Iterator[Progress]:
    from rich.progress import Progress, TextColumn, TimeElapsedColumn

    columns = (*Progress.get_default_columns()[:2], TextColumn("{task.completed}/{task.total}"))
    with Progress(*columns, TimeElapsedColumn(), console=stderr(), transient=True) as bar:
        task = bar.add_task(name, total=None)

        def progress(done: int, total: int, label: str) -> None:
            bar.update(task, completed=done, total=total, description=label)

        yield progress


def _table(results: list[_ExperimentResult]) -> object:
    """Return a table of results and times, with predictions for 2 and 64 cores."""
    table = Table(title="Seconds", title_justify="left")
    headings = ("experiment", "", "runs", "CPU", "took here", "on 2 cores", "on 64 cores")
    for index, heading in enumerate(headings):
        # On 80 columns, break headings instead of names.
        table.add_column(heading, justify="left" if index < 2 else "right", no_wrap=index == 0)
    total = [0.0] * 5
    for result in results:
        times = result.times
        if times is None:
            total[2] += result.seconds
            table.add_row(result.name, result.outcome, "", "", f"{result.seconds:.1f}")
            continue
        cpu_seconds = sum(times.runs) + times.rest
        row = (len(times.runs), cpu_seconds, result.seconds, times.on(2), times.on(64))
        total = [subtotal + value for subtotal, value in zip(total, row, strict=True)]
        table.add_row(
            result.name, result.outcome, f"{row[0]}", *(f"{value:.1f}" for value in row[1:])
        )
    table.add_section()
    ran = sum(result.outcome == RAN for result in results)
    table.add_row(
        "all", f"{ran}/{len(results)}", f"{total[0]:.0f}", *(f"{value:.1f}" for value in total[1:])
    )
    table.caption = "on 2 and on 64 cores: predicted from the measured times, the longest run first"
    return table

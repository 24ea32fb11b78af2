"""``shadowprice simulate``: one workload under one policy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from shadowprice.cli import console
from shadowprice.cli import options as o
from shadowprice.cli.console import Output
from shadowprice.cli.option_records import expand_options
from shadowprice.cli.workload import Workload, read
from shadowprice.core.defaults import DEFAULT_POLICY
from shadowprice.core.errors import Fault, InputError

if TYPE_CHECKING:
    from pathlib import Path

    from shadowprice.results.atomic_directory import AtomicDirectory
    from shadowprice.results.run_directory import RunData


@expand_options()
def simulate(
    workload: Workload,
    policy: o.PolicyOption = DEFAULT_POLICY,
    set_: o.SetOption = None,
    params: o.ParamsOption = None,
    lengths: o.LengthsOption = "known",
    values: o.ValuesOption = "stated",
    seed: o.SeedOption = 0,
    out: o.OutOption = None,
    journal: Annotated[
        bool,
        o.output_option(
            "--journal", help="Also write every event to journal.jsonl; requires --out."
        ),
    ] = False,
    advice: Annotated[
        bool,
        o.output_option(
            "--advice",
            help="Also compute changes that would have got refused jobs admitted, in order of "
            "job value, and store them with --out; the page shows them.",
        ),
    ] = False,
    advice_time: Annotated[
        str, o.output_option(help="Time limit of --advice, such as 1min.")
    ] = "1min",
    output: o.OutputOption = Output.TABLE,
    quiet: o.QuietOption = False,
) -> None:
    """Run a workload under one policy.

    --out DIR writes tables, every decision with its reason, and report.html.

    [bold]Examples[/bold]
        shadowprice simulate --cluster cluster.yaml --jobs jobs.yaml --policy oasis --out run
        shadowprice simulate --trace 'philly:philly.csv.gz?limit=2000' --policy fifo
        shadowprice simulate -c cluster.yaml -j jobs.yaml -p oasis --set prices=online
        shadowprice simulate -c cluster.yaml -j jobs.yaml --advice --out run
    """
    from shadowprice.core.amounts import parse_positive_duration
    from shadowprice.core.relative_values import STATED
    from shadowprice.results.atomic_directory import AtomicDirectory, check_directory
    from shadowprice.results.run_directory import JOURNAL, is_run
    from shadowprice.simulator.interrupt import stop_on_signal
    from shadowprice.simulator.journaling import JournalObserver
    from shadowprice.simulator.lengths import (
        check_advice_lengths,
        parse_lengths,
        with_lengths_in_label,
    )
    from shadowprice.simulator.scenario import record_run

    for flag, given in (("--journal", journal), ("--advice", advice)):
        if given and out is None:
            raise InputError(Fault(flag, "needs a directory to write to", "give --out DIR"))
    advising = float(parse_positive_duration(advice_time, "--advice-time", "1min"))
    seen = parse_lengths(lengths)
    if len(seen) > 1:
        raise InputError(Fault("--lengths", "names several", "use compare for several"))
    if advice:
        check_advice_lengths(seen, "--advice")
        if values != STATED:
            raise InputError(Fault("--advice", "needs stated values", "leave out one of the two"))
    choice = o.policy_choice(policy, params, set_)
    choice = with_lengths_in_label(replace(choice, titled=choice.name), seen[0])
    if out is not None:
        check_directory(out, is_run)  # before a large trace is read
    source = workload.source(params).with_lengths(seen[0])
    scenario = read(source, seed, quiet=quiet).with_values(values)
    choice.parameters()  # report invalid parameters before compiling
    console.announce_compiling(quiet)
    # From here on the first Ctrl-C stops the run and keeps its results; the second exits at once.
    directory = AtomicDirectory(out, is_run) if out is not None else nullcontext()
    with stop_on_signal() as stop, directory as pending:
        built = choice.build(scenario.context())
        journal_path = pending.path / JOURNAL if journal and pending else None
        writer = JournalObserver(journal_path, choice.name) if journal_path else nullcontext()
        with console.progress_bar(choice.name, quiet) as progress, writer as observer:
            observers = () if observer is None else (observer,)
            run = record_run(
                scenario,
                choice.label,
                built,
                settings=choice.settings,
                origin=choice.origin,
                observers=observers,
                progress=progress,
                stop=stop,
            )
        if pending is not None:
            if advice and not run.info["partial"]:
                from shadowprice.simulator.advice import add_advice

                with console.progress_bar("advice on refused", quiet) as progress:
                    run = add_advice(
                        run, scenario, choice, seconds=advising, progress=progress, stop=stop
                    )
            with print_before_failing(lambda: _print(run, output)):
                _keep(run, pending)
    _print(run, output)
    if output is not Output.JSON:
        if out is not None:
            console.print_line(f"see {out}/report.html")
        elif not quiet:
            console.print_note("add --out DIR to keep decisions, tables and a report")
    leave_if_partial([run], out, stop.status)
    if stop.requested_at is not None and "advice" in run.info:
        _leave_without_advice(run, stop.status)


@contextmanager
def print_before_failing(print_results: Callable[[], None]) -> Iterator[None]:
    """Print the results even if they can't be saved, for example on a full disk."""
    try:
        yield
    except OSError:
        print_results()
        raise


def _print(run: RunData, output: Output) -> None:
    from shadowprice.cli.tables import summary_table

    if output is Output.JSON:
        console.print_json(run.info)
    else:
        console.stdout().print(summary_table([run]))


def _leave_without_advice(run: RunData, status: int) -> None:
    """Exit like an interrupted run if only the advice was interrupted."""
    from shadowprice.cli.stopping import current
    from shadowprice.results.advice import outcomes_with_advice

    advice = run.info["advice"]
    outcomes = " or ".join(outcomes_with_advice(run.info))
    console.print_note(
        f"interrupted: the run is complete, with advice on {advice['advised']} of "
        f"{advice['refused']} {outcomes} jobs"
    )
    current().reported = True
    raise typer.Exit(status)


def _keep(run: RunData, pending: AtomicDirectory) -> None:
    from shadowprice.results.report.page import write_report
    from shadowprice.results.run_directory import REPORT, write_run

    write_run(run, pending.path)
    write_report(run, pending.path / REPORT)
    pending.commit()


def leave_if_partial(runs: list[RunData], out: Path | None, status: int) -> None:
    """Exit with ``status`` if a run was interrupted; print where its results are."""
    from shadowprice.cli.stopping import current

    for run in runs:
        if run.info["partial"]:
            suffix = f"; what was done is in {out}, marked partial" if out is not None else ""
            slot = run.info["interrupted_in_slot"]
            console.print_note(f"interrupted in slot {slot} of {run.policy}{suffix}")
            current().reported = True
            raise typer.Exit(status)

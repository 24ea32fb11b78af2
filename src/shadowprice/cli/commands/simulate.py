"""``shadowprice simulate`` and ``compare``: a workload under one or several policies."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shadowprice.cli import console
from shadowprice.cli import options as o
from shadowprice.cli.commands.bound import bound_progress
from shadowprice.cli.console import Output
from shadowprice.cli.options import Workload, expand_options, read
from shadowprice.cli.program import current
from shadowprice.core import bounds
from shadowprice.core.amounts import parse_positive_duration
from shadowprice.core.defaults import DEFAULT_POLICY
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.relative_values import STATED
from shadowprice.results.output_paths import AtomicDirectory, check_directory

if TYPE_CHECKING:
    from shadowprice.certificate.certify import Certificate
    from shadowprice.policies.choice import PolicyChoice
    from shadowprice.results.difference import CapacityGain
    from shadowprice.results.output_paths import AtomicDirectory
    from shadowprice.results.run_directory import RunData
    from shadowprice.simulator.interrupt import StopRequestObserver
    from shadowprice.simulator.scenario import Scenario
    from shadowprice.simulator.source import ScenarioSource
    from shadowprice.simulator.trials import SeedRun, SeedRuns
    from shadowprice.simulator.whatif import ClusterChange


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
            help="Also find the smallest changes that would have got refused jobs admitted, the "
            "most valuable job first; requires --out, and the page shows them.",
        ),
    ] = False,
    advice_time: Annotated[
        str, o.output_option(help="Time limit of --advice, such as 1min.")
    ] = "1min",
    output: o.OutputOption = "table",
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
    from shadowprice.results.report.page import write_run_with_report
    from shadowprice.results.run_directory import JOURNAL, REPORT, is_run
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
    advice_seconds = float(parse_positive_duration(advice_time, "--advice-time", "1min"))
    modes = parse_lengths(lengths)
    if len(modes) > 1:
        raise InputError(Fault("--lengths", "expected one value", "use compare for several"))
    if advice:
        check_advice_lengths(modes, "--advice")
        if values != STATED:
            raise InputError(Fault("--advice", "needs stated values", "leave out one of the two"))
    choice = o.policy_choice(policy, params, set_)
    choice = with_lengths_in_label(replace(choice, titled=choice.name), modes[0])
    if out is not None:
        check_directory(out, is_run)  # before a large trace is read
    source = workload.source(params).with_lengths(modes[0])
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
                label = "advice on refused"
                run = _add_advice(run, scenario, choice, advice_seconds, label, stop, quiet)
            with _print_before_failing(lambda: _print_run(run, output)):
                write_run_with_report(run, pending.path)
                pending.commit()
    _print_run(run, output)
    if output != "json":
        _print_location(out, REPORT, quiet, "decisions, tables and a report")
    _leave_if_partial(run, out, stop.status)
    if stop.requested_at is not None and "advice" in run.info:
        _leave_without_advice(run, stop.status)


@contextmanager
def _print_before_failing(print_results: Callable[[], None]) -> Iterator[None]:
    """Print the results even if they can't be saved, for example on a full disk."""
    try:
        yield
    except OSError:
        print_results()
        raise


def _print_run(run: RunData, output: Output) -> None:
    from shadowprice.cli.tables import summary_table

    if output == "json":
        console.print_json(run.info)
    else:
        console.stdout().print(summary_table([run]))


def _leave_without_advice(run: RunData, status: int) -> None:
    """Exit like an interrupted run if only the advice was interrupted."""
    from shadowprice.results.advice import outcomes_with_advice

    advice = run.info["advice"]
    outcomes = " or ".join(outcomes_with_advice(run.info))
    console.print_note(
        f"interrupted: the run is complete, with advice on {advice['advised']} of "
        f"{advice['refused']} {outcomes} jobs"
    )
    current().reported = True
    raise typer.Exit(status)


def _leave_if_partial(run: RunData | None, out: Path | None, status: int) -> None:
    """Exit with ``status`` if a run was interrupted; print where its results are."""
    if run is not None and run.info["partial"]:
        suffix = f"; what was done is in {out}, marked partial" if out is not None else ""
        slot = run.info["interrupted_in_slot"]
        console.print_note(f"interrupted in slot {slot} of {run.policy}{suffix}")
        current().reported = True
        raise typer.Exit(status)


@dataclass(frozen=True)
class ComparisonOptions:
    """Options that only a comparison has."""

    seeds: Annotated[
        int,
        o.execution_option(
            min=1,
            max=bounds.SEEDS.maximum,
            help="Number of consecutive seeds to run, starting at --seed; prints means with "
            "95 % intervals and paired tests against the first policy.",
        ),
    ] = 1
    more: Annotated[
        list[str] | None,
        o.workload_option(
            help="Also run everything with more capacity, and show how this changes utility and "
            "waiting times. 8 adds eight GPUs of each type in turn; gpu/a100=8 or cpu=64 adds one "
            "resource. Repeatable.",
            metavar="[NAME=]AMOUNT",
        ),
    ] = None
    bound: Annotated[
        bool,
        o.execution_option(
            "--bound",
            help="Also prove a bound on what any schedule reaches, and show each policy's distance "
            "from it: in utility, and in the mean completion time of jobs that state no utility.",
        ),
    ] = False
    bound_time: Annotated[str, o.execution_option(help="Time limit of --bound, such as 1min.")] = (
        "1min"
    )
    advice: Annotated[
        bool,
        o.output_option(
            "--advice",
            help="Also find, for each policy, the smallest changes that would have got refused "
            "jobs admitted, the most valuable job first; requires --out, and the pages show them.",
        ),
    ] = False
    advice_time: Annotated[
        str, o.output_option(help="Time limit of --advice per policy, such as 1min.")
    ] = "1min"
    on: Annotated[
        str,
        o.execution_option(
            help="Ray cluster to distribute the runs over: ray, HOST:PORT or ray://HOST:PORT.",
            metavar="RAY",
        ),
    ] = ""


@expand_options()
def compare(
    policy: o.PoliciesOption,
    workload: Workload,
    set_: o.SetOption = None,
    params: o.ParamsOption = None,
    lengths: o.LengthsOption = "known",
    seed: o.SeedOption = 0,
    *,
    options: ComparisonOptions,
    out: o.OutOption = None,
    output: o.OutputOption = "table",
    quiet: o.QuietOption = False,
) -> None:
    """Run a workload under several policies with the same seed.

    --out DIR writes DIR/compare.html, and the run of each policy to DIR/POLICY.

    --set changes a parameter of every policy that has it; oasis.prices=online changes it for one
    policy. A policy can occur several times, as variants with different parameters.

    [bold]Examples[/bold]
        shadowprice compare -c cluster.yaml -j jobs.yaml -p oasis,fifo,drf,rrh,dorm --out compared
        shadowprice compare --trace 'philly:philly.csv.gz?limit=2000' -p oasis,fifo
        shadowprice compare -c cluster.yaml -j jobs.yaml -p 'oasis,oasis?preset=paper,drf'
        shadowprice compare --trace 'philly:philly.csv.gz?limit=2000' -p oasis,fifo --seeds 10
        shadowprice compare --trace itp:cluster02.csv.gz -p rolling,oasis,fifo --bound
        shadowprice compare --trace itp:cluster02.csv.gz -p rolling,oasis --seeds 20 --on ray
        shadowprice compare --trace csv:jobs.csv -c cluster.yaml -p rolling,fifo --more 8
    """
    from shadowprice.results.comparison import (
        PAGE,
        is_comparison,
        write_compared_run,
        write_comparison,
    )
    from shadowprice.results.metrics import mean_completion
    from shadowprice.simulator.interrupt import stop_on_signal
    from shadowprice.simulator.lengths import (
        check_advice_lengths,
        parse_lengths,
        with_lengths_in_label,
    )
    from shadowprice.simulator.scenario import random_draws
    from shadowprice.simulator.trials import collect_seed_runs, seeds_from

    modes = parse_lengths(lengths)
    if options.advice:
        check_advice_lengths(modes, "--advice")
    _check_out(out, options.advice)
    chosen = o.policy_choices(policy, params, set_)
    bound_seconds = float(parse_positive_duration(options.bound_time, "--bound-time", "1min"))
    advice_seconds = float(parse_positive_duration(options.advice_time, "--advice-time", "1min"))
    more_seeds = seeds_from(seed, options.seeds)[1:]
    source = workload.source(params)
    scenario = read(source, seed, quiet=quiet)
    cases = [
        _Case(
            scenario.with_lengths(mode),
            source.with_lengths(mode),
            [with_lengths_in_label(choice, mode) for choice in chosen],
        )
        for mode in modes
    ]
    # Report invalid parameters before compiling and before the first run.
    for choice in chosen:
        choice.parameters()
    _check_hidden_lengths(cases)
    changes = _capacity_changes(options.more or (), source, seed, options.on)
    drawn = random_draws(scenario, chosen)
    console.announce_compiling(quiet)
    # From here on the first Ctrl-C stops the run and keeps its results; the second exits at once.
    directory = AtomicDirectory(out, is_comparison) if out is not None else nullcontext()
    with stop_on_signal() as stop, directory as pending, ExitStack() as resources:
        certificate = (
            _certificate(scenario, chosen, bound_seconds, stop, quiet) if options.bound else None
        )

        def complete_run(run: RunData) -> None:
            """Add bound and advice to a finished run, and write it."""
            if certificate is not None:
                run.info["bound"] = {
                    name: value
                    for name, value in certificate.record().items()
                    if name not in {"best", "gap"}  # the certificate was computed without schedules
                }
                if certificate.completion is not None:
                    jobs = certificate.completion.jobs
                    run.info["bound"]["completion"]["mean_jct"] = mean_completion(run.jobs, jobs)
            if options.advice and not run.info["partial"]:
                choice = next(item for item in chosen if item.label == run.policy)
                label = f"advice on refused, {choice.label}"
                run = _add_advice(run, scenario, choice, advice_seconds, label, stop, quiet)
            if pending is not None:
                write_compared_run(run, pending.path)

        stopped = trials = None
        gains: list[CapacityGain] = []
        if options.on:
            runs, further = _on_ray(options.on, cases, more_seeds, out, resources, quiet)
            for run in runs:
                complete_run(run)
        else:
            runs, further, stopped = _run_in_process(cases, more_seeds, stop, complete_run, quiet)
        if more_seeds and stopped is None:
            trials = collect_seed_runs([*((run.policy, seed, run.info) for run in runs), *further])
        record = None if trials is None else trials.record()
        if stopped is None:
            gains, stopped = _gains(cases, changes, runs, seed, stop, quiet)
        runs = _add_recorded_execution(runs, scenario, source)
        print_results = partial(_print_comparison, runs, trials, gains, drawn, output)
        if pending is not None:
            with _print_before_failing(print_results):
                write_comparison(runs, pending.path, record, gains, drawn)
                pending.commit()
    print_results()
    if output != "json":
        _print_location(out, PAGE, quiet, "the runs and a page")
    _leave_if_partial(stopped, out, stop.status)


def _capacity_changes(
    texts: Sequence[str], source: ScenarioSource, seed: int, on: str
) -> list[ClusterChange]:
    """Return the changes of ``--more``, after a check that the larger clusters are valid."""
    from shadowprice.simulator.whatif import capacity_changes, check_larger

    if texts and on:
        raise InputError(Fault("--more", "not valid with --on", "run it without --on"))
    changes = capacity_changes(texts, source.server_entries(seed)) if texts else []
    check_larger(source, changes, seed)
    return changes


def _gains(
    cases: Sequence[_Case],
    changes: Sequence[ClusterChange],
    runs: Sequence[RunData],
    seed: int,
    stop: StopRequestObserver,
    quiet: bool,
) -> tuple[list[CapacityGain], RunData | None]:
    """Return the gains of every change in every case, and the run that was interrupted, if any."""
    from shadowprice.simulator.whatif import run_with_more

    bar = partial(console.progress_bar, quiet=quiet)
    gains: list[CapacityGain] = []
    for case in cases:
        case_gains, stopped = run_with_more(
            case.source, case.choices, changes, runs, seed, stop=stop, bar=bar
        )
        gains += case_gains
        if stopped is not None:
            return gains, stopped
    return gains, None


def _check_hidden_lengths(cases: Sequence[_Case]) -> None:
    """Before the first run, refuse policies that need all lengths if lengths are hidden."""
    from shadowprice.simulator.lengths import KNOWN

    for case in cases:
        if case.scenario.lengths != KNOWN:
            for choice in case.choices:
                choice.build(case.scenario.context())


@dataclass(frozen=True, slots=True)
class _Case:
    """A workload with one mode of --lengths, and the policies, whose labels name the mode."""

    scenario: Scenario
    source: ScenarioSource
    choices: Sequence[PolicyChoice]


def _add_recorded_execution(
    runs: list[RunData], scenario: Scenario, source: ScenarioSource
) -> list[RunData]:
    """Return the runs, and the execution that the cluster's log records, if there is a log."""
    from shadowprice.simulator.as_it_was import as_it_was

    log = source.log()
    if log is None or not runs:
        return runs
    recorded = as_it_was(log, scenario.cluster, scenario.jobs, runs[0])
    return runs if recorded is None else [*runs, recorded]


def _add_advice(
    run: RunData,
    scenario: Scenario,
    choice: PolicyChoice,
    seconds: float,
    label: str,
    stop: StopRequestObserver,
    quiet: bool,
) -> RunData:
    from shadowprice.simulator.advice import add_advice

    with console.progress_bar(label, quiet) as progress:
        return add_advice(run, scenario, choice, seconds=seconds, progress=progress, stop=stop)


def _check_out(out: Path | None, advice: bool) -> None:
    """Refuse an invalid output directory before a large trace is read."""
    from shadowprice.results.comparison import is_comparison

    if out is not None:
        check_directory(out, is_comparison)
    elif advice:
        raise InputError(Fault("--advice", "needs a directory to write to", "give --out DIR"))


@contextmanager
def _restored_signals() -> Iterator[None]:
    """Restore the default SIGINT handler during a block.

    Runs on Ray can't be stopped early, so Ctrl-C has to end the wait for them.
    """
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def _run_in_process(
    cases: Sequence[_Case],
    seeds: Sequence[int],
    stop: StopRequestObserver,
    complete_run: Callable[[RunData], None],
    quiet: bool,
) -> tuple[list[RunData], list[SeedRun], RunData | None]:
    """Run everything in this process.

    Returns the runs of the first seed, those of other seeds, and the run that was interrupted, if
    any.
    """
    from shadowprice.simulator.trials import further_seeds, run_all

    bar = partial(console.progress_bar, quiet=quiet)
    runs: list[RunData] = []
    more: list[SeedRun] = []
    for case in cases:
        runs += run_all(case.scenario, case.choices, stop=stop, bar=bar, each=complete_run)
        if runs[-1].info["partial"]:
            return runs, [], runs[-1]
    for case in cases:
        seed_runs, stopped = further_seeds(case.source, case.choices, seeds, stop=stop, bar=bar)
        more += seed_runs
        if stopped is not None:
            return runs, more, stopped
    return runs, more, None


def _on_ray(
    address: str,
    cases: Sequence[_Case],
    seeds: Sequence[int],
    out: Path | None,
    resources: ExitStack,
    quiet: bool,
) -> tuple[list[RunData], list[SeedRun]]:
    """Distribute all runs over a Ray cluster; return the runs of the first and other seeds.

    With ``out``, completed runs are cached until all runs are complete. ``resources`` holds
    temporary files, and the removal of the cache.
    """
    from tempfile import TemporaryDirectory

    from shadowprice.experiments.framework import cache_dir
    from shadowprice.experiments.spreading import (
        RayBackend,
        RunBackend,
        compare_spread,
        comparison_cache,
    )

    runs: list[RunData] = []
    more: list[SeedRun] = []
    with (
        _restored_signals(),
        RayBackend(address) as on_ray,
        console.progress_bar("all runs", quiet, "runs") as bar,
    ):
        cache = comparison_cache(on_ray, cache_dir(out)) if out is not None else None
        backend: RunBackend = on_ray if cache is None else cache
        folder = Path(resources.enter_context(TemporaryDirectory()))
        try:
            for case in cases:
                scenarios = [case.scenario, *(case.source.scenario(seed)[0] for seed in seeds)]
                case_runs, seed_runs = compare_spread(
                    backend, scenarios, case.choices, folder, progress=bar
                )
                runs += case_runs
                more += seed_runs
        except KeyboardInterrupt:
            if out is not None:
                console.print_note(
                    f"completed runs are kept in {cache_dir(out)}; the same command resumes"
                )
            raise
        if cache is not None:
            resources.callback(cache.remove)
    return runs, more


def _print_comparison(
    runs: list[RunData],
    trials: SeedRuns | None,
    gains: Sequence[CapacityGain],
    drawn: Sequence[str],
    output: Output,
) -> None:
    from shadowprice.cli.tables import comparison_table, gains_table, seeds_table, summary_table
    from shadowprice.results.comparison import comparison_to_record, drawn_text

    if output == "json":
        record = None if trials is None else trials.record()
        console.print_json(comparison_to_record(runs, record, gains, drawn))
        return
    if drawn:
        seeds = [runs[0].info["seed"]] if trials is None else trials.seeds
        console.print_line(drawn_text(drawn, seeds))
    console.stdout().print(summary_table(runs) if trials is None else seeds_table(trials))
    if trials is not None and trials.remark:
        console.print_note(f"note: {trials.remark}")
    elif trials is not None and len(trials.policies) > 1:
        console.stdout().print()
        console.stdout().print(comparison_table(trials))
    if gains:
        console.stdout().print()
        console.stdout().print(gains_table(gains))


def _print_location(out: Path | None, page: str, quiet: bool, results: str) -> None:
    if out is not None:
        console.print_line(f"see {out}/{page}")
    elif not quiet:
        console.print_note(f"add --out DIR to keep {results}")


def _certificate(
    scenario: Scenario,
    chosen: Sequence[PolicyChoice],
    seconds: float,
    stop: StopRequestObserver,
    quiet: bool,
) -> Certificate:
    """Compute the bound on what any schedule earns, without searching for a schedule."""
    import numpy as np

    from shadowprice.certificate.certify import certify

    jobs = scenario.jobs
    context = scenario.context(explained=False)
    if any(choice.build(context).capabilities.local_traffic_is_free for choice in chosen):
        # Local traffic is free, so workers beside a parameter server need only one of them. The
        # bound must allow such schedules.
        jobs = [
            job if job.ps is None else replace(job, ps_counts=np.minimum(job.ps_counts, 1))
            for job in jobs
        ]
    with bound_progress(quiet) as report:
        return certify(
            scenario.cluster,
            jobs,
            scenario.until,
            gap=1e-3,
            seconds=seconds,
            schedules=False,
            stop=lambda: stop.requested_at is not None,
            report=report,
        )

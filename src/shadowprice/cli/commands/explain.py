"""``shadowprice explain``: the history of one job, and advice on a refused one."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.table import Table

from shadowprice.cli.commands.submit import print_job, print_outlook
from shadowprice.cli.completion import complete_job
from shadowprice.cli.console import Output, SafeText, print_json, print_line, stdout
from shadowprice.cli.live import ServerOption, connect, format_time, with_local_times
from shadowprice.cli.options import OutputOption
from shadowprice.core.amounts import format_seconds
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.wording import escape_controls, first_line, lines_after_first
from shadowprice.extensions import FileExtension, split_path

if TYPE_CHECKING:
    from shadowprice.rest import StoredEvent
    from shadowprice.results.advice import JobAdvice
    from shadowprice.results.job_history import JobHistory
    from shadowprice.simulator.scenario import Scenario


MAX_PLACEMENT_SPANS = 12  # limit of placements shown of a plan or a run


def explain(
    run: Annotated[
        Path,
        typer.Argument(help="Run directory; queries the live service if omitted.", metavar="[RUN]"),
    ],
    job: Annotated[
        str | None,
        typer.Argument(help="Name of the job.", metavar="JOB", autocompletion=complete_job),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Show a long history or plan in full.")
    ] = False,
    advice: Annotated[
        bool | None,
        typer.Option(
            "--advice/--no-advice",
            help="Compute changes that would get a refused or waiting job admitted. By default, "
            "this is done for the live service, and for a run if it takes only seconds.",
            show_default=False,
        ),
    ] = None,
    server: ServerOption = None,
    output: OutputOption = "table",
) -> None:
    """Show a job's history: its request, decisions with reasons, slots and servers.

    For a refused job, also show the smallest changes in the job file that would have got it
    admitted. Each change is verified by querying the policy again, or by running again. For a
    waiting job of the service, also show for which resource it waits, and until when.

    [bold]Examples[/bold]
        shadowprice explain run resnet50-a
        shadowprice explain resnet50-a
    """
    if job is None:  # a single argument is a job of the live service
        _explain_live(str(run), server, output, full=full, outlook=advice is not False)
        return
    from shadowprice.results.job_history import read_job_history

    history = read_job_history(run, job)
    job_advice, remark = _advice(run, history, advice)
    if output == "json":
        record = history.record()
        if job_advice is not None:
            record["advice"] = job_advice.record()
        print_json(record)
    else:
        _print(history, None if full else MAX_PLACEMENT_SPANS, job_advice, remark)


def _explain_live(
    job: str, server: str | None, output: Output, *, full: bool, outlook: bool
) -> None:
    if Path(job, "run.json").is_file():
        raise InputError(
            Fault(job, "is a run", f"name the job too: shadowprice explain {shlex.quote(job)} JOB")
        )
    with connect(server) as client:
        history = client.explain(job, outlook=outlook)
        events: Sequence[StoredEvent] = history.events
        lines, omitted = history.lines, history.omitted
        if full and omitted is not None:
            # Another job may get the name meanwhile.
            listed = [*client.job_events(f"id:{history.job.id}")][::-1]
            events, lines, omitted = listed, [event.line for event in listed], None
    if output == "json":
        gap = None if omitted is None else omitted.record
        event_records = [event.record for event in events]
        print_json({**history.record, "events": event_records, "lines": lines, "omitted": gap})
        return
    print_job(history.job, log=False)  # the last event has the log lines
    console = stdout()
    console.print()
    for event, line in zip(events, lines, strict=True):
        text = line.partition("  ")[2]  # replace the service's UTC timestamp by local time
        reason = event.data.get("reason")
        text, *log = _with_log(text, reason if isinstance(reason, str) else "")
        text = with_local_times(text)
        print_line(f"{format_time(event.at):<9} {text}")
        for log_line in log:
            print_line(f"{'':<9} | {log_line}")
        if omitted is not None and event.id == omitted.after:
            between = f"... {omitted.events:,} more (--full shows them)"
            print_line(f"{'':<9} {between}")
    if history.broken_promise is not None:
        console.print()
        print_line(str(history.broken_promise.line))
    if history.outlook is not None and history.outlook.lines:
        print_outlook(history.outlook.lines)


def _with_log(text: str, reason: str) -> list[str]:
    """Return an event's text without the log lines at its end, followed by these log lines.

    A reason may have log lines after its first line. The text ends with all lines, joined by ``|``.
    """
    log = lines_after_first(reason)
    joined = escape_controls(f"{first_line(reason)} | {' | '.join(line.strip() for line in log)}")
    if not log or not text.endswith(joined):
        return [text]
    return [text.removesuffix(joined) + escape_controls(first_line(reason)), *log]


def _advice(run: Path, history: JobHistory, requested: bool | None) -> tuple[JobAdvice | None, str]:
    """Return advice on a refused job, or None and a note on why there is none.

    The note is empty if the job needs no advice.
    """
    from shadowprice.results.run_directory import read_advice

    if requested is False or not needs_advice(history):
        return None, ""
    stored = read_advice(run).get(history.job["job"])
    if stored is not None:
        return stored, ""
    # A run directory from elsewhere may name any file, so execute files only on request.
    if requested is None and executes_files(history.info):
        return None, "--advice computes it by running again, with the files that the run used"
    seconds = expected_seconds(history)
    if requested is None and seconds > MAX_UNREQUESTED_SECONDS:
        return None, f"--advice computes it by running again, in about {format_seconds(seconds)}"
    try:
        return compute_advice(run, history), ""
    except InputError as error:
        if requested:
            raise
        return None, f"not available: {error}"


def _print(
    history: JobHistory, maximum: int | None, job_advice: JobAdvice | None, remark: str
) -> None:
    from rich.panel import Panel

    from shadowprice.results.advice import advice_lines
    from shadowprice.results.job_history import guarantee_text, history_lines

    console = stdout()
    colour, verdict = _verdict(history.job)
    title = SafeText.assemble((history.job["job"], "bold"), "  ", (verdict, f"bold {colour}"))
    lines = [*history_lines(history, maximum)]
    if job_advice is not None:
        lines += [("", ""), *advice_lines(job_advice)]
    elif remark:
        lines += [("", ""), ("advice", remark)]
    if guarantee := guarantee_text(history.info):
        lines += [("", ""), ("guarantee", guarantee)]
    group = _facts(lines)
    subtitle = f"under {history.info['policy']}"
    if history.info["partial"]:
        subtitle += ", in a run interrupted in slot " + str(history.info["interrupted_in_slot"])
    console.print(
        Panel(
            group,
            title=title,
            subtitle=SafeText(subtitle, "dim"),
            title_align="left",
            subtitle_align="right",
            border_style=colour,
            padding=(1, 2),
        )
    )


def _facts(rows: Iterable[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for name, text in rows:
        table.add_row(name, SafeText(text))
    return table


def _verdict(job: dict[str, Any]) -> tuple[str, str]:
    outcome = job["outcome"]
    if outcome == "finished":
        late = job["late"]
        if late is None:
            return "green", "finished"
        return ("green", "finished in time") if late <= 0 else ("yellow", "finished late")
    colour = "red" if outcome in {"refused", "dropped"} else "yellow"
    labels = {"running": "still running", "waiting": "still waiting"}
    return colour, labels.get(outcome, outcome)


MAX_UNREQUESTED_SECONDS: Final = 10.0
"""Maximum estimated time of advice if neither --advice nor --no-advice is given."""
FORMAT: Final = "trace format"  # kind of an input: a user's file that defines a trace format
_SECONDS_PER_JOB: Final = 0.0003  # estimated time of a job in addition to its decision, in seconds
_RUNS_WITHOUT_QUOTES: Final = 60
"""Estimated number of runs if the policy can't quote and every change is simulated."""


def needs_advice(history: JobHistory) -> bool:
    """Return whether the job's outcome is one that gets advice under the run's policy."""
    from shadowprice.results.advice import outcomes_with_advice

    return history.job["outcome"] in outcomes_with_advice(history.info)


def executes_files(info: Mapping[str, Any]) -> bool:
    """Return whether a repeated run executes a user's file, of its policy or trace format."""
    kinds = {entry["kind"] for entry in info["inputs"]}
    return "file" in (info.get("policy_origin") or {}) or FORMAT in kinds


def expected_seconds(history: JobHistory) -> float:
    """Estimate the seconds of advice from the run's own times."""
    info = history.info
    latency = info["timing"]["decision_latency"] or {}
    jobs = int(info["summary"]["jobs"])
    # The median isn't affected by the first decisions, which compile kernels. With quotes, the run
    # is repeated once, up to the job's arrival.
    seconds = jobs * (float(latency.get("p50") or 0.0) + _SECONDS_PER_JOB)
    capabilities = info["capabilities"]
    if capabilities.get("quotes", False) and capabilities.get("answers_at_once", False):
        return seconds
    return _RUNS_WITHOUT_QUOTES * max(seconds, float(info["timing"]["wall_seconds"]))


def compute_advice(folder: Path, history: JobHistory) -> JobAdvice:
    """Find changes that would have admitted a refused job; the run's inputs must be unchanged."""
    from shadowprice.policies.choice import PolicyChoice
    from shadowprice.simulator.advice import advise

    info = history.info
    if info.get("settings") is None or "options" not in info:
        fault = Fault(str(folder), "doesn't record its settings and options", "run it again")
        raise InputError(fault)
    if "lengths" in info["options"]:
        problem = f"was run with --lengths {info['options']['lengths']}"
        raise InputError(Fault(str(folder), problem, "run it with known lengths for advice"))
    if "values" in info["options"]:
        problem = f"was run with --values {info['options']['values']}"
        raise InputError(Fault(str(folder), problem, "run it with stated values for advice"))
    scenario = _scenario(folder, info)
    name = history.job["job"]
    position = next(index for index, job in enumerate(scenario.jobs) if job.name == name)
    assert scenario.entry is not None
    choice = PolicyChoice.of_run(info)
    return advise(scenario, choice, position, scenario.entry(position))


def _scenario(folder: Path, info: dict[str, Any]) -> Scenario:
    """Read the inputs of a run again, and check that their digests haven't changed."""
    from shadowprice.simulator.source import ScenarioSource

    inputs = {entry["kind"]: entry for entry in info["inputs"]}
    options = info["options"]
    until = info["until"]
    trace = inputs["trace"]["name"] if "trace" in inputs else None
    if FORMAT in inputs:
        reference, _ = split_path(str(trace)) or ("", "")
        file = FileExtension.read(reference, "trace")
        if file.sha256 != inputs[FORMAT]["sha256"]:  # check before the file is executed
            raise InputError(Fault(file.path, "has changed since the run", "run it again"))
    files = {kind: entry for kind, entry in inputs.items() if kind not in {"trace", FORMAT}}
    paths = {kind: _find_input(folder, entry["name"]) for kind, entry in files.items()}
    if "jobs" not in paths and trace is None:
        raise InputError(Fault(str(folder), "has no job file", "advice needs a job file to change"))
    source = ScenarioSource(
        cluster=paths.get("cluster"),
        jobs=paths.get("jobs"),
        trace=trace,
        incidents=paths.get("incidents"),
        until=None if until is None else f"{until} slots",
        slot=options["slot"],
        load=options["load"],
        skip_invalid=options["skip_invalid"],
    )
    scenario, _ = source.scenario(info["seed"])
    for entry in scenario.inputs:
        if entry.sha256 != inputs[entry.kind]["sha256"]:
            raise InputError(Fault(entry.name, "has changed since the run", "run it again"))
    return scenario


def _find_input(folder: Path, name: str) -> Path:
    """Return the path of an input, relative to the current directory or a folder above the run."""
    candidates = [Path(name), *(parent / name for parent in folder.resolve().parents)]
    match = next((path for path in candidates if path.exists()), None)
    if match is None:
        raise InputError(Fault(name, "file not found", "use the directory where the run was made"))
    return match

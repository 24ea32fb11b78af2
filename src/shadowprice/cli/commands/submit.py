"""``shadowprice submit`` and ``quote``: submit jobs to the live service, or quote them."""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from fractions import Fraction
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shadowprice.cli import live, plain_job
from shadowprice.cli.batch_script import SCRIPT, BatchScript, ScriptCommand, check_is_no_program
from shadowprice.cli.console import Output, print_json, print_line, print_note, stderr, stdout
from shadowprice.cli.live import FAILOVER_SECONDS, ServerOption
from shadowprice.cli.options import OutputOption, QuietOption, expand_options
from shadowprice.cli.plain_job import COMMAND, JobOptions, PlainJob
from shadowprice.core import bounds, wording
from shadowprice.core.amounts import format_seconds, parse_duration
from shadowprice.core.errors import Fault, InputError, ShadowpriceError
from shadowprice.core.submit_options import option_for_key, states_no_length

if TYPE_CHECKING:
    from shadowprice.client import Client, Job, Quote, ServiceError
    from shadowprice.rest import PredictedLength, ServiceStatus, UploadLimits


MAX_OUTLOOKS = 3  # limit of submitted jobs whose outlooks are shown; `explain` shows any
MAX_NAMED = 20  # limit of names in a note
DECISION_WAIT_SECONDS = 10  # time to wait for the decisions on several jobs, in seconds

OnlyOption = Annotated[
    str | None,
    typer.Option(
        "--only",
        help="Comma-separated names of the jobs to select from the files.",
        metavar="NAMES",
    ),
]


@dataclass(frozen=True, slots=True)
class Entry:
    """A job's record, and its location in a file."""

    location: str  # empty for the job of a command
    record: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Name of the job."""
        return str(self.record.get("name"))


def _entries(files: Sequence[Path], only: str | None) -> list[Entry]:
    """Read the jobs of files; ``only`` has the comma-separated names to select."""
    from shadowprice.inputs.files import read_records

    entries = []
    for file in files:
        for location, record in read_records(file):
            if not isinstance(record, Mapping):
                raise InputError(Fault(location, "is not a job", "write `name: ...` and so on"))
            if problem := wording.find_unsendable(record, location):
                raise InputError(Fault(*problem, "quote it if it is text"))
            entries.append(Entry(location, plain_job.with_absolute_deadline(record, location)))
    if only is not None:
        names = {part.strip() for part in only.split(",") if part.strip()}
        missing = names - {entry.name for entry in entries}
        if missing:
            message = f"the files have no job {wording.quote_for_display(min(missing))}"
            known = [entry.name for entry in entries]
            hint = wording.hint_for_unknown(min(missing), known, "write names of jobs in the files")
            raise InputError(Fault("--only", message, hint))
        entries = [entry for entry in entries if entry.name in names]
    if not entries:
        raise InputError(Fault(str(files[0]), "has no job", "list jobs below `jobs:`"))
    return entries


app = typer.Typer(add_completion=False, rich_markup_mode="rich")


@app.command("submit", cls=ScriptCommand)
@expand_options()
def submit(
    ctx: typer.Context,
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Job files (YAML with `jobs:`, or JSON Lines), a script with its arguments after "
            "--, or a command after --.",
            metavar="FILE | SCRIPT [-- ARGUMENT] | -- COMMAND",
            show_default=False,
        ),
    ] = None,
    *,
    options: JobOptions,
    only: OnlyOption = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Submit nothing; show the decision on each job. For a job that would wait or be "
            "refused, also show what would get it a promise or admission.",
        ),
    ] = False,
    wait: Annotated[
        bool,
        typer.Option(
            "--wait", "-w", help="Wait until all jobs end; exit with status 1 if a job fails."
        ),
    ] = False,
    server: ServerOption = None,
    output: OutputOption = "table",
    quiet: QuietOption = False,
) -> None:
    """Submit a command, a script, or the jobs of files to the live service; show its promises.

    A command runs in the current directory, with the environment variables that select programs,
    such as PATH. If the service doesn't see the directory, its files are sent to the service.

    A script has a name that ends in .sh, or begins with #!. Its current content runs, even if the
    file changes later. Lines such as #SHADOWPRICE --gpus 2 --time 3h give options, and common
    #SBATCH lines are understood; options of the command line take precedence.

    Files can be submitted again: the same name and content is the same job. A refused job isn't an
    error.

    [bold]Examples[/bold]
        shadowprice submit --gpus 2 --time 3h -- python train.py --lr 0.1
        shadowprice submit train.sh -- --lr 0.1
        shadowprice submit jobs.yaml
        shadowprice submit jobs.yaml --only resnet50-a --wait
    """
    script: BatchScript | None = ctx.meta.get(SCRIPT)
    if script is not None:
        files = None
        if script.ignored and not quiet:
            print_note(f"{script.path}: ignored #SBATCH options: {', '.join(script.ignored)}")
    plain = _plain_job(options, script, ctx.meta.get(COMMAND, ()))
    _check_call(files or [], only, plain, command=COMMAND in ctx.meta)
    with live.connect(server) as client:

        def send(directory: Path, limits: UploadLimits) -> str | None:
            return plain_job.send_directory(
                client, directory, limits, options.tenant, quiet=quiet, dry_run=dry_run
            )

        entries = (
            _entries(files, only) if files else [Entry("", _record(plain, client, send, script))]
        )
        if dry_run:
            _print_quotes(client, entries, output, outlook=True, script=script)
            raise typer.Exit
        status = client.service()
        client.retry = FAILOVER_SECONDS  # the service answered before: wait for it
        result = _submit_entries(client, entries, script)
        submitted, problems = result.jobs, result.problems
        # A repeated submission returns the existing job, which may have finished earlier.
        finished_before = [
            job for job in submitted if job.state == "finished" and job.submitted < status.now
        ]
        wait = wait and result.error is None
        is_brief = wait or result.error is not None or output == "json" or quiet
        with _names_on_error(submitted):
            if wait:
                submitted = _wait_until_closed(client, submitted, quiet or output == "json")
            outlooks = [] if is_brief else _outlooks(client, submitted)
    if output == "json":
        records = [job.record for job in submitted]
        records += [
            {"name": entry.name, "tenant": entry.record.get("tenant"), "problem": str(error)}
            for entry, error in problems
        ]
        print_json(records)
    else:
        _print_submitted(submitted, outlooks, wait=wait)
        if len(submitted) == 1 and not quiet:
            _print_predicted(submitted[0].predicted)
        if not quiet:
            records_by_name = {(e.record.get("tenant"), e.name): e.record for e in entries}
            for job in submitted:
                # A record without a tenant gets the tenant of the token.
                key = (job.tenant, job.name)
                record = records_by_name.get(key) or records_by_name[None, job.name]
                if job.open and _is_predicted_late(record, job.predicted, job.submitted, status):
                    _print_late(job.name, single=len(submitted) == 1)
    _print_problems(problems, finished_before)
    if result.error is not None:
        _print_stop(result.error, entries, result.sent)
        raise typer.Exit(result.error.exit_code)
    if problems:
        raise typer.Exit(2)
    if wait and any(job.state != "finished" for job in submitted):
        raise typer.Exit(1)


def _plain_job(options: JobOptions, script: BatchScript | None, words: Sequence[str]) -> PlainJob:
    if script is not None:
        program, title = script.interpreter[0], script.path.stem
        return PlainJob(script.command(words), program, title, **vars(options))
    program = words[0] if words else ""
    return PlainJob(words, program, plain_job.command_title(words), **vars(options))


@dataclass(slots=True)
class _SubmittedEntries:
    """Accepted jobs, problems of other entries, and the error that stopped the submission."""

    jobs: list[Job] = field(default_factory=list)
    problems: list[tuple[Entry, ServiceError]] = field(default_factory=list)
    sent: int = 0  # number of entries that the service answered
    error: ShadowpriceError | None = None


def _submit_entries(
    client: Client, entries: Sequence[Entry], script: BatchScript | None
) -> _SubmittedEntries:
    """Submit jobs in batches; the service accepts all jobs of a batch, or none.

    The error of a later batch is returned, because the jobs of earlier batches are submitted.
    """
    from shadowprice.client.calls import MAX_BATCH_JOBS

    if len(entries) == 1:
        with _locate_diagnostics(entries, single=True, script=script):
            return _SubmittedEntries([client.submit(entries[0].record)], sent=1)
    result = _SubmittedEntries()
    for first in range(0, len(entries), MAX_BATCH_JOBS):
        batch = entries[first : first + MAX_BATCH_JOBS]
        try:
            with _locate_diagnostics(batch, single=False):
                response = client.submit_many(
                    [item.record for item in batch], wait=DECISION_WAIT_SECONDS
                )
        except ShadowpriceError as error:
            if not first:
                raise
            result.error = error
            break
        result.jobs += response.jobs
        result.problems += [(batch[item.index], item.error) for item in response.problems]
        result.sent += len(batch)
    return result


def _print_submitted(
    submitted: Sequence[Job], outlooks: Iterable[tuple[str, Sequence[str]]], *, wait: bool
) -> None:
    rows = [
        (
            job.name,
            job.tenant,
            job.state,
            *([] if wait else [live.format_time(job.promise)]),
            live.format_expected(job.completion, job.predicted),
            payoff_text(job.payoff, job.utility, job.cost),
            live.with_local_times(wording.first_line(job.reason_text)),
        )
        for job in submitted
    ]
    times = ["FINISH"] if wait else ["PROMISE", "EXPECTED"]
    columns = ["NAME", "TENANT", "STATE", *times, "PAYOFF", "REASON"]
    live.print_table(columns, rows, right=["PAYOFF"])
    for job_name, lines in outlooks:
        print_outlook(lines, "" if len(submitted) == 1 else job_name)


@contextmanager
def _names_on_error(submitted: Sequence[Job]) -> Iterator[None]:
    """Print the names of submitted jobs if the block fails, because names can be generated."""
    try:
        yield
    except BaseException:  # also for Ctrl-C, after which the jobs go on
        names = ", ".join(job.name for job in submitted[:MAX_NAMED])
        more = f" and {len(submitted) - MAX_NAMED:,} more" if len(submitted) > MAX_NAMED else ""
        print_note(f"submitted, and not cancelled: {names}{more}")
        raise


def _print_stop(error: ShadowpriceError, entries: Sequence[Entry], sent: int) -> None:
    """Print the error that stopped a submission, and the first job that wasn't submitted."""
    for line in str(error).splitlines():
        print_note(f"error: {line}")
    print_note(
        f"error: stopped at {entries[sent].location}: the first {sent:,} of {len(entries):,} jobs "
        "were submitted"
    )


def _print_problems(
    problems: Sequence[tuple[Entry, ServiceError]], finished: Sequence[Job]
) -> None:
    """Print the jobs that were not accepted, and jobs that had finished before the submission."""
    for entry, error in problems:
        print_note(f"error: {entry.location}: {error}")
    for job in finished:
        hint = f"`shadowprice resubmit {shlex.quote(job.name)}` runs it again"
        text = f"job {job.name!r} finished before, so it was not submitted again; {hint}"
        print_note(text)


def _record(
    plain: PlainJob,
    client: Client,
    send: Callable[[Path, UploadLimits], str | None],
    script: BatchScript | None,
) -> Mapping[str, Any]:
    """Return the record of a command's job; errors have the option's location in the script."""
    try:
        return plain.record(client, send)
    except InputError as error:
        raise InputError(_locate_in_script(error.faults, script)) from error


def _locate_in_script(faults: Iterable[Fault], script: BatchScript | None) -> list[Fault]:
    """Return diagnostics; those of options get their location in the script's header."""
    # Of several lines with an option, the last line counts.
    lines = {} if script is None else {entry.name: entry.location for entry in script.options}
    return [
        replace(fault, location=f"{lines[fault.location]}: {fault.location}")
        if fault.location in lines
        else fault
        for fault in faults
    ]


def _check_call(files: Sequence[Path], only: str | None, job: PlainJob, *, command: bool) -> None:
    """Refuse a call with nothing to submit, or with options that have no effect."""
    if not files and not command:
        hint = "write a job file, a script, or a command: -- python train.py"
        raise InputError(Fault("FILE", "nothing to submit", hint))
    if files and command:
        raise InputError(Fault(str(files[0]), "not valid with a command", "remove one of them"))
    if command and only is not None:
        raise InputError(Fault("--only", "has no effect on a command", "remove it"))
    if files:
        check_is_no_program(files)
    given = job.given()
    if files and given:
        hint = "write it into the file, or submit a command: -- python train.py"
        raise InputError(Fault(given[0], "has no effect on a job file", hint))


@contextmanager
def _locate_diagnostics(
    entries: Sequence[Entry], *, single: bool, script: BatchScript | None = None
) -> Iterator[None]:
    """Convert the service's diagnostics to locations in the files, or to options."""
    from shadowprice.client import ServiceError

    try:
        yield
    except ServiceError as error:
        if error.code == "name-conflict" and single:
            fault = _name_conflict(str(error), entries[0])
            raise InputError(_locate_in_script([fault], script)) from error
        if not error.faults:
            raise
        faults = [_with_file_location(fault, entries, single=single) for fault in error.faults]
        raise InputError(_locate_in_script(faults, script)) from error


def _name_conflict(text: str, entry: Entry) -> Fault:
    message = text.partition("; ")[0]
    if not entry.location:
        return Fault("--name", message, "give another name, or leave --name out")
    command = f"shadowprice revise {shlex.quote(entry.name)} --help"
    return Fault(
        f"{entry.location}.name", message, f"write another name, or revise the job: {command}"
    )


def _with_file_location(fault: Fault, entries: Sequence[Entry], *, single: bool) -> Fault:
    """Return a diagnostic of the service with its location in a file, or as an option.

    The service's locations are ``job.KEY``, or ``jobs[INDEX].KEY`` unless ``single``.
    """
    # A body that isn't valid JSON text is refused before its jobs are read.
    location = fault.location.removeprefix("body").lstrip(".")
    if single:
        suffix = location.removeprefix("job").lstrip(":. ")
        entry_location = entries[0].location
        if not entry_location:
            return replace(fault, location=option_for_key(suffix) or suffix)
        in_file = f"{entry_location}.{suffix}" if suffix else entry_location
        return Fault(in_file, fault.message, fault.hint)
    head, bracket, tail = location.partition("]")
    index = head.removeprefix("jobs[")
    if bracket and index.isdigit() and int(index) < len(entries):
        return Fault(f"{entries[int(index)].location}{tail}", fault.message, fault.hint)
    return fault


def _wait_until_closed(client: Client, jobs: Sequence[Job], quiet: bool) -> list[Job]:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    current = {job.id: job for job in jobs}
    console = stderr()
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("{task.fields[state]}", markup=False),
        TimeElapsedColumn(),
    )
    shown = not quiet and console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=not shown) as bar:
        total = sum(job.required for job in jobs) or 1.0
        task = bar.add_task(f"{len(jobs)} jobs", total=total, state="")
        pause = 0.2
        while True:
            for job_id in [job_id for job_id, job in current.items() if job.open]:
                current[job_id] = client.job(f"id:{job_id}")
            open_jobs = [job for job in current.values() if job.open]
            done = sum(job.progress if job.open else job.required for job in current.values())
            counts = Counter(job.state for job in open_jobs)
            states = ", ".join(f"{count} {state}" for state, count in counts.items())
            bar.update(task, completed=done, state=states)
            if not open_jobs:
                return list(current.values())
            time.sleep(pause)
            pause = min(pause * 1.3, 2.0 + len(open_jobs) / 50)  # a poll has a request per job


def quote(
    files: Annotated[
        list[Path],
        typer.Argument(help="Job files: YAML with `jobs:`, or JSON Lines.", metavar="FILE..."),
    ],
    only: OnlyOption = None,
    server: ServerOption = None,
    output: OutputOption = "table",
) -> None:
    """Query the promise or refusal that jobs would get if submitted now; reserve nothing.

    Each job is quoted separately, as the next submission.

    [bold]Example[/bold]
        shadowprice quote jobs.yaml
    """
    with live.connect(server) as client:
        _print_quotes(client, _entries(files, only), output, outlook=False)


def _print_quotes(
    client: Client,
    entries: Sequence[Entry],
    output: Output,
    *,
    outlook: bool,
    script: BatchScript | None = None,
) -> None:
    """Quote every job, and print the answers; raise `InputError` with the problems of all jobs.

    With ``outlook``, the first jobs that would wait or be refused also get advice.
    """
    quotes: list[Quote] = []
    faults: list[Fault] = []
    for entry in entries:
        outlooks = sum(item.outlook is not None for item in quotes)
        with_outlook = outlook and outlooks < MAX_OUTLOOKS
        try:
            with _locate_diagnostics([entry], single=True, script=script):
                quotes.append(client.quote(entry.record, outlook=with_outlook))
        except InputError as error:
            faults += error.faults
            if len(faults) >= bounds.FAULTS.maximum:
                break
    if faults:
        raise InputError(faults)
    if output == "json":
        print_json([item.record for item in quotes])
        return
    rows: list[tuple[object, ...]] = []
    budgeted = any(item.points is not None for item in quotes)
    for item in quotes:
        displaced = item.displaced if isinstance(item.displaced, int) else len(item.displaced)
        reason = item.message if item.refusal is None else item.refusal.message
        remaining = None if item.points is None else item.points.left
        reason = live.with_local_times(wording.first_line(reason))
        times = (
            live.format_time(item.promise) if item.admitted else "-",
            live.format_expected(item.expected, item.predicted),
        )
        cells = (
            item.job,
            item.answer,
            *times,
            live.format_number(item.utility),
            live.format_number(item.price),
        )
        points = [live.format_number(remaining)] if budgeted else []
        rows.append((*cells, *points, displaced or "-", reason))
    columns = ["NAME", "ANSWER", "PROMISE", "EXPECTED", "WORTH", "PRICE", "DISPLACES", "REASON"]
    if budgeted:  # points that the tenant would have left
        columns.insert(6, "LEFT")
    live.print_table(columns, rows, right=["WORTH", "PRICE", "LEFT", "DISPLACES"])
    if len(quotes) == 1:
        _print_predicted(quotes[0].predicted)
    status = client.service() if any(item.predicted for item in quotes) else None
    for entry, item in zip(entries, quotes, strict=True):
        if status is None or item.answer == "refused":
            continue
        if _is_predicted_late(entry.record, item.predicted, status.now, status):
            _print_late(item.job, single=len(quotes) == 1)
    for item in quotes:
        if item.outlook is not None and item.outlook.lines:
            print_outlook(item.outlook.lines, "" if len(quotes) == 1 else item.job)


def _outlooks(client: Client, jobs: Sequence[Job]) -> list[tuple[str, Sequence[str]]]:
    """Return the names and outlooks of the first jobs that wait or were refused.

    A single job also gets its outlook if it was admitted.
    """
    from shadowprice.client import ServiceError, ServiceUnreachableError

    outlooks: list[tuple[str, Sequence[str]]] = []
    states = {"standby", "refused", "admitted"} if len(jobs) == 1 else {"standby", "refused"}
    for job in [job for job in jobs if job.state in states][:MAX_OUTLOOKS]:
        try:
            outlook = client.explain(f"id:{job.id}", outlook=True).outlook
        except (ServiceError, ServiceUnreachableError) as error:  # submitted jobs must be shown
            outlooks.append((job.name, [f"no advice: {error}"]))
            break
        if outlook is not None and outlook.lines:
            outlooks.append((job.name, outlook.lines))
    return outlooks


def print_outlook(lines: Sequence[str], title: str = "") -> None:
    """Print an outlook: what a job waits for, and what would get it admitted."""
    console = stdout()
    console.print()
    if title:
        console.print(title)
    for line in lines:
        print_line(live.with_local_times(line))


def describe_job(job: Job) -> Iterator[tuple[str, object]]:
    """Yield names and values that describe one job."""
    from shadowprice.rest import JobDetail

    yield "id", job.id
    yield "state", job.state
    yield "tenant", job.tenant
    yield "submitted", live.format_time(job.submitted)
    yield "promise", f"{live.format_time(job.promise)}{_margin(job)}" if job.promise else ""
    yield (
        "expected" if job.open else "finish",
        live.format_expected(job.completion, job.predicted) if job.completion else "",
    )
    yield "deadline", _describe_deadline(job.spec) if isinstance(job, JobDetail) else ""
    yield "length", "" if job.predicted is None else predicted_text(job.predicted)
    done = f"{job.progress:,.0f} of {job.required:,.0f} mini-batches"
    done = "of the expected time" if job.required == 1 else done
    yield "progress", f"{live.format_progress(job)}  ({done})"
    placement = f" on {', '.join(job.servers)}" if job.servers else ""
    if job.workers:
        workers = "1 worker" if job.workers == 1 else f"{job.workers} workers"
        ps = f", {job.ps} parameter servers" if job.ps else ""
        yield "runs", f"{workers}{ps}{placement}, generation {job.generation}"
    if job.utility is not None:
        payoff = payoff_text(job.payoff, job.utility, job.cost)
        price = "" if job.cost is None else f", for {live.format_number(job.cost)}: payoff {payoff}"
        yield "worth", f"{live.format_number(job.utility)}{price}"
    yield "speed", _speed(job)
    if job.points is not None:
        used, refunded, slots = job.points.used, job.points.refund, job.points.overrun_slots
        remainder = (
            f"{live.format_number(refunded)} refunded"
            if refunded is not None
            else f"{live.format_number(used)} used so far"
        )
        yield "points", f"{live.format_number(job.points.price)} paid, {remainder}"
        count = "1 slot" if slots == 1 else f"{slots} slots"
        is_predicted = job.predicted is not None
        if isinstance(job, JobDetail):
            is_predicted = states_no_length(job.spec)
        limit = "predicted time" if is_predicted else "stated work"
        cost = f"{live.format_number(job.points.overrun)} points, for {count} beyond its {limit}"
        yield "overrun", cost if slots else ""
    yield "failures", job.failures - job.lost or ""
    times = "once" if job.lost == 1 else f"{job.lost} times"
    yield "lost", f"{times}, not caused by the job" if job.lost else ""
    yield "reason", live.with_local_times(wording.first_line(job.reason_text))
    yield "obstacle", (job.obstacle or "") if isinstance(job, JobDetail) else ""
    broken = job.broken_promise if isinstance(job, JobDetail) else None
    yield "promise broken", broken.line if broken else ""


def _print_predicted(predicted: PredictedLength | None) -> None:
    if predicted is not None:
        print_note(f"length: {predicted_text(predicted)}; --time states it")


def _is_predicted_late(
    record: Mapping[str, Any],
    predicted: PredictedLength | None,
    submitted: datetime,
    status: ServiceStatus,
) -> bool:
    """Return whether a job of predicted length would end after its deadline.

    ``submitted`` is the time of the submission, from which a duration as deadline counts.
    """
    by = _stated_deadline(record)
    if predicted is None or not isinstance(by, str):
        return False
    try:
        span = parse_duration(by)
    except InputError:
        moment = datetime.fromisoformat(by)
    else:
        seconds = span.in_seconds(Fraction(str(status.slot_seconds)))
        moment = submitted + timedelta(seconds=float(seconds))
    return submitted + timedelta(seconds=predicted.seconds) > moment


def _stated_deadline(record: Mapping[str, Any]) -> Any:
    """Return the deadline as a submission states it: a time, a duration, slots or None."""
    return record.get("by", (record.get("utility") or {}).get("by"))


def _describe_deadline(record: Mapping[str, Any]) -> str:
    """Return the deadline of a submission for people; empty if it has none."""
    by = _stated_deadline(record)
    if not isinstance(by, str):
        return "" if by is None else f"{by} slots after its submission"
    try:
        parse_duration(by)
    except InputError:
        return live.with_local_times(by)  # a clock time stays as it is
    return f"{by} after its submission"


def _print_late(name: str, *, single: bool) -> None:
    """Warn that a job misses its deadline if it takes as long as predicted."""
    prefix = "" if single else f"{name}: "
    print_note(
        f"warning: {prefix}if the job takes as long as predicted, it ends after its deadline and "
        "is worth nothing"
    )


def predicted_text(predicted: PredictedLength) -> str:
    """Describe the predicted length of a job that states none."""
    length = format_seconds(predicted.seconds)
    if predicted.probability is None:
        return f"unknown; planned as {length}"
    if predicted.probability == 1.0:
        return f"at most {length}, its time limit"
    similar = "1 similar job" if predicted.jobs == 1 else f"{predicted.jobs} similar jobs"
    return f"at most {length} with a probability of {predicted.probability:.0%}, by {similar}"


def payoff_text(payoff: float | None, utility: float | None, cost: float | None) -> str:
    """Format a payoff, the difference of utility and cost. A mere rounding error is 0."""
    if payoff is not None and abs(payoff) <= 1e-9 * max(abs(utility or 0.0), abs(cost or 0.0)):
        return "0"
    return live.format_number(payoff)


def _margin(job: Job) -> str:
    """Describe the margin of a job's promise; empty without a margin."""
    slots = job.promise_margin_slots
    if not slots:
        return ""
    later = "1 slot" if slots == 1 else f"{slots} slots"
    return f" ({later} after the plan, learnt from {job.promise_margin_jobs} earlier jobs)"


def _speed(job: Job) -> str:
    """Describe the source of a job's speed estimate; empty if the job states it."""
    speed = job.speed
    measured = ", ".join(map(str, speed.measured))
    measurement = (
        f"measured with {measured} worker{'' if measured == '1' else 's'}" if measured else ""
    )
    if speed.source != "family":
        return measurement
    return f"estimated from the family {speed.family}; {measurement or 'not measured yet'}"


def print_job(job: Job, *, log: bool = True) -> None:
    """Print one job, and the last log lines that its reason contains unless ``log`` is false."""
    log_lines = zip(
        chain(["log ends"], repeat("")), wording.lines_after_first(job.reason_text), strict=False
    )
    live.print_facts([("job", job.name), *describe_job(job), *(log_lines if log else ())])

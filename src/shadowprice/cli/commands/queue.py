"""``shadowprice queue``, ``status``, ``cancel``, ``revise``: jobs of the live service."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from shadowprice.cli import live
from shadowprice.cli.commands.nodes import end_line
from shadowprice.cli.commands.submit import print_job
from shadowprice.cli.console import Output, print_csv, print_json, print_more, print_note
from shadowprice.cli.live import (
    FAILOVER_SECONDS,
    JobArgument,
    ServerOption,
    YesOption,
    complete_live_job,
)
from shadowprice.cli.options import ListingOption, OutputOption
from shadowprice.cli.plain_job import (
    absolute_moment,
    generate_repeated_name,
    parse_run_time,
    parse_slurm_seconds,
)
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.submit_options import minibatch_time
from shadowprice.core.wording import first_line, pluralize

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from shadowprice.client import Client, Job, ServiceStatus

OPEN = ("pending", "admitted", "standby", "running", "resizing")
MAX_LISTED = 100_000  # maximum of --limit
WAITING = ("pending", "admitted", "standby")  # states that `--state waiting` selects
COLUMNS = [
    "NAME", "TENANT", "STATE", "TIME", "WORKERS", "PS", "DONE", "PROMISE", "EXPECTED",
    "SERVERS(REASON)",
]  # fmt: skip
CSV_COLUMNS = [
    "name", "tenant", "state", "submitted", "started", "promise", "completion", "closed",
    "progress", "required", "generation", "workers", "ps", "servers", "payoff", "utility", "cost",
    "reason", "id",
]  # fmt: skip
STATES = (*OPEN, "finished", "refused", "failed", "cancelled")


def squeue_rows(jobs: Iterable[Job], now: datetime) -> list[tuple[object, ...]]:
    """Return jobs as table rows in squeue's style."""
    return [
        (
            job.name,
            job.tenant,
            job.state,
            live.format_duration((job.closed or now) - job.started) if job.started else "0:00",
            job.workers,
            job.ps,
            live.format_progress(job),
            live.format_time(job.promise, now),
            live.format_expected(job.completion, job.predicted, now),
            _servers_or_reason(job),
        )
        for job in jobs
    ]


def _servers_or_reason(job: Job) -> str:
    if job.servers and job.open:
        return live.format_servers(job.servers)
    return f"({live.with_local_times(first_line(job.reason_text))})" if job.reason_text else ""


def queue(
    state: Annotated[
        str,
        typer.Option(
            help="Comma-separated states; waiting stands for " + ", ".join(WAITING) + "; or all.",
            metavar="STATES",
            show_default="open states: " + ", ".join(OPEN),
        ),
    ] = ",".join(OPEN),
    tenant: Annotated[str | None, typer.Option("--tenant", "-t", help="Tenant.")] = None,
    search: Annotated[
        str,
        typer.Option(
            help="Part of the job's name; upper and lower case of a to z are equal.", metavar="TEXT"
        ),
    ] = "",
    limit: Annotated[
        int, typer.Option(min=1, max=MAX_LISTED, help="Maximum number of jobs.")
    ] = 100,
    server: ServerOption = None,
    output: ListingOption = "table",
) -> None:
    """List waiting and running jobs of the live service, as squeue does; newest first.

    [bold]Examples[/bold]
        shadowprice queue --tenant vision
        shadowprice queue --state finished,failed -o csv
        shadowprice queue --state all --search resnet
    """
    states = _parse_states(state, STATES, "unknown state {}", ("all", "waiting"))
    with live.connect(server) as client:
        jobs = list(islice(client.jobs(*states, tenant=tenant, search=search), limit + 1))
    more, jobs = len(jobs) > limit, jobs[:limit]
    if output == "json":
        print_json([job.record for job in jobs])
    elif output == "csv":
        records = (
            {**job.record, "servers": " ".join(job.servers), "reason": job.reason_text}
            for job in jobs
        )
        print_csv(CSV_COLUMNS, records)
    else:
        rows = squeue_rows(jobs, datetime.now(UTC))
        live.print_table(COLUMNS, rows, right=["TIME", "WORKERS", "PS", "DONE"])
    if more:
        print_more(limit, MAX_LISTED)


def status(
    job: Annotated[
        str | None,
        typer.Argument(
            help="Name of the job; shows the service if omitted.",
            metavar="[JOB]",
            autocompletion=complete_live_job,
        ),
    ] = None,
    server: ServerOption = None,
    output: OutputOption = "table",
) -> None:
    """Show the status of a job of the live service, or of the service.

    [bold]Examples[/bold]
        shadowprice status resnet50-a
        shadowprice status
    """
    with live.connect(server) as client:
        if job is None:
            _print_service(client.address.url, client.service(), output)
            return
        detail = client.job(job)
    if output == "json":
        print_json(detail.record)
    else:
        print_job(detail)


def _print_service(address: str, service: ServiceStatus, output: Output) -> None:
    if output == "json":
        print_json(service.record)
        return
    slot = "none runs" if service.slot is None else f"slot {service.slot} runs"
    jobs = ", ".join(f"{count} {state}" for state, count in sorted(service.jobs.items()))
    live.print_facts(
        [
            ("service", f"{address}, version {service.version}"),
            ("policy", service.policy),
            ("slots", f"{service.slot_seconds:g} s each, {slot}"),
            ("jobs", jobs or "none are open"),
            ("timespan", end_line(service.timespan)),
            *(("warning", warning.message) for warning in service.warnings),
            ("health", service.health_error),
        ]
    )


def cancel(
    jobs: Annotated[
        list[str] | None,
        typer.Argument(help="Names of the jobs.", metavar="JOB", autocompletion=complete_live_job),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Cancel all open jobs.")] = False,
    state: Annotated[
        str | None,
        typer.Option(
            help="Cancel open jobs in these comma-separated states; waiting stands for "
            + ", ".join(WAITING)
            + ".",
            metavar="STATES",
        ),
    ] = None,
    tenant: Annotated[
        str | None, typer.Option("--tenant", "-t", help="Cancel open jobs of a tenant.")
    ] = None,
    yes: YesOption = False,
    server: ServerOption = None,
    output: OutputOption = "table",
) -> None:
    """Cancel jobs of the live service, as scancel does, and stop their processes.

    With both --state and --tenant, only jobs that match both are cancelled.

    [bold]Examples[/bold]
        shadowprice cancel resnet50-a
        shadowprice cancel --tenant vision --state waiting
    """
    selected = all_ or state is not None or tenant is not None
    if selected == bool(jobs):
        hint = "give names of jobs, or --all, --state or --tenant"
        raise InputError(Fault("JOB", "expected either names or a selection", hint))
    message = "{} is not a state of open jobs"
    states = OPEN if state is None else _parse_states(state, OPEN, message, ("waiting",))
    with live.connect(server) as client:
        if selected:
            targets: list[Job] = list(client.jobs(*states, tenant=tenant))
        else:
            targets = [client.job(name) for name in dict.fromkeys(jobs or [])]
        if not targets:
            print_note("no open job matches")
        running = [job.name for job in targets if job.state in {"running", "resizing"}]
        if selected and targets:
            question = f"Cancel {pluralize(len(targets), 'job')} ({len(running)} running)?"
        else:
            question = f"Stop {', '.join(running)}?" if running else ""
        if question and not live.confirm(question, yes):
            raise typer.Exit(1)
        cancelled = _cancel_jobs(client, targets, ended_is_error=not selected)
        columns = ("NAME", "STATE")
        live.print_changes(cancelled, output, columns, lambda job: (job.name, job.state))


def _parse_states(
    text: str, known: tuple[str, ...], message: str, groups: tuple[str, ...]
) -> tuple[str, ...]:
    """Parse comma-separated states and names of groups of states; () means all states.

    ``message`` is the error for an unknown state, with ``{}`` for its name.
    """
    states: list[str] = []
    is_all = False
    for part in text.split(","):
        name = part.strip()
        if name == "all" and name in groups:
            is_all = True
        elif name == "waiting":
            states += WAITING
        elif name in known:
            states.append(name)
        else:
            hint = f"one of: {', '.join((*groups, *known))}"
            raise InputError(Fault("--state", message.format(repr(name)), hint))
    return () if is_all else tuple(dict.fromkeys(states))


def _cancel_jobs(client: Client, jobs: Iterable[Job], *, ended_is_error: bool) -> Iterator[Job]:
    """Cancel jobs and yield them; skip jobs that have ended, unless ``ended_is_error``."""
    from shadowprice.client import ServiceError

    for job in jobs:
        try:
            yield client.cancel(f"id:{job.id}")
        except ServiceError as error:
            if ended_is_error or error.code != "conflict":
                raise


JobsArgument = Annotated[
    list[str],
    typer.Argument(help="Names of the jobs.", metavar="JOB...", autocompletion=complete_live_job),
]


def resubmit(
    jobs: JobsArgument, server: ServerOption = None, output: OutputOption = "table"
) -> None:
    """Submit closed jobs of the live service again, each under a new name.

    A job starts from its beginning. Jobs that finished, failed, were refused or were cancelled are
    closed.

    [bold]Example[/bold]
        shadowprice resubmit train-x7k2mf
    """
    with live.connect(server) as client:
        _resubmit(client, _distinct(client, jobs), output)


def requeue(
    jobs: JobsArgument,
    yes: YesOption = False,
    server: ServerOption = None,
    output: OutputOption = "table",
) -> None:
    """Cancel jobs of the live service if they are open, and submit them again under a new name.

    A job starts from its beginning; its earlier work is lost.

    [bold]Example[/bold]
        shadowprice requeue train-x7k2mf
    """
    with live.connect(server) as client:
        targets = _distinct(client, jobs)
        still_open = [job for job in targets if job.open]
        names = ", ".join(job.name for job in still_open)
        if still_open and not live.confirm(f"Cancel {names} and start again?", yes):
            raise typer.Exit(1)
        _resubmit(client, targets, output, cancel=True)


def _distinct(client: Client, references: list[str]) -> list[Job]:
    """Return the jobs of names or other references, each once."""
    jobs = map(client.job, dict.fromkeys(references))
    return list({job.id: job for job in jobs}.values())


def _resubmit(client: Client, jobs: Iterable[Job], output: Output, *, cancel: bool = False) -> None:
    client.retry = FAILOVER_SECONDS  # the service answered before: wait for it
    repeated: dict[str, str] = {}  # names of the jobs by those of their repetitions

    def submit_again(job: Job) -> Job:
        name = generate_repeated_name(job.name)
        repeated[name] = job.name
        return client.resubmit(f"id:{job.id}", name, cancel=cancel)

    def row(job: Job) -> tuple[object, ...]:
        return (
            job.name,
            repeated[job.name],
            job.state,
            live.format_time(job.promise),
            live.format_expected(job.completion, job.predicted),
            live.with_local_times(first_line(job.reason_text)),
        )

    columns = ("NAME", "REPEATS", "STATE", "PROMISE", "EXPECTED", "REASON")
    live.print_changes(map(submit_again, jobs), output, columns, row)


def revise(
    job: JobArgument,
    set_: Annotated[
        list[str],
        typer.Option(
            "--set",
            help="New value of a key of the job file, such as deadline=6h, steps=20000 or "
            "utility.value=80, or of the expected run time: time=3h; repeatable.",
            metavar="KEY=VALUE",
        ),
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the resulting job and price; change nothing.")
    ] = False,
    server: ServerOption = None,
    output: OutputOption = "table",
) -> None:
    """Revise an open job of the live service: its utility, work or deadline.

    More work, larger processes or a higher utility need a new admission at current prices. If it is
    refused, the job is unchanged. The command prints the resulting promise and price.

    [bold]Examples[/bold]
        shadowprice revise resnet50-a --set deadline=6h
        shadowprice revise resnet50-a --set steps=20000 --set utility.value=80
    """
    from shadowprice.client import calls

    with live.connect(server) as client:
        current = client.job(job)
        changes = _changes(set_, current.spec)
        # Another job may get the name meanwhile.
        revised = client.send(calls.revise_keys(f"id:{current.id}", changes, dry_run=dry_run))
    if output == "json":
        print_json(revised.record)
    else:
        print_job(revised)


def _work(record: Mapping[str, object]) -> int:
    """Return the mini-batches of a job, a product of keys; a missing or invalid key counts 1."""
    keys = ("steps",) if record.get("steps") is not None else ("epochs", "chunks", "minibatches")
    counts = (record.get(key) for key in keys)
    return math.prod(count for count in counts if isinstance(count, int) and count > 0)


def _changes(words: list[str], spec: dict[str, object]) -> dict[str, object]:
    """Parse changes by key; ``utility.value`` changes one key of the utility."""
    import yaml

    from shadowprice.core.yaml_values import keep_written_words, parse_yaml

    changes: dict[str, object] = {}
    run_time: str | None = None
    for pair in words:
        key, equals, text = pair.partition("=")
        if not equals or not key or len(text) > 10_000:
            raise InputError(
                Fault("--set", f"expected KEY=VALUE, got {pair!r}", "write deadline=6h")
            )
        try:
            value = parse_yaml(text)
        except (yaml.YAMLError, RecursionError, ValueError) as error:
            fault = Fault(f"--set {key}", f"expected a YAML value, got {text!r}")
            raise InputError(fault) from error
        if key == "time":
            run_time = text
            continue
        if key == "walltime" and parse_slurm_seconds(text):
            changes[key], _ = parse_run_time(text, "--set walltime")
            continue
        head, dot, inner = key.partition(".")
        if not dot:
            if key in {"by", "deadline"} and isinstance(value, str) and not spec.get("utility"):
                # A clock time such as 18:00 is the next from now, not from the submission.
                value = absolute_moment(value, f"--set {key}")
            changes[key] = value
            continue
        current = changes.get(head, spec.get(head))
        current = {} if current is None else current
        if not isinstance(current, dict):
            raise InputError(Fault(f"--set {key}", f"{head} of the job has no keys"))
        changes[head] = {**current, inner: value}
    if run_time is not None:  # last, because other changes may set the number of steps
        if "minibatch_time" in changes:
            hint = "remove one of them"
            raise InputError(Fault("--set time", "not valid with minibatch_time", hint))
        written, seconds = parse_run_time(run_time, "--set time")
        steps = _work({**spec, **changes})
        changes["minibatch_time"] = minibatch_time(written, seconds, steps)
    return dict(keep_written_words(changes))

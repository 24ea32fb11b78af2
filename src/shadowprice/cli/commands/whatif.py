"""``shadowprice whatif``: a workload's utility with more or fewer servers, simulated or live."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from shadowprice.cli import console
from shadowprice.cli import options as o
from shadowprice.cli.completion import complete_policy, complete_servers
from shadowprice.cli.console import Output, print_json, print_note, progress_bar
from shadowprice.cli.live import FAILOVER_SECONDS, connect, format_number, print_table
from shadowprice.cli.options import Workload, expand_options, read
from shadowprice.core import bounds
from shadowprice.core.amounts import format_seconds
from shadowprice.core.defaults import DEFAULT_POLICY
from shadowprice.core.errors import Fault, InputError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from shadowprice.client import Client, WhatIf
    from shadowprice.policies.choice import PolicyChoice
    from shadowprice.simulator.whatif import ClusterChange


@expand_options()
def whatif(
    workload: Workload,
    add: Annotated[
        list[str] | None,
        o.workload_option(
            help="Servers to add, by the name of their entry in the cluster file: gpu:2, or "
            "gpu:2,net:1 together. Repeatable; each occurrence is a separate cluster.",
            metavar="NAME:COUNT",
            autocompletion=complete_servers,
        ),
    ] = None,
    remove: Annotated[
        list[str] | None,
        o.workload_option(
            help="Servers to remove, in the format of --add.",
            metavar="NAME:COUNT",
            autocompletion=complete_servers,
        ),
    ] = None,
    more: Annotated[
        list[str] | None,
        o.workload_option(
            help="Capacity to add, in whole servers: 8 adds eight GPUs of each type in turn; "
            "gpu/a100=8 or cpu=64 adds one resource. Repeatable.",
            metavar="[NAME=]AMOUNT",
        ),
    ] = None,
    policy: Annotated[
        list[str] | None,
        o.execution_option(
            "--policy",
            "-p",
            help="Comma-separated policies; repeatable. `shadowprice policies` lists them. "
            "oasis?preset=paper is a variant with its own parameter value.",
            autocompletion=complete_policy,
            show_default=f"{DEFAULT_POLICY}; with --server, the policy of the service",
        ),
    ] = None,
    set_: o.SetOption = None,
    params: o.ParamsOption = None,
    seed: o.SeedOption = 0,
    seeds: Annotated[
        int,
        o.execution_option(
            min=1,
            max=bounds.SEEDS.maximum,
            help="Number of consecutive seeds to run; prints means with 95 % intervals.",
        ),
    ] = 1,
    server: Annotated[
        str | None,
        o.workload_option(
            help="Live service that runs the simulation: a name saved by `login`, or a URL.",
            metavar="NAME|URL",
        ),
    ] = None,
    days: Annotated[
        float | None,
        o.workload_option(
            help="With --server: length of the simulated period, in days before now.",
            min=1e-6,
            max=366.0,
            show_default="7",
        ),
    ] = None,
    output: o.OutputOption = "table",
    quiet: o.QuietOption = False,
) -> None:
    """Compute the utility and waiting times of a workload with more or fewer servers.

    Without --add, --remove and --more, add one server of each kind in turn, which shows its
    marginal value. With --server, the workload consists of the jobs that were submitted to a live
    service in the last --days days, and the service simulates them in the background.

    [bold]Examples[/bold]
        shadowprice whatif -c cluster.yaml -j jobs.yaml
        shadowprice whatif -c cluster.yaml -j jobs.yaml --add gpu:2 --add gpu:4 -p oasis,drf
        shadowprice whatif --trace 'philly:philly.csv.gz?limit=2000' --remove gpu:1 --seeds 5
        shadowprice whatif --server local --days 30 --more 8
    """
    if server is not None or days is not None:
        named_policies = _choices_for_service(policy, params, set_)
        changes = _parse_changes(add, remove)
        days = 7.0 if days is None else days
        code = run_on_service(
            server, changes, more or (), named_policies, days, output, quiet=quiet
        )
        raise typer.Exit(code)
    from shadowprice.simulator.interrupt import stop_on_signal
    from shadowprice.simulator.trials import seeds_from
    from shadowprice.simulator.whatif import capacity_changes
    from shadowprice.simulator.whatif import whatif as run_whatif

    choices = o.policy_choices(policy or [DEFAULT_POLICY], params, set_)
    changes = _parse_changes(add, remove)
    chosen = seeds_from(seed, seeds)
    source = workload.source(params)
    read(source, seed, quiet=quiet)  # reports problems in the input before anything is compiled
    if more:
        changes += capacity_changes(more, source.server_entries(chosen[0]))
    console.announce_compiling(quiet)
    clusters = 1 + len(set(changes) or source.kinds(chosen[0]))
    started = itertools.count()
    with stop_on_signal() as stop, console.progress_bar("whatif", quiet, "runs") as bar:

        def on_run(_label: str, _seed: int) -> None:
            if bar is not None:
                bar(next(started), clusters * len(choices) * len(chosen))

        result = run_whatif(source, choices, changes, chosen, stop=stop, progress=on_run)
    if output == "json":
        console.print_json(result.record())
        return
    for index, name in enumerate(result.policies):
        if index:
            console.stdout().print()
        columns, rows = result.table(name)
        console.stdout().print(console.make_table([name, *columns], rows))
    if not quiet:
        console.print_note(
            "a policy can earn less with more servers, because it makes other decisions"
        )


def _parse_changes(add: list[str] | None, remove: list[str] | None) -> list[ClusterChange]:
    from shadowprice.simulator.whatif import ClusterChange

    changes = [ClusterChange.parse(text) for text in add or ()]
    return changes + [ClusterChange.parse(text, -1, "--remove") for text in remove or ()]


def _choices_for_service(
    policy: list[str] | None, params: Path | None, set_: list[str] | None
) -> Sequence[PolicyChoice | None]:
    """Return the policies to simulate; None stands for the service's own policy."""
    if not policy:
        if params is not None or set_:
            raise InputError(Fault("--set", "requires --policy", "add --policy rolling"))
        return (None,)
    return o.policy_choices(policy, params, set_)


COLUMNS: Final = (
    "SERVERS", "POLICY", "STATE", "JOBS", "AS IT IS", "CHANGED", "GAIN", "FINISHED", "MEAN WAIT",
    "WAITING SAVED",
)  # fmt: skip

REMARK: Final = (
    "utility of the jobs submitted in that time, simulated from an empty cluster. A policy can "
    "earn less with more servers, because it makes other decisions. Waits are from submission to "
    "first start, of the jobs that ran in both simulations"
)

POLL_SECONDS: Final = 0.5  # interval between polls of a simulation


def run_on_service(
    server: str | None,
    changes: Sequence[ClusterChange],
    more: Sequence[str],
    choices: Sequence[PolicyChoice | None],
    days: float,
    output: Output,
    *,
    quiet: bool,
) -> int:
    """Simulate every change under every policy on a service, and print the results.

    ``more`` has the texts of ``--more``. None in ``choices`` stands for the service's own policy.
    Without changes, add one server of every kind in turn, or simulate other policies on the
    unchanged cluster. ``days`` is the length of the simulated history. Returns the exit status, 1
    if a simulation failed.
    """
    for choice in choices:
        if choice is not None and choice.file is not None:
            message = f"{choice.file.reference} is a file of this machine"
            hint = "serve with it, or simulate here, without --server"
            raise InputError(Fault("--policy", message, hint))
    with connect(server) as client:
        client.retry = FAILOVER_SECONDS  # the service may restart during a long simulation
        changes = [*changes, *_changes_with_more(client, more)]
        if not changes:
            changes = _default_changes(client, named=any(choices))
        runs: list[WhatIf] = []
        labels: list[str] = []
        end = None
        for choice in choices:
            for change in changes:
                # All simulations have the same jobs: the period of the first one ends now.
                run = _query_service(client, change, choice, days, end, quiet=quiet)
                end = run.question.at
                runs.append(run)
                labels.append(change.label)
    if output == "json":
        print_json({"runs": [run.record for run in runs]})
    else:
        rows = [_row(label, run) for label, run in zip(labels, runs, strict=True)]
        print_table(COLUMNS, rows, right=COLUMNS[3:])
        if not quiet and all(run.state == "done" for run in runs):
            print_note(REMARK)
        left_out = runs[0].jobs - (runs[0].as_is or {}).get("arrived", runs[0].jobs)
        if left_out and not quiet:
            jobs = f"{left_out:,} of {runs[0].jobs:,} jobs"
            print_note(f"left out {jobs}: they can't be simulated on the current servers")
        for run in runs:
            if run.reason:
                print_note(f"{run.id}: {run.reason}")
    return int(any(run.state != "done" for run in runs))


def _default_changes(client: Client, *, named: bool) -> list[ClusterChange]:
    """Return one more server of every kind in turn, or no change if a policy is ``named``."""
    from shadowprice.simulator.whatif import NO_CHANGE, ClusterChange

    if named:
        return [NO_CHANGE]
    return [ClusterChange(((kind, 1),)) for kind in client.service().kinds]


def _changes_with_more(client: Client, more: Sequence[str]) -> Sequence[ClusterChange]:
    """Return the changes of ``--more``, in servers of the service's kinds."""
    if not more:
        return ()
    from shadowprice.simulator.whatif import capacity_changes

    capacity = {server.kind: server.capacity for server in client.servers()}
    return capacity_changes(
        more, [{"name": kind, "capacity": amounts} for kind, amounts in capacity.items()]
    )


def _query_service(
    client: Client,
    change: ClusterChange,
    choice: PolicyChoice | None,
    days: float,
    end: datetime | None,
    *,
    quiet: bool,
) -> WhatIf:
    """Request a simulation and wait for its result; cancel it if the command is interrupted.

    ``end`` is the end of the simulated period, None for now.
    """
    servers, label = dict(change.added), change.label
    if choice is None:
        run = client.start_whatif(days, servers, at=end)
    else:
        run = client.start_whatif(days, servers, choice.name, dict(choice.settings), end)
        label = f"{label}, {choice.name}"
    try:
        with progress_bar(label, quiet, "simulations") as report:
            if report is not None:
                report(0, 2)
            while run.state in {"waiting", "running"}:
                time.sleep(POLL_SECONDS)
                run = client.whatif(run.id)
                if report is not None:
                    report(run.progress.done, run.progress.of)
    except BaseException:
        client.cancel_whatif(run.id)
        raise
    return run


def _row(label: str, run: WhatIf) -> Sequence[object]:
    before, after = run.as_is or {}, run.changed or {}
    finished = wait = saved = "-"
    if run.times is not None:
        saved = f"{format_number(run.times.waiting_saved_hours)} h"
        if (mean := run.times.mean_wait_seconds) is not None:
            wait = f"{'-' if mean < 0 else '+'}{format_seconds(abs(mean))}" if mean else "0"
    if "finished" in before and "finished" in after:
        finished = f"{before['finished']} to {after['finished']}"
    return (
        label,
        run.question.policy,
        run.state,
        run.jobs,
        format_number(before.get("total_utility")),
        format_number(after.get("total_utility")),
        format_number(run.gain),
        finished,
        wait,
        saved,
    )

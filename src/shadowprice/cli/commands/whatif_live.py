"""``shadowprice whatif --server``: simulate a live service's recent workload."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from shadowprice.cli.console import Output, print_json, print_note, progress_bar
from shadowprice.cli.live import FAILOVER, connect, number, show
from shadowprice.core.errors import Fault, InputError

if TYPE_CHECKING:
    from datetime import datetime

    from shadowprice.client import Client, WhatIf
    from shadowprice.policies.choice import PolicyChoice
    from shadowprice.simulator.whatif import ClusterChange


COLUMNS: Final = (
    "SERVERS", "POLICY", "STATE", "JOBS", "AS IT IS", "CHANGED", "GAIN", "FINISHED", "MEAN WAIT",
    "WAITING SAVED",
)  # fmt: skip

REMARK: Final = (
    "utility of the jobs submitted in that time, simulated from an empty cluster. A policy can "
    "earn less with more servers, because it makes other decisions. Waits are from submission to "
    "first start, of the jobs that ran in both simulations"
)

PAUSE: Final = 0.5  # interval between polls of a simulation, in seconds


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

    ``more`` has the texts of ``--more``. Without changes, try one more server of every kind, or
    the unchanged cluster if a policy is named. ``None`` in ``choices`` stands for the service's own
    policy. ``days`` is the length of the simulated history. Return 1 if a simulation failed, else
    0.
    """
    for choice in choices:
        if choice is not None and choice.file is not None:
            message = f"{choice.file.reference} is a file of this machine"
            hint = "serve with it, or simulate here, without --server"
            raise InputError(Fault("--policy", message, hint))
    with connect(server) as client:
        client.retry = FAILOVER  # a run may take long enough for a restart
        changes = [*changes, *_changes_with_more(client, more)]
        if not changes:
            changes = _margins(client, named=any(choices))
        runs: list[WhatIf] = []
        labels: list[str] = []
        at = None
        for choice in choices:
            for change in changes:
                # All questions are about the same jobs, although more are submitted meanwhile.
                run = _query_service(client, change, choice, days, at, quiet=quiet)
                at = run.question.at
                runs.append(run)
                labels.append(change.label)
    if output is Output.JSON:
        print_json({"runs": [run.record for run in runs]})
    else:
        rows = [_row(label, run) for label, run in zip(labels, runs, strict=True)]
        show(COLUMNS, rows, right=COLUMNS[3:])
        if not quiet and all(run.state == "done" for run in runs):
            print_note(REMARK)
        left_out = runs[0].jobs - (runs[0].as_is or {}).get("arrived", runs[0].jobs)
        if left_out and not quiet:
            jobs = f"{left_out:,} of {runs[0].jobs:,} jobs"
            print_note(f"left out {jobs}: they can't be simulated on the servers as they are")
        for run in runs:
            if run.reason:
                print_note(f"{run.id}: {run.reason}")
    return int(any(run.state != "done" for run in runs))


def _margins(client: Client, *, named: bool) -> list[ClusterChange]:
    """Return the unchanged cluster for a named policy, else one more server of every kind."""
    from shadowprice.simulator.whatif import NO_CHANGE, ClusterChange

    if named:
        return [NO_CHANGE]
    return [ClusterChange(((kind, 1),)) for kind in client.service().kinds]


def _changes_with_more(client: Client, more: Sequence[str]) -> Sequence[ClusterChange]:
    """Return the changes that ``--more`` requests of the service's kinds of servers."""
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
    at: datetime | None,
    *,
    quiet: bool,
) -> WhatIf:
    """Request a simulation and wait for its result; cancel it if the command is interrupted."""
    servers, label = dict(change.added), change.label
    if choice is None:
        run = client.start_whatif(days, servers, at=at)
    else:
        run = client.start_whatif(days, servers, choice.name, dict(choice.settings), at)
        label = f"{label}, {choice.name}"
    try:
        with progress_bar(label, quiet, "simulations") as report:
            if report is not None:
                report(0, 2)
            while run.state in {"waiting", "running"}:
                time.sleep(PAUSE)
                run = client.whatif(run.id)
                if report is not None:
                    report(run.progress.done, run.progress.of)
    except BaseException:
        client.cancel_whatif(run.id)
        raise
    return run


def _row(label: str, run: WhatIf) -> Sequence[object]:
    from shadowprice.core.amounts import format_seconds

    before, after = run.as_is or {}, run.changed or {}
    finished = wait = saved = "-"
    if run.times is not None:
        saved = f"{number(run.times.waiting_saved_hours)} h"
        if (mean := run.times.mean_wait_seconds) is not None:
            wait = f"{'-' if mean < 0 else '+'}{format_seconds(abs(mean))}" if mean else "0"
    if "finished" in before and "finished" in after:
        finished = f"{before['finished']} to {after['finished']}"
    return (
        label,
        run.question.policy,
        run.state,
        run.jobs,
        number(before.get("total_utility")),
        number(after.get("total_utility")),
        number(run.gain),
        finished,
        wait,
        saved,
    )

"""``shadowprice whatif --server``: simulate a live service's recent workload."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from shadowprice.cli.console import Output, print_json, print_note, progress_bar
from shadowprice.cli.live import FAILOVER, connect, number, show
from shadowprice.core.errors import Fault, InputError

if TYPE_CHECKING:
    from shadowprice.client import Client, WhatIf
    from shadowprice.policies.choice import PolicyChoice
    from shadowprice.simulator.whatif import ClusterChange


PAUSE: Final = 0.5  # interval between polls of a simulation, in seconds


def run_on_service(
    server: str | None,
    changes: Sequence[ClusterChange],
    choices: Sequence[PolicyChoice | None],
    days: float,
    output: Output,
    *,
    quiet: bool,
) -> int:
    """Simulate every change under every policy on a service, and print the results.

    Without changes, try one more server of every kind, or the unchanged cluster if a policy is
    named. ``None`` in ``choices`` stands for the service's own policy. ``days`` is the length of
    the simulated history. Return 1 if a simulation failed, else 0.
    """
    for choice in choices:
        if choice is not None and choice.file is not None:
            message = f"{choice.file.reference} is a file of this machine"
            hint = "serve with it, or simulate here, without --server"
            raise InputError(Fault("--policy", message, hint))
    with connect(server) as client:
        client.retry = FAILOVER  # a run may take long enough for a restart
        if not changes:
            changes = _margins(client, named=any(choices))
        runs = [
            _query_service(client, change, choice, days, quiet=quiet)
            for choice in choices
            for change in changes
        ]
    if output is Output.JSON:
        print_json({"runs": [run.record for run in runs]})
    else:
        rows = [_row(run) for run in runs]
        columns = ["SERVERS", "POLICY", "STATE", "JOBS", "AS IT IS", "CHANGED", "GAIN", "FINISHED"]
        show(columns, rows, right=["JOBS", "AS IT IS", "CHANGED", "GAIN", "FINISHED"])
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


def _query_service(
    client: Client,
    change: ClusterChange,
    choice: PolicyChoice | None,
    days: float,
    *,
    quiet: bool,
) -> WhatIf:
    """Request a simulation and wait for its result; cancel it if the command is interrupted."""
    servers, label = dict(change.added), change.label
    if choice is None:
        run = client.start_whatif(days, servers)
    else:
        run = client.start_whatif(days, servers, choice.name, dict(choice.settings))
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


def _row(run: WhatIf) -> Sequence[object]:
    from shadowprice.simulator.whatif import ClusterChange

    before, after = run.as_is or {}, run.changed or {}
    finished = "-"
    if "finished" in before and "finished" in after:
        finished = f"{before['finished']} to {after['finished']}"
    return (
        ClusterChange(tuple(run.question.servers.items())).label,
        run.question.policy,
        run.state,
        run.jobs,
        number(before.get("total_utility")),
        number(after.get("total_utility")),
        number(run.gain),
        finished,
    )

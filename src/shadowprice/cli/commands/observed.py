"""``shadowprice observed``: actual and simulated results of a service that observes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from shadowprice.cli.console import Output, print_json, print_note, stdout
from shadowprice.cli.live import ServerOption, connect, number, show, span, when
from shadowprice.cli.options import OutputOption

if TYPE_CHECKING:
    from shadowprice.rest.comparison import ComparedJob, Comparison


def observed(
    days: Annotated[
        float,
        typer.Option(
            help="Length of the compared period, in days before now.", min=1e-6, max=3_660.0
        ),
    ] = 7.0,
    limit: Annotated[
        int, typer.Option(help="Maximum number of jobs to list, newest first.", min=0, max=10_000)
    ] = 20,
    server: ServerOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Compare the observed execution of jobs with the simulated one of the service.

    Only jobs submitted to the observing service are compared, because the utility of other jobs is
    unknown. An ended job counts as completed unless it is known to have failed.

    [bold]Examples[/bold]
        shadowprice observed
        shadowprice observed --days 30 --limit 0 -o json
    """
    with connect(server) as client:
        comparison = client.comparison(days)
        jobs = list(islice(client.compared_jobs(), limit))
    if output is Output.JSON:
        print_json({**comparison.record, "compared": [job.record for job in jobs]})
        return
    show(["", "WOULD HAVE", "REALLY"], _summary(comparison), right=["WOULD HAVE", "REALLY"])
    for remark in _remarks(comparison):
        print_note(remark)
    if jobs:
        stdout().print()
        columns = ["JOB", "TENANT", "WOULD BE", "DONE", "WORTH", "REALLY", "DONE", "WORTH", "GAIN"]
        show(columns, map(_row, jobs), right=["WORTH", "GAIN"])


def _summary(comparison: Comparison) -> list[Sequence[object]]:
    simulated, observed, both = comparison.simulated, comparison.observed, comparison.both
    promises, use = comparison.promises, comparison.utilization
    rows: list[Sequence[object]] = [
        ("utility earned", number(simulated.utility), number(observed.utility)),
        (f"finished of {comparison.jobs}", simulated.finished, observed.finished),
        ("running now", simulated.running, observed.running),
        ("waiting now", simulated.waiting, observed.waiting),
        ("refused", simulated.refused, "-"),
        ("failed", simulated.failed, observed.failed),
    ]
    if both.jobs:
        means = (both.simulated_seconds, both.observed_seconds)
        took = [span(timedelta(seconds=seconds or 0.0)) for seconds in means]
        rows.append((f"mean time of {both.jobs} that both finished", *took))
    if promises.jobs:
        rows.append((f"by the first promise, of {promises.jobs}", "-", promises.observed_in_time))
    if use.simulated:
        shares = [f"{100 * sum(side) / len(side):.0f}%" for side in (use.simulated, use.observed)]
        rows.append(("servers in use", *shares))
    return rows


def _remarks(comparison: Comparison) -> list[str]:
    observed, unmanaged = comparison.observed, comparison.unmanaged_jobs.count
    remarks = []
    if comparison.last_observation is None:
        remarks.append("nothing was observed yet: only the simulated execution is known")
    if observed.assumed_completed:
        remarks.append(
            f"{observed.assumed_completed} jobs ended with unknown exit status; "
            "counted as completed"
        )
    if unmanaged:
        remarks.append(
            f"{unmanaged} jobs ran without being submitted here; their utility is unknown and the "
            "policy did not account for them"
        )
    if comparison.incomplete:
        remarks.append("older jobs of the period are left out: there are too many")
    return remarks


def _row(job: ComparedJob) -> Sequence[object]:
    simulated, observed = job.simulated, job.observed
    return (
        job.name,
        job.tenant,
        simulated.state,
        when(simulated.completion),
        number(simulated.utility),
        observed.state,
        when(observed.completion),
        number(observed.utility),
        number(job.gain),
    )

"""``shadowprice observed``: what really ran beside what a service that observes would have done."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from shadowprice.cli.console import Output, print_json, stderr, stdout
from shadowprice.cli.live import ServerOption, connected, number, show, span, when
from shadowprice.cli.options import OutputOption

if TYPE_CHECKING:
    from shadowprice.rest.comparison import ComparedJob, Comparison


def observed(
    days: Annotated[
        float, typer.Option("--days", help="Days to look back at.", min=1e-6, max=3_660.0)
    ] = 7.0,
    limit: Annotated[
        int, typer.Option("--limit", help="Jobs to list, the newest.", min=0, max=10_000)
    ] = 20,
    server: ServerOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Compare what really ran with what a service that only observes would have done.

    Only jobs that were submitted to it are compared: nobody said what others are worth. A job that
    ended counts as done unless it is known to have failed.

    [bold]Examples[/bold]

    shadowprice observed

    shadowprice observed --days 30 --limit 0 -o json
    """
    with connected(server) as client:
        told = client.comparison(days)
        jobs = list(islice(client.compared_jobs(), limit))
    if output is Output.JSON:
        print_json({**told.record, "compared": [job.record for job in jobs]})
        return
    show(["", "WOULD HAVE", "REALLY"], _summary(told), right=["WOULD HAVE", "REALLY"])
    for remark in _remarks(told):
        stderr().print(remark, soft_wrap=True, markup=False)
    if jobs:
        stdout().print()
        columns = ["JOB", "TENANT", "WOULD BE", "DONE", "WORTH", "REALLY", "DONE", "WORTH", "GAIN"]
        show(columns, map(_row, jobs), right=["WORTH", "GAIN"])


def _summary(told: Comparison) -> list[Sequence[object]]:
    would, real, both = told.would, told.real, told.both
    promises, use = told.promises, told.use
    rows: list[Sequence[object]] = [
        ("utility earned", number(would.utility), number(real.utility)),
        (f"finished of {told.jobs}", would.finished, real.finished),
        ("running now", would.running, real.running),
        ("waiting now", would.waiting, real.waiting),
        ("refused", would.refused, "-"),
        ("failed", would.failed, real.failed),
    ]
    if both.jobs:
        means = (both.would_seconds, both.real_seconds)
        took = [span(timedelta(seconds=seconds or 0.0)) for seconds in means]
        rows.append((f"mean time of {both.jobs} that both finished", *took))
    if promises.jobs:
        rows.append((f"by the first promise, of {promises.jobs}", "-", promises.real_in_time))
    if use.would:
        shares = [f"{100 * sum(side) / len(side):.0f}%" for side in (use.would, use.real)]
        rows.append(("servers in use", *shares))
    return rows


def _remarks(told: Comparison) -> list[str]:
    real, strangers = told.real, told.only_seen.jobs
    remarks = []
    if told.looked is None:
        remarks.append("nothing was looked at yet: only what would have been is known")
    if real.taken_for_done:
        remarks.append(
            f"{real.taken_for_done} jobs ended, and nobody could tell how: they count as done"
        )
    if strangers:
        remarks.append(
            f"{strangers} jobs ran that were never submitted: what they are worth is not known, "
            "and the decisions did not count with them"
        )
    if told.incomplete:
        remarks.append("older jobs of these days are left out: there are too many")
    return remarks


def _row(job: ComparedJob) -> Sequence[object]:
    would, real = job.would, job.real
    return (
        job.name,
        job.tenant,
        would.state,
        when(would.completion),
        number(would.utility),
        real.state,
        when(real.completion),
        number(real.utility),
        number(job.gain),
    )

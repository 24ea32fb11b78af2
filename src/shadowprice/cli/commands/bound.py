"""``shadowprice bound``: an upper bound on any schedule's utility, and a schedule close to it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.table import Table

from shadowprice.cli import console
from shadowprice.cli import options as o
from shadowprice.cli.options import Workload, expand_options
from shadowprice.core.amounts import parse_positive_duration
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.time_limit import Clock
from shadowprice.results.output_paths import check_output_file, write_atomically

if TYPE_CHECKING:
    from shadowprice.certificate.certify import Certificate

_limit_option: Final = partial(typer.Option, rich_help_panel="Stopping criteria")


@expand_options("incidents")
def bound(
    workload: Workload,
    gap: Annotated[
        str,
        _limit_option(
            help="Gap between the bound and the best schedule at which the search stops, such as "
            "1%."
        ),
    ] = "1%",
    time_: Annotated[
        str,
        _limit_option(
            "--time",
            help="Time limit of the search, such as 10min; the bound is valid at any limit.",
        ),
    ] = "10min",
    clock: Annotated[
        Clock,
        _limit_option(
            help="Clock of --time: elapsed time, or processor time, which excludes time used "
            "by other processes."
        ),
    ] = Clock.WALL,
    seed: o.SeedOption = 0,
    prices: Annotated[
        Path | None,
        o.output_option(
            help="File for the prices that prove the bound; --set prices=fixed:FILE posts them.",
            metavar="FILE",
        ),
    ] = None,
    output: o.OutputOption = "table",
    quiet: o.QuietOption = False,
) -> None:
    """Prove an upper bound on the utility that any schedule of a workload can earn.

    The bound follows from prices and holds for every scheduler, online or offline. A search that
    knows all jobs finds a good schedule. The optimum lies between the two. Ctrl-C ends the search
    with the bound proved so far. Jobs that state no utility also get a lower bound on their mean
    completion time.

    [bold]Examples[/bold]
        shadowprice bound --cluster cluster.yaml --jobs jobs.yaml --gap 2%
        shadowprice bound --trace itp:cluster02.csv.gz --time 5min --prices prices.json
        shadowprice simulate -c cluster.yaml -j jobs.yaml -p oasis --set prices=fixed:prices.json
    """
    from shadowprice.policies.pricing.posted import FORMAT
    from shadowprice.simulator.interrupt import stop_on_signal

    max_gap, seconds = _parse_gap(gap), float(parse_positive_duration(time_, "--time", "10min"))
    if prices is not None:
        check_output_file(prices, lambda head: FORMAT in head[:200])
    scenario = workload.scenario(seed, quiet=quiet)
    # These import the compiler, which is slow, so problems in the input are reported first.
    from shadowprice.certificate.certify import certify
    from shadowprice.simulator.starts import iter_warm_starts

    console.announce_compiling(quiet)
    with stop_on_signal() as stop, bound_progress(quiet) as report:
        certificate = certify(
            scenario.cluster,
            scenario.jobs,
            scenario.until,
            gap=max_gap,
            seconds=seconds,
            clock=clock,
            starts=lambda ended: iter_warm_starts(scenario, ended),
            stop=lambda: stop.requested_at is not None,
            report=report,
            seed=seed,
        )
    if prices is not None:
        document = certificate.prices.document(scenario.cluster)
        write_atomically(prices, json.dumps(document) + "\n")
    if output == "json":
        console.print_json(certificate.record())
        return
    console.stdout().print(_table(certificate, max_gap))
    if prices is not None:
        console.print_line(f"prices are in {prices}")


def _parse_gap(text: str) -> float:
    digits = text.strip().removesuffix("%")
    try:
        value = float(digits) / (100 if text.strip().endswith("%") else 1)
    except ValueError as error:
        fault = Fault("--gap", f"expected a number, got {text!r}", "write 1% or 0.01")
        raise InputError(fault) from error
    if not 0 <= value < 1:
        fault = Fault("--gap", f"expected at least 0% and less than 100%, got {text!r}", "write 1%")
        raise InputError(fault)
    return value


@contextmanager
def bound_progress(quiet: bool) -> Iterator[Callable[[float, float], None] | None]:
    """Show bound, best schedule and gap: a status line, or on a pipe a line at intervals.

    Yields a callback with bound and best as arguments, or None if ``quiet``.
    """
    screen = console.stderr()
    if quiet:
        yield None
        return
    start = time.perf_counter()

    def describe(bound: float, best: float) -> str:
        gap = f", best {best:,.2f}, gap {1 - best / bound:.1%}" if best and bound else ""
        return f"bound {bound:,.2f}{gap}, {time.perf_counter() - start:.0f} s"

    if not screen.is_terminal:
        note = console.periodic_note()
        yield lambda bound, best: note(lambda: describe(bound, best))
        return
    with screen.status("bound: looking for prices") as line:
        yield lambda bound, best: line.update(describe(bound, best))


def _table(certificate: Certificate, max_gap: float) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_column()
    remark = "" if certificate.gap <= max_gap else f"above the requested {max_gap:.2%}"
    table.add_row("bound", f"{certificate.bound:,.2f}", "no schedule earns more")
    table.add_row("best", f"{certificate.best:,.2f}", "a schedule that earns this was found")
    table.add_row("gap", f"{certificate.gap:.2%}", remark)
    table.add_row(
        "rounds", str(certificate.rounds), "" if certificate.settled else "better prices may exist"
    )
    if certificate.completion is not None:
        table.add_row(
            "mean JCT",
            f"{certificate.completion.mean_slots:,.2f}",
            f"slots, of the {len(certificate.completion.jobs):,} jobs that state no utility: "
            "no schedule has less",
        )
    table.add_row(
        "seconds", f"{certificate.seconds:.1f}", f"{certificate.processor:.1f} of CPU time"
    )
    return table

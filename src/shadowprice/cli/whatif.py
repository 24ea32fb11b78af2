"""``shadowprice whatif``: what more servers, or fewer, would have earned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from shadowprice.cli import options as o
from shadowprice.cli.console import (
    Output,
    prepare_kernels,
    print_json,
    progress_bar,
    stderr,
    stdout,
)
from shadowprice.cli.workload import Workload, takes_workload
from shadowprice.core import bounds

if TYPE_CHECKING:
    from rich.table import Table

    from shadowprice.simulator.whatif import WhatIf


@takes_workload()
def whatif(
    workload: Workload,
    add: Annotated[
        list[str] | None,
        typer.Option(
            "--add",
            help="Servers to add, by the name of their entry in the cluster file: gpu:2, or "
            "gpu:2,net:1 together. May be given several times, each a cluster of its own.",
            rich_help_panel=o.WHAT,
            metavar="NAME:COUNT",
        ),
    ] = None,
    remove: Annotated[
        list[str] | None,
        typer.Option(
            "--remove",
            help="Servers to take away, in the same way.",
            rich_help_panel=o.WHAT,
            metavar="NAME:COUNT",
        ),
    ] = None,
    policy: o.PoliciesOption = "oasis",
    set_: o.SetOption = None,
    params: o.ParamsOption = None,
    seed: o.SeedOption = 0,
    seeds: Annotated[
        int,
        typer.Option(
            "--seeds",
            min=1,
            max=bounds.SEEDS.most,
            help="Run from so many seeds: means with 95 % intervals.",
            rich_help_panel=o.HOW,
        ),
    ] = 1,
    output: o.OutputOption = Output.TABLE,
    quiet: o.QuietOption = False,
) -> None:
    """Tell what a workload would have earned with more servers, or fewer.

    Without --add and --remove: with one more of every kind of server, which is what each is worth
    at the margin.

    [bold]Examples[/bold]

    shadowprice whatif -c cluster.yaml -j jobs.yaml

    shadowprice whatif -c cluster.yaml -j jobs.yaml --add gpu:2 --add gpu:4 -p oasis,drf

    shadowprice whatif --trace 'philly:philly.csv.gz?limit=2000' --remove gpu:1 --seeds 5
    """
    from shadowprice.simulator.interrupt import stop_sign
    from shadowprice.simulator.trials import Variant
    from shadowprice.simulator.whatif import Change
    from shadowprice.simulator.whatif import whatif as run_whatif

    named = o.variants(policy)
    settings = o.policy_settings(params, set_, sorted({v.policy for v in named}))
    variants = [Variant(v.label, v.policy, v.over(settings[v.policy])) for v in named]
    changes = [Change.parse(text) for text in add or ()]
    changes += [Change.parse(text, -1, "--remove") for text in remove or ()]
    source = workload.source(params)
    prepare_kernels([variant.policy for variant in variants], quiet)
    with stop_sign() as stop, progress_bar("whatif", quiet):
        found = run_whatif(source, variants, changes, range(seed, seed + seeds), stop=stop)
    if output is Output.JSON:
        print_json(found.record())
        return
    for at, name in enumerate(found.policies):
        if at:
            stdout().print()
        stdout().print(_table(found, name))
    if not quiet:
        stderr().print(
            "gains are of whole runs: a policy that decides otherwise can earn less with more",
            soft_wrap=True,
        )


def _table(found: WhatIf, policy: str) -> Table:
    from rich.table import Table

    from shadowprice.cli.console import SafeText
    from shadowprice.cli.seeds import with_reach
    from shadowprice.results.measures import MEASURES, Measure

    measures = {one.key: one for one in MEASURES}
    shown = [measures[key] for key in ("total_utility", "finished", "in_time")]
    shown += [
        Measure("gain", "gain", _unread, 1),
        Measure("gain_per_server", "gain a server", _unread, 1),
        Measure("gain_per_cost", "gain a cost", _unread, 1),
    ]
    shown = [one for one in shown if found.frame[one.key].null_count() < len(found.frame)]
    table = Table(header_style="bold", box=None, pad_edge=False)
    table.add_column(SafeText(policy))
    for measure in shown:
        table.add_column(SafeText(measure.name.partition(",")[0]), justify="right")
    for change in found.changes:
        cells = []
        for measure in shown:
            mean = found.interval(change, policy, measure.key)
            own = change.added or not measure.key.startswith("gain")
            cells.append(SafeText("-" if mean is None or not own else with_reach(measure, mean)))
        table.add_row(SafeText(change.label), *cells)
    return table


def _unread(_info: Any) -> float | None:
    return None

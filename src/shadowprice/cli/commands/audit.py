"""``shadowprice audit``: test a policy's guarantees to its tenants."""

from __future__ import annotations

from typing import Annotated

import typer

from shadowprice.cli import options as o
from shadowprice.cli.console import make_table, print_json, progress_bar, stdout
from shadowprice.cli.options import Workload, expand_options
from shadowprice.core import bounds

audit = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Audit a policy's properties for tenants: truthfulness and sharing incentive.",
)


@audit.command()
@expand_options("incidents")
def truthfulness(
    workload: Workload,
    policy: o.PolicyOption = "astraea",
    set_: o.SetOption = None,
    params: o.ParamsOption = None,
    tenant: Annotated[
        list[str] | None,
        typer.Option(help="Tenant that misreports; repeatable.", show_default="each"),
    ] = None,
    trials: Annotated[
        int,
        typer.Option(min=1, max=bounds.MISREPORTS.maximum, help="Misreports to try per tenant."),
    ] = 200,
    delay: Annotated[
        int,
        typer.Option(
            min=0, max=bounds.HORIZON.maximum, help="Maximum delay of an arrival, in slots."
        ),
    ] = 8,
    seed: o.SeedOption = 0,
    output: o.OutputOption = "table",
    quiet: o.QuietOption = False,
) -> None:
    """Misreport the jobs of one tenant at a time and show the largest gain found.

    Misreports change values, urgency, worker counts, work and arrival times of one job, all jobs or
    a mixture. The tenant's revenue is computed with its true utilities. A gain proves that
    misreporting can pay; the absence of a gain proves nothing.

    [bold]Example[/bold]
        shadowprice audit truthfulness -c cluster.yaml -j jobs.yaml --policy astraea --trials 500
    """
    from shadowprice.simulator.audit import audit_truthfulness

    scenario = workload.scenario(seed, params, quiet=quiet)
    choice = o.policy_choice(policy, params, set_)
    with progress_bar("misreports", quiet) as progress:
        results = audit_truthfulness(
            scenario, choice, tenants=tenant, trials=trials, latest=delay, progress=progress
        )
    if output == "json":
        print_json([result.record() for result in results])
        return
    rows = []
    for result in results:
        best = result.best
        share = best.gain / abs(result.honest_revenue) if best and result.honest_revenue else None
        rows.append(
            [
                result.tenant,
                f"{result.honest_revenue:,.2f}",
                f"{result.trials:,}",
                f"{sum(gained for gained, _ in result.gained.values()):,}",
                f"{best.gain:,.2f}" if best else "-",
                "-" if share is None else f"{share:.1%}",
                best.misreport.description if best else "none found",
            ]
        )
    title = f"Gains by misreporting to {choice.name}: {trials:,} misreports per tenant"
    columns = ("tenant", "honest revenue", "tried", "gained", "largest gain", "share", "misreport")
    stdout().print(make_table(columns, rows, left=(0, 6), fold=(6,), title=title))
    kinds = []
    for kind in dict.fromkeys(kind for result in results for kind in result.gained):
        pairs = [result.gained[kind] for result in results if kind in result.gained]
        tried, gained = sum(tried for _, tried in pairs), sum(gained for gained, _ in pairs)
        kinds.append([kind, f"{tried:,}", f"{gained:,}"])
    stdout().print(make_table(("kind", "tried", "gained"), kinds, title="By kind of misreport"))


@audit.command()
@expand_options("incidents")
def sharing(
    workload: Workload,
    policy: o.PolicyOption = "astraea",
    set_: o.SetOption = None,
    params: o.ParamsOption = None,
    seed: o.SeedOption = 0,
    output: o.OutputOption = "table",
    quiet: o.QuietOption = False,
) -> None:
    """Compare each tenant's utility and revenue in the shared pool with those on its own share.

    On its own share, a tenant runs under `batchsche`: the same batches and gangs, on servers of its
    own.

    [bold]Example[/bold]
        shadowprice audit sharing -c cluster.yaml -j jobs.yaml --policy astraea
    """
    from shadowprice.policies.registry import policy_info
    from shadowprice.simulator.audit import audit_sharing

    scenario = workload.scenario(seed, params, quiet=quiet)
    choice = o.policy_choice(policy, params, set_)
    parameters = policy_info("batchsche").parameters.model_fields
    names = set(parameters) | {field.alias for field in parameters.values() if field.alias}
    alone = {name: value for name, value in choice.settings.items() if name in names}
    results = audit_sharing(scenario, choice, alone)
    if output == "json":
        print_json([result.record() for result in results])
        return
    rows = [
        [
            result.tenant,
            f"{result.alone.earned:,.2f}",
            f"{result.pooled.earned_own:,.2f}",
            f"{result.pooled.earned:,.2f}",
            f"{result.pooled.revenue:,.2f}",
            "yes" if result.utility_kept else "no",
            "yes" if result.revenue_kept else "no",
        ]
        for result in results
    ]
    title = f"Each tenant in the pool of {choice.name}, and alone on its share"
    columns = (
        "tenant", "alone", "in its share", "earned", "revenue", "utility kept", "revenue kept",
    )  # fmt: skip
    stdout().print(make_table(columns, rows, title=title))

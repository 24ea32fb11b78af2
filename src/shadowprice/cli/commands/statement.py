"""``shadowprice statement``: tenants' payments in a run or at a live service."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shadowprice.cli.commands.accounts import MAX_ENTRIES, complete_tenant
from shadowprice.cli.console import Listing, make_table, print_csv, print_json, print_line, stdout
from shadowprice.cli.idle import is_run
from shadowprice.cli.live import ServerOption
from shadowprice.cli.options import ListingOption
from shadowprice.core.errors import Fault, InputError

if TYPE_CHECKING:
    from shadowprice.results.accounts import TenantAccount, TenantAccounts
    from shadowprice.results.run_directory import RunData

JOB_COLUMNS = ("job", "outcome", "arrival", "start", "completion", "utility", "borrowed", "paid")


def statement(
    what: Annotated[
        str | None,
        typer.Argument(
            help="Run directory, or tenant of the live service; by default the tenant of the "
            "token (for operators: all tenants).",
            metavar="[RUN|TENANT]",
            autocompletion=complete_tenant,
        ),
    ] = None,
    tenant: Annotated[
        str | None,
        typer.Option(help="Run only: tenant to show, with its partners and jobs.", metavar="NAME"),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            help="Live service only: start of the period, such as 7d (before now) or 2026-11-23."
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            help="Live service only: end of the period, exclusive; formats as in --since."
        ),
    ] = None,
    limit: Annotated[
        int,
        typer.Option(help="Live service only: maximum number of entries.", min=1, max=MAX_ENTRIES),
    ] = 50,
    server: ServerOption = None,
    output: ListingOption = Listing.TABLE,
) -> None:
    """Show the payments of tenants in a run, or their entries at the live service.

    Run: utility that each tenant earned, paid and received, and place-slots that it lent and
    borrowed. Payments of a tenant's jobs to its own unused share are shown separately.

    Live service: the balance of a tenant's budget, and every grant, debit and refund.

    [bold]Examples[/bold]
        shadowprice statement run --tenant vision
        shadowprice statement vision --since 7d -o csv
    """
    from shadowprice.cli.commands.accounts import print_statement

    if what is None or not is_run(what):
        print_statement(what, server, output, since=since, until=until, limit=limit)
    else:
        _print_run_statement(Path(what), tenant, output)


def _print_run_statement(run: Path, tenant: str | None, output: Listing) -> None:
    from shadowprice.results.accounts import compute_tenant_accounts
    from shadowprice.results.run_directory import read_run

    loaded = read_run(run)
    result = compute_tenant_accounts(loaded)
    if tenant is not None and tenant not in result.accounts:
        tenants = ", ".join(result.accounts)
        raise InputError(
            Fault("--tenant", f"no tenant {tenant!r} in this run", f"known: {tenants}")
        )
    if output is Listing.JSON:
        print_json(_record(loaded, result, tenant))
    elif output is Listing.CSV:
        _print_csv(loaded, result, tenant)
    elif tenant is None:
        _print_all(loaded, result)
    else:
        _print_one(loaded, result, tenant)


def _record(run: RunData, result: TenantAccounts, tenant: str | None) -> Mapping[str, object]:
    if tenant is None:
        return {
            "policy": run.policy,
            "charges": result.charged,
            "fairness_variance": result.fairness_variance,
            "tenants": [account.record() for account in result.accounts.values()],
        }
    return {
        "policy": run.policy,
        "charges": result.charged,
        **result.accounts[tenant].record(),
        "partners": _partners(result, tenant),
        "jobs_of_tenant": _jobs(run, result, tenant),
    }


def _print_csv(run: RunData, result: TenantAccounts, tenant: str | None) -> None:
    """Print a row for each tenant, or for each job of one tenant."""
    if tenant is not None:
        print_csv(JOB_COLUMNS, _jobs(run, result, tenant))
        return
    rows: list[dict[str, object]] = []
    for account in result.accounts.values():
        row = dict(account.record())
        for name in ("share", "lent", "borrowed"):
            amounts = row[name]
            assert isinstance(amounts, dict)
            row[name] = " ".join(f"{kind}={value:g}" for kind, value in amounts.items())
        rows.append(row)
    if rows:
        print_csv(list(rows[0]), rows)


def _partners(result: TenantAccounts, tenant: str) -> list[dict[str, object]]:
    import polars as pl

    from shadowprice.results.accounts import MICRO

    rows: list[dict[str, object]] = []
    for other in result.accounts:
        paid = result.payments.filter((pl.col("payer") == tenant) & (pl.col("payee") == other))
        received = result.payments.filter((pl.col("payee") == tenant) & (pl.col("payer") == other))
        lent = result.loans.filter((pl.col("lender") == tenant) & (pl.col("borrower") == other))
        borrowed = result.loans.filter((pl.col("borrower") == tenant) & (pl.col("lender") == other))
        row: dict[str, object] = {
            "partner": other,
            "paid": int(paid["amount"].sum()) / MICRO,
            "received": int(received["amount"].sum()) / MICRO,
            "lent": float(lent["places"].sum()),
            "borrowed": float(borrowed["places"].sum()),
        }
        if any(row[name] for name in ("paid", "received", "lent", "borrowed")):
            rows.append(row)
    return rows


def _jobs(run: RunData, result: TenantAccounts, tenant: str) -> list[dict[str, object]]:
    import polars as pl

    from shadowprice.results.accounts import MICRO

    paid = result.payments.group_by("job").agg((pl.col("amount").sum() / MICRO).alias("paid"))
    table = (
        run.jobs.filter(pl.col("tenant") == tenant)
        .join(paid, on="job", how="left", maintain_order="left")
        .with_columns(pl.col("paid").is_not_null().alias("borrowed"), pl.col("paid").fill_null(0.0))
    )
    return table.select(JOB_COLUMNS).to_dicts()


def _print_all(run: RunData, result: TenantAccounts) -> None:
    title = f"Statement of {run.policy}: utility, and place-slots lent and borrowed"
    columns = (
        "tenant", "share", "jobs", "done", "earned", "paid", "received", "lent", "borrowed",
        "revenue", "fairness",
    )  # fmt: skip
    rows = ((account.tenant, *_cells(account)) for account in result.accounts.values())
    stdout().print(make_table(columns, rows, title=title))
    variance = result.fairness_variance
    if variance is not None:
        explanation = (
            "revenue fairness ratio: the share of all revenue over the share of all places"
        )
        print_line(f"{explanation}; variance over tenants {variance:.4g}")
    if not result.charged:
        print_line(f"{run.policy} doesn't charge tenants: no payments, no loans")


def _cells(account: TenantAccount) -> list[str]:
    from shadowprice.results.accounts import MICRO

    share = " ".join(f"{count} {kind}" for kind, count in account.share.items()) or "-"
    return [
        share,
        f"{account.jobs:,}",
        f"{account.finished:,}",
        f"{account.earned:,.2f}",
        f"{(account.paid - account.to_itself) / MICRO:,.2f}",
        f"{(account.received - account.to_itself) / MICRO:,.2f}",
        f"{sum(account.lent.values()):,.1f}",
        f"{sum(account.borrowed.values()):,.1f}",
        f"{account.revenue:,.2f}",
        "-" if account.fairness is None else f"{account.fairness:.3f}",
    ]


def _print_one(run: RunData, result: TenantAccounts, tenant: str) -> None:
    from shadowprice.results.accounts import MICRO

    account = result.accounts[tenant]
    names = ("share", "jobs", "finished", "earned", "paid to others", "received from others")
    rows = [
        *zip(names, _cells(account)[:6], strict=True),
        ("earned within its share", f"{account.earned_own:,.2f}"),
        ("paid to itself", f"{account.to_itself / MICRO:,.2f}"),
        ("revenue", f"{account.revenue:,.2f}"),
        ("fairness ratio", _cells(account)[-1]),
    ]
    facts = make_table(("", ""), rows, title=f"{tenant} under {run.policy}")
    facts.show_header = False
    stdout().print(facts)
    _print_rows("Partners", _partners(result, tenant))
    _print_rows("Jobs", _jobs(run, result, tenant))


def _print_rows(title: str, rows: list[dict[str, object]]) -> None:
    if not rows:
        return
    left = [index for index, value in enumerate(rows[0].values()) if isinstance(value, str)]
    texts = (map(_text, row.values()) for row in rows)
    stdout().print(make_table(rows[0], texts, left=left, title=title))


def _text(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,.2f}" if isinstance(value, float) else str(value)

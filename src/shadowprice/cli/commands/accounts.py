"""``shadowprice statement`` and ``budget``: payments of tenants in a run or a live service."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from shadowprice.cli import console
from shadowprice.cli.console import Listing
from shadowprice.cli.lazy import is_run
from shadowprice.cli.live import (
    ServerOption,
    complete_live,
    connect,
    format_time,
    print_facts,
    print_table,
)
from shadowprice.cli.options import ListingOption, OutputOption
from shadowprice.cli.program import called_program
from shadowprice.core.amounts import parse_duration
from shadowprice.core.budget import parse_timestamp, points_text
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.wording import quote_for_display

if TYPE_CHECKING:
    from shadowprice.client import AccountEntry, Client, Statement, Tenant
    from shadowprice.rest import Account, Budget
    from shadowprice.results.accounts import TenantAccount, TenantAccounts
    from shadowprice.results.run_directory import RunData


MAX_ENTRIES: Final = 1_000_000  # maximum of --limit
COLUMNS: Final = ("id", "at", "kind", "points", "balance", "job", "other", "note")
"""CSV columns of a statement."""


complete_tenant: Final = complete_live(lambda client: (tenant.name for tenant in client.tenants()))
"""Completer of names of tenants."""


def parse_moment(text: str | None, option: str) -> datetime | None:
    """Parse a moment, or a duration before now such as 7d; None stays None."""
    if text is None:
        return None

    try:
        duration = parse_duration(text)
    except InputError:
        try:
            return parse_timestamp(text)
        except InputError as error:
            hint = "write 7d, or 2026-11-23T00:00:00Z"
            raise InputError(Fault(option, "expected a time or a duration", hint)) from error
    if duration.slots:
        raise InputError(Fault(option, "is in slots", "write 7d, or 2026-11-23T00:00:00Z"))
    try:
        return datetime.now(UTC) - timedelta(seconds=float(duration.seconds))
    except OverflowError:  # before the earliest datetime
        return datetime(1970, 1, 1, tzinfo=UTC)


def print_statement(
    tenant: str | None,
    server: str | None,
    output: Listing,
    *,
    since: str | None,
    until: str | None,
    limit: int,
) -> None:
    """Print a tenant's statement, by default the caller's; for an operator, all accounts."""
    first, last = parse_moment(since, "--since"), parse_moment(until, "--until")
    with connect(server) as client:
        if tenant is None:
            tenant = client.service().caller.tenant
        if tenant is None:
            _print_accounts(client.tenants(), output)
            return
        statement = client.statement(tenant, since=first, until=last, limit=1)
        stream = client.entries(tenant, since=first, until=last)
        entries = list(islice(stream, limit + 1))
    more, entries = len(entries) > limit, entries[:limit]
    if output == "json":
        # ``statement`` has a single entry and the cursor of the next page.
        record = {key: value for key, value in statement.record.items() if key != "next"}
        console.print_json({**record, "entries": [entry.record for entry in entries]})
    elif output == "csv":
        console.print_csv(COLUMNS, [entry.record for entry in entries])
    else:
        _print_account(statement, entries)
    if more:
        console.print_more(limit, MAX_ENTRIES)


def _print_account(page: Statement, entries: list[AccountEntry]) -> None:
    print_facts([("tenant", page.tenant), *_facts(page.budget, page.account)])
    screen = console.stdout()
    screen.print()
    if not entries:
        console.print_line("no entries")
        return
    rows = [
        (
            format_time(entry.at),
            entry.kind,
            points_text(entry.points, sign=True),
            points_text(entry.balance),
            entry.job,
            f"from {entry.other}" if entry.other else entry.note,
        )
        for entry in entries
    ]
    print_table(
        ["AT", "KIND", "POINTS", "BALANCE", "JOB", "NOTE"], rows, right=["POINTS", "BALANCE"]
    )
    sums = ", ".join(
        f"{kind} {points_text(points)}" for kind, points in page.sums.items() if points
    )
    console.print_line(
        f"opening {points_text(page.opening)}, closing {points_text(page.closing)}"
        f"{': ' if sums else ''}{sums}"
    )


def _facts(budget: Budget | None, account: Account | None) -> list[tuple[str, object]]:
    if budget is None or account is None:
        return [("budget", "none: the tenant spends without limit")]
    carry = budget.carry
    debt = ": only jobs that cost nothing are admitted" if account.held < 0 else ""
    rule = (
        "all is kept"
        if carry == "all"
        else f"{points_text(carry)} are kept"
        if carry
        else "none kept"
    )
    return [
        ("budget", f"{points_text(budget.points)} points every {budget.period}, {rule}"),
        ("holds", f"{points_text(account.held)} until {format_time(account.ends)}{debt}"),
        ("in jobs", points_text(account.reserved_points) if account.reserved_points else ""),
        ("spent", f"{points_text(account.spent)} since {format_time(account.begins)}"),
    ]


def _print_accounts(tenants: tuple[Tenant, ...], output: Listing) -> None:
    if output == "json":
        console.print_json([tenant.record for tenant in tenants])
        return
    names = ("tenant", "points", "period", "carry", "held", "reserved_points", "spent", "ends")
    rows: list[dict[str, Any]] = [
        {
            "tenant": tenant.name,
            **({} if tenant.budget is None else tenant.budget.record),
            **({} if tenant.account is None else tenant.account.record),
        }
        for tenant in tenants
    ]
    if output == "csv":
        console.print_csv(names, rows)
        return
    table = []
    for tenant, row in zip(tenants, rows, strict=True):
        values = [row.get(name) for name in names[1:-1]]
        cells = [points_text(item) if isinstance(item, int | float) else item for item in values]
        end = None if tenant.account is None else format_time(tenant.account.ends)
        table.append([tenant.name, *cells, end])
    heads = ["TENANT", "POINTS", "PERIOD", "KEPT", "HOLDS", "IN JOBS", "SPENT", "UNTIL"]
    print_table(heads, table, right=["POINTS", "KEPT", "HOLDS", "IN JOBS", "SPENT"])


def budget(
    tenant: Annotated[
        str | None,
        typer.Argument(
            help="Tenant; lists all tenants if omitted.",
            metavar="[TENANT]",
            autocompletion=complete_tenant,
        ),
    ] = None,
    points: Annotated[float | None, typer.Option(help="Points per period.", min=0)] = None,
    period: Annotated[str | None, typer.Option(help="Length of the period, such as 7d.")] = None,
    carry: Annotated[
        str | None,
        typer.Option(
            help="Maximum number of unspent points carried over to the next period, or all."
        ),
    ] = None,
    begins: Annotated[
        str | None, typer.Option(help="Start time of any period, such as 2026-11-23.")
    ] = None,
    grant: Annotated[float | None, typer.Option(help="Points to grant once.", min=0)] = None,
    note: Annotated[str, typer.Option(help="Reason for the grant.")] = "",
    remove: Annotated[
        bool,
        typer.Option("--remove", help="Remove the budget: the tenant can spend without limit."),
    ] = False,
    server: ServerOption = None,
    output: OutputOption = "table",
) -> None:
    """Show and change the budgets of tenants (operators).

    A change keeps the values of omitted options.

    [bold]Examples[/bold]
        shadowprice budget vision --points 500 --period 7d --carry 100
        shadowprice budget vision --grant 50 --note deadline
    """
    change = {
        key: value
        for key, value in (
            ("points", points), ("period", period), ("carry", _carry(carry)), ("since", begins),
        )
        if value is not None
    }  # fmt: skip
    requested = [
        name
        for name, is_given in (
            ("--remove", remove),
            ("--grant", grant is not None),
            ("options of the budget", bool(change)),
        )
        if is_given
    ]
    if len(requested) > 1:
        fault = Fault(requested[0], f"not valid with {requested[1]}", "run the command twice")
        raise InputError(fault)
    if requested and tenant is None:
        hint = f"name it: {called_program.get()} budget NAME ..."
        raise InputError(Fault("TENANT", "is missing", hint))
    with connect(server) as client:
        if tenant is None:
            _print_accounts(client.tenants(), output)
            return
        if remove:
            changed = client.remove_budget(tenant)
        elif grant is not None:
            changed = client.grant(tenant, grant, note=note)
        elif change:
            changed = _change_budget(client, tenant, change)
        else:
            changed = _tenant(client, tenant)
    if output == "json":
        console.print_json(changed.record)
    else:
        print_facts([("tenant", changed.name), *_facts(changed.budget, changed.account)])


def _carry(text: str | None) -> float | str | None:
    if text is None or text == "all":
        return text
    try:
        points = float(text)
    except ValueError:
        points = -1.0
    if not 0 <= points < math.inf:
        message = f"expected a number of points, got {quote_for_display(text)}"
        raise InputError(Fault("--carry", message, "write 100, or all"))
    return points


def _change_budget(client: Client, tenant: str, change: dict[str, Any]) -> Tenant:
    """Change the keys of a budget that ``change`` has, or create the budget."""
    current = next((item.budget for item in client.tenants() if item.name == tenant), None)
    budget = {**({} if current is None else current.record), **change}
    for key in ("points", "period"):
        if key not in budget:
            raise InputError(Fault(f"--{key}", "is missing", "a new budget needs both"))
    return client.put_tenant(tenant, budget=budget)


def _tenant(client: Client, name: str) -> Tenant:
    tenants = client.tenants()
    match = next((tenant for tenant in tenants if tenant.name == name), None)
    if match is None:
        names = ", ".join(tenant.name for tenant in tenants[:20]) or "none"
        raise InputError(Fault("TENANT", f"unknown tenant {name!r}", f"known: {names}"))
    return match


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
    output: ListingOption = "table",
) -> None:
    """Show the payments of tenants in a run, or their entries at the live service.

    Run: utility that each tenant earned, paid and received, and place-slots that it lent and
    borrowed. Payments of a tenant's jobs to its own unused share are shown separately.

    Live service: the balance of a tenant's budget, and every grant, debit and refund.

    [bold]Examples[/bold]
        shadowprice statement run --tenant vision
        shadowprice statement vision --since 7d -o csv
    """
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
        fault = Fault("--tenant", f"no tenant {tenant!r} in this run", f"known: {tenants}")
        raise InputError(fault)
    if output == "json":
        console.print_json(_record(loaded, result, tenant))
    elif output == "csv":
        _print_csv(loaded, result, tenant)
    elif tenant is None:
        _print_tenants(loaded, result)
    else:
        _print_tenant(loaded, result, tenant)


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
        console.print_csv(JOB_COLUMNS, _jobs(run, result, tenant))
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
        console.print_csv(list(rows[0]), rows)


def _partners(result: TenantAccounts, tenant: str) -> list[dict[str, object]]:
    from shadowprice.results.accounts import MICRO

    rows: list[dict[str, object]] = []
    payments, loans = result.payments, result.loans
    for other in result.accounts:
        row: dict[str, object] = {
            "partner": other,
            "paid": int(payments.filter(payer=tenant, payee=other)["amount"].sum()) / MICRO,
            "received": int(payments.filter(payee=tenant, payer=other)["amount"].sum()) / MICRO,
            "lent": float(loans.filter(lender=tenant, borrower=other)["places"].sum()),
            "borrowed": float(loans.filter(borrower=tenant, lender=other)["places"].sum()),
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


def _print_tenants(run: RunData, result: TenantAccounts) -> None:
    title = f"Statement of {run.policy}: utility, and place-slots lent and borrowed"
    columns = (
        "tenant", "share", "jobs", "done", "earned", "paid", "received", "lent", "borrowed",
        "revenue", "fairness",
    )  # fmt: skip
    rows = ((account.tenant, *_cells(account)) for account in result.accounts.values())
    console.stdout().print(console.make_table(columns, rows, title=title))
    variance = result.fairness_variance
    if variance is not None:
        explanation = (
            "revenue fairness ratio: the share of all revenue over the share of all places"
        )
        console.print_line(f"{explanation}; variance over tenants {variance:.4g}")
    if not result.charged:
        console.print_line(f"{run.policy} doesn't charge tenants: no payments, no loans")


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


def _print_tenant(run: RunData, result: TenantAccounts, tenant: str) -> None:
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
    facts = console.make_table(("", ""), rows, title=f"{tenant} under {run.policy}")
    facts.show_header = False
    console.stdout().print(facts)
    _print_rows("Partners", _partners(result, tenant))
    _print_rows("Jobs", _jobs(run, result, tenant))


def _print_rows(title: str, rows: list[dict[str, object]]) -> None:
    """Print rows with equal keys as a table below a title; print nothing without rows."""
    if not rows:
        return
    left = [index for index, value in enumerate(rows[0].values()) if isinstance(value, str)]
    texts = (map(_text, row.values()) for row in rows)
    console.stdout().print(console.make_table(rows[0], texts, left=left, title=title))


def _text(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,.2f}" if isinstance(value, float) else str(value)

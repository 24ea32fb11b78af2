"""Accounts of the live service: ``statement TENANT`` and ``budget``."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from shadowprice.cli import console
from shadowprice.cli.console import Listing, Output
from shadowprice.cli.live import ServerOption, complete_live, connect, facts, show, when
from shadowprice.cli.options import OutputOption
from shadowprice.cli.program import called_program
from shadowprice.core.budget import parse_timestamp, points_text
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.wording import quote_for_display

if TYPE_CHECKING:
    from shadowprice.client import AccountEntry, Client, Statement, Tenant
    from shadowprice.rest.tenants import Account, Budget

MAX_ENTRIES: Final = 1_000_000  # maximum of --limit
COLUMNS: Final = ("id", "at", "kind", "points", "balance", "job", "other", "note")
"""CSV columns of a statement."""


complete_tenant: Final = complete_live(lambda client: (tenant.name for tenant in client.tenants()))
"""Return completions of a tenant name."""


def parse_moment(text: str | None, option: str) -> datetime | None:
    """Parse a moment, or a duration before now such as 7d; None stays None."""
    if text is None:
        return None
    from shadowprice.core.amounts import parse_duration

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
    """Print a tenant's statement.

    Without a tenant, print the caller's own statement. An operator gets all accounts instead.
    """
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
    if output is Listing.JSON:
        record = {key: value for key, value in statement.record.items() if key != "next"}
        console.print_json({**record, "entries": [entry.record for entry in entries]})
    elif output is Listing.CSV:
        console.print_csv(COLUMNS, [entry.record for entry in entries])
    else:
        _print_one(statement, entries)
    if more:
        console.print_more(limit, MAX_ENTRIES)


def _print_one(page: Statement, entries: list[AccountEntry]) -> None:
    facts([("tenant", page.tenant), *_facts(page.budget, page.account)])
    screen = console.stdout()
    screen.print()
    if not entries:
        console.print_line("no entries")
        return
    rows = [
        (
            when(entry.at),
            entry.kind,
            points_text(entry.points, sign=True),
            points_text(entry.balance),
            entry.job,
            f"from {entry.other}" if entry.other else entry.note,
        )
        for entry in entries
    ]
    show(["AT", "KIND", "POINTS", "BALANCE", "JOB", "NOTE"], rows, right=["POINTS", "BALANCE"])
    sums = ", ".join(
        f"{kind} {points_text(points)}" for kind, points in page.sums.items() if points
    )
    console.print_line(
        f"opening {points_text(page.opening)}, closing {points_text(page.closing)}"
        f"{': ' if sums else ''}{sums}"
    )


def _facts(budget: Budget | None, account: Account | None) -> list[tuple[str, object]]:
    if budget is None or account is None:
        return [("budget", "none: it spends without limit")]
    carry = budget.carry
    rule = (
        "all is kept"
        if carry == "all"
        else f"{points_text(carry)} are kept"
        if carry
        else "none kept"
    )
    return [
        ("budget", f"{points_text(budget.points)} points every {budget.period}, {rule}"),
        ("holds", f"{points_text(account.held)} until {when(account.ends)}{_debt_note(account)}"),
        ("in jobs", points_text(account.reserved_points) if account.reserved_points else ""),
        ("spent", f"{points_text(account.spent)} since {when(account.begins)}"),
    ]


def _debt_note(account: Account) -> str:
    """Return what a negative balance means."""
    return ": only jobs that cost nothing are admitted" if account.held < 0 else ""


def _print_accounts(tenants: tuple[Tenant, ...], output: Listing) -> None:
    if output is Listing.JSON:
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
    if output is Listing.CSV:
        console.print_csv(names, rows)
        return
    table = []
    for tenant, row in zip(tenants, rows, strict=True):
        cells: list[object] = [tenant.name]
        for name in names[1:-1]:
            value = row.get(name)
            cells.append(points_text(value) if isinstance(value, int | float) else value)
        cells.append(None if tenant.account is None else when(tenant.account.ends))
        table.append(cells)
    heads = ["TENANT", "POINTS", "PERIOD", "KEPT", "HOLDS", "IN JOBS", "SPENT", "UNTIL"]
    show(heads, table, right=["POINTS", "KEPT", "HOLDS", "IN JOBS", "SPENT"])


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
    output: OutputOption = Output.TABLE,
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
    requested = [name for name, given in (("--remove", remove), ("--grant", grant is not None),
                                      ("a budget", bool(change))) if given]  # fmt: skip
    if len(requested) > 1:
        raise InputError(
            Fault(requested[0], f"and {requested[1]} exclude each other", "call twice")
        )
    if requested and tenant is None:
        hint = f"name it: {called_program.get()} budget NAME ..."
        raise InputError(Fault("TENANT", "is missing", hint))
    with connect(server) as client:
        if tenant is None:
            listing = Listing.JSON if output is Output.JSON else Listing.TABLE
            _print_accounts(client.tenants(), listing)
            return
        if remove:
            changed = client.remove_budget(tenant)
        elif grant is not None:
            changed = client.grant(tenant, grant, note=note)
        elif change:
            changed = _change_budget(client, tenant, change)
        else:
            changed = _tenant(client, tenant)
    if output is Output.JSON:
        console.print_json(changed.record)
    else:
        facts([("tenant", changed.name), *_facts(changed.budget, changed.account)])


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
    """Change some keys of a budget, or create the budget."""
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

"""Tenants: shares, budgets, accounts and statements."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from shadowprice.rest.base import ApiPage, ApiRecord


class Budget(ApiRecord):
    """Points that a tenant may spend in a period."""

    points: float
    period: str
    since: datetime
    carry: float | Literal["all"]


class Account(ApiRecord):
    """The points of a tenant in the current period.

    Held, reserved and spent points add up to those at the start of the period, plus those granted
    or paid to the tenant since then, less those that expired.
    """

    held: float = Field(
        description="points that can be spent; negative if the budget was lowered below what was "
        "debited, and then only jobs that cost nothing are admitted"
    )
    reserved_points: float = Field(description="points paid for open jobs and not used yet")
    spent: float = Field(description="points that jobs used in this period")
    begins: datetime
    ends: datetime
    sums: dict[str, float] = Field(description="points by kind of entry")


class Tenant(ApiRecord):
    """A tenant; one without a budget spends without limit and has no account."""

    name: str
    share: dict[str, str]
    jobs: dict[str, int] = Field(description="number of open jobs by state")
    budget: Budget | None
    account: Account | None


class TenantList(ApiRecord):
    """Tenants."""

    tenants: list[Tenant]


class AccountEntry(ApiRecord):
    """One change of an account; ``other`` is the tenant that paid.

    A tenant doesn't get the names of other tenants' jobs that paid it.
    """

    id: int
    at: datetime
    kind: Literal["grant", "expiry", "debit", "refund", "payment"]
    points: float
    balance: float
    job: str | None
    job_id: int | None
    other: str | None
    note: str


class Statement(ApiPage):
    """A tenant's statement with one page of entries, newest first.

    Balances and sums are those of the whole time span.
    """

    tenant: str
    budget: Budget | None
    account: Account | None
    opening: float
    closing: float
    sums: dict[str, float]
    entries: list[AccountEntry]

"""Accounts of tenants, and the entries that change them.

Amounts are integers, in millionths of a point. An account is immutable: each operation returns a
new account and its new entries. The balance of an entry is the sum of all entries up to it. Points
are conserved: the balance, the points reserved for open jobs and the spent points add up to the
granted points. Only a lowered budget makes a balance negative; debits never do. This module does no
I/O.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from shadowprice.core.budget import POINT, Budget
from shadowprice.service.clock import SECOND


class EntryKind(StrEnum):
    """Kind of an entry."""

    GRANT = "grant"  # points of a period, or points that an operator grants
    EXPIRY = "expiry"  # unspent points that aren't carried over
    DEBIT = "debit"  # the price of a job at its admission
    REFUND = "refund"  # the unused part of a job's price
    PAYMENT = "payment"  # payment by a job, of any tenant, for the use of this tenant's share


@dataclass(frozen=True, slots=True)
class AccountEntry:
    """One change of an account."""

    tenant: str
    kind: EntryKind
    points: int  # change in millionths of a point
    balance: int  # after the change
    job: str | None = None
    other: str | None = None  # paying tenant of a payment
    note: str = ""


@dataclass(frozen=True, slots=True)
class Account:
    """Account of a tenant with a budget. All amounts are in millionths of a point.

    ``room`` is the number of points that can still be carried over into this period. It is negative
    if more points were carried over before the limit was lowered.
    """

    tenant: str
    budget: Budget
    balance: int = 0  # to spend; negative if the budget was lowered below the debits
    reserved: int = 0  # debited for open jobs, and not used yet
    spent: int = 0  # used by jobs in this period
    period: int = 0  # number of the current period, the last one that was granted
    room: int = 0
    sums: Mapping[EntryKind, int] = field(default_factory=dict)  # of this period, without signs

    @property
    def begins(self) -> int:
        """Start of the current period, in nanoseconds since 1970."""
        return self.budget.begins(self.period) * SECOND

    @property
    def ends(self) -> int:
        """Start of the next period, in nanoseconds since 1970."""
        return self.budget.begins(self.period + 1) * SECOND

    def can_pay(self, price: int) -> bool:
        """Return whether the balance covers a price; it always covers a price of 0."""
        return price <= max(0, self.balance)


MAX_AHEAD_NS: Final = 86_400 * SECOND
"""Maximum time by which the current period may begin after the present time.

A clock that is set back by less must not repeat the period's grant.
"""


FAR_FUTURE_NS: Final = 2**63 - 1  # a moment after all others, in nanoseconds since 1970


class Accounts(dict[str | None, Account]):
    """The accounts of the tenants with a budget; ``next_entry`` is the number of the next entry.

    ``may_go_back`` tells whether accounts may return to an earlier period, because the clock has
    been steady for a while. Before, it could be the clock that is wrong: once it was corrected, the
    same periods would be granted again.
    """

    next_entry = 1
    may_go_back = False
    # Bounds of all current periods, with which most calls of `due` need no pass over the accounts.
    _first_end = FAR_FUTURE_NS
    _last_begin = -FAR_FUTURE_NS

    def __setitem__(self, tenant: str | None, account: Account) -> None:
        super().__setitem__(tenant, account)
        self._first_end = min(self._first_end, account.ends)
        self._last_begin = max(self._last_begin, account.begins)

    def due(self, now: int) -> list[Account]:
        """Return the accounts that `start_period` changes, sorted by tenant."""
        is_ahead = self.may_go_back and self._last_begin - now > MAX_AHEAD_NS
        if self._first_end > now and not is_ahead:
            return []
        self._first_end = min((account.ends for account in self.values()), default=FAR_FUTURE_NS)
        begins = (account.begins for account in self.values())
        self._last_begin = max(begins, default=-FAR_FUTURE_NS)
        due = [
            account
            for account in self.values()
            if account.ends <= now or (self.may_go_back and account.begins - now > MAX_AHEAD_NS)
        ]
        return sorted(due, key=lambda account: account.tenant)


MAX_BALANCE: Final = 10**12 * POINT  # grants are reduced to it, and other credits above it expire

AccountUpdate = tuple[Account, Sequence[AccountEntry]]
"""A changed account, and the entries of the change."""


def _with_entry(
    account: Account, kind: EntryKind, points: int, **details: str | None
) -> AccountUpdate:
    """Return an account after one entry; 0 points make no entry."""
    if not points:
        return account, ()
    balance = account.balance + points
    sums = {**account.sums, kind: account.sums.get(kind, 0) + abs(points)}
    entry = AccountEntry(account.tenant, kind, points, balance, **details)  # type: ignore[arg-type]  # texts
    return replace(account, balance=balance, sums=sums), (entry,)


def grant(account: Account, points: int, note: str) -> AccountUpdate:
    """Grant points, as far as the maximum balance allows."""
    points = min(points, MAX_BALANCE - account.balance)
    return _with_entry(account, EntryKind.GRANT, points, note=note)


def _credit(account: Account, kind: EntryKind, points: int, **details: str | None) -> AccountUpdate:
    """Credit points; points above the maximum balance expire at once."""
    after, entries = _with_entry(account, kind, points, **details)
    surplus = max(0, after.balance - MAX_BALANCE)
    note = "above the maximum balance"
    after, expiry = _with_entry(
        after, EntryKind.EXPIRY, -surplus, job=details.get("job"), note=note
    )
    return after, (*entries, *expiry)


def open_account(tenant: str, budget: Budget, now: int) -> AccountUpdate:
    """Open an account with the grant of the current period, at nanoseconds since 1970."""
    account = Account(tenant, budget, period=budget.index(now // SECOND))
    return grant(account, budget.points, "budget")


def change_budget(account: Account, budget: Budget, now: int) -> AccountUpdate:
    """Change the budget of an account, and its balance by the difference of the grants.

    A budget below the debits makes the balance negative. Refunds, grants and the next period raise
    it again.
    """
    difference = budget.points - account.budget.points
    # Never an earlier period, which would be granted again once a wrong clock is corrected.
    period = budget.index(max(now, account.begins) // SECOND)
    room = account.room + budget.carry_limit - account.budget.carry_limit
    changed = replace(account, budget=budget, period=period, room=room)
    if difference >= 0:
        return grant(changed, difference, "budget changed")
    return _with_entry(changed, EntryKind.EXPIRY, difference, note="budget changed")


def close_account(account: Account) -> AccountUpdate:
    """Close an account, because its tenant has no budget any more.

    A positive balance expires, and a negative balance is forgiven. Refund the open jobs first.
    """
    kind = EntryKind.EXPIRY if account.balance > 0 else EntryKind.GRANT
    return _with_entry(account, kind, -account.balance, note="budget removed")


def start_period(account: Account, now: int) -> AccountUpdate:
    """Advance an account to the period of ``now``; return it unchanged if it is there already.

    Missed periods are granted as if each had started in time. A clock that went back doesn't
    restart a period. If the clock was wrong by more than `MAX_AHEAD_NS`, the account returns to the
    present period with its balance, but without a grant. A grant first pays off a negative balance.
    """
    budget = account.budget
    missed = budget.index(now // SECOND) - account.period
    if account.begins - now > MAX_AHEAD_NS:
        return replace(account, period=account.period + missed), ()
    if missed <= 0:
        return account, ()
    period = account.period + missed
    fresh = replace(account, period=period, spent=0, sums={})
    carried = budget.kept(account.balance)
    after, entries = _with_entry(
        fresh, EntryKind.EXPIRY, carried - account.balance, note="end of the period"
    )
    # The grants of missed periods, as far as they would have been carried over.
    between = budget.kept(carried + (missed - 1) * budget.points) - carried
    after, missed_grant = grant(after, between, f"of {missed - 1} periods missed")
    after = replace(after, room=budget.carry_limit - after.balance)
    after, period_grant = grant(after, budget.points, "period")
    return after, (*entries, *missed_grant, *period_grant)


def debit(account: Account, points: int, job: str, note: str = "") -> AccountUpdate:
    """Debit the price of a job, and reserve it; raise ValueError if it exceeds the balance."""
    if not account.can_pay(points):
        raise ValueError(f"{account.tenant} holds {account.balance}: debit of {points}")
    reserving = replace(account, reserved=account.reserved + points)
    return _with_entry(reserving, EntryKind.DEBIT, -points, job=job, note=note)


def use(account: Account, points: int) -> Account:
    """Spend points that are reserved for a job; the balance is unchanged."""
    return replace(account, reserved=account.reserved - points, spent=account.spent + points)


def refund(account: Account, points: int, job: str, paid: int) -> AccountUpdate:
    """Refund the unused points of a job that was debited at ``paid``, nanoseconds since 1970.

    Points of an earlier period count as unspent in that period. Points that could have been carried
    over are kept, and the rest expires at once.
    """
    released = replace(account, reserved=account.reserved - points)
    after, entries = _credit(released, EntryKind.REFUND, points, job=job)
    if paid >= account.begins:
        return after, entries
    kept = max(0, min(points, account.room))
    after = replace(after, room=account.room - kept)
    note = "paid in an earlier period"
    # Points above the maximum balance have expired already.
    expired = min(points - kept, after.balance - account.balance)
    after, expiry = _with_entry(after, EntryKind.EXPIRY, -expired, job=job, note=note)
    return after, (*entries, *expiry)


def credit(account: Account, points: int, job: str, payer: str) -> AccountUpdate:
    """Credit a payment for a job's use of the tenant's share."""
    points = min(points, MAX_BALANCE)
    return _credit(account, EntryKind.PAYMENT, points, job=job, other=payer)

"""What tenants hold: an account a tenant, and every entry that changes one.

Amounts are integers, in millionths of a point. An account is a value; what happens to it gives a
new one and the entries that lead there, each with the balance that it leaves. No balance is ever
below zero, and each is the sum of the entries up to it. Nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from shadowprice.core.budget import POINT, Budget
from shadowprice.service.clock import SECOND


class Kind(StrEnum):
    """What an entry is."""

    GRANT = "grant"
    """Points of a period, or given by an operator."""
    EXPIRY = "expiry"
    """Points that were left and are not kept."""
    DEBIT = "debit"
    """The price of a job, when it is admitted."""
    REFUND = "refund"
    """What a job did not use of its price."""
    PAYMENT = "payment"
    """What another tenant's job, or its own, paid for the use of its share."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One change of an account.

    Parameters
    ----------
    tenant : str
        Whose account.
    kind : Kind
        What it is.
    points : int
        By how much the balance changed, in millionths of a point.
    balance : int
        What the tenant held after it.
    job : str or None
        The job that it is about.
    other : str or None
        Of a payment, who paid.
    note : str
        For people.
    """

    tenant: str
    kind: Kind
    points: int
    balance: int
    job: str | None = None
    other: str | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Account:
    """What a tenant with a budget holds.

    Parameters
    ----------
    tenant : str
        Whose it is.
    budget : Budget
        What is granted, and when.
    balance : int
        What it holds and may spend, in millionths of a point; so are all amounts.
    period : int
        Number of the period that runs: the last one that was granted.
    room : int
        What of earlier periods could still have been kept into this one.
    sums : mapping of Kind to int
        Amounts of this period's entries by kind, each above zero.
    """

    tenant: str
    budget: Budget
    balance: int = 0
    period: int = 0
    room: int = 0
    sums: Mapping[Kind, int] = field(default_factory=dict)

    @property
    def begins(self) -> int:
        """When the running period began, in nanoseconds since 1970."""
        return self.budget.begins(self.period) * SECOND

    @property
    def ends(self) -> int:
        """When the next period begins, in nanoseconds since 1970."""
        return self.budget.begins(self.period + 1) * SECOND

    @property
    def spent(self) -> int:
        """Debits of this period, less refunds in it."""
        return max(0, self.sums.get(Kind.DEBIT, 0) - self.sums.get(Kind.REFUND, 0))


class Accounts:
    """The accounts of all tenants that have a budget.

    Parameters
    ----------
    known : mapping of str to Account
        By tenant.
    next_entry : int
        Number of the next entry.

    Attributes
    ----------
    soonest : int
        No period ends before this moment.
    """

    def __init__(self, known: Mapping[str, Account], next_entry: int) -> None:
        self._known = dict(known)
        self.next_entry = next_entry
        self._shown: Mapping[str, Account] | None = None
        self.look_ahead()

    def look_ahead(self) -> None:
        """Find out when the next period ends."""
        self.soonest = min((one.ends for one in self._known.values()), default=NEVER)

    def __bool__(self) -> bool:
        return bool(self._known)

    def get(self, tenant: str | None) -> Account | None:
        """Return a tenant's account, None where it has no budget."""
        return None if tenant is None else self._known.get(tenant)

    def put(self, account: Account) -> None:
        """Let an account be what it is now."""
        self._known[account.tenant] = account
        self.soonest = min(self.soonest, account.ends)
        self._shown = None

    def remove(self, tenant: str) -> None:
        """Let a tenant have no account."""
        del self._known[tenant]
        self._shown = None

    def put_back(self, tenant: str, account: Account | None) -> None:
        """Let a tenant have the account, or none, that it had before."""
        if account is not None:
            self.put(account)
        elif self.get(tenant) is not None:
            self.remove(tenant)

    def due(self, now: int) -> list[Account]:
        """Return the accounts whose period is over at a moment, by name."""
        due = [one for one in self._known.values() if one.ends <= now]
        return sorted(due, key=lambda one: one.tenant)

    def shown(self) -> Mapping[str, Account]:
        """Return all accounts as they are now; what is returned does not change."""
        if self._shown is None:
            self._shown = dict(self._known)
        return self._shown


NEVER: Final = 2**63 - 1
"""A moment after all others."""

MOST: Final = 10**12 * POINT
"""What an account holds at most; what would be more is not credited."""

Changed = tuple[Account, Sequence[Entry]]
"""An account, and the entries that led to it."""


def _with(account: Account, kind: Kind, points: int, **about: str | None) -> Changed:
    """Return an account after one entry; none is made of nothing."""
    points = min(points, MOST - account.balance)
    if not points:
        return account, ()
    balance = account.balance + points
    if balance < 0:
        raise ValueError(f"{account.tenant} holds {account.balance}: {kind} of {points}")
    sums = {**account.sums, kind: account.sums.get(kind, 0) + abs(points)}
    entry = Entry(account.tenant, kind, points, balance, **about)  # type: ignore[arg-type]  # texts
    return replace(account, balance=balance, sums=sums), (entry,)


def opened(tenant: str, budget: Budget, now: int) -> Changed:
    """Return a new account, with the points of the period that runs.

    Parameters
    ----------
    tenant : str
        Whose.
    budget : Budget
        What is granted.
    now : int
        The moment, in nanoseconds since 1970.
    """
    account = Account(tenant, budget, period=budget.index(now // SECOND))
    return _with(account, Kind.GRANT, budget.points, note="budget")


def rebudgeted(account: Account, budget: Budget, now: int) -> Changed:
    """Return an account under another budget: the running period's points differ by as much.

    Where there are fewer, what the tenant still holds is all that can go.
    """
    more = budget.points - account.budget.points
    period = budget.index(now // SECOND)
    room = min(account.room, budget.most_kept)
    changed = replace(account, budget=budget, period=period, room=room)
    if more >= 0:
        return _with(changed, Kind.GRANT, more, note="budget changed")
    return _with(changed, Kind.EXPIRY, -min(-more, account.balance), note="budget changed")


def closed(account: Account) -> Changed:
    """Return an account that holds nothing any more: the tenant has no budget from now on."""
    return _with(account, Kind.EXPIRY, -account.balance, note="budget removed")


def renewed(account: Account, now: int) -> Changed:
    """Return an account in the period that runs; as it is where that is the one it is in.

    Where periods were missed, it holds what it would if each had begun by itself. A clock that went
    back begins no period again.
    """
    budget = account.budget
    missed = budget.index(now // SECOND) - account.period
    if missed <= 0:
        return account, ()
    period = account.period + missed
    fresh = replace(account, period=period, sums={})
    left = budget.kept(account.balance)
    after, entries = _with(fresh, Kind.EXPIRY, left - account.balance, note="end of the period")
    # Of the points of periods that came and went, what could be kept.
    between = budget.kept(left + (missed - 1) * budget.points) - left
    after, more = _with(after, Kind.GRANT, between, note=f"of {missed - 1} periods missed")
    after = replace(after, room=budget.most_kept - after.balance)
    after, grant = _with(after, Kind.GRANT, budget.points, note="period")
    return after, (*entries, *more, *grant)


def granted(account: Account, points: int, note: str) -> Changed:
    """Return an account that an operator gave points."""
    return _with(account, Kind.GRANT, points, note=note)


def debited(account: Account, points: int, job: str, note: str = "") -> Changed:
    """Return an account that paid for a job.

    Raises
    ------
    ValueError
        If it does not hold that much.
    """
    return _with(account, Kind.DEBIT, -points, job=job, note=note)


def refunded(account: Account, points: int, job: str, paid: int) -> Changed:
    """Return an account that got back what a job did not use.

    Points that were paid in an earlier period count as left over from it: what could have been kept
    of them is, and the rest expires at once.

    Parameters
    ----------
    account : Account
        Whose job it is.
    points : int
        How much.
    job : str
        The job.
    paid : int
        When it was debited, in nanoseconds since 1970.
    """
    after, entries = _with(account, Kind.REFUND, points, job=job)
    if paid >= account.begins:
        return after, entries
    kept = min(points, account.room)
    after = replace(after, room=account.room - kept)
    late = "paid in an earlier period"
    after, gone = _with(after, Kind.EXPIRY, kept - points, job=job, note=late)
    return after, (*entries, *gone)


def received(account: Account, points: int, job: str, payer: str) -> Changed:
    """Return an account that was paid for what a job used of its tenant's share."""
    return _with(account, Kind.PAYMENT, points, job=job, other=payer)

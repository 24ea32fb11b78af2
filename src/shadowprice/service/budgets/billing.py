"""Billing of engine events: payment checks, debits, use, payments and refunds.

A `Billing` belongs to one transaction. `check` examines decisions before they take effect. Account
entries are recorded while the consequences of an event are, and `write` flushes them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Connection, delete, func, select

from shadowprice.core.budget import POINT, Budget, format_points, in_points
from shadowprice.core.errors import ShadowpriceError
from shadowprice.core.events import (
    Charge,
    Command,
    Commit,
    Decided,
    Decision,
    DriverEvent,
    JobCancelled,
    JobEnded,
    JobFailed,
    Promise,
    SlotEnded,
)
from shadowprice.core.job import Job
from shadowprice.core.job_keys import name_of_key
from shadowprice.service.budgets import accounts
from shadowprice.service.budgets.accounts import (
    MAX_BALANCE,
    Account,
    AccountEntry,
    Accounts,
    AccountUpdate,
    EntryKind,
)
from shadowprice.service.budgets.usage import (
    ANY_SLOT,
    SlotUsage,
    consume_slot,
    min_process_slots,
    price_of_unused,
    split_price_by_slot,
)
from shadowprice.service.clock import format_rfc3339
from shadowprice.service.problems import ProblemError
from shadowprice.service.state.job_views import JobView
from shadowprice.service.store import tables
from shadowprice.service.store.prepared_statement import PreparedStatement

if TYPE_CHECKING:
    from shadowprice.service.state.transaction import Transaction

REFUSAL_CODE: Final = "budget"
"""Code of refusals because the tenant can't pay."""


class InsufficientPointsError(ShadowpriceError):
    """Decisions cost more than the tenants' balances. The event has no effect.

    ``reasons`` holds the reason for each job's view, by job.
    """

    code = REFUSAL_CODE

    def __init__(self, reasons: Mapping[str, Mapping[str, Any]]) -> None:
        super().__init__(next(iter(reasons.values()))["message"])
        self.reasons = reasons


def to_price_units(cost: float) -> int:
    """Convert a policy's cost to millionths of a point.

    A cost above `MAX_BALANCE`, also infinity and NaN, becomes ``MAX_BALANCE + 1``, which no account
    can pay.
    """
    if not cost * POINT <= MAX_BALANCE:
        return MAX_BALANCE + 1
    return max(0, round(cost * POINT))


def insufficient_points_reason(account: Account, price: int) -> dict[str, Any]:
    """Return the reason why an account can't pay a price."""
    cost = (
        f"its price is {format_points(price)} points" if price <= MAX_BALANCE else "it has no price"
    )
    return {
        "code": REFUSAL_CODE,
        "message": f"{cost}, and {account.tenant} holds {format_points(account.balance)} until "
        f"{format_rfc3339(account.ends)[:16]}Z; "
        "ask for less, wait for the next period, or ask the operator",
        "price": in_points(price),
        "held": in_points(account.balance),
    }


@dataclass(frozen=True, slots=True)
class RevisedWork:
    """Work of a job before and after a revision that asks for more.

    Parameters
    ----------
    before, after : Job
        The old and the new description.
    done : int
        Mini-batches that are done.
    raised : bool
        Whether a process needs more, or a completion slot has a higher utility.
    """

    before: Job
    after: Job
    done: int
    raised: bool

    def remaining_process_slots(self) -> tuple[int, int]:
        """Return the minimum process-slots of the remaining work, before and after."""
        before, after = (
            min_process_slots(job, max(0, job.required - self.done * job.required // job.work))
            for job in (self.before, self.after)
        )
        return before, after


def cost_of_revision(commands: Iterable[Command], job: str) -> float | None:
    """Return the cost that a policy stated for the remaining work of a revised job, if any."""
    costs = [
        _cost(command.decision)
        for command in commands
        if isinstance(command, Decided) and command.decision.job == job
    ]
    return next((cost for cost in reversed(costs) if cost is not None), None)


class Billing:
    """Changes of accounts in one transaction; ``entries`` holds the new entries in order."""

    def __init__(self, batch: Transaction) -> None:
        self._batch = batch
        self.entries: list[AccountEntry] = []
        self._touched: dict[str, None] = {}

    @property
    def accounts(self) -> Accounts:
        """All accounts."""
        return self._batch.truth.accounts

    # ---------------------------------------------------------------- accounts

    def put(self, changed: AccountUpdate) -> Account:
        """Replace an account by its changed version, and record the entries of the change."""
        account, entries = changed
        self._to_be_given_back(account.tenant)
        self.accounts.put(account)
        self.entries += entries
        return account

    def _to_be_given_back(self, tenant: str) -> None:
        """Register a tenant's present account with the undo log, and mark it as changed."""
        undo = self._batch.undo
        undo.push(self.accounts.put_back, tenant, self.accounts.get(tenant))
        undo.put(self._touched, tenant, None)

    def renew(self) -> None:
        """Start the budget periods that are due, and end those of a clock that was wrong."""
        now, all_accounts = self._batch.now, self.accounts
        if not all_accounts.any_due(now):
            return
        for account in all_accounts.due(now):
            after = self.put(accounts.start_period(account, now))
            self.emit(after, "renewed")
        all_accounts.refresh_next_renewal()

    def set_budget(self, tenant: str, budget: Budget | None) -> None:
        """Set or change a tenant's budget, or remove it if None.

        A removed budget takes the unused points of open jobs with it. They run on for free.
        """
        now, account = self._batch.now, self.accounts.get(tenant)
        if budget is None:
            if account is not None:
                views = self._batch.truth.views.values()
                for name in [view.key for view in views if view.tenant == tenant]:
                    account = self._refund_unused(account, name)
                closed = self.put(accounts.close_account(account))
                self._to_be_given_back(tenant)
                self.accounts.remove(tenant)
                self.emit(closed, "removed")
        elif account is None:
            self.emit(self.put(accounts.open_account(tenant, budget, now)), "set")
        elif account.budget != budget:
            self.emit(self.put(accounts.change_budget(account, budget, now)), "changed")

    def grant(self, tenant: str, points: int, note: str) -> None:
        """Give a tenant points beyond its budget.

        Raises
        ------
        ProblemError
            If the tenant has no budget.
        """
        account = self.accounts.get(tenant)
        if account is None:
            raise ProblemError("not-found", f"tenant {tenant!r} has no budget")
        self.emit(self.put(accounts.grant(account, points, note)), "granted")

    def emit(self, account: Account, what: str) -> None:
        """Emit an event for a change of an account."""
        held = in_points(account.balance)
        self._batch.emit("budget", tenant=account.tenant, what=what, held=held)

    # ---------------------------------------------------------------- payment check

    def check(self, commands: Iterable[Command]) -> None:
        """Check that tenants can pay for decisions, before these take effect.

        Raises
        ------
        InsufficientPointsError
            With each job whose price exceeds the balance that earlier jobs leave.
        """
        if not self.accounts:
            return
        remaining: dict[str, Account] = {}
        seen: set[str] = set()
        reasons: dict[str, Mapping[str, Any]] = {}
        for command in commands:
            if not isinstance(command, Decided) or (cost := _cost(command.decision)) is None:
                continue
            view = self._batch.truth.views.get(command.decision.job)
            if view is None or view.key in seen or not _unpaid(view):
                continue
            seen.add(view.key)
            account = self.accounts.get(view.tenant)
            if account is None:
                continue
            price = to_price_units(cost)
            account = remaining.get(account.tenant, account)
            if account.can_pay(price):
                remaining[account.tenant] = replace(account, balance=account.balance - price)
            else:
                reasons[view.key] = insufficient_points_reason(account, price)
        if reasons:
            raise InsufficientPointsError(reasons)

    # ---------------------------------------------------------------- payments

    def decided(self, decision: Commit | Promise) -> None:
        """Debit the price of a job whose first priced decision takes effect."""
        view = self._batch.truth.views[decision.job]
        if not _unpaid(view):
            return
        account = self.accounts.get(view.tenant)
        if account is None:
            self._batch.change(view.key, price=0)
            return
        cost = _cost(decision)
        if cost is None:
            return
        price, engine = to_price_units(cost), self._batch.engine
        planned, unused = 0, None
        if not engine.capabilities.charges:
            if isinstance(decision, Commit):
                plan = decision.schedule
                planned = int(plan.workers.sum() + plan.ps.sum())
                unused = split_price_by_slot(price, plan, decision.slot_costs)
            else:
                planned = min_process_slots(engine.jobs[view.key].job)
        paid = {"price": price, "planned": planned, "unused": unused}
        self._batch.change(view.key, paid_at=self._batch.now, **paid)
        self._debit(account, price, view.key)

    def revised(self, name: str, work: RevisedWork, cost: float | None) -> None:
        """Debit what a revised job asks for beyond what it paid for.

        Additional work costs its part of the remaining work's present cost. For a higher utility or
        larger processes, the debit is the present cost of the remaining work less the unused part
        of the price. Afterwards all remaining process-slots have the same price.

        Parameters
        ----------
        name : str
            The job.
        work : RevisedWork
            Its old and new work.
        cost : float or None
            Cost of all its remaining work at current prices; None if the policy stated none.

        Raises
        ------
        ProblemError
            If the price exceeds the tenant's balance, or the work has no price because the promise
            was withdrawn.
        """
        view = self._batch.truth.views[name]
        account = self.accounts.get(view.tenant)
        if account is None or not _has_unsettled_price(view) or not (view.planned or view.price):
            return
        before, after = work.remaining_process_slots()
        before = max(before, view.planned - view.held)  # the price already covers these
        price = view.price or 0
        unused = price - view.used
        if cost is None and view.planned and self._batch.engine.capabilities.prices:
            raise ProblemError(
                "refused",
                f"job {name_of_key(name)!r} stays as it was: it has no promise at present, so its "
                "work has no price; revise it when it has a promise again",
            )
        present = unused * after // max(1, before) if cost is None else to_price_units(cost)
        extra = -(-present * max(0, after - before) // max(1, after))
        if work.raised:
            extra = max(extra, present - unused)
        if not extra:
            return
        if extra > account.balance:
            reason = insufficient_points_reason(account, extra)
            raise ProblemError(
                REFUSAL_CODE, f"job {name_of_key(name)!r} stays as it was: {reason['message']}"
            )
        changes: dict[str, Any] = {"price": price + extra}
        if view.planned:  # otherwise the job pays for each slot from its price
            remaining = max(1, after, view.planned - view.held)
            changes["planned"] = view.held + remaining
            changes["unused"] = ((ANY_SLOT, remaining, unused + extra),)
        self._batch.change(name, **changes)
        self._debit(account, extra, name, "revised")

    def _debit(self, account: Account, points: int, job: str, note: str = "") -> None:
        if points:
            after = self.put(accounts.debit(account, points, job, note))
            held = in_points(after.balance)
            self._batch.emit("debited", job, points=in_points(points), held=held)

    def charged(self, charge: Charge) -> None:
        """Pay a lender for the job's use of its share in a slot, out of the job's price.

        After a refund of the unused part of the price, the job runs on for free.
        """
        view = self._batch.truth.views[charge.job]
        if view.refund is not None:
            return
        amount = sum(charge.amounts.values())
        if view.price and _has_unsettled_price(view):  # a job never pays more than its price
            amount = min(amount, view.price - view.used)
            self._use(view, view.used + amount)
        account = self.accounts.get(charge.payee)
        if account is not None:
            self.put(accounts.credit(account, amount, charge.job, charge.payer))

    # ---------------------------------------------------------------- use

    def standing(self, event: DriverEvent, *, lost: bool) -> SlotUsage:
        """Return the jobs that an event bills for the running slot, with their processes.

        Call it before the event. The end of a slot bills all running jobs, and the end of a job
        bills that job. A job that was ``lost`` through no fault of its own isn't billed.
        """
        engine, views = self._batch.engine, self._batch.truth.views
        if engine.slot_running is None or not self.accounts or lost:
            return SlotUsage(0, {})
        names: Iterable[str] = ()
        if isinstance(event, SlotEnded):
            names = engine.running
        elif isinstance(event, JobEnded | JobCancelled | JobFailed):
            names = (event.job,) if event.job in engine.running else ()
        processes = {}
        for name in names:
            view = views.get(name)
            if view is not None and view.planned and _has_unsettled_price(view):
                placement = engine.running[name]
                processes[name] = placement.total_workers + placement.total_ps
        return SlotUsage(engine.slot_running, processes)

    def stood(self, standing: SlotUsage) -> None:
        """Record that jobs held processes in a slot, and the used part of their prices."""
        for name, count in standing.places.items():
            view = self._batch.truth.views[name]
            price, held = view.price or 0, view.held + count
            if view.unused is None:
                used = -(-price * min(held, view.planned) // view.planned)
                self._use(view, used, held=held)
            else:
                unused = consume_slot(view.unused, standing.slot, count)
                used = price - price_of_unused(unused)
                self._use(view, used, held=held, unused=unused)

    def _use(self, view: JobView, used: int, **changes: Any) -> None:
        """Set the used part of a job's price, and spend the difference."""
        self._batch.change(view.key, used=used, **changes)
        account = self.accounts.get(view.tenant)
        if account is not None and used != view.used:
            self.put((accounts.use(account, used - view.used), ()))

    def settle(self, name: str) -> None:
        """Refund the unused part of a closed job's price."""
        account = self.accounts.get(self._batch.truth.views[name].tenant)
        if account is not None:
            self._refund_unused(account, name)

    def _refund_unused(self, account: Account, name: str) -> Account:
        """Refund the unused part of a job's price, once, and return the account."""
        view = self._batch.truth.views[name]
        if not view.price or not _has_unsettled_price(view) or view.paid_at is None:
            return account
        unused = view.price - view.used
        self._batch.change(name, refund=unused)
        if not unused:
            return account
        after = self.put(accounts.refund(account, unused, name, view.paid_at))
        held = in_points(after.balance)
        self._batch.emit("refunded", name, points=in_points(unused), held=held)
        return after

    # ---------------------------------------------------------------- writing

    def write(self) -> None:
        """Write the new entries and the changed accounts."""
        store, connection = self._batch.truth.store, self._batch.connection
        all_accounts, rows = self.accounts, []
        for entry in self.entries:
            rows.append(
                {
                    "id": all_accounts.next_entry,
                    "at": self._batch.now,
                    "tenant": entry.tenant,
                    "kind": entry.kind.value,
                    "points": entry.points,
                    "balance": entry.balance,
                    "job": entry.job,
                    "other": entry.other,
                    "note": entry.note,
                }
            )
            all_accounts.next_entry += 1
        store.write(connection, _INSERT_ENTRIES, rows)
        if not self._touched:
            return
        table, names = tables.budgets, list(self._touched)
        for start in range(0, len(names), 500):
            chunk = names[start : start + 500]
            store.write(connection, delete(table).where(table.c.tenant.in_(chunk)))
        existing = [account for name in names if (account := all_accounts.get(name)) is not None]
        store.write(connection, _INSERT_BUDGETS, [_row(account) for account in existing])


_INSERT_ENTRIES: Final = PreparedStatement(tables.entries.insert())
_INSERT_BUDGETS: Final = PreparedStatement(tables.budgets.insert())


def _cost(decision: Decision) -> float | None:
    """Return the cost that a decision states for its job; None if it states none."""
    if isinstance(decision, Promise) and decision.completion is None:
        return None
    if isinstance(decision, Commit):
        return decision.cost if decision.charged is None else decision.charged
    return decision.cost if isinstance(decision, Promise) else None


def _has_unsettled_price(view: JobView) -> bool:
    """Return whether a job has a price, and its unused part was not refunded yet."""
    return view.price is not None and view.refund is None


def _unpaid(view: JobView) -> bool:
    """Return whether a job has no price yet; a job that already has a promise is free."""
    return view.price is None and view.first_promise is None


def _row(account: Account) -> dict[str, Any]:
    return {
        "tenant": account.tenant,
        "budget": json.dumps(account.budget.record()),
        "balance": account.balance,
        "reserved": account.reserved,
        "spent": account.spent,
        "period": account.period,
        "room": account.room,
        "sums": json.dumps(account.sums),
    }


def read_accounts(connection: Connection) -> Accounts:
    """Read all accounts from the store."""
    by_tenant = {
        row.tenant: Account(
            row.tenant,
            Budget.from_record(json.loads(row.budget)),
            row.balance,
            row.reserved,
            row.spent,
            row.period,
            row.room,
            {EntryKind(kind): points for kind, points in json.loads(row.sums).items()},
        )
        for row in connection.execute(select(tables.budgets))
    }
    last = connection.execute(select(func.max(tables.entries.c.id))).scalar() or 0
    return Accounts(by_tenant, last + 1)

"""Billing of engine events: payment checks, debits, use, payments and refunds.

Decisions and slots take effect only if `Billing.check_affordable` finds that the tenants can pay.
Changes of accounts are recorded with the batch, like the other consequences of an event.

A live job can run beyond its stated work. If its tenant has a budget, the job then pays for each
such slot in advance, or ends. The price is the posted price of its placement. Under a policy that
charges for each slot (`Charge`), the job pays these charges in full, not only up to its price.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from shadowprice.core import events
from shadowprice.core.budget import POINT, Budget, format_points, in_points
from shadowprice.core.errors import ShadowpriceError
from shadowprice.core.job import Job
from shadowprice.core.job_keys import name_of_key
from shadowprice.core.policy import as_priced_policy
from shadowprice.core.submit_options import states_no_length
from shadowprice.service.budgets import accounts, usage
from shadowprice.service.budgets.accounts import MAX_BALANCE, Account, Accounts, AccountUpdate
from shadowprice.service.clock import format_rfc3339
from shadowprice.service.problems import ProblemError
from shadowprice.service.state.batch import Batch
from shadowprice.service.state.job_views import OVERRUN, PARTLY_ENDED, JobView
from shadowprice.service.state.prices import placement_costs
from shadowprice.service.state.stated_work import (
    covered_in_slot,
    has_covered_stated_work,
    nanoseconds_run,
)

log = logging.getLogger("shadowprice.service")

REFUSAL_CODE: Final = "budget"  # code of refusals because the tenant can't pay


class InsufficientPointsError(ShadowpriceError):
    """Tenants can't pay for an event, which has no effect then; ``reasons`` are by job."""

    code = REFUSAL_CODE

    def __init__(self, reasons: Mapping[str, Mapping[str, Any]]) -> None:
        super().__init__(next(iter(reasons.values()))["message"])
        self.reasons = reasons


def to_price_units(cost: float) -> int:
    """Convert a policy's cost to millionths of a point.

    A cost above `MAX_BALANCE`, also infinity and NaN, becomes ``MAX_BALANCE + 1``, which no account
    can pay.
    """
    if not cost * POINT <= MAX_BALANCE:  # not ">", which is false for NaN
        return MAX_BALANCE + 1
    return max(0, round(cost * POINT))


def insufficient_points_reason(
    account: Account,
    price: int,
    *,
    subject: str = "its price is",
    hint: str = "ask for less, wait for the next period, or ask the operator",
) -> dict[str, Any]:
    """Return the reason of a job whose tenant can't pay; ``subject`` begins the message."""
    cost = f"{subject} {format_points(price)} points" if price <= MAX_BALANCE else "it has no price"
    return {
        "code": REFUSAL_CODE,
        "message": f"{cost}, and {account.tenant} holds {format_points(account.balance)} until "
        f"{format_rfc3339(account.ends)[:16]}Z; {hint}",
        "price": in_points(price),
        "held": in_points(account.balance),
    }


@dataclass(frozen=True, slots=True)
class RevisedWork:
    """Work of a job before and after a revision that asks for more."""

    before: Job
    after: Job
    done: int  # mini-batches
    raised: bool  # whether a process needs more, or a completion slot has a higher utility

    def process_slots(self, job: Job) -> int:
        """Return the minimum process-slots of the remaining work of ``before`` or ``after``."""
        done = self.done * job.required // job.work
        return usage.min_process_slots(job, max(0, job.required - done))


def cost_of_revision(commands: Iterable[events.Command], job: str) -> float | None:
    """Return the cost that a policy stated for the remaining work of a revised job, if any."""
    costs = [
        _cost(command.decision)
        for command in commands
        if isinstance(command, events.Decided) and command.decision.job == job
    ]
    return next((cost for cost in reversed(costs) if cost is not None), None)


# ------------------------------------------------------------------ slots beyond the stated work


def overrunning_jobs(batch: Batch) -> list[str]:
    """Return the jobs that run beyond their stated work, and whose tenants have accounts."""
    state, engine = batch.state, batch.engine
    has_prices = engine.capabilities.prices or engine.capabilities.charges
    if state.virtual or not state.accounts or not has_prices:
        return []
    return [
        name
        for name in engine.running
        if (view := state.views.get(name)) is not None
        and view.refund is None
        and state.accounts.get(view.tenant) is not None
        and has_covered_stated_work(view, engine.jobs[name])
    ]


def slot_costs(batch: Batch, commands: Iterable[events.Command]) -> Mapping[str, float]:
    """Return the cost of the slot that begins, in points, for each job beyond its stated work."""
    engine, names = batch.engine, overrunning_jobs(batch)
    if not names:
        return {}
    if engine.capabilities.charges:
        charged: Counter[str] = Counter()
        for command in commands:
            if isinstance(command, events.Decided) and isinstance(command.decision, events.Charge):
                charged[command.decision.job] += sum(command.decision.amounts.values())
        return {name: charged[name] / POINT for name in names}
    policy = as_priced_policy(engine.policy)
    assert policy is not None
    try:
        placements = {name: (engine.jobs[name].job, engine.running[name]) for name in names}
        costs = placement_costs(policy, engine.view, placements)
    except Exception:  # a policy from outside the package must not stop the service
        log.exception("failed to price slots beyond the stated work of jobs; they cost nothing")
        return {}
    finite = {name: cost for name, cost in costs.items() if math.isfinite(cost)}
    if len(finite) < len(costs):
        log.error(
            "the policy's prices of slots beyond the stated work of %d jobs, such as %r, aren't "
            "finite; they cost nothing",
            len(costs) - len(finite),
            next(name for name in costs if name not in finite),
        )
    return finite


class _StatedLength(NamedTuple):
    """Words for the length that a job states, for messages."""

    text: str  # the stated work, or the stated or predicted time of a command
    end: str  # predicate of the end of that work or time
    quantity: str  # that determines how long the job takes
    key: str  # of the job file that states the length


def _stated_length(job: Job, spec: Mapping[str, Any]) -> _StatedLength:
    if states_no_length(spec):
        text, end = "its predicted time", "predicted time is over"
        return _StatedLength(text, end, "time", "minibatch_time")
    # A command with a time is a job of one step.
    if spec.get("steps") == 1 and spec.get("minibatch_time") is not None:
        text, end = f"its stated time of {spec['minibatch_time']}", "stated time is over"
        return _StatedLength(text, end, "time", "minibatch_time")
    text = f"its stated work of {job.work:,} mini-batch{'' if job.work == 1 else 'es'}"
    key = "steps" if spec.get("steps") is not None else "minibatches"
    return _StatedLength(text, "stated work is done", "work and speed", key)


def _overrun_reason(job: Job, spec: Mapping[str, Any], price: int) -> dict[str, Any]:
    """Return the reason of a running job that pays for a slot beyond its stated work."""
    stated = _stated_length(job, spec)
    return {
        "code": OVERRUN,
        "message": f"runs beyond {stated.text}: this slot costs {format_points(price)} points; "
        f"revise `{stated.key}`, and state the true {stated.quantity} of later jobs",
        "price": in_points(price),
    }


# ------------------------------------------------------------------ billing


class Billing:
    """Changes of accounts in one batch."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch

    @property
    def accounts(self) -> Accounts:
        """All accounts."""
        return self._batch.state.accounts

    # ---------------------------------------------------------------- accounts

    def apply(self, changed: AccountUpdate) -> Account:
        """Replace an account by its changed version, and record the entries of the change."""
        account, entries = changed
        self._batch.put_account(account, entries)
        return account

    def start_due_periods(self) -> None:
        """Start the budget periods that are due, and return from periods of a wrong clock."""
        now = self._batch.now
        for account in self.accounts.due(now):
            after = self.apply(accounts.start_period(account, now))
            self.emit(after, "renewed")

    def set_budget(self, tenant: str, budget: Budget | None) -> None:
        """Set or change a tenant's budget; None removes it, and open jobs then run on for free."""
        now, account = self._batch.now, self.accounts.get(tenant)
        if budget is None:
            if account is not None:
                views = self._batch.state.views.values()
                for view in [view for view in views if view.tenant == tenant]:
                    self._end_overrun(view)
                    account = self._refund_unused(account, view.key)
                closed = self.apply(accounts.close_account(account))
                self._batch.remove_account(tenant)
                self.emit(closed, "removed")
        elif account is None:
            self.emit(self.apply(accounts.open_account(tenant, budget, now)), "set")
        elif account.budget != budget:
            self.emit(self.apply(accounts.change_budget(account, budget, now)), "changed")

    def emit(self, account: Account, what: str) -> None:
        """Emit an event for a change of an account."""
        held = in_points(account.balance)
        self._batch.emit("budget", tenant=account.tenant, what=what, held=held)

    # ---------------------------------------------------------------- payment check

    def check_affordable(
        self,
        event: events.DriverEvent,
        commands: Sequence[events.Command],
        completed_later: Set[str],
    ) -> Mapping[str, int]:
        """Check that tenants can pay for decisions on an event, before these take effect.

        Return the price of the slot that begins for each job that runs beyond its stated work. If
        the tenant can't pay, the slot is free for a job that is known to have completed since
        (``completed_later``). Raise `InsufficientPointsError` with each job whose price exceeds the
        balance that earlier jobs leave.
        """
        if not self.accounts:
            return {}
        remaining: dict[str, Account] = {}
        seen: set[str] = set()
        reasons: dict[str, Mapping[str, Any]] = {}

        def can_pay(account: Account, points: int) -> bool:
            """Deduct points from the balance that earlier jobs leave, if it suffices."""
            current = remaining.get(account.tenant, account)
            if current.can_pay(points):
                remaining[account.tenant] = replace(current, balance=current.balance - points)
            return current.can_pay(points)

        overruns: dict[str, int] = {}
        costs = slot_costs(self._batch, commands) if isinstance(event, events.SlotBegan) else {}
        for name, slot_cost in costs.items():
            view, price = self._batch.state.views[name], to_price_units(slot_cost)
            account = self.accounts.get(view.tenant)
            _, lacking = self._paid(view, event.slot, price)
            if account is None or can_pay(account, lacking):
                overruns[name] = price
            elif name not in completed_later:
                account = remaining.get(account.tenant, account)
                reasons[name] = self._unaffordable_overrun(account, name, price)
        for command in commands:
            if not isinstance(command, events.Decided) or (cost := _cost(command.decision)) is None:
                continue
            decided = self._batch.state.views.get(command.decision.job)
            if decided is None or decided.key in seen or not _is_unpaid(decided):
                continue
            seen.add(decided.key)
            account = self.accounts.get(decided.tenant)
            price = to_price_units(cost)
            if account is not None and not can_pay(account, price):
                account = remaining.get(account.tenant, account)
                reasons[decided.key] = insufficient_points_reason(account, price)
        if reasons:
            raise InsufficientPointsError(reasons)
        return overruns

    def _unaffordable_overrun(self, account: Account, name: str, price: int) -> Mapping[str, Any]:
        """Return why a job ends before a slot beyond its stated work."""
        job, spec = self._batch.engine.jobs[name].job, self._batch.state.specs[name]
        stated = _stated_length(job, spec)
        return insufficient_points_reason(
            account,
            price,
            subject=f"another slot beyond {stated.text} costs",
            hint=f"submit it again with its true {stated.quantity}, or ask the operator for "
            f"points; while a job runs, its `{stated.key}` can be revised before its {stated.end}",
        )

    # ---------------------------------------------------------------- payments

    def debit_admission(self, decision: events.Commit | events.Promise) -> None:
        """Debit the price of a job whose first priced decision takes effect."""
        view = self._batch.state.views[decision.job]
        if not _is_unpaid(view):
            return
        account = self.accounts.get(view.tenant)
        if account is None:
            self._batch.update_view(view.key, price=0)
            return
        cost = _cost(decision)
        if cost is None:
            return
        price, engine = to_price_units(cost), self._batch.engine
        paid: dict[str, Any] = {"price": (view.price or 0) + price, "paid_at": self._batch.now}
        if not engine.capabilities.charges:
            if isinstance(decision, events.Commit):
                unused = usage.split_price_by_slot(price, decision.schedule, decision.slot_costs)
            else:
                unused = (
                    (usage.ANY_SLOT, usage.min_process_slots(engine.jobs[view.key].job), price),
                )
            paid["planned"] = view.held + sum(processes for _, processes, _ in unused)
            paid["unused"] = tuple(sorted((*(view.unused or ()), *unused)))
        self._batch.update_view(view.key, **paid)
        self._debit(account, price, view.key)

    def pay_overruns(self, slot: int, prices: Mapping[str, int]) -> None:
        """Debit the price of a slot that begins from jobs that run beyond their stated work.

        ``prices`` holds the slot's price for each such job, in millionths of a point; the tenants
        can pay. A job first pays with the unused part of its price. The payment is reserved until
        the job has used the slot.
        """
        engine, state = self._batch.engine, self._batch.state
        for name in list(engine.running) if self.accounts else ():
            view = state.views.get(name)
            if view is None:
                continue
            price = prices.get(name)
            if price is None:
                self._end_overrun(view)  # the job repeats work, or its work was revised
                continue
            try:
                with self._batch.savepoint():
                    self._pay_overrun(view, slot, price)
            except ShadowpriceError:
                raise
            except Exception:  # must not stop the slots of other jobs
                log.exception("failed to debit slot %d of job %r; it costs nothing", slot, name)
                self._end_overrun(view)

    def _pay_overrun(self, view: JobView, slot: int, price: int) -> None:
        unused, lacking = self._paid(view, slot, price)
        changes: dict[str, Any] = {"slot_price": price, "unused": unused}
        if lacking:
            changes |= {"price": (view.price or 0) + lacking, "paid_at": self._batch.now}
        self._batch.update_view(view.key, **changes)
        account = self.accounts.get(view.tenant)
        assert account is not None
        is_predicted = states_no_length(self._batch.state.specs[view.key])
        limit = "predicted time" if is_predicted else "stated work"
        self._debit(account, lacking, view.key, f"beyond its {limit}, slot {slot}")
        self._show_overrun(view.key, price)

    def _paid(self, view: JobView, slot: int, price: int) -> tuple[usage.UnusedSlots | None, int]:
        """Return a job's unused processes after it pays for a slot, and the points to debit."""
        engine = self._batch.engine
        points = (view.price or 0) - view.used if view.refund is None else 0
        if engine.capabilities.charges:
            return view.unused, max(0, price - points)
        unused = view.unused or ()
        unassigned = points - usage.price_of_unused(unused)
        if unassigned > 0:  # paid under a policy that charges for each slot
            unused = ((usage.ANY_SLOT, 1, unassigned), *unused)
        placement = engine.running[view.key]
        return usage.pay_slot(unused, slot, placement.total_workers + placement.total_ps, price)

    def _end_overrun(self, view: JobView) -> None:
        """Record in a job's view that it doesn't pay for the running slot."""
        if view.slot_price is not None:
            is_overrun = view.reason is not None and view.reason.get("code") == OVERRUN
            reason = None if is_overrun else view.reason
            self._batch.update_view(view.key, slot_price=None, reason=reason)

    def _show_overrun(self, name: str, price: int) -> None:
        """Report to the owner of a job that the running slot is beyond its stated work."""
        view = self._batch.state.views[name]
        code = None if view.reason is None else view.reason.get("code")
        if code == PARTLY_ENDED:  # this reason explains the overrun
            return
        job = self._batch.engine.jobs[name].job
        reason = _overrun_reason(job, self._batch.state.specs[name], price)
        self._batch.update_view(name, reason=reason)
        if code != OVERRUN:
            self._batch.emit(OVERRUN, name, price=reason["price"], reason=reason["message"])

    def debit_revision(self, name: str, work: RevisedWork, cost: float | None) -> None:
        """Debit the price of a revised job's additional demand.

        Additional work costs its part of the remaining work's present cost. For a higher utility or
        larger processes, the debit is the present cost of the remaining work less the unused part
        of the price. Afterwards all remaining process-slots have the same price.

        ``cost`` is the cost of all remaining work at current prices; None if the policy stated
        none. Raise `ProblemError` if the price exceeds the balance, or the policy stated no cost
        because it has withdrawn its promise.
        """
        view = self._batch.state.views[name]
        account = self.accounts.get(view.tenant)
        if account is None or not _has_unsettled_price(view) or _is_unpaid(view):
            return
        if not (view.planned or view.price):
            return
        paid = view.planned - view.held  # process-slots that the price already covers
        before, after = max(work.process_slots(work.before), paid), work.process_slots(work.after)
        price, present_slot = view.price or 0, self._present_slot(view)
        unused = price - view.used - usage.price_of_unused(present_slot)
        if cost is None and view.planned and self._batch.engine.capabilities.prices:
            raise ProblemError(
                "refused",
                f"job {name_of_key(name)!r} stays as it was: it has no promise at present, so its "
                "work has no price; revise it when it has a promise again",
            )
        present = unused * after // max(1, before) if cost is None else to_price_units(cost)
        # The part of the additional process-slots, rounded up.
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
        if not self._batch.engine.capabilities.charges:
            remaining = max(1, after, paid)
            changes["planned"] = view.held + remaining
            changes["unused"] = ((usage.ANY_SLOT, remaining, unused + extra), *present_slot)
        self._batch.update_view(name, **changes)
        self._debit(account, extra, name, "revised")

    def _present_slot(self, view: JobView) -> usage.UnusedSlots:
        """Return the unused processes of the running slot if it is beyond the stated work."""
        if view.slot_price is None:
            return ()
        slot = self._batch.engine.slot_running
        return tuple(entry for entry in view.unused or () if entry[0] == slot)

    def _debit(self, account: Account, points: int, job: str, note: str = "") -> None:
        if points:
            after = self.apply(accounts.debit(account, points, job, note))
            held = in_points(after.balance)
            self._batch.emit("debited", job, points=in_points(points), held=held)

    def transfer_payment(self, charge: events.Charge) -> None:
        """Pay a lender for the job's use of its share in a slot, out of the job's price."""
        view = self._batch.state.views[charge.job]
        if view.refund is not None:
            return  # the job runs on for free
        amount = sum(charge.amounts.values())
        if view.price and _has_unsettled_price(view):  # a job never pays more than its price
            amount = min(amount, view.price - view.used)
            self._use(view, view.used + amount)
        account = self.accounts.get(charge.payee)
        if account is not None:
            self.apply(accounts.credit(account, amount, charge.job, charge.payer))

    # ---------------------------------------------------------------- use

    def slot_usage(self, event: events.DriverEvent) -> usage.SlotUsage:
        """Return the jobs that an event bills for the running slot, with their processes.

        Call it before the event. The end of a slot bills all running jobs, and the end of a job
        bills that job.
        """
        engine, views = self._batch.engine, self._batch.state.views
        if engine.slot_running is None or not self.accounts:
            return usage.SlotUsage(0, {})
        names: Iterable[str] = ()
        if isinstance(event, events.SlotEnded):
            names = engine.running
        elif isinstance(event, events.JobEnded | events.JobCancelled | events.JobFailed):
            names = (event.job,) if event.job in engine.running else ()
        jobs = {}
        for name in names:
            view = views.get(name)
            if view is not None and self.accounts.get(view.tenant) is not None:
                jobs[name] = self._job_usage(view, engine.slot_running)
        return usage.SlotUsage(engine.slot_running, jobs)

    def _job_usage(self, view: JobView, slot: int) -> usage.JobUsage:
        """Return a job's use of a slot; beyond the stated work, it only counts if a process ran."""
        batch = self._batch
        record, placement = batch.engine.jobs[view.key], batch.engine.running[view.key]
        covered, is_overrun, processes = 0, False, 0
        if not batch.state.virtual:
            covered = covered_in_slot(batch, record, slot)
            is_overrun = view.slot_price is not None and nanoseconds_run(batch, record, slot) > 0
        is_paid = view.unused is not None and view.refund is None
        if is_paid and (is_overrun or view.slot_price is None):
            processes = placement.total_workers + placement.total_ps
        return usage.JobUsage(processes, covered, is_overrun)

    def record_usage(self, billed: usage.SlotUsage) -> None:
        """Record that jobs held processes in a slot, and the used part of their prices."""
        for name, use in billed.jobs.items():
            view = self._batch.state.views[name]
            if use.covered:
                view = self._batch.update_view(name, covered=view.covered + use.covered)
            if use.is_overrun:
                view = self._batch.update_view(
                    name,
                    overrun=view.overrun + (view.slot_price or 0),
                    overrun_slots=view.overrun_slots + 1,
                )
            if use.processes:
                assert view.unused is not None
                unused = usage.consume_slot(view.unused, billed.slot, use.processes)
                used = (view.price or 0) - usage.price_of_unused(unused)
                self._use(view, used, held=view.held + use.processes, unused=unused)

    def _use(self, view: JobView, used: int, **changes: Any) -> None:
        """Set the used part of a job's price, and spend the difference."""
        self._batch.update_view(view.key, used=used, **changes)
        account = self.accounts.get(view.tenant)
        if account is not None and used != view.used:
            self.apply((accounts.use(account, used - view.used), ()))

    def refund_unused(self, name: str) -> None:
        """Refund the unused part of a closed job's price."""
        account = self.accounts.get(self._batch.state.views[name].tenant)
        if account is not None:
            self._refund_unused(account, name)

    def _refund_unused(self, account: Account, name: str) -> Account:
        """Refund the unused part of a job's price, once, and return the account."""
        view = self._batch.state.views[name]
        if not view.price or not _has_unsettled_price(view) or view.paid_at is None:
            return account
        unused = view.price - view.used
        self._batch.update_view(name, refund=unused)
        if not unused:
            return account
        after = self.apply(accounts.refund(account, unused, name, view.paid_at))
        held = in_points(after.balance)
        self._batch.emit("refunded", name, points=in_points(unused), held=held)
        return after


def _cost(decision: events.Decision) -> float | None:
    """Return the cost that a decision states for its job; None if it states none."""
    if isinstance(decision, events.Promise) and decision.completion is None:
        return None
    if isinstance(decision, events.Commit):
        return decision.cost if decision.charged is None else decision.charged
    return decision.cost if isinstance(decision, events.Promise) else None


def _has_unsettled_price(view: JobView) -> bool:
    """Return whether a job has a price, and its unused part was not refunded yet."""
    return view.price is not None and view.refund is None


def _is_unpaid(view: JobView) -> bool:
    """Return whether a job has no price for its work yet.

    A job that was promised before its tenant had a budget stays free. A job that waits may have a
    price, but only for slots beyond its stated work.
    """
    has_paid_slots_only = view.unused is not None and not view.planned
    return view.first_promise is None and (view.price is None or has_paid_slots_only)

"""Accounts of points under random operations, beside a naive account."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shadowprice.core.budget import MAX_BALANCE, POINT, Budget
from shadowprice.service.budgets import accounts
from shadowprice.service.budgets.accounts import Account, AccountEntry, AccountUpdate, EntryKind
from shadowprice.service.clock import SECOND
from tests.support.examples import example_count

START = 1_800_000_000

budgets = st.builds(
    Budget,
    points=st.integers(0, 1_000 * POINT),
    period=st.integers(60, 40_000),
    since=st.integers(0, 100_000),
    carry=st.none() | st.integers(0, 2_000 * POINT),
)


class Lives(RuleBasedStateMachine):
    """One tenant's account, its jobs, and time, with an independent count of the granted points."""

    @initialize(budget=budgets)
    def begin(self, budget: Budget) -> None:
        self.now = START * SECOND
        self.entries: list[AccountEntry] = []
        self.open: dict[str, tuple[int, int]] = {}
        self.spent = 0
        """What jobs used in this period."""
        self.granted = budget.points
        """Points at the start of this period, and those granted, paid in and expired since then."""
        self.number = 0
        self._take(accounts.open_account("vision", budget, self.now))

    def _take(self, changed: AccountUpdate) -> None:
        self.account, entries = changed
        self.entries += entries

    @rule(points=st.integers(0, 1_500 * POINT))
    def admit(self, points: int) -> None:
        name = f"job-{self.number}"
        self.number += 1
        if points > max(0, self.account.balance):  # a free job needs no points
            with pytest.raises(ValueError, match="holds"):
                accounts.debit(self.account, points, name)
            return
        self._take(accounts.debit(self.account, points, name))
        self.open[name] = (points, self.now)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def run_a_slot(self, data: st.DataObject) -> None:
        """Use points of a job, as a slot, a payment to a lender or an end within a slot does."""
        name = data.draw(st.sampled_from(sorted(self.open)))
        unused, at = self.open[name]
        used = data.draw(st.integers(0, unused))
        self.account = accounts.use(self.account, used)
        self.open[name] = (unused - used, at)
        self.spent += used

    @precondition(lambda self: self.open)
    @rule(data=st.data(), points=st.integers(0, 500 * POINT))
    def ask_for_more(self, data: st.DataObject, points: int) -> None:
        """Revise a job to more work, or pay for a slot beyond the stated work."""
        name = data.draw(st.sampled_from(sorted(self.open)))
        if points <= self.account.balance:
            self._take(accounts.debit(self.account, points, name, "revised"))
            unused, at = self.open[name]
            self.open[name] = (unused + points, at)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        """End or cancel a job: everything that it has not used returns, or expires."""
        name = data.draw(st.sampled_from(sorted(self.open)))
        unused, at = self.open.pop(name)
        before = self.account.balance
        self._take(accounts.refund(self.account, unused, name, at))
        late = before + unused - self.account.balance
        assert 0 <= late <= unused
        if at >= self.account.begins:
            assert late == 0
        self.granted -= late

    @rule(points=st.integers(0, 100 * POINT))
    def lend(self, points: int) -> None:
        self._take(accounts.credit(self.account, points, "theirs", "speech"))
        self.granted += points

    @rule(points=st.integers(0, 100 * POINT))
    def give(self, points: int) -> None:
        self._take(accounts.grant(self.account, points, "well done"))
        self.granted += points

    @rule(budget=budgets)
    def change(self, budget: Budget) -> None:
        self.time_goes_on(0)
        before = self.account
        self._take(accounts.change_budget(before, budget, self.now))
        more = budget.points - before.budget.points
        assert self.account.balance == before.balance + more
        self.granted += more

    @rule(budget=budgets, points=st.integers(0, 100 * POINT))
    def lower_and_raise(self, budget: Budget, points: int) -> None:
        """Change the budget there and back, which changes nothing."""
        self.time_goes_on(0)
        before = self.account
        there, _ = accounts.change_budget(before, replace(before.budget, points=points), self.now)
        back, _ = accounts.change_budget(there, before.budget, self.now)
        assert replace(back, sums={}) == replace(before, sums={})

    @rule(seconds=st.integers(-1_000, 100_000))
    def time_goes_on(self, seconds: int) -> None:
        self.now += seconds * SECOND
        before = self.account
        self._take(accounts.start_period(before, self.now))
        assert self.account.period >= before.period
        assert accounts.start_period(self.account, self.now) == (self.account, ())
        if self.account.period > before.period:
            assert self.account.begins <= self.now < self.account.ends
            assert self.account.balance == _one_by_one(before, self.account.period)
            self.spent = 0
            self.granted = self.account.balance + sum(unused for unused, _ in self.open.values())

    @invariant()
    def held_in_jobs_and_spent_is_granted(self) -> None:
        in_jobs = sum(unused for unused, _ in self.open.values())
        account = self.account
        assert (account.reserved, account.spent) == (in_jobs, self.spent)
        assert account.balance + in_jobs + self.spent == self.granted

    @invariant()
    def balances_are_sums_and_no_debit_makes_one_negative(self) -> None:
        total = 0
        for entry in self.entries:
            total += entry.points
            assert entry.balance == total
            assert entry.points
            assert total >= 0 or entry.kind is not EntryKind.DEBIT
            below = entry.kind in {EntryKind.DEBIT, EntryKind.EXPIRY}
            assert (entry.points < 0) == below
        assert self.account.balance == total

    @invariant()
    def nothing_is_refunded_that_was_not_paid(self) -> None:
        moved: Counter[str] = Counter()
        for entry in self.entries:
            if entry.kind in {EntryKind.DEBIT, EntryKind.REFUND}:
                moved[entry.job or ""] += entry.points
        assert all(points <= 0 for points in moved.values())

    @invariant()
    def the_period_s_sums_are_those_of_its_entries(self) -> None:
        assert all(points > 0 for points in self.account.sums.values())
        assert self.account.spent >= 0
        assert self.account.reserved >= 0

    def teardown(self) -> None:
        if hasattr(self, "account"):
            for name in list(self.open):
                unused, at = self.open.pop(name)
                self._take(accounts.refund(self.account, unused, name, at))
            self._take(accounts.close_account(self.account))
            assert self.account.reserved == 0
            assert self.account.balance == 0 == sum(entry.points for entry in self.entries)


def _one_by_one(account: Account, period: int) -> int:
    """The reserved points if every period begins by itself."""
    budget, balance = account.budget, account.balance
    most = MAX_BALANCE if budget.carry is None else budget.carry
    for _ in range(period - account.period):
        balance = min(balance, most) + budget.points
    return balance


TestLives = Lives.TestCase
TestLives.settings = settings(max_examples=example_count(60), stateful_step_count=30, deadline=None)


@given(
    carry=st.integers(0, 100),
    spent=st.integers(0, 100),
    back=st.integers(0, 100),
    lowered=st.integers(0, 100),
)
def test_a_late_refund_is_kept_as_far_as_it_would_have_been(
    carry: int, spent: int, back: int, lowered: int
) -> None:
    """Paying early and returning points late keeps no more than not paying at all, also in debt."""
    budget = Budget(100, 100, 0, carry)
    back = min(back, spent)
    late, _ = accounts.open_account("a", budget, 0)
    paid, _ = accounts.debit(late, spent, "job")
    paid, _ = accounts.change_budget(paid, Budget(lowered, 100, 0, carry), 0)
    there, _ = accounts.start_period(paid, 150 * SECOND)
    there, _ = accounts.refund(there, back, "job", 50 * SECOND)
    early, _ = accounts.refund(paid, back, "job", 50 * SECOND)
    early, _ = accounts.start_period(early, 150 * SECOND)
    assert there.balance == early.balance


def test_a_budget_that_changes_while_the_clock_is_behind_grants_nothing_again() -> None:
    account, _ = accounts.open_account("a", Budget(100, 100, 0, None), 1_000 * SECOND)
    changed, _ = accounts.change_budget(account, Budget(100, 100, 0, 0), 50 * SECOND)
    assert accounts.start_period(changed, 1_050 * SECOND) == (changed, ())


def test_a_lowered_budget_is_paid_off_by_refunds_and_the_next_period() -> None:
    """A worked example: 80 of 100 points in a job, and the budget lowered to 50."""
    account, _ = accounts.open_account("a", Budget(100, 100, 0, 0), 0)
    account, _ = accounts.debit(account, 80, "job")
    account = accounts.use(account, 30)
    lowered, entries = accounts.change_budget(account, Budget(50, 100, 0, 0), 0)
    assert [(entry.kind, entry.points, entry.balance) for entry in entries] == [
        (EntryKind.EXPIRY, -50, -30)
    ]
    assert (lowered.balance, lowered.reserved, lowered.spent) == (-30, 50, 30)
    assert lowered.can_pay(0)
    assert not lowered.can_pay(1)
    ended, _ = accounts.refund(lowered, 50, "job", 0)
    assert (ended.balance, ended.reserved, ended.spent) == (20, 0, 30)
    next_period, _ = accounts.start_period(lowered, 100 * SECOND)
    assert (next_period.balance, next_period.reserved, next_period.spent) == (20, 50, 0)
    ended, _ = accounts.refund(next_period, 50, "job", 0)
    assert ended.balance == 50  # 20 points would have been left, and none are carried over


def test_a_refund_above_the_maximum_balance_expires_in_the_ledger() -> None:
    account, _ = accounts.open_account("a", Budget(100, 100, 0, None), 0)
    account, _ = accounts.debit(account, 100, "job")
    account, _ = accounts.grant(account, 10**30, "")
    account, entries = accounts.refund(account, 100, "job", 0)
    assert [entry.points for entry in entries] == [100, -100]
    assert (account.balance, account.reserved) == (accounts.MAX_BALANCE, 0)


def test_no_account_holds_more_than_the_store_can_write() -> None:
    account, _ = accounts.open_account("a", Budget(10**14, 60, 0, None), 0)
    for points in (10**18, 10**18, 10**30):
        account, entries = accounts.grant(account, points, "")
        assert account.balance <= accounts.MAX_BALANCE < 2**63
        assert all(abs(entry.points) < 2**63 for entry in entries)
    account, _ = accounts.start_period(account, 10**9 * SECOND)
    assert account.balance == MAX_BALANCE + 10**14

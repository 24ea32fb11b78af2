"""Accounts of points under anything that may happen to them, beside a book kept the naive way."""

from __future__ import annotations

from collections import Counter

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
    """One tenant's account, its jobs, and time."""

    @initialize(budget=budgets)
    def begin(self, budget: Budget) -> None:
        self.now = START * SECOND
        self.entries: list[AccountEntry] = []
        self.open: dict[str, tuple[int, int]] = {}
        self.paid: Counter[str] = Counter()
        self.number = 0
        self._take(accounts.open_account("vision", budget, self.now))

    def _take(self, changed: AccountUpdate) -> None:
        self.account, entries = changed
        self.entries += entries

    @rule(points=st.integers(0, 1_500 * POINT))
    def admit(self, points: int) -> None:
        name = f"job-{self.number}"
        self.number += 1
        if points > self.account.balance:
            with pytest.raises(ValueError, match="holds"):
                accounts.debit(self.account, points, name)
            return
        self._take(accounts.debit(self.account, points, name))
        self.open[name] = (points, self.now)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.open)))
        points, at = self.open.pop(name)
        unused = data.draw(st.integers(0, points))
        before = self.account.balance
        self._take(accounts.refund(self.account, unused, name, at))
        assert self.account.balance <= before + unused
        if at >= self.account.begins:
            assert self.account.balance == before + unused

    @rule(points=st.integers(0, 100 * POINT))
    def lend(self, points: int) -> None:
        self._take(accounts.credit(self.account, points, "theirs", "speech"))

    @rule(points=st.integers(0, 100 * POINT))
    def give(self, points: int) -> None:
        self._take(accounts.grant(self.account, points, "well done"))

    @rule(budget=budgets)
    def change(self, budget: Budget) -> None:
        self._take(accounts.start_period(self.account, self.now))
        before = self.account
        self._take(accounts.change_budget(before, budget, self.now))
        more = budget.points - before.budget.points
        assert self.account.balance == max(0, before.balance + more)

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

    @invariant()
    def balances_are_sums_and_never_below_zero(self) -> None:
        total = 0
        for entry in self.entries:
            total += entry.points
            assert entry.balance == total >= 0
            assert entry.points
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
        assert 0 <= self.account.room <= self.account.budget.carry_limit

    def teardown(self) -> None:
        if hasattr(self, "account"):
            self._take(accounts.close_account(self.account))
            assert self.account.balance == 0 == sum(entry.points for entry in self.entries)


def _one_by_one(account: Account, period: int) -> int:
    """What is held when every period begins by itself."""
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
)
def test_a_late_refund_is_kept_as_far_as_it_would_have_been(
    carry: int, spent: int, back: int
) -> None:
    """Paying early and taking back late keeps no more than not paying at all."""
    budget = Budget(100, 100, 0, carry)
    back = min(back, spent)
    late, _ = accounts.open_account("a", budget, 0)
    paid, _ = accounts.debit(late, spent, "job")
    there, _ = accounts.start_period(paid, 150 * SECOND)
    there, _ = accounts.refund(there, back, "job", 50 * SECOND)
    early, _ = accounts.refund(paid, back, "job", 50 * SECOND)
    early, _ = accounts.start_period(early, 150 * SECOND)
    assert there.balance == early.balance


def test_a_budget_that_changes_while_the_clock_is_behind_grants_nothing_again() -> None:
    account, _ = accounts.open_account("a", Budget(100, 100, 0, None), 1_000 * SECOND)
    changed, _ = accounts.change_budget(account, Budget(100, 100, 0, 0), 50 * SECOND)
    assert accounts.start_period(changed, 1_050 * SECOND) == (changed, ())


def test_no_account_holds_more_than_the_store_can_write() -> None:
    account, _ = accounts.open_account("a", Budget(10**14, 60, 0, None), 0)
    for points in (10**18, 10**18, 10**30):
        account, entries = accounts.grant(account, points, "")
        assert account.balance <= accounts.MAX_BALANCE < 2**63
        assert all(abs(entry.points) < 2**63 for entry in entries)
    account, _ = accounts.start_period(account, 10**9 * SECOND)
    assert account.balance == MAX_BALANCE + 10**14

"""The ledger's window: advanced, undone and rewound, beside the usage of all reservations."""

from __future__ import annotations

import mmap
import os
import warnings

import numpy as np
import pytest

from shadowprice.core.ledger import Ledger, LedgerView
from shadowprice.core.schedule import Placement, Schedule
from tests.support.validation import recompute_usage
from tests.support.workloads import make_cluster

HORIZON = 6


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("places", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_the_window_shows_all_reservations_and_nothing_else(
    seed: int, places: bool, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without placements, slots that enter the window aren't written."""
    if large:
        monkeypatch.setattr("shadowprice.core.ledger._HUGE_PAGE_BYTES", 1)
    rng = np.random.default_rng(seed)
    cluster = make_cluster(3, 0, gpus=50, horizon=HORIZON)
    ledger, worker = Ledger(cluster, HORIZON), cluster.demand({"gpu": 1000, "cpu": 100})

    def reserve(name: str) -> None:
        slots = ledger.start + np.flatnonzero(rng.random(HORIZON) < 0.5)
        if len(slots):
            servers = rng.integers(0, 3, len(slots))
            ones = np.ones(len(slots), np.int64)
            plan = Schedule.from_arrays(slots, servers, ones, 0 * ones)
            ledger.reserve(name, plan, worker, None)

    for step in range(120):
        before, versions = ledger.used.copy(), ledger.versions
        start = ledger.start
        undo = ledger.advance(start + int(rng.integers(0, HORIZON + 2)))
        if rng.random() < 0.3:
            reserve("undone")
            if "undone" in ledger.reservations:
                ledger.undo_reserve("undone")
            ledger.undo_advance(undo)
            assert ledger.start == start
            assert (ledger.used == before).all()
            assert (ledger.versions > versions).all()
        reserve(f"job-{step}")
        if places and rng.random() < 0.3:
            ledger.place(
                f"placed-{step}", Placement((int(rng.integers(0, 3)),), (1,), (0,)), worker, None
            )
        for name in list(ledger.reservations):
            if rng.random() < 0.3:
                ledger.release(name)
        assert (ledger.used == recompute_usage(ledger)).all()


def test_slots_that_enter_with_placements_are_not_missed() -> None:
    cluster = make_cluster(2, 0, gpus=4, horizon=HORIZON)
    ledger, worker = Ledger(cluster, HORIZON), cluster.demand({"gpu": 1000, "cpu": 100})
    ledger.place("running", Placement((1,), (2,), (0,)), worker, None)
    position, _ = ledger.changes_since(0)
    ledger.advance(1)
    assert ledger.changes_since(position)[1] is None  # every slot has to be read


def plan_on(server: int, *slots: int) -> Schedule:
    ones = np.ones(len(slots), np.int64)
    return Schedule.from_arrays(np.array(slots), server * ones, ones, 0 * ones)


def test_a_reader_gets_the_reservations_and_releases_since_its_last_read() -> None:
    on = make_cluster(3, 0, horizon=HORIZON)
    ledger, worker = Ledger(on, HORIZON), on.demand({"gpu": 1000})
    view = LedgerView(ledger)
    position, changes = view.changes_since(-1)
    assert changes is None
    ledger.reserve("a", plan_on(1, 2, 3), worker, None)
    ledger.reserve("b", plan_on(2, 0), worker, None)
    ledger.undo_reserve("b")
    ledger.advance(3)
    reservation = ledger.reservations["a"]
    released = ledger.release("a")
    position, changes = view.changes_since(position)
    assert changes is not None
    assert [change.rows() for change in changes] == [
        plan.rows() for plan in (plan_on(1, 2, 3), plan_on(2, 0), plan_on(2, 0), plan_on(1, 3))
    ]
    assert view.changes_since(position) == (position, ())
    other = ledger.clone()
    ledger.undo_release("a", reservation, released)
    assert view.changes_since(position)[1] == (released,)
    assert other.changes_since(position) == (position, ())
    position, _ = view.changes_since(position)
    ledger.advance(4)
    assert not len(ledger.release("a"))  # its plan is over
    assert view.changes_since(position) == (position, ())


def test_a_reader_reads_everything_after_changes_of_every_slot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    on = make_cluster(3, 0, horizon=HORIZON)
    ledger, worker = Ledger(on, HORIZON), on.demand({"gpu": 1000})
    undo = ledger.advance(1)
    for change in (
        lambda: ledger.place("p", Placement((0,), (1,), (0,)), worker, None),
        lambda: ledger.undo_place("p", None),
        lambda: ledger.lose(2),
        lambda: ledger.restore(2),
        lambda: ledger.undo_advance(undo),
        lambda: ledger.raise_versions(0),
        lambda: ledger.raise_versions(7),
        lambda: ledger.replace_contents(ledger.for_changed_cluster(on, np.arange(3), ())),
    ):
        position, _ = ledger.changes_since(-1)
        change()
        assert ledger.changes_since(position)[1] is None
    position, _ = ledger.changes_since(-1)
    monkeypatch.setattr("shadowprice.core.ledger._MAX_LOGGED_ENTRIES", 3)
    ledger.reserve("a", plan_on(0, 1, 2), worker, None)
    later, _ = ledger.changes_since(-1)
    ledger.reserve("b", plan_on(1, 1, 2), worker, None)
    assert ledger.changes_since(position)[1] is None
    assert ledger.changes_since(later)[1] == (ledger.reservations["b"].plan,)


@pytest.mark.skipif(not hasattr(mmap, "MADV_NOHUGEPAGE"), reason="needs Linux")
def test_a_large_ledger_keeps_its_reservations_to_its_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    on = make_cluster(200, 0, horizon=40)
    monkeypatch.setattr("shadowprice.core.ledger._HUGE_PAGE_BYTES", 1)
    ledger, worker = Ledger(on, 40), on.demand({"gpu": 1000})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the process of tests may have threads
        child = os.fork()
    if child == 0:
        ledger.reserve("a", plan_on(5, 3), worker, None)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert not ledger.used.any()
    ledger.reserve("b", plan_on(7, 3, 39), worker, None)
    assert (ledger.used == recompute_usage(ledger)).all()
    ledger.advance(39)
    assert (ledger.used == recompute_usage(ledger)).all()

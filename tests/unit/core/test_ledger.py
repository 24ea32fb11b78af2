"""The ledger's window: advanced, undone and rewound, beside the usage of all reservations."""

from __future__ import annotations

import numpy as np
import pytest

from shadowprice.core.ledger import Ledger
from shadowprice.core.schedule import Placement, Schedule
from tests.support.workloads import make_cluster

HORIZON = 6


@pytest.mark.parametrize("places", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_the_window_shows_all_reservations_and_nothing_else(seed: int, places: bool) -> None:
    """Without placements, slots that enter the window aren't written."""
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
        assert (ledger.used == ledger.recompute_usage()).all()

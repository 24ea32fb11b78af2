"""The timeline beside plans that name their servers, against servers counted one by one."""

from __future__ import annotations

import numpy as np
import pytest

from shadowprice.kernels.replanning.timeline import (
    INFINITE_SLOT,
    init_timeline,
    new_timeline,
)
from tests.support.examples import sample


@pytest.mark.parametrize("seed", sample(range(40)))
def test_intervals_hold_what_is_free_server_by_server(seed: int) -> None:
    rng = np.random.default_rng(seed)
    servers, resources, intervals = int(rng.integers(1, 12)), 2, int(rng.integers(1, 7))
    share = np.zeros((int(rng.integers(0, 3)), resources), np.int64)
    free = rng.integers(0, 4, (servers, resources))
    role, up = rng.integers(1, 4, servers), rng.random(servers) < 0.8
    number = up.astype(np.int64)  # a lost server counts as none
    starts = 5 + np.cumsum(rng.integers(1, 4, intervals))
    count = rng.integers(0, 5, intervals)
    count[0] = 0
    first = np.concatenate(([0], np.cumsum(count)))
    server = rng.integers(0, servers, int(count.sum()))
    change = rng.integers(-1, 3, (int(count.sum()), resources))
    held = rng.integers(0, 9, (intervals, *share.shape))
    line = new_timeline(16, servers, np.vstack((share, np.full(resources, -1))), False)
    assert init_timeline(line, starts, free.copy(), role, number, first, server, change, held)
    assert line.used.tolist() == [intervals, intervals]
    assert line.start[: intervals + 1].tolist() == [*starts.tolist(), INFINITE_SLOT]
    for k in range(intervals):
        for index in range(first[k], first[k + 1]):
            free[server[index]] += change[index]
        rows = np.column_stack((role, np.maximum(free, 0)))[up]
        expected = sorted(tuple(row) for row in rows.tolist())
        state = int(line.state[k])
        results = [
            (int(line.role[state, g]), *line.free[state, g].tolist())
            for g in range(int(line.groups[state]))
            for _ in range(int(line.servers[state, g]))
        ]
        assert sorted(results) == expected
        assert len({(role, *left) for role, *left in results}) == line.groups[state]
        assert (line.tenant_usage[state] == held[k]).all()


def test_more_groups_than_there_is_room_for_are_reported() -> None:
    line = new_timeline(4, 2, np.full((1, 1), -1), False)
    free, one = np.array([[1], [2], [2]]), np.ones(3, np.int64)
    held = np.zeros((2, 0, 1), np.int64)
    starts, first = np.array([0, 3]), np.array([0, 0, 1])
    for change, fits in ((-1, True), (1, False)):
        count = init_timeline(
            line, starts, free.copy(), one, one, first, np.array([2]), np.array([[change]]), held
        )
        assert count == fits

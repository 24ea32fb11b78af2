"""The round-robin kernel against its slow twin."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice.kernels.reactive.round_robin import place
from tests.oracles.round_robin import Table
from tests.support.examples import example_count


def frozen(values: list[int]) -> np.ndarray:
    array = np.array(values, dtype=np.int64)
    array.setflags(write=False)
    return array


@settings(deadline=None, derandomize=True, max_examples=example_count(150))
@given(st.integers(0, 2**32 - 1))
def test_round_robin_matches_its_reference(seed: int) -> None:
    rng = np.random.default_rng(seed)
    servers, resources = int(rng.integers(1, 6)), int(rng.integers(1, 4))
    free = rng.integers(0, 12, (servers, resources))
    hosts = [(bool(a), bool(b)) for a, b in rng.random((servers, 2)) < 0.75]
    table = Table(free.tolist(), hosts)
    room = free.astype(np.int64)
    hosts_workers = np.array([a for a, _ in hosts])
    hosts_ps = np.array([b for _, b in hosts])
    cursors = np.zeros(2, dtype=np.int64)
    out = np.zeros((3, servers), dtype=np.int64)
    for _ in range(8):
        worker = rng.integers(0, 4, resources).tolist()
        ps = rng.integers(0, 4, resources).tolist()
        workers, needed = int(rng.integers(1, 7)), int(rng.integers(0, 3))
        filled = place(
            room,
            frozen(worker),
            frozen(ps),
            workers,
            needed,
            hosts_workers,
            hosts_ps,
            cursors,
            out,
        )
        wanted = table.place(worker, ps, workers, needed)
        assert [tuple(column) for column in out[:, :filled].T.tolist()] == wanted
        assert room.tolist() == table.free
        assert cursors.tolist() == table.cursors

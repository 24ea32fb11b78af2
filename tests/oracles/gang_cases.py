"""Small random rounds, and the call of the kernels on them."""

from __future__ import annotations

import numpy as np

from shadowprice.kernels.market.gangs import best_gang, fill_run_ends, place_gang, running_sums
from tests.oracles.gangs import Instance, Plan


def random_instance(generator: np.random.Generator, *, small: bool = False) -> Instance:
    """Draw a job in a partly reserved round; ``small`` for the MILP."""
    slots = int(generator.integers(2, 6 if small else 11))
    servers = int(generator.integers(1, 4 if small else 6))
    max_workers = int(generator.integers(1, 4 if small else 6))
    max_ps = int(generator.integers(1, 4))
    colocated_rate = int(generator.integers(1, 4))
    steps = generator.integers(0, 8, slots)
    fullness = generator.uniform(0.0, 0.8)
    free = np.where(
        generator.random((slots, servers)) < fullness,
        generator.integers(0, max_workers + 1, (slots, servers)),
        max_workers,
    )
    free_ps = np.where(
        generator.random((slots, servers)) < fullness,
        generator.integers(0, max_ps + 1, (slots, servers)),
        max_ps,
    )
    most = max_workers * servers
    counts = list(range(1, int(generator.integers(1, most + 2)) + 1))
    if generator.random() < 0.2:
        counts = counts[-1:]
    return Instance(
        free_workers=free.tolist(),
        free_ps=free_ps.tolist(),
        worker_price=generator.integers(0, 4, slots).tolist(),
        ps_price=generator.integers(0, 4, slots).tolist(),
        worker_limit=generator.integers(most // 2, most + 1, slots).tolist(),
        ps_limit=generator.integers(0, max_ps * servers + 1, slots).tolist(),
        value=[0, *(int(generator.integers(5, 90)) - np.cumsum(steps)).tolist()],
        counts=counts,
        work=int(generator.integers(1, 3 * slots + 2)),
        spread_rate=int(generator.integers(1, colocated_rate + 1)),
        colocated_rate=colocated_rate,
        worker_bandwidth=int(generator.integers(1, 4)),
        ps_bandwidth=int(generator.integers(1, 5)),
    )


def solve(instance: Instance) -> Plan | None:
    """Search and place with the kernels."""
    free_workers = np.array(instance.free_workers, np.int64)
    free_ps = np.array(instance.free_ps, np.int64)
    worker_ends, ps_ends = (
        np.empty((len(free), free.max() + 1, free.shape[1]), np.int32)
        for free in (free_workers, free_ps)
    )
    fill_run_ends(free_workers, worker_ends)
    fill_run_ends(free_ps, ps_ends)
    reach = np.arange(ps_ends.shape[1]) * instance.ps_bandwidth // instance.worker_bandwidth
    reach[0] = -1
    payoff, start, end, workers, ps, colocated = best_gang(
        np.array(instance.value, np.int64),
        running_sums(np.array(instance.worker_price, np.int64)),
        running_sums(np.array(instance.ps_price, np.int64)),
        np.array(instance.worker_limit, np.int64),
        np.array(instance.ps_limit, np.int64),
        np.array(instance.counts, np.int64),
        np.array([instance.slots_needed(n, colocated=False) for n in instance.counts], np.int64),
        np.array([instance.slots_needed(n, colocated=True) for n in instance.counts], np.int64),
        reach,
        worker_ends,
        ps_ends,
    )
    if start < 0:
        return None
    nothing = np.zeros(free_workers.shape[1], np.int64)
    workers_on, ps_on = place_gang(
        start, end, workers, ps, colocated, reach, nothing, worker_ends, ps_ends
    )
    return Plan(payoff, start, end, colocated, workers_on.tolist(), ps_on.tolist())

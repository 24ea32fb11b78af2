"""Time of one OASiS decision: cost of every slot, search over slots, and the placement.

`state` is that of the servers: `empty` (nothing reserved), `blocks` (jobs hold ranges of servers
for ranges of slots), `different` (every server differs in every slot). The last two columns are the
time to follow the decision's own reservation (first touch of memory included), and the time of the
naive list of all places in the first slot, extrapolated to all slots of both pools.

Run: ``python -m benchmarks.bench_decision``
"""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray
from tests.oracles.slotcost import places

from shadowprice.kernels.horizon.search import best_schedule
from shadowprice.kernels.prices.exponential import exponential_prices
from shadowprice.kernels.slots.costs import expand_choices, slot_costs
from shadowprice.kernels.slots.groups import SlotGroups

Ints = NDArray[np.int64]
RESOURCES = 5
REPEATS = 15


def reservations(
    rng: np.random.Generator, state: str, capacity: Ints, slots: int, unit: Ints
) -> Ints:
    servers = len(capacity)
    used = np.zeros((slots, servers, RESOURCES), np.int64)
    if state == "blocks":
        for _ in range(40):
            t, s = rng.integers(0, slots), rng.integers(0, servers)
            block = used[t : t + slots // 6, s : s + servers // 4]
            block[:] = np.minimum(block + unit * rng.integers(1, 4), capacity[s])
    if state == "different":
        level = rng.random((slots, servers, 1))
        used = (capacity * level * rng.uniform(0.9, 1.0, used.shape)).astype(np.int64)
    return used


def measure(servers: int, slots: int, max_workers: int, state: str) -> None:
    rng = np.random.default_rng([servers, slots])
    capacity = np.tile(np.array([8000, 32000, 2**38, 2**40, 25 * 10**9]), (servers, 1))
    demand = np.array([1000, 4000, 2**34, 2**33, 10**9])
    server_demand = np.array([0, 4000, 2**34, 2**33, 5 * 10**9])
    share, server_share = demand / capacity[0], server_demand / capacity[0]
    low, high = np.full(RESOURCES, -6.0), np.linspace(-1, 2, RESOURCES)
    pools = [SlotGroups(capacity, slots, low, high) for _ in range(2)]
    used = [reservations(rng, state, capacity, slots, demand) for _ in range(2)]
    versions = np.ones(slots, np.int64)
    for pool, reserved in zip(pools, used, strict=True):
        pool.follow(reserved, versions)
    workers = np.arange(1, max_workers + 1)
    ps = -(-workers // 5)  # a parameter server per five workers
    names = np.arange(servers)
    steps: list[list[float]] = [[], [], []]
    groups = [pool.groups for pool in pools]
    for repeat in range(REPEATS + 1):
        required = int(rng.integers(1, max_workers * slots // 3))
        utility = required * 0.01 / (1.0 + np.exp(0.1 * (np.arange(slots) - slots / 2)))
        clock = [time.perf_counter()]
        cost = slot_costs(
            groups[0], demand, share, groups[1], server_demand, server_share, workers, ps
        )
        clock.append(time.perf_counter())
        plan = best_schedule(cost, workers, required, utility)
        clock.append(time.perf_counter())
        entries = expand_choices(
            groups[0], demand, share, names, groups[1], server_demand, server_share, names,
            workers, ps, plan.choice,
        )  # fmt: skip
        clock.append(time.perf_counter())
        if repeat:  # the first one compiles
            for step in range(3):
                steps[step].append(1e3 * (clock[step + 1] - clock[step]))
    total = np.sum(steps, axis=0)
    touched = np.unique(entries[:, 0])
    used[0][entries[:, 0], entries[:, 1]] += entries[:, 2:3] * demand
    used[1][entries[:, 0], entries[:, 1]] += entries[:, 3:4] * server_demand
    versions[touched] = 2
    start = time.perf_counter()
    pools[0].follow(used[0], versions)
    pools[1].follow(used[1], versions)
    follow = 1e3 * (time.perf_counter() - start)
    start = time.perf_counter()
    prices = exponential_prices(used[0][0], capacity, low, high)
    places(used[0][0], capacity, prices, demand, share)
    naive = (time.perf_counter() - start) * slots * 2
    middle = [float(np.median(step)) for step in steps]
    print(
        f"{servers}+{servers} servers T={slots} N={max_workers} {state:10} {np.median(total):9.2f} "
        f"{max(total):9.2f}   {middle[0]:.2f} + {middle[1]:.2f} + {middle[2]:.2f}"
        f"   {follow:.1f} ms ({len(touched)} slots)   {naive:.0f} s"
    )


def main() -> None:
    print(f"{'':43} median ms  worst ms   cost + search + placement   follow, naive list")
    for servers, slots, max_workers in ((40, 100, 100), (50, 300, 100), (1000, 1000, 100)):
        for state in ("empty", "blocks", "different"):
            measure(servers, slots, max_workers, state)


if __name__ == "__main__":
    main()

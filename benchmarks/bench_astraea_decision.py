"""Time of one Astraea decision, compared with Algorithms 3-5 as plain loops on the same jobs.

The settings are the paper's (section 5.1): 14 tenants, servers of 8 workers and 1 parameter server,
one-hour slots. A decision is one search for one job in a round that fills up as jobs are placed, in
the pass without or the pass with borrowed capacity. The paper reports 1.56 s. The loops take
seconds, so they only run for a few jobs of the first row.

Run: ``python -m benchmarks.bench_astraea_decision``
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
from tests.oracles.gangs import Instance, algorithm_3

from shadowprice.policies.astraea.market import RoundMarket, UnitPool
from shadowprice.policies.astraea.prices import min_thetas, price_table
from shadowprice.policies.tenants.tenancy import MICRO, GangJob, workers_servable

TENANTS = 14


@dataclass(frozen=True)
class TabulatedInstance(Instance):
    """An instance with given durations, by co-location and number of workers."""

    durations: dict[bool, dict[int, int]] = field(default_factory=dict)

    def slots_needed(self, count: int, colocated: bool) -> int:
        """Return the given duration in slots."""
        return self.durations[colocated][count]


def draw_jobs(count: int, slots: int, seed: int) -> list[GangJob]:
    generator = np.random.default_rng(seed)
    jobs = []
    for number in range(count):
        chunks = int(generator.integers(20, 51))
        counts = np.arange(1, chunks + 1)
        # A quarter of the paper's epochs, so that jobs fit into a round of 64 slots.
        work = int(generator.integers(50, 101)) * chunks * int(generator.integers(10, 51)) / 4
        compute = generator.uniform(0.001, 0.05) + generator.uniform(10, 100) / 3.6e6
        bandwidth = generator.uniform(100, 5120) * 1e6
        step = compute + 2 * generator.uniform(30, 575) * 8e6 / bandwidth / 3600
        slope, value = generator.uniform(-2.0, -0.1), generator.uniform(100, 1000)
        jobs.append(
            GangJob(
                name=f"job-{number:05}",
                # Tenants with equal shares have unequal demand, so that some lend and some borrow.
                tenant=int(TENANTS * generator.random() ** 3),
                arrival=int(generator.integers(slots)),
                worker_type=0,
                ps_type=1,
                counts=counts,
                spread_slots=np.ceil(work * step / counts).astype(np.int64),
                colocated_slots=np.ceil(work * compute / counts).astype(np.int64),
                reach=workers_servable(
                    1, int(bandwidth), int(generator.uniform(5, 20) * 1e9), served=True
                ),
                utility=lambda d, slope=slope, value=value: np.maximum(value + slope * d, 0.0),
            )
        )
    return jobs


def build_market(servers: int, slots: int, jobs: list[GangJob]) -> RoundMarket:
    kinds = []
    for units, theta in zip((8, 1), min_thetas(jobs, 8), strict=True):
        total = units * servers
        shares = np.full(TENANTS, total // TENANTS)
        shares[: total % TENANTS] += 1
        capacity = np.full(servers, units)
        kinds.append(UnitPool(capacity, shares, price_table(theta, total), slots))
    return RoundMarket(kinds)


def run_loops(market: RoundMarket, job: GangJob, *, borrow: bool) -> tuple[float, int]:
    """Return the seconds of the plain loops, and the payoff of their plan."""
    workers, ps = market.pools_for(job)
    counts = job.counts.tolist()
    instance = TabulatedInstance(
        free_workers=workers.free.tolist(),
        free_ps=ps.free.tolist(),
        worker_price=workers.current_prices().tolist(),
        ps_price=ps.current_prices().tolist(),
        worker_limit=workers.available_units(job.tenant, borrow=borrow).tolist(),
        ps_limit=ps.available_units(job.tenant, borrow=borrow).tolist(),
        value=job.values(market.slots).tolist(),
        counts=counts,
        work=0,
        spread_rate=0,
        colocated_rate=0,
        # Bandwidth only limits how many remote workers the one PS of a server can serve.
        worker_bandwidth=1,
        ps_bandwidth=int(min(job.reach[1], 10**6)),
        durations={
            False: dict(zip(counts, job.spread_slots.tolist(), strict=True)),
            True: dict(zip(counts, job.colocated_slots.tolist(), strict=True)),
        },
    )
    began = time.perf_counter()
    plan = algorithm_3(instance)
    return time.perf_counter() - began, plan.payoff if plan else 0


def measure(servers: int, slots: int, count: int, compared: int) -> str:
    jobs = draw_jobs(count, slots, seed=1)
    market = build_market(servers, slots, jobs)
    fast: list[float] = []
    slow: list[float] = []
    loans = placed = 0
    for borrow in (False, True):
        waiting = []
        for number, job in enumerate(sorted(jobs, key=lambda job: (job.arrival, job.name))):
            began = time.perf_counter()
            gang = market.search(job, borrow=borrow)
            fast.append(time.perf_counter() - began)
            if len(slow) < compared and number % 10 == 0:
                seconds, payoff = run_loops(market, job, borrow=borrow)
                slow.append(seconds)
                if payoff != (gang.payoff if gang else 0):
                    raise AssertionError(f"{job.name}: the loops find {payoff / MICRO}")
            if gang is None:
                waiting.append(job)
            else:
                market.reserve(job, gang)
                placed += 1
                loans += borrow
        jobs = waiting
    times = np.array(fast) * 1000
    loops_ms = f"{np.median(slow) * 1000:12.0f}" if slow else " " * 12
    return (
        f"{servers:>7} {slots:>6} {count:>6} {len(times):>9} {placed:>6} {loans:>5} "
        f"{np.median(times):9.3f} {times.mean():9.3f} {np.quantile(times, 0.99):9.3f} {loops_ms}"
    )


def main() -> None:
    build_market(2, 4, jobs := draw_jobs(3, 4, seed=0)).schedule(jobs)  # compile
    print(
        "                                                    decision, ms                loops, ms"
    )
    print("servers  slots   jobs decisions placed loans    median      mean       p99       median")
    for row in (
        (100, 64, 300, 6),
        (100, 128, 300, 0),
        (100, 512, 1000, 0),
        (1000, 64, 1000, 0),
        (1000, 128, 3000, 0),
        (1000, 512, 10000, 0),
    ):
        print(measure(*row), flush=True)


if __name__ == "__main__":
    main()

"""Time of one search over slots, compared with a dynamic program over progress units.

Costs follow OASiS: workers from a few groups of servers, cheapest first, and parameter servers in
steps. `equal` says which slots have equal costs: `all`, `runs` of ten, `none`, or `1 %` for costs
that differ by at most 1 %. `curve` rows have measured throughput curves (gains near 1e9), and `two
rates` rows have PD-ORS's internal and external rates (gains near 1e7); for both, the table over
units would be too large. The columns `gap` are the search to a relative gap of 1e-3, the default of
`oasis`. Times are processor times.

Run: ``python -m benchmarks.bench_horizon``
"""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray
from tests.oracles.knapsack import best_payoff, table_costs

from shadowprice.kernels.horizon.search import best_schedule

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Instance = tuple[Floats, Ints, int, Floats]
DRAWS = 9
GAP = 1e-3


def utility_of(kind: str, value: float, slots: int) -> Floats:
    t = np.arange(slots)
    if kind == "constant":
        return np.full(slots, value)
    if kind == "reciprocal":
        return np.asarray(value / (1.0 + t))
    return np.asarray(value / (1.0 + np.exp(np.clip(t - slots / 3, -700, 700))))


def draw_prices(rng: np.random.Generator, equal: str, slots: int, columns: int) -> Floats:
    """Draw prices of groups of servers, shape (slots, columns), ascending in each slot."""
    base = np.exp(rng.normal(0.0, 1.5, (slots, columns)))
    if equal == "all":
        base[:] = base[0]
    elif equal == "runs":
        base = np.repeat(base[: slots // 10 + 1], 10, 0)[:slots]
    elif equal == "1 %":
        base = base[:1] * (1.0 + 0.01 * rng.random((slots, 1)))
    return np.sort(base, 1)


def draw_costs(rng: np.random.Generator, equal: str, slots: int, size: int) -> Floats:
    """Draw the cost of 1 to ``size`` workers with their parameter servers in each slot."""
    base = draw_prices(rng, equal, slots, 4)
    sizes = rng.integers(size // 4, size // 2 + 2, 4)
    row = np.concatenate([np.repeat(base[:, i : i + 1], sizes[i], 1) for i in range(4)], 1)
    cost = np.cumsum(row[:, :size], 1)
    per_server = rng.choice([0.1, 0.16, 0.3, 0.37])
    steps = np.ceil(np.arange(1, size + 1) * per_server)
    return np.asarray(cost + steps * base[:, :1] * rng.uniform(0.5, 3.0))


def oasis(seed: int, equal: str, kind: str, slots: int, size: int, required: int) -> Instance:
    rng = np.random.default_rng([seed, slots, required])
    cost = draw_costs(rng, equal, slots, size)
    gain = np.arange(1, size + 1)
    value = required * float((cost / gain).min()) * rng.uniform(2, 20)
    return cost, gain, required, utility_of(kind, value, slots)


def curve(seed: int, equal: str, kind: str, slots: int) -> Instance:
    rng = np.random.default_rng(seed)
    workers = np.array([1, 2, 4, 8, 16, 32])
    speed = workers ** rng.uniform(0.7, 0.98) * rng.uniform(0.95, 1.05, 6)
    gain = np.ceil(1e9 * speed).astype(np.int64)
    required = int(rng.uniform(0.05, 0.9 if slots < 1000 else 0.3) * gain.max() * slots)
    cost = workers * draw_prices(rng, equal, slots, 1)
    return cost, gain, required, utility_of(kind, required / 1e9 * rng.uniform(2, 20), slots)


def two_rates(seed: int, equal: str, kind: str, slots: int, size: int) -> Instance:
    rng = np.random.default_rng(seed)
    workers = np.arange(1, size + 1)
    rate = rng.uniform(1e6, 1e8)
    slow = rate * rng.uniform(0.2, 0.9)
    gain = np.ceil(np.concatenate([workers * rate, workers * slow])).astype(np.int64)
    price = draw_prices(rng, equal, slots, 1)
    servers = np.ceil(workers * rng.uniform(0.1, 0.6))
    external = (workers + servers * rng.uniform(0.5, 1.5)) * price
    # One server holds at most half of the workers, at the internal rate.
    cost = np.concatenate([external * rng.uniform(1, 2), external], 1)
    cost[:, size // 2 : size] = np.inf
    required = int(rng.uniform(0.05, 0.4) * gain.max() * slots)
    return cost, gain, required, utility_of(kind, required / rate * rng.uniform(2, 20), slots)


def measure(name: str, draws: list[Instance], compared: bool) -> None:
    best_schedule(*draws[0], gap=GAP)  # compiles
    times: dict[float, list[float]] = {0.0: [], GAP: []}
    for gap, taken in times.items():
        for instance in draws:
            start = time.process_time()
            best_schedule(*instance, gap=gap)
            taken.append(1e3 * (time.process_time() - start))
    slow = ""
    if compared:
        start = time.perf_counter()
        costs = table_costs(*draws[0][:3])
        slow = f"{1e3 * (time.perf_counter() - start):.0f} ms"
        expected = best_payoff(costs, draws[0][3])[0]
        payoff = best_schedule(*draws[0]).payoff
        assert abs(payoff - expected) <= 1e-9 * max(abs(expected), abs(payoff)), (payoff, expected)
    columns = " ".join(f"{np.median(taken):9.2f} {max(taken):9.2f}" for taken in times.values())
    print(f"{name:44} {columns}   {slow}")


def main() -> None:
    heads = f"{'median ms':>9} {'worst ms':>9}"
    print(f"{'instance':44} {heads} {'gap: med.':>9} {'worst ms':>9}   table over units")
    for slots, size, required in ((300, 100, 1003), (300, 100, 12345), (1000, 100, 5003)):
        for equal in ("all", "runs", "none", "1 %"):
            for kind in ("sigmoid", "constant", "reciprocal"):
                draws = [oasis(s, equal, kind, slots, size, required) for s in range(DRAWS)]
                name = f"T={slots} C={size} R={required} equal={equal} {kind}"
                measure(name, draws, compared=kind == "sigmoid" and slots * required < 1e6)
    for equal in ("all", "none", "1 %"):
        for kind in ("sigmoid", "constant", "reciprocal"):
            draws = [curve(s, equal, kind, 300) for s in range(DRAWS)]
            measure(f"curve T=300 C=6 equal={equal} {kind}", draws, compared=False)
            draws = [curve(s, equal, kind, 6000) for s in range(3)]
            measure(f"curve T=6000 C=6 equal={equal} {kind}", draws, compared=False)
            draws = [two_rates(s, equal, kind, 100, 20) for s in range(DRAWS)]
            measure(f"two rates T=100 C=40 equal={equal} {kind}", draws, compared=False)


if __name__ == "__main__":
    main()

"""Time of PD-ORS's placements and of a whole decision, compared with HiGHS.

First table: the relaxation of (3.22), in microseconds per slot and number of workers. HiGHS solves
a new model for each (`cold`), or one model per slot with increasing demands (`warm`). `path` is the
kernel `coupled_lp`. The last column is the maximum relative difference of the optima.

Second table: milliseconds to find the best schedule of one job if all slots differ (placements in
equal slots are computed once): placements of every number of workers in every slot, then the search
over slots. With `one` rate, co-location brings nothing, so internal choices rule out few external
ones. With `40x`, they rule out most, as in the thesis. `machines 1000, alike 50` has 50 states of
20 equal machines each, as in a cluster that isn't full.

Times are processor times, so other programs on the machine don't count.

Run: ``python -m benchmarks.bench_pdors``
"""

from __future__ import annotations

import time
from collections.abc import Callable

import highspy
import numpy as np
from numpy.typing import NDArray
from tests.support.completion_costs import cost_bounds

from shadowprice.kernels.horizon.search import best_schedule
from shadowprice.kernels.slots.coupled_lp import solve_slots_lp
from shadowprice.kernels.slots.placement import (
    EXACT,
    GREEDY,
    RANDOMISED,
    Gains,
    Method,
    Pairs,
    Slots,
    slot_choices,
)
from shadowprice.kernels.slots.polygons import Slot

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

CAPACITY = np.array([8_000, 32_000, 244 * 2**30, 10**12, 25 * 10**9])
WORKER = np.array([1_000, 4_000, 16 * 2**30, 6 * 2**30, 10**9])
SERVER = np.array([0, 4_000, 16 * 2**30, 6 * 2**30, 5 * 10**9])
NONE = np.zeros((0, 0, 0))


def filled(machines: int, slots: int, alike: int) -> tuple[Floats, Floats, Integers]:
    """Return worker prices, PS prices and free capacity of a randomly filled cluster, by (3.12).

    Each slot has ``alike`` different states of machines.
    """
    rng = np.random.default_rng([machines, slots, alike])
    share = rng.random((slots, alike, 1)) * rng.random((slots, alike, len(CAPACITY)))
    share = share[:, rng.integers(0, alike, machines)]
    if alike == machines:
        share = rng.random((slots, machines, 1)) * rng.random((slots, machines, len(CAPACITY)))
    free = (CAPACITY * (1 - share)).astype(np.int64)
    price = np.exp(6 * (1 - free / CAPACITY)) / CAPACITY
    return price @ WORKER, price @ SERVER, free


def median_time(run: Callable[[], object], repeats: int) -> float:
    run()
    times = []
    for _ in range(repeats):
        begin = time.process_time()
        run()
        times.append(time.process_time() - begin)
    return float(np.median(times))


def highs_model(price_w: Floats, price_s: Floats, free: Integers) -> highspy.Highs:
    """Build the relaxation as one model; its last two rows are the demands."""
    machines = len(price_w)
    model = highspy.Highs()  # type: ignore[no-untyped-call]
    for option, value in (("output_flag", False), ("threads", 1), ("presolve", "off")):
        model.setOptionValue(option, value)
    lp = highspy.HighsLp()
    resources = len(CAPACITY)
    lp.num_col_, lp.num_row_ = 2 * machines, machines * resources + 2
    lp.col_cost_ = np.column_stack([price_w, price_s]).ravel()
    lp.col_lower_ = np.zeros(lp.num_col_)
    lp.col_upper_ = np.full(lp.num_col_, highspy.kHighsInf)
    scale = np.maximum(WORKER, SERVER)
    lp.row_lower_ = np.concatenate([np.full(machines * resources, -highspy.kHighsInf), [0.0, 0.0]])
    lp.row_upper_ = np.concatenate([(free / scale).ravel(), np.full(2, highspy.kHighsInf)])
    rows = np.arange(machines * resources).reshape(machines, resources)
    demand = lp.num_row_ - 2
    index: list[Integers] = []
    weight: list[Floats] = []
    for h in range(machines):
        for kind, amounts in enumerate((WORKER, SERVER)):
            index.append(np.append(rows[h], demand + kind))
            weight.append(np.append(amounts / scale, 1.0))
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_ = np.arange(lp.num_col_ + 1) * (resources + 1)
    lp.a_matrix_.index_ = np.concatenate(index)
    lp.a_matrix_.value_ = np.concatenate(weight)
    model.passModel(lp)
    return model


def highs_sweep(
    state: tuple[Floats, Floats, Integers], workers: Integers, servers: Integers, *, warm: bool
) -> tuple[float, Floats]:
    """Solve one slot for all numbers of workers; return the seconds in HiGHS, and the optima."""
    demand = len(state[0]) * len(CAPACITY)
    count = 1 if warm else len(workers)
    models = [highs_model(*state) for _ in range(count)]
    optima, spent = [], 0.0
    for i, (w, s) in enumerate(zip(workers, servers, strict=True)):
        model = models[0 if warm else i]
        begin = time.process_time()
        model.changeRowBounds(demand, float(w), highspy.kHighsInf)
        model.changeRowBounds(demand + 1, float(s), highspy.kHighsInf)
        model.run()
        spent += time.process_time() - begin
        solved = model.getModelStatus() == highspy.HighsModelStatus.kOptimal
        optima.append(model.getInfo().objective_function_value if solved else np.inf)
    return spent, np.array(optima)


def relaxations() -> None:
    print("relaxation of (3.22), 5 resources, us per slot and number of workers")
    print(f"{'machines':>8} {'K':>4} {'HiGHS cold':>11} {'warm':>8} {'path':>7} {'difference':>11}")
    for machines, max_workers in ((50, 20), (50, 100), (200, 20), (1000, 20)):
        slots = 10
        price_w, price_s, free = filled(machines, slots, machines)
        workers = np.arange(1, max_workers + 1)
        servers = -(-workers // 5)
        cold = warm = difference = 0.0

        def path(t: int) -> Floats:
            slot = Slot(price_w[t], price_s[t], free[t], WORKER, SERVER)  # noqa: B023  # called at once
            return solve_slots_lp(slot, workers, servers, False, NONE)[0]  # noqa: B023

        ours = median_time(lambda: [path(t) for t in range(slots)], 9)  # noqa: B023
        for t in range(slots):
            state = (price_w[t], price_s[t], free[t])
            spent, optima = highs_sweep(state, workers, servers, warm=False)
            cold += spent
            warm += highs_sweep(state, workers, servers, warm=True)[0]
            difference = max(difference, float(np.abs(path(t) / optima - 1).max()))
        scale = 1e6 / (slots * max_workers)
        print(
            f"{machines:8} {max_workers:4} {cold * scale:11.1f} {warm * scale:8.1f} "
            f"{ours * scale:7.2f} {difference:11.1e}",
            flush=True,
        )


def decisions() -> None:
    print("\none decision, ms: placements by method, then the search over slots")
    print(
        f"{'machines':>8} {'alike':>6} {'slots':>6} {'K':>4} {'rates':>9} {'randomised':>11} "
        f"{'exact':>8} {'greedy':>8} {'search':>8} {'one LP each, cold HiGHS':>24}"
    )
    cases = (
        (50, 50, 100, 20, 40),
        (50, 50, 100, 20, 1),
        (50, 50, 300, 100, 40),
        (200, 200, 100, 20, 40),
        (1000, 50, 100, 20, 40),
        (1000, 1000, 100, 20, 40),
        (50, 50, 1000, 20, 40),
        (1000, 50, 1000, 20, 40),
    )
    for machines, alike, slots, max_workers, ratio in cases:
        price_w, price_s, free = filled(machines, slots, alike)
        workers = np.arange(1, max_workers + 1)
        servers = -(-workers // 5)
        # A step takes 1 s of computing, and 4 s of communication between machines.
        gains = np.ceil(workers * 1e6 / 5.0).astype(np.int64)
        internal_gains = np.ceil(workers * 1e6 / (1.0 + 4.0 / ratio)).astype(np.int64)
        streams = np.arange(slots, dtype=np.uint64)
        cells = []
        cost = np.zeros(0)
        for method in (GREEDY, EXACT, RANDOMISED):

            def place(method: int = method) -> Floats:
                return slot_choices(
                    Slots(price_w, price_s, free, WORKER, SERVER),  # noqa: B023  # called at once
                    Pairs(workers, servers),  # noqa: B023
                    servers,  # noqa: B023
                    Gains(gains, internal_gains),  # noqa: B023
                    Method(method, False, 1.006, 0.5, 1000),
                    streams,  # noqa: B023
                )[0]

            cells.append(median_time(place, 5) * 1e3)
            cost = place()
        all_gains = np.concatenate([gains, internal_gains])
        # Two fifths of the maximum work within the horizon.
        required = int(0.4 * np.where(np.isfinite(cost), all_gains, 0).max(axis=1).sum())
        # Three times the minimum cost at first, hardly more than the cost at the end.
        minimum_cost = cost_bounds(cost, all_gains, required)[1][-1]
        utility = np.linspace(3.0, 1.05, slots) * minimum_cost

        assert best_schedule(cost, all_gains, required, utility).payoff > 0

        def search() -> object:
            return best_schedule(cost, all_gains, required, utility)  # noqa: B023

        cells.append(median_time(search, 5) * 1e3)
        sample = min(slots, 3)
        lp = sum(
            highs_sweep((price_w[t], price_s[t], free[t]), workers, servers, warm=False)[0]
            for t in range(sample)
        )
        greedy, exact, randomised, searching = cells
        print(
            f"{machines:8} {alike:6} {slots:6} {max_workers:4} "
            f"{f'{ratio}x' if ratio > 1 else 'one':>9} "
            f"{randomised:11.2f} {exact:8.2f} {greedy:8.2f} {searching:8.2f} "
            f"{lp * 1e3 * slots / sample:17.0f} (scaled)",
            flush=True,
        )


if __name__ == "__main__":
    relaxations()
    decisions()

"""PD-ORS's slot problem solved by HiGHS: (3.22) relaxed, and (3.18) in integers."""

from __future__ import annotations

import highspy
import numpy as np
from numpy.typing import NDArray


def solve_slot(
    price_worker: NDArray[np.float64],
    price_server: NDArray[np.float64],
    free: NDArray[np.int64],
    worker: NDArray[np.int64],
    server: NDArray[np.int64],
    workers: int,
    servers: int,
    *,
    most: int,
    integer: bool = False,
    spread: bool = False,
) -> tuple[float, NDArray[np.float64], NDArray[np.float64]]:
    """Solve one slot as one model, (3.2), (3.5) and (3.22)-(3.25) as printed.

    Returns the optimum (inf if infeasible), and workers and servers on each machine.
    With `spread`, in integers, not everything may be on one machine.
    """
    machines, resources = free.shape
    model = highspy.Highs()
    model.setOptionValue("output_flag", False)
    model.setOptionValue("threads", 1)
    for option in ("primal_feasibility_tolerance", "dual_feasibility_tolerance"):
        model.setOptionValue(option, 1e-10)
    model.setOptionValue("mip_rel_gap", 0.0)
    model.setOptionValue("mip_feasibility_tolerance", 1e-9)
    # Prices are scaled to 1, so that HiGHS's absolute tolerances mean something.
    usable = np.isfinite(price_worker) & np.isfinite(price_server)
    largest = max(price_worker[usable].max(initial=0), price_server[usable].max(initial=0)) or 1.0
    for h in range(machines):
        bound = most if usable[h] else 0
        model.addVar(0, bound)
        model.addVar(0, bound)
        if usable[h]:
            model.changeColCost(2 * h, price_worker[h] / largest)
            model.changeColCost(2 * h + 1, price_server[h] / largest)
    for h in range(machines):
        for r in range(resources):
            if worker[r] or server[r]:
                scale = float(max(worker[r], server[r]))
                model.addRow(
                    -highspy.kHighsInf,
                    free[h, r] / scale,
                    2,
                    np.array([2 * h, 2 * h + 1], dtype=np.int32),
                    np.array([worker[r] / scale, server[r] / scale]),
                )
    at_w = np.arange(0, 2 * machines, 2, dtype=np.int32)
    at_s = at_w + 1
    ones = np.ones(machines)
    both = np.concatenate([at_w, at_s]).astype(np.int32)
    model.addRow(workers, most, machines, at_w, ones)
    model.addRow(servers, highspy.kHighsInf, machines, at_s, ones)
    model.addRow(0, highspy.kHighsInf, 2 * machines, both, np.concatenate([ones, -ones]))
    if integer:
        for column in range(2 * machines):
            model.changeColIntegrality(column, highspy.HighsVarType.kInteger)
    if spread:
        # Exactly the totals, and some unit of them off every machine.
        model.addRow(
            workers + servers, workers + servers, 2 * machines, both, np.ones(2 * machines)
        )
        for h in range(machines):
            model.addRow(
                -highspy.kHighsInf,
                workers + servers - 1,
                2,
                np.array([2 * h, 2 * h + 1], dtype=np.int32),
                np.ones(2),
            )
    model.run()
    if model.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return np.inf, np.zeros(machines), np.zeros(machines)
    point = np.array(model.getSolution().col_value)
    # Recomputed in full precision from the vertex, without the solver's scaling.
    w, s = point[0::2], point[1::2]
    price_w, price_s = np.where(usable, price_worker, 0), np.where(usable, price_server, 0)
    return float(price_w @ w + price_s @ s), w, s

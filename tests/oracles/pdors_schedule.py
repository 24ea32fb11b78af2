"""PD-ORS's Find-Sch as one integer program a completion slot, solved by HiGHS."""

from __future__ import annotations

import highspy
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class Program:
    """A small integer program, minimised."""

    def __init__(self) -> None:
        self.highs = highspy.Highs()
        self.highs.setOptionValue("output_flag", False)
        self.highs.setOptionValue("threads", 1)
        self.highs.setOptionValue("mip_rel_gap", 0.0)
        self.highs.setOptionValue("mip_abs_gap", 0.0)
        self.variables = 0

    def variable(self, top: float, cost: float = 0.0) -> int:
        self.highs.addVar(0, top)
        self.highs.changeColCost(self.variables, cost)
        self.highs.changeColIntegrality(self.variables, highspy.HighsVarType.kInteger)
        self.variables += 1
        return self.variables - 1

    def at_most(self, terms: list[tuple[int, float]], bound: float) -> None:
        """Add ``sum of coefficient * variable <= bound``."""
        columns = np.array([column for column, _ in terms], dtype=np.int32)
        values = np.array([value for _, value in terms], dtype=float)
        self.highs.addRow(-highspy.kHighsInf, bound, len(terms), columns, values)

    def minimum(self) -> float:
        self.highs.run()
        if self.highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return np.inf
        return float(self.highs.getInfo().objective_function_value)


def best_payoff(
    price_worker: Floats,
    price_server: Floats,
    free: Integers,
    worker: Integers,
    server: Integers,
    most: int,
    gains: tuple[int, int],
    bandwidths: tuple[int, int, int],
    required: int,
    utility: Floats,
    *,
    spread: bool,
) -> float:
    """Return the maximum utility less cost over all schedules, -inf if none completes.

    `gains` are units a worker-slot (external, internal); `bandwidths` are what a worker needs of
    the
    servers outside and on one machine, and what a server offers, (3.4). With `spread`, a slot at
    the external rate may not use one machine only.
    """
    return max(
        float(utility[end])
        - _least_cost(
            price_worker[: end + 1],
            price_server[: end + 1],
            free,
            (worker, server),
            most,
            gains,
            bandwidths,
            required,
            spread,
        )
        for end in range(len(utility))
    )


def _least_cost(
    price_worker: Floats,
    price_server: Floats,
    free: Integers,
    demands: tuple[Integers, Integers],
    most: int,
    gains: tuple[int, int],
    bandwidths: tuple[int, int, int],
    required: int,
    spread: bool,
) -> float:
    slots, machines = price_worker.shape
    outside, inside, offered = bandwidths
    program = Program()
    progress: list[tuple[int, float]] = []
    for t in range(slots):
        modes = []
        rooms: list[tuple[int, int]] = []
        # Everything on machine h, at the internal rate, for each h; or spread out.
        for h in range(machines):
            mode = program.variable(1)
            w = program.variable(most, float(price_worker[t, h]))
            s = program.variable(most, float(price_server[t, h]))
            program.at_most([(w, 1), (mode, -most)], 0)
            program.at_most([(s, 1), (w, -1)], 0)
            program.at_most([(w, inside), (s, -offered)], 0)
            progress.append((w, -gains[1]))
            modes.append(mode)
            rooms.append((w, s))
        mode = program.variable(1)
        ws = [program.variable(most, float(price_worker[t, h])) for h in range(machines)]
        ss = [program.variable(most, float(price_server[t, h])) for h in range(machines)]
        program.at_most([*((w, 1) for w in ws), (mode, -most)], 0)
        program.at_most([*((s, 1) for s in ss), *((w, -1) for w in ws)], 0)
        program.at_most([*((w, outside) for w in ws), *((s, -offered) for s in ss)], 0)
        progress += [(w, -gains[0]) for w in ws]
        modes.append(mode)
        if spread:
            # Exactly the servers that (3.4) requires: offered * servers < outside * workers +
            # offered. And some unit off every machine, if the mode is on.
            program.at_most(
                [*((s, offered) for s in ss), *((w, -outside) for w in ws)], offered - 1
            )
            for h in range(machines):
                others = [(x, -1) for k in range(machines) if k != h for x in (ws[k], ss[k])]
                program.at_most([(mode, 1), *others], 0)
        program.at_most([(mode, 1) for mode in modes], 1)
        for h in range(machines):
            for r in range(free.shape[2]):
                terms = [
                    (rooms[h][0], float(demands[0][r])),
                    (rooms[h][1], float(demands[1][r])),
                    (ws[h], float(demands[0][r])),
                    (ss[h], float(demands[1][r])),
                ]
                program.at_most(terms, float(free[t, h, r]))
    program.at_most(progress, -required)
    return program.minimum()

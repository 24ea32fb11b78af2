"""Time of the policy `optimum`, compared with the problem as printed: 10 jobs, T = 10, 6+6 servers.

Both run in HiGHS, on one thread, to the same relative gap of 1e-6. ``plain`` has a variable for
every job, slot and server, and binaries ``u[i, t]`` for completion. ``optimum`` is the policy's
solver. The aim is 2 s on each of five seeds: ``python benchmarks/bench_optimum.py``.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.offline_instances import SLOTS, instance
from tests.oracles.offline import plain_optimum

from shadowprice.policies.offline.problem import full_problem
from shadowprice.policies.offline.solver import solve

AIM_SECONDS = 2.0


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seeds", type=int, default=5)
    options.add_argument("--jobs", type=int, default=10)
    options.add_argument("--servers", type=int, default=6)
    options.add_argument("--limit", type=float, default=60.0, help="maximum seconds per program")
    given = options.parse_args()
    on, jobs = instance(99, jobs=3, servers=2)
    solve(full_problem(on, jobs, SLOTS))  # compiles
    head = ("servers", "seed", "optimum s", "plain s", "utility", "plain's", "nodes", "aim s")
    print("".join(f"{name:>11}" for name in head))
    for equal in (False, True):
        for seed in range(given.seeds):
            on, jobs = instance(seed, jobs=given.jobs, servers=given.servers, equal=equal)
            began = time.perf_counter()
            optimum = solve(full_problem(on, jobs, SLOTS), time_limit=given.limit)
            solved = time.perf_counter()
            plain = plain_optimum(on, jobs, SLOTS, time_limit=given.limit)
            ended = time.perf_counter()
            marks = ("" if optimum.optimal else "*", "" if plain.optimal else "*")
            cells = (
                "equal" if equal else "mixed",
                seed,
                f"{solved - began:.2f}{marks[0]}",
                f"{ended - solved:.2f}{marks[1]}",
                f"{optimum.utility:.3f}",
                f"{plain.objective:.3f}",
                optimum.nodes,
                AIM_SECONDS,
            )
            print("".join(f"{cell!s:>11}" for cell in cells), flush=True)
    print("* stopped at the time limit, not proved optimal")


if __name__ == "__main__":
    main()

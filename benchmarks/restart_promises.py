"""Promises that `rolling` keeps if restarts take time and jobs progress more slowly than stated.

Workloads have 60 generated jobs, the preset `calibrated` or `chunk`, 100 slots, and bursty
arrivals. The progress of each job in each slot is reduced by a random percentage between 0 and
``--less``.

Run: ``python -m benchmarks.restart_promises [--seeds FIRST LAST] [--less PERCENT] [--steady]``
"""

from __future__ import annotations

import argparse
import zlib
from typing import Final

import numpy as np

from shadowprice.core.events import Promise
from shadowprice.core.job import Job
from shadowprice.core.schedule import Placement
from shadowprice.experiments.rolling import NamedWorkload, with_restart_cost
from shadowprice.policies.choice import PolicyChoice
from shadowprice.results.recorder import Recorder
from shadowprice.simulator.driver import Simulation
from shadowprice.simulator.execution import ExactExecution
from shadowprice.simulator.scenario import Scenario

PRESETS: Final = ("calibrated", "chunk")
RESTART_PERCENTS: Final = (10, 25, 50)  # percentages of a slot that a restart takes


class SlowerExecution(ExactExecution):
    """Execution in which jobs progress randomly more slowly than stated."""

    steady = False

    def __init__(self, less: float, seed: int) -> None:
        self._less, self._seed = less, seed

    def progress(self, job: Job, placement: Placement, slot: int, *, moved: bool = False) -> int:
        """Return the stated progress, reduced by the part drawn for the job and the slot."""
        stated = super().progress(job, placement, slot, moved=moved)
        rng = np.random.default_rng([self._seed, slot, zlib.crc32(job.name.encode())])
        return int(stated * (1.0 - self._less * rng.random()))


def run(scenario: Scenario, less: float, seed: int, *, steady: bool) -> tuple[int, int, float]:
    """Return the numbers of first promises kept and made, and the share of the value earned."""
    cluster, jobs = scenario.cluster, scenario.jobs
    policy = PolicyChoice("rolling", {"steady": steady}).build(scenario.context())
    recorder = Recorder(cluster, jobs, policy)
    execution = SlowerExecution(less, seed)
    Simulation(cluster, jobs, policy, until=scenario.until, execution=execution).run([recorder])
    first: dict[str, int] = {}
    for _, decision in recorder.decisions:
        if isinstance(decision, Promise) and decision.completion is not None:
            first.setdefault(decision.job, decision.completion)
    done = recorder.completions
    kept = sum(name in done and done[name] <= slot for name, slot in first.items())
    earned = sum(utility(job, done[job.name] - job.arrival) for job in jobs if job.name in done)
    on_offer = sum(utility(job, job.min_slots_colocated - 1) for job in jobs)
    return kept, len(first), earned / on_offer


def utility(job: Job, slots: int) -> float:
    """Return the utility of a job that completes a number of slots after its arrival."""
    return float(job.utility.values(np.array([float(slots)]))[0])


def main() -> None:
    """Print a line for each cost of a restart."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs=2, default=(300, 305))
    parser.add_argument("--less", type=float, default=2.0, help="maximum percentage of slowdown")
    parser.add_argument("--steady", action="store_true", help="parameter `steady` of the policy")
    chosen = parser.parse_args()
    seeds = range(chosen.seeds[0], chosen.seeds[1] + 1)
    print("restart  first promises kept  value earned")
    for percent in RESTART_PERCENTS:
        results = []
        for preset in PRESETS:
            for seed in seeds:
                drawn = NamedWorkload("generated", preset=preset, jobs=60, slots=100).scenario(seed)
                seconds = int(drawn.cluster.slot_seconds * percent / 100)
                scenario = with_restart_cost(drawn, seconds)
                results.append(run(scenario, chosen.less / 100, seed, steady=chosen.steady))
        kept, made, share = map(sum, zip(*results, strict=True))
        print(f"{percent:5} %  {kept:9} of {made:<9} {100 * share / len(results):9.1f} %")


if __name__ == "__main__":
    main()

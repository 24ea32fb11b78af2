"""Promises of `rolling` where restarts cost and slots yield less than stated, on generated jobs.

Sixty jobs a workload, presets `calibrated` and `chunk`, a hundred slots, bursty arrivals. What a
slot yields is drawn anew for each job and slot, from what is stated down to so many per cent less.

Run: ``python -m benchmarks.restart_promises [--seeds FIRST LAST] [--less PER-CENT] [--steady]``
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
PARTS: Final = (10, 25, 50)
"""Per cent of a slot that a restart costs."""


class Slower(ExactExecution):
    """Slots that yield less than stated, by chance."""

    steady = False

    def __init__(self, less: float, seed: int) -> None:
        self._less, self._seed = less, seed

    def progress(self, job: Job, placement: Placement, slot: int, *, moved: bool = False) -> int:
        """Return what is stated, less what is drawn for the job and the slot."""
        stated = super().progress(job, placement, slot, moved=moved)
        drawn = np.random.default_rng([self._seed, slot, zlib.crc32(job.name.encode())])
        return int(stated * (1.0 - self._less * drawn.random()))


def run(scenario: Scenario, less: float, seed: int, *, steady: bool) -> tuple[int, int, float]:
    """Return the first promises kept and made, and the share of the value on offer earned."""
    cluster, jobs = scenario.cluster, scenario.jobs
    policy = PolicyChoice("rolling", {"steady": steady}).build(scenario.context())
    recorder = Recorder(cluster, jobs, policy)
    execution = Slower(less, seed)
    Simulation(cluster, jobs, policy, until=scenario.until, execution=execution).run([recorder])
    first: dict[str, int] = {}
    for _, made in recorder.decisions:
        if isinstance(made, Promise) and made.completion is not None:
            first.setdefault(made.job, made.completion)
    done = recorder.completions
    kept = sum(name in done and done[name] <= slot for name, slot in first.items())
    earned = sum(worth(job, done[job.name] - job.arrival) for job in jobs if job.name in done)
    return kept, len(first), earned / sum(worth(job, job.min_slots_colocated - 1) for job in jobs)


def worth(job: Job, slots: int) -> float:
    """Return what a job is worth so many slots after it came."""
    return float(job.utility.values(np.array([float(slots)]))[0])


def main() -> None:
    """Print a line for each cost of a restart."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs=2, default=(300, 305))
    parser.add_argument("--less", type=float, default=2.0)
    parser.add_argument("--steady", action="store_true")
    chosen = parser.parse_args()
    seeds = range(chosen.seeds[0], chosen.seeds[1] + 1)
    print("restart  first promises kept  of the value earned")
    for part in PARTS:
        found = []
        for preset in PRESETS:
            for seed in seeds:
                drawn = NamedWorkload("generated", preset=preset, jobs=60, slots=100).scenario(seed)
                seconds = int(drawn.cluster.slot_seconds * part / 100)
                requested = with_restart_cost(drawn, seconds)
                found.append(run(requested, chosen.less / 100, seed, steady=chosen.steady))
        kept, made, share = map(sum, zip(*found, strict=True))
        print(f"{part:5} %  {kept:9} of {made:<9} {100 * share / len(found):9.1f} %")


if __name__ == "__main__":
    main()

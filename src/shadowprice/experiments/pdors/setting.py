"""The thesis's setting: machines, jobs, the policies compared, and one run of a policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any, Final

import numpy as np

from shadowprice.core.cluster import Cluster
from shadowprice.core.job import Job
from shadowprice.core.policy import as_guaranteed_policy
from shadowprice.core.specs import ClusterSpec
from shadowprice.core.utility import utility_value
from shadowprice.experiments.variants import PolicyVariant
from shadowprice.policies.choice import PolicyChoice
from shadowprice.traces.colocation import colocated_cluster
from shadowprice.traces.generator import GeneratorOptions, generate

SLOT: Final = Fraction(60)
"""The thesis names no slot length; a minute spreads its jobs over 2 to 40 slots."""


PAPER: Final[Mapping[str, Any]] = {"preset": "paper"}
PDORS: Final = PolicyVariant("pdors", PolicyChoice("pdors", PAPER, "PD-ORS"))
EXACT: Final = PolicyVariant(
    "pdors-exact",
    PolicyChoice("pdors", {**PAPER, "placement": "exact"}, "PD-ORS, exact placement"),
)
LITERAL: Final = PolicyVariant(
    "pdors-literal",
    PolicyChoice("pdors", {**PAPER, "bandwidth": "literal"}, "PD-ORS, (3.4) to the letter"),
)
OASIS: Final = PolicyVariant(
    "oasis", PolicyChoice("oasis", {**PAPER, "split": "half"}, "OASiS, half of the machines each")
)


@dataclass(frozen=True, slots=True)
class RunResult:
    """Result of a run."""

    utility: float  # total earned utility
    finished: int  # jobs that completed
    colocated: float
    """Share of the running slots of finished jobs with all processes on one machine."""
    guarantee: Mapping[str, object]  # guarantee of Theorem 3, or of OASiS's Theorem 4, for the run


@cache
def cluster(machines: int, slots: int, slot_seconds: Fraction, seed: int) -> Cluster:
    """Return the machines of a seed."""
    document = colocated_cluster(
        machines=machines, slot_seconds=slot_seconds, horizon=slots, seed=seed
    )
    return ClusterSpec.model_validate(document).resolve()


def workload(
    on: Cluster, jobs: int, slots: int, *, ratio: float = 40.0, seed: int = 0
) -> Sequence[Job]:
    """Return the jobs of a seed; the ratio changes only their internal rate."""
    options = GeneratorOptions(
        preset="pdors",
        jobs=jobs,
        slots=slots,
        slot_seconds=on.slot_seconds,
        internal_ratio=ratio,
    )
    return generate(options, seed=seed).to_jobs(on)


def run(
    variant: PolicyVariant, on: Cluster, jobs: Sequence[Job], slots: int, seed: int
) -> RunResult:
    """Simulate one policy on a workload."""
    engine, policy = variant.simulate(on, jobs, slots, seed)
    earned, finished = 0.0, 0
    colocated: list[np.ndarray[Any, Any]] = []
    for record in engine.jobs.values():
        if record.completion is not None:
            earned += utility_value(record.job.utility, record.completion - record.job.arrival)
            finished += 1
            colocated.append(record.plan.totals()[2])
    share = float(np.concatenate(colocated).mean()) if colocated else float("nan")
    guarantee = as_guaranteed_policy(policy)
    return RunResult(
        earned, finished, share, {} if guarantee is None else guarantee.guarantee(jobs)
    )

"""OASiS's setting: servers, jobs, the policies of its evaluation, and one run of a policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from shadowprice.core.cluster import BANDWIDTH
from shadowprice.core.specs import ClusterSpec
from shadowprice.core.utility import Sigmoid, utility_value
from shadowprice.experiments.variants import PolicyVariant
from shadowprice.policies.choice import PolicyChoice
from shadowprice.traces.arrivals import Pattern
from shadowprice.traces.generator import GeneratorOptions, Preset, generate, paper_cluster

if TYPE_CHECKING:
    from shadowprice.core.cluster import Cluster
    from shadowprice.core.job import Job
    from shadowprice.core.policy import Policy


CLEARING: Final = PolicyVariant(
    "oasis",
    PolicyChoice("oasis", {"preset": "paper", "lower": "clearing"}, "OASiS (clearing L)"),
)
GUARANTEED: Final = PolicyVariant(
    "oasis-guaranteed",
    PolicyChoice("oasis", {"preset": "paper", "lower": "guaranteed"}, "OASiS (guaranteed L)"),
    "-.",
)
THEORY: Final = PolicyVariant(
    "oasis-theory", PolicyChoice("oasis", {"preset": "paper"}, "OASiS (L as printed)"), "--"
)
OASIS: Final = (CLEARING, GUARANTEED, THEORY)
BASELINES: Final = (
    PolicyVariant("fifo", PolicyChoice("fifo", titled="FIFO")),
    PolicyVariant("drf", PolicyChoice("drf", titled="DRF")),
    PolicyVariant("rrh", PolicyChoice("rrh", titled="RRH")),
    # Every server in use differs, so Dorm's program is large. It is limited to the jobs at the head
    # of the queue, and to the best solution at the root node. A window that is two or four times as
    # large changes its utility by a few percent.
    PolicyVariant(
        "dorm",
        PolicyChoice(
            "dorm", {"window": 4, "adjustable": 4, "node_limit": 1, "gap": 0.1}, titled="Dorm"
        ),
    ),
)
POLICY_VARIANTS: Final = (*OASIS, *BASELINES)


@dataclass(frozen=True, slots=True)
class WorkloadCase:
    """Source of jobs and their arrivals."""

    title: str
    preset: Preset
    slot: Fraction  # length of a slot in seconds
    arrivals: Pattern = "poisson"


CHUNK: Final = WorkloadCase("tau a chunk's, slots of 1 h", "chunk", Fraction(3600))
BURSTY: Final = WorkloadCase("the same, bursty arrivals", "chunk", Fraction(3600), "bursty")
PRINTED: Final = WorkloadCase("tau a mini-batch's, slots of 20 min", "paper", Fraction(1200))
CASES: Final[Mapping[str, WorkloadCase]] = {"chunk": CHUNK, "bursty": BURSTY, "printed": PRINTED}
"""The reading that reproduces the paper's figures, the same with arrivals as bursty as Philly's,
and the ranges as printed.
"""


@dataclass(frozen=True, slots=True)
class JobResult:
    """A job, and the slot in which it completed; None if it didn't."""

    job: Job
    completion: int | None

    @property
    def utility(self) -> float:
        """Earned utility."""
        if self.completion is None:
            return 0.0
        return utility_value(self.job.utility, self.completion - self.job.arrival)

    @property
    def late(self) -> float | None:
        """Actual minus target completion time in slots, None if it never completed."""
        if self.completion is None or not isinstance(self.job.utility, Sigmoid):
            return None
        return self.completion - self.job.arrival - self.job.utility.target


@cache
def cluster(
    workers: int, parameter_servers: int, slots: int, seed: int, slot: Fraction = CHUNK.slot
) -> Cluster:
    """Return the servers of a seed; the same for every policy.

    Bandwidth lies within [20, 50] Gbps as in the paper, in steps of 10: a few kinds of servers.
    """
    document = paper_cluster(
        workers=workers,
        parameter_servers=parameter_servers,
        slot_seconds=slot,
        horizon=slots,
        seed=seed,
    )
    for server in document["servers"]:
        bandwidth = int(server["capacity"][BANDWIDTH].removesuffix("Gbps"))
        server["capacity"][BANDWIDTH] = f"{round(bandwidth, -1)}Gbps"
    return ClusterSpec.model_validate(document).resolve("generated cluster")


def workload(
    on: Cluster, case: WorkloadCase, jobs: int, slots: int, seed: int, **changes: Any
) -> list[Job]:
    """Return the jobs of a seed, which arrive throughout the timespan."""
    options = GeneratorOptions(
        preset=case.preset,
        jobs=jobs,
        slots=slots,
        slot_seconds=on.slot_seconds,
        arrivals=case.arrivals,
        **changes,
    )
    return generate(options, seed=seed).to_jobs(on)


def merged(*workloads: Sequence[Job]) -> list[Job]:
    """Return jobs of several workloads by arrival, with unique names."""
    renamed = [
        replace(job, name=f"{index}-{job.name}")
        for index, jobs in enumerate(workloads)
        for job in jobs
    ]
    return sorted(renamed, key=lambda job: job.arrival)


def run(
    variant: PolicyVariant, on: Cluster, jobs: Sequence[Job], slots: int, seed: int
) -> tuple[list[JobResult], Policy]:
    """Simulate a policy on a workload; return every job's result, and the policy."""
    engine, policy = variant.simulate(on, jobs, slots, seed)
    done = {name: record.completion for name, record in engine.jobs.items()}
    return [JobResult(job, done.get(job.name)) for job in jobs], policy

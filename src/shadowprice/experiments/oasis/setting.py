"""OASiS's setting: servers, jobs, the schemes of its evaluation, and one run of one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from shadowprice.core.cluster import BANDWIDTH
from shadowprice.core.policy import PolicyContext
from shadowprice.core.specs import ClusterSpec
from shadowprice.core.utility import Sigmoid, utility_value
from shadowprice.experiments.style import POLICY_COLOURS
from shadowprice.policies.registry import make_policy
from shadowprice.simulator.driver import Simulation
from shadowprice.traces.arrivals import Pattern
from shadowprice.traces.generator import GeneratorOptions, Preset, generate, paper_cluster

if TYPE_CHECKING:
    from shadowprice.core.cluster import Cluster
    from shadowprice.core.job import Job
    from shadowprice.core.policy import Policy
    from shadowprice.engine import Engine


@dataclass(frozen=True, slots=True)
class Scheme:
    """One curve: a policy with its parameters.

    Parameters
    ----------
    key : str
        Name in tables.
    label : str
        Name in legends.
    policy : str
        Its policy.
    parameters : mapping
        What is set of it.
    line : str
        Its line, as matplotlib writes it: full, or that of a variant of the same policy.
    """

    key: str
    label: str
    policy: str
    parameters: Mapping[str, Any]
    line: str = "-"

    @property
    def colour(self) -> str:
        """Colour of its curve."""
        return POLICY_COLOURS[self.policy]

    @property
    def fill(self) -> str:
        """Colour that fills its bars and boxes: paler for variants."""
        return {"-": self.colour, "-.": f"{self.colour}70"}.get(self.line, "white")

    @property
    def tick(self) -> str:
        """Name below bars and boxes, in two lines."""
        name, _, which = self.label.partition(" (")
        words = which.strip(")").split()
        return "\n".join([name, *(word for word in words if len(word) > 2)][:2])


CLEARING: Final = Scheme(
    "oasis", "OASiS (clearing L)", "oasis", {"preset": "paper", "lower": "clearing"}
)
GUARANTEED: Final = Scheme(
    "oasis-guaranteed",
    "OASiS (guaranteed L)",
    "oasis",
    {"preset": "paper", "lower": "guaranteed"},
    "-.",
)
THEORY: Final = Scheme("oasis-theory", "OASiS (L as printed)", "oasis", {"preset": "paper"}, "--")
OASIS: Final = (CLEARING, GUARANTEED, THEORY)
BASELINES: Final = (
    Scheme("fifo", "FIFO", "fifo", {}),
    Scheme("drf", "DRF", "drf", {}),
    Scheme("rrh", "RRH", "rrh", {}),
    # Every server differs once it carries something, so Dorm's program is large: it looks at the
    # jobs nearest their turn, and takes the best solution at the root. Twice or four times as many
    # jobs change what it earns by a few percent.
    Scheme("dorm", "Dorm", "dorm", {"window": 4, "adjustable": 4, "node_limit": 1, "gap": 0.1}),
)
SCHEMES: Final = (*OASIS, *BASELINES)


@dataclass(frozen=True, slots=True)
class Case:
    """What jobs are drawn from, and when they arrive.

    Parameters
    ----------
    title : str
        In a few words.
    preset : str
        Ranges of the generator.
    slot : Fraction
        Length of a slot in seconds.
    arrivals : str
        Pattern of the arrivals.
    """

    title: str
    preset: Preset
    slot: Fraction
    arrivals: Pattern = "poisson"


CHUNK: Final = Case("tau a chunk's, slots of 1 h", "chunk", Fraction(3600))
BURSTY: Final = Case("the same, bursty arrivals", "chunk", Fraction(3600), "bursty")
PRINTED: Final = Case("tau a mini-batch's, slots of 20 min", "paper", Fraction(1200))
CASES: Final[Mapping[str, Case]] = {"chunk": CHUNK, "bursty": BURSTY, "printed": PRINTED}
"""The reading that gives the paper's figures, the same with arrivals as bursty as Philly's, and the
ranges by the letter."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one job.

    Parameters
    ----------
    job : Job
        The job.
    completion : int or None
        Slot in which it completed.
    """

    job: Job
    completion: int | None

    @property
    def utility(self) -> float:
        """What it earned."""
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
    """Return the servers of a seed; the same for every scheme.

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
    on: Cluster, case: Case, jobs: int, slots: int, seed: int, **changes: Any
) -> list[Job]:
    """Return the jobs of a seed; they arrive throughout the timespan."""
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
    """Return jobs of several workloads by arrival, renamed apart."""
    renamed = [
        replace(job, name=f"{at}-{job.name}") for at, jobs in enumerate(workloads) for job in jobs
    ]
    return sorted(renamed, key=lambda job: job.arrival)


def run(
    scheme: Scheme, on: Cluster, jobs: Sequence[Job], slots: int, seed: int
) -> tuple[list[Outcome], Policy]:
    """Simulate a scheme on a workload; return every job's outcome, and the policy."""
    policy = make_policy(scheme.policy, PolicyContext(on, jobs, slots, seed), scheme.parameters)
    engine: Engine = Simulation(on, jobs, policy, until=slots).run()
    done = {name: record.completion for name, record in engine.jobs.items()}
    return [Outcome(job, done.get(job.name)) for job in jobs], policy

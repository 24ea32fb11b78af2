"""Workloads, policies and one run; workloads without a local trace are left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Final, cast
from zlib import crc32

import numpy as np

from shadowprice.core.job import Job
from shadowprice.core.schedule import Placement
from shadowprice.core.specs import ClusterSpec
from shadowprice.policies.choice import PolicyChoice
from shadowprice.simulator.execution import ExactExecution, ExecutionModel
from shadowprice.simulator.scenario import Scenario, run_policy
from shadowprice.simulator.source import ScenarioSource
from shadowprice.traces.generator import GeneratorOptions, Preset, generate, paper_cluster
from shadowprice.traces.locate import parse_spec

_JOBS_A_SERVER: Final = 8
"""Jobs of a generated workload for each server of either kind: OASiS's 400 on 50 and 50."""

ITP: Final = "itp:microsoft_itp_2021/elasticflow/cluster0{}.csv.gz"
PHILLY: Final = "philly:philly/philly.csv.gz"
PHILLY_VIRTUAL_CLUSTERS: Final = (
    "51b7ef",
    "23dbec",
    "e13805",
    "2869ce",
    "0e4a51",
    "103959",
    "b436b2",
    "6214e9",
)
"""Virtual clusters of the Philly file, the smallest first."""


ROLLING: Final = PolicyChoice("rolling")
OASIS_CLAIRVOYANT: Final = PolicyChoice("oasis", {"prices": "offline"}, "oasis, all jobs known")
POLICY_VARIANTS: Final = (
    ROLLING,
    PolicyChoice("oasis", {"prices": "online"}, "oasis"),
    PolicyChoice("rrh"),
    PolicyChoice("elasticflow"),
    PolicyChoice("srtf"),
    PolicyChoice("las"),
    PolicyChoice("backfill"),
    PolicyChoice("drf"),
    PolicyChoice("fifo"),
    OASIS_CLAIRVOYANT,
)
"""Policies of all workloads; all but the last know only jobs that have arrived."""
FULL_SETTING: Final = (
    *POLICY_VARIANTS[:-1],
    PolicyChoice("pdors"),
    PolicyChoice("dorm"),
    OASIS_CLAIRVOYANT,
)
"""Policies of whole workloads, including those that solve programs at every decision."""


@dataclass(frozen=True, slots=True)
class NamedWorkload:
    """Jobs and their cluster: sized to a trace at load 1, or OASiS's for generated jobs."""

    name: str
    trace: str = ""  # trace in the format of ``--trace``; empty for a generated workload
    slot: str = "20min"  # length of a slot
    preset: Preset = "calibrated"  # ranges of the generator, for a generated workload
    jobs: int = 0
    slots: int = 0  # its timespan

    @property
    def at_hand(self) -> bool:
        """Whether its trace is available locally."""
        return not self.trace or parse_spec(self.trace).path.exists()

    def scenario(self, seed: int) -> Scenario:
        """Return the scenario of a seed."""
        if self.trace:
            return ScenarioSource(trace=self.trace, slot=self.slot).scenario(seed)[0]
        options = GeneratorOptions(
            preset=self.preset,
            jobs=self.jobs,
            slots=self.slots,
            slot_seconds=Fraction(1200),
            arrivals="bursty",
        )
        servers = max(1, self.jobs // _JOBS_A_SERVER)
        document = paper_cluster(
            workers=servers,
            parameter_servers=servers,
            slot_seconds=options.slot_seconds,
            horizon=self.slots,
            seed=seed,
        )
        on = ClusterSpec.model_validate(document).resolve("generated cluster")
        return Scenario(on, generate(options, seed=seed).to_jobs(on), self.slots, seed)


def workloads(*, quick: bool) -> list[NamedWorkload]:
    """Return the available workloads; if quick, windows of a few hundred jobs."""
    part = "limit=120" if quick else ""
    available = [
        *(
            NamedWorkload(f"ITP cluster0{number}", _with(ITP.format(number), part))
            for number in range(1, 7)
        ),
        *(
            NamedWorkload(f"Philly {vc}", _with(PHILLY, f"vc={vc}", part))
            for vc in PHILLY_VIRTUAL_CLUSTERS
        ),
        *(() if quick else (NamedWorkload("Philly", PHILLY),)),
        NamedWorkload("Philly, 6,000 jobs", _with(PHILLY, "from=20d", part or "limit=6000")),
        NamedWorkload(
            "ElasticFlow's Philly file",
            _with("itp:philly/elasticflow/philly_103959.csv", part),
            slot="60s",
        ),
        NamedWorkload(
            "generated: calibrated", jobs=60 if quick else 400, slots=100 if quick else 300
        ),
        NamedWorkload(
            "generated: paper",
            preset="paper",
            jobs=60 if quick else 400,
            slots=100 if quick else 300,
        ),
    ]
    if quick:
        available = [workload for workload in available if workload.name in QUICK]
    return [workload for workload in available if workload.at_hand]


QUICK: Final = frozenset(
    {"ITP cluster03", "ITP cluster05", "Philly 103959", "Philly 0e4a51", "generated: calibrated"}
)


def _with(trace: str, *options: str) -> str:
    query = "&".join(filter(None, options))
    return f"{trace}?{query}" if query else trace


def run(scenario: Scenario, scheme: PolicyChoice) -> dict[str, Any]:
    """Run a policy on a workload; return a row of a table."""
    info = run_policy(scenario, scheme).info
    summary = cast("dict[str, Any]", info["summary"])
    met, latency = summary["met_target"], info["timing"]["decision_latency"]
    return {
        "policy": scheme.label,
        "jobs": summary["arrived"],
        "utility": summary["total_utility"],
        "share": summary["total_utility"] / max(1e-12, summary["value"]),
        "in time": met["share"],
        "JCT": summary["jct"]["mean"],
        "restricted JCT": summary["jct"]["restricted_mean"],
        "restarts": summary["restarts"],
        "decision p99 ms": 1e3 * latency["p99"] if latency["p99"] is not None else None,
    }


class MisstatedWork(ExecutionModel):
    """Jobs whose work is their stated work times a random factor.

    The factor is log-uniform between ``1 / max_factor`` and ``max_factor``, drawn by the job's name
    and ``seed``.
    """

    def __init__(self, max_factor: float, seed: int) -> None:
        self._max_factor, self._seed = max_factor, seed
        self._exact = ExactExecution()
        self._factors: dict[str, float] = {}

    def progress(self, job: Job, placement: Placement, slot: int, *, moved: bool = False) -> int:
        """Return the stated progress over the job's factor, but at least 1 if there is any."""
        if job.name not in self._factors:
            exponent = np.random.default_rng([self._seed, crc32(job.name.encode())]).uniform(-1, 1)
            self._factors[job.name] = self._max_factor**exponent
        stated = self._exact.progress(job, placement, slot, moved=moved)
        return max(min(stated, 1), int(stated / self._factors[job.name]))


def misstated(scenario: Scenario, maximum: float) -> Scenario:
    """Return the same jobs, whose work differs from their statement by up to a factor."""
    return replace(scenario, execution=MisstatedWork(maximum, scenario.seed))


def with_restart_cost(scenario: Scenario, seconds: int) -> Scenario:
    """Return the same jobs, which lose some seconds whenever they move."""
    share = Fraction(seconds) / scenario.cluster.slot_seconds
    jobs: Sequence[Job] = [replace(job, restart=share) for job in scenario.jobs]
    return replace(scenario, jobs=jobs)

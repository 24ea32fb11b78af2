"""Presets of the experiments: the paper's setting, and one that reproduces its figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from shadowprice.core.cluster import Cluster
from shadowprice.core.job import Job
from shadowprice.experiments.astraea.runs import RevenueObserver, run
from shadowprice.experiments.astraea.workload import (
    FOUND as FOUND_RANGES,
)
from shadowprice.experiments.astraea.workload import (
    PAPER as PAPER_RANGES,
)
from shadowprice.experiments.astraea.workload import (
    Demand,
    Ranges,
    draw_jobs,
    shared_cluster,
)


@dataclass(frozen=True, slots=True)
class Preset:
    """One setting."""

    title: str
    colour: str  # colour of its curves in figures that compare presets
    ranges: Ranges = PAPER_RANGES  # ranges of the jobs' work
    demand: Demand = "chunks"  # workers that a job may have
    mixed: bool = False  # whether machines have 2 or 8 workers, as Philly's have
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Parameters of policies, by policy."""

    def cluster(self, users: int, servers: int, horizon: int) -> Cluster:
        """Return the servers and their owners."""
        return shared_cluster(users, servers, horizon, mixed=self.mixed)

    def draw(
        self, cluster: Cluster, count: int, seed: int, *, convex: bool = False
    ) -> tuple[list[Job], str]:
        """Draw jobs; return them, and the source of their arrivals."""
        return draw_jobs(
            cluster, count, seed, ranges=self.ranges, convex=convex, demand=self.demand
        )

    def run(
        self,
        policy: str,
        cluster: Cluster,
        jobs: Sequence[Job],
        theta_scale: float = 1.0,
    ) -> RevenueObserver:
        """Run a policy with its parameters, with theta scaled if it has one."""
        settings = dict(self.settings.get(policy, {}))
        if theta_scale != 1.0:
            scale = float(settings.get("theta", {}).get("scale", 1.0))
            settings["theta"] = {"scale": scale * theta_scale}
        return run(policy, cluster, jobs, settings)


def _gangs(size: int | str, *, rounds: int = 1, scale: float = 0.05) -> dict[str, dict[str, Any]]:
    market = {"lambda": rounds, "theta": {"scale": scale}}
    gangs = {"workers": size}
    return {"astraea": market, "batchsche": market, "gandiva_fair": gangs, "hived": gangs}


STATED: Final = Preset("as the paper states it", "#009E73")
FOUND: Final = Preset("found by search", "#0072B2", FOUND_RANGES, settings=_gangs(4))
"""Setting found by search, in three respects that the paper leaves open or states otherwise. It has
a quarter of the epochs, lambda = 1 with a twentieth of theta, and gangs of 4 in schedulers that
don't choose a size. It was chosen to reproduce Fig. 4, and is not evidence of the paper's real
setting.
"""

PRESETS: Final[Mapping[str, Preset]] = {"paper": STATED, "found": FOUND}

VARIANTS: Final[Mapping[str, Preset]] = {
    "paper": STATED,
    "found": FOUND,
    "found, theta as defined": Preset("", "", FOUND_RANGES, settings=_gangs(4, scale=1.0)),
    "found, lambda 2": Preset("", "", FOUND_RANGES, settings=_gangs(4, rounds=2)),
    "found, gangs of 8": Preset("", "", FOUND_RANGES, settings=_gangs(8)),
    "found, gangs of 2": Preset("", "", FOUND_RANGES, settings=_gangs(2)),
    "found, gangs as wide as possible": Preset("", "", FOUND_RANGES, settings=_gangs("max")),
    "found, gangs per job": Preset("", "", FOUND_RANGES, settings=_gangs("label")),
    "found, machines of 2 and 8": Preset("", "", FOUND_RANGES, mixed=True, settings=_gangs(4)),
    "found, demand of the trace": Preset("", "", FOUND_RANGES, "trace", settings=_gangs("max")),
    "found, demand of the trace, machines of 2 and 8": Preset(
        "", "", FOUND_RANGES, "trace", mixed=True, settings=_gangs("max")
    ),
}
"""Variants that show the effect of each part of the setting."""

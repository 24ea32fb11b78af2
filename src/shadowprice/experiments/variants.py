"""The policies of a figure: a `PolicyChoice` with its name in tables and its line style."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from shadowprice.core.policy import PolicyContext
from shadowprice.experiments.style import POLICY_COLOURS
from shadowprice.policies.choice import PolicyChoice
from shadowprice.simulator.driver import Simulation

if TYPE_CHECKING:
    from shadowprice.core.cluster import Cluster
    from shadowprice.core.job import Job
    from shadowprice.core.policy import Policy
    from shadowprice.engine import Engine


@dataclass(frozen=True, slots=True)
class PolicyVariant:
    """One curve of a figure."""

    key: str  # name in tables
    choice: PolicyChoice  # the policy; its label is the name in legends
    line: str = "-"
    """Line style of matplotlib: solid, or another one for a variant of the same policy."""

    @property
    def label(self) -> str:
        """Name in legends."""
        return self.choice.label

    @property
    def colour(self) -> str:
        """Colour of the curve."""
        return POLICY_COLOURS[self.choice.name]

    @property
    def fill(self) -> str:
        """Fill colour of bars and boxes: paler for variants."""
        return {"-": self.colour, "-.": f"{self.colour}70"}.get(self.line, "white")

    @property
    def tick(self) -> str:
        """Name below bars and boxes, in two lines."""
        name, _, rest = self.label.partition(" (")
        words = rest.strip(")").split()
        return "\n".join([name, *(word for word in words if len(word) > 2)][:2])

    def simulate(
        self, cluster: Cluster, jobs: Sequence[Job], slots: int, seed: int
    ) -> tuple[Engine, Policy]:
        """Run a workload for a number of slots; return the engine at the end, and the policy."""
        policy = self.choice.build(PolicyContext(cluster, jobs, slots, seed))
        return Simulation(cluster, jobs, policy, until=slots).run(), policy


def samples_by_policy(
    table: pl.DataFrame, column: str, draw: str, first: str | None = None
) -> dict[str, list[float]]:
    """Return a column's values by policy, in order of draws; policy ``first`` comes first."""
    samples = {
        str(policy): rows.sort(draw)[column].to_list()
        for (policy,), rows in table.group_by("policy", maintain_order=True)
    }
    return samples if first is None else {first: samples.pop(first), **samples}

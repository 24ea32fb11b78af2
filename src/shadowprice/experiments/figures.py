"""Shared parts of figures: style, parts of panels, and the compared policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl

from shadowprice.core.cluster import Cluster
from shadowprice.core.job import Job
from shadowprice.policies.choice import PolicyChoice
from shadowprice.results.run_directory import RunData
from shadowprice.simulator.scenario import Scenario, run_policy

# ------------------------------------------------------------------ style


PALETTE: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#6B6B6B")
"""Okabe and Ito's colours, for colour-blind readers and for print, without yellow."""

POLICY_COLOURS: Final[Mapping[str, str]] = {
    "oasis": PALETTE[0],
    "pdors": PALETTE[1],
    "astraea": PALETTE[2],
    "fifo": PALETTE[6],
    "drf": PALETTE[4],
    "rrh": PALETTE[3],
    "dorm": PALETTE[5],
}
"""Colour of each policy in all figures."""

STYLE: Final[dict[Any, Any]] = {
    "font.family": "DejaVu Sans",
    "font.size": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlesize": 11.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "lines.markersize": 5.0,
    "savefig.facecolor": "white",
}
"""matplotlib settings shared by all figures."""


# ------------------------------------------------------------------ parts of panels


def policy_colours(policies: Sequence[str]) -> list[str]:
    """Return the colour of each policy; variants such as ``oasis, prices given`` share one."""
    return [POLICY_COLOURS.get(name.partition(",")[0], PALETTE[1]) for name in policies]


def draw_curves(
    panel: Any,
    table: pl.DataFrame,
    x: str,
    y: str,
    by: str,
    *,
    colours: Sequence[str] | Mapping[Any, str] = PALETTE,
    text: str = "{}",
    scale: float = 1.0,
    **style: Any,
) -> None:
    """Draw a curve of ``y`` over ``x`` for each value of the column ``by``, in table order.

    ``colours`` are in this order, or by value. ``text`` formats a value as label; ``_`` hides it
    from the legend. Values of ``y`` are multiplied by ``scale``.
    """
    for index, ((value,), rows) in enumerate(table.group_by(by, maintain_order=True)):
        colour = colours[value if isinstance(colours, Mapping) else index % len(colours)]
        looks = {"color": colour, "label": text.format(value), **style}
        curve = rows.sort(x)
        panel.plot(curve[x], scale * curve[y], **looks)


def draw_band(
    panel: Any, table: pl.DataFrame, x: str, band: Mapping[str, pl.Expr], **style: Any
) -> None:
    """Draw the ``mean`` of the rows of each x, and the band from ``low`` to ``high``."""
    rows = table.group_by(x).agg(**band).sort(x)
    panel.plot(rows[x], rows["mean"], **style)
    panel.fill_between(rows[x], rows["low"], rows["high"], color=style["color"], alpha=0.12, lw=0)


def draw_predicted_and_real(
    panel: Any, summary: pl.DataFrame, *, labelled: bool = True, **texts: str
) -> None:
    """Draw two bars per policy: predicted (pale) and real utility."""
    policies = summary["policy"].to_list()
    positions, colours = np.arange(len(policies)), policy_colours(policies)
    panel.bar(positions - 0.2, summary["predicted_utility"], 0.38, color=colours, alpha=0.35)
    bars = panel.bar(positions + 0.2, summary["utility"], 0.38, color=colours)
    if labelled:
        panel.bar_label(bars, fmt="%.0f", padding=3, fontsize=9)
        panel.margins(y=0.12)
    panel.set_xticks(positions, policies)
    panel.set(**texts)


def draw_completions(
    panel: Any, jobs: pl.DataFrame, policies: Sequence[str], spacing: float = 0.0, **texts: str
) -> None:
    """Draw predicted and real slots of completion; ``spacing`` keeps policies from overlapping."""
    done = jobs.drop_nulls(["completion", "predicted_completion"])
    for index, (policy, colour) in enumerate(zip(policies, policy_colours(policies), strict=True)):
        rows = done.filter(pl.col("policy") == policy)
        predicted = rows["predicted_completion"] + spacing * (index - (len(policies) - 1) / 2)
        panel.scatter(predicted, rows["completion"], color=colour, label=policy, s=22)
    maximum = max((*done["completion"], *done["predicted_completion"], 1))
    panel.plot([0, maximum], [0, maximum], color=PALETTE[6], linewidth=1.0, linestyle=":")
    panel.set(xlabel="predicted", ylabel="real", **texts)
    panel.legend(fontsize=8)


def draw_box(
    panel: Any,
    position: float,
    values: pl.Series,
    width: float = 0.55,
    whiskers: tuple[float, float] = (5, 95),
    **looks: Any,
) -> dict[str, Any]:
    """Draw a box of the values that aren't null; whiskers are percentiles. Return its parts."""
    parts: dict[str, Any] = panel.boxplot(
        [values.drop_nulls().to_numpy()], positions=[position], widths=width, whis=whiskers,
        showfliers=False, patch_artist=True, boxprops=looks, medianprops={"color": "black"},
    )  # fmt: skip
    return parts


def set_ticks(axis: Any, *ticks: float) -> None:
    """Set the ticks of an axis as plain numbers, without minor ticks."""
    axis.set_ticks(ticks, labels=[f"{tick:g}" for tick in ticks])
    axis.minorticks_off()


def write_above(panel: Any, position: float, text: str, size: float = 9) -> None:
    """Write a text at the upper edge of a panel."""
    panel.annotate(
        text, (position, 1.0), xycoords=("data", "axes fraction"), ha="center", va="top",
        fontsize=size,
    )  # fmt: skip


# ------------------------------------------------------------------ policies


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
    def style(self) -> dict[str, Any]:
        """Line style, colour and label of the curve."""
        return {"ls": self.line, "color": self.colour, "label": self.label}

    @property
    def fill(self) -> str:
        """Fill colour of bars and boxes: the policy's, half transparent, or white for ``--``."""
        return {"-": self.colour, "-.": f"{self.colour}70"}.get(self.line, "white")

    @property
    def tick(self) -> str:
        """Name below bars and boxes: policy, and the first longer word of the variant."""
        name, _, rest = self.label.partition(" (")
        words = rest.strip(")").split()
        return "\n".join([name, *(word for word in words if len(word) > 2)][:2])

    def run(self, cluster: Cluster, jobs: Sequence[Job], slots: int, seed: int) -> RunData:
        """Run a workload for a number of slots."""
        return run_policy(Scenario(cluster, jobs, slots, seed), self.choice)


def samples_by_policy(
    table: pl.DataFrame, column: str, draw: str, first: str | None = None
) -> dict[str, list[float]]:
    """Return a column's values by policy, in order of draws; policy ``first`` comes first."""
    samples = {
        str(policy): rows.sort(draw)[column].to_list()
        for (policy,), rows in table.group_by("policy", maintain_order=True)
    }
    return samples if first is None else {first: samples.pop(first), **samples}

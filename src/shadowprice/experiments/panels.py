"""Parts of figures that several experiments share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from shadowprice.experiments.style import PALETTE, POLICY_COLOURS


def policy_colours(policies: Sequence[str]) -> list[str]:
    """Return the colours of policies, by the part of a name before a comma."""
    return [POLICY_COLOURS.get(name.partition(",")[0], PALETTE[1]) for name in policies]


def draw_predicted_and_real(
    panel: Any, summary: pl.DataFrame, *, labelled: bool = True, **texts: str
) -> None:
    """Draw utility by policy as two bars: predicted (pale) and real."""
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


def write_above(panel: Any, position: float, text: str, size: float = 9) -> None:
    """Write a text at the upper edge of a panel."""
    panel.annotate(
        text, (position, 1.0), xycoords=("data", "axes fraction"), ha="center", va="top",
        fontsize=size,
    )  # fmt: skip

"""Figures of the testbed's measurements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from shadowprice.experiments.style import PALETTE, POLICY_COLOURS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from shadowprice.experiments.framework import Tables


def draw_testbed(tables: Tables, figure: Figure) -> None:
    """Draw Figs. 7 and 8, predicted and measured, and the differences between the two."""
    panels = figure.subplots(2, 2)
    policies = tables["summary"]["policy"].to_list()
    colours = [POLICY_COLOURS.get(policy, PALETTE[1]) for policy in policies]
    _utility(panels[0, 0], tables["summary"], policies, colours)
    _lateness(panels[0, 1], tables["jobs"], policies, colours)
    _apart(panels[1, 0], tables["jobs"], policies, colours)
    _progress(panels[1, 1], tables["progress"], policies, colours)


def _utility(panel: Any, summary: pl.DataFrame, policies: list[str], colours: list[str]) -> None:
    positions = np.arange(len(policies))
    panel.bar(positions - 0.2, summary["predicted_utility"], 0.38, color=colours, alpha=0.35)
    bars = panel.bar(positions + 0.2, summary["utility"], 0.38, color=colours)
    panel.bar_label(bars, fmt="%.0f", padding=3, fontsize=9)
    panel.set_xticks(positions, policies)
    panel.set(title="Fig. 7: predicted (pale) and earned", ylabel="total utility")
    panel.margins(y=0.12)


def _lateness(panel: Any, jobs: pl.DataFrame, policies: list[str], colours: list[str]) -> None:
    for index, (policy, colour) in enumerate(zip(policies, colours, strict=True)):
        rows = jobs.filter(pl.col("policy") == policy)
        for shift, column, alpha in ((-0.2, "predicted_late", 0.35), (0.2, "late", 1.0)):
            late = rows[column].drop_nulls().to_numpy()
            panel.boxplot(
                [late],
                positions=[index + shift],
                widths=0.32,
                whis=(0, 100),
                patch_artist=True,
                boxprops={"facecolor": colour, "alpha": alpha},
                medianprops={"color": "black"},
            )
        done = rows["completion"].is_not_null().sum()
        panel.annotate(
            f"{done} of {len(rows)}",
            (index, 1.0),
            xycoords=("data", "axes fraction"),
            ha="center",
            va="top",
            fontsize=9,
        )
    panel.axhline(0, color=PALETTE[6], lw=1)
    panel.set_xticks(range(len(policies)), policies)
    panel.set(
        title="Fig. 8: of those that completed, predicted (pale) and real",
        ylabel="completion minus target (slots)",
    )
    panel.margins(y=0.12)


def _apart(panel: Any, jobs: pl.DataFrame, policies: list[str], colours: list[str]) -> None:
    done = jobs.filter(
        pl.col("completion").is_not_null() & pl.col("predicted_completion").is_not_null()
    )
    for index, (policy, colour) in enumerate(zip(policies, colours, strict=True)):
        rows = done.filter(pl.col("policy") == policy)
        shift = 0.08 * (index - (len(policies) - 1) / 2)  # slots are integers: points would overlap
        panel.scatter(
            rows["predicted_completion"] + shift,
            rows["completion"],
            color=colour,
            label=policy,
            s=22,
        )
    maximum = max((*done["completion"], *done["predicted_completion"], 1))
    panel.plot([0, maximum], [0, maximum], color=PALETTE[6], linewidth=1.0, linestyle=":")
    panel.set(title="Slot of completion, by job", xlabel="predicted", ylabel="real")
    panel.legend(fontsize=8)


def _progress(panel: Any, progress: pl.DataFrame, policies: list[str], colours: list[str]) -> None:
    for policy, colour in zip(policies, colours, strict=True):
        rows = progress.filter(pl.col("policy") == policy)
        panel.scatter(rows["predicted"], rows["measured"], color=colour, s=14, alpha=0.6)
    panel.plot([0, 1], [0, 1], color=PALETTE[6], linewidth=1.0, linestyle=":")
    panel.set(
        title="Share of a job's work, by the end of each slot", xlabel="predicted", ylabel="real"
    )

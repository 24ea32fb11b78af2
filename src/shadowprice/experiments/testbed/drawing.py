"""Figures of the testbed's measurements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from shadowprice.experiments.panels import (
    draw_box,
    draw_completions,
    draw_predicted_and_real,
    policy_colours,
    write_above,
)
from shadowprice.experiments.style import PALETTE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from shadowprice.experiments.framework import Tables


def draw_testbed(tables: Tables, figure: Figure) -> None:
    """Draw Figs. 7 and 8, predicted and measured, and the differences between the two."""
    panels = figure.subplots(2, 2)
    policies = tables["summary"]["policy"].to_list()
    title = "Fig. 7: predicted (pale) and earned"
    draw_predicted_and_real(panels[0, 0], tables["summary"], title=title, ylabel="total utility")
    _lateness(panels[0, 1], tables["jobs"], policies)
    # Slots are integers: without a spacing, points would overlap.
    title = "Slot of completion, by job"
    draw_completions(panels[1, 0], tables["jobs"], policies, 0.08, title=title)
    _progress(panels[1, 1], tables["progress"], policies)


def _lateness(panel: Any, jobs: pl.DataFrame, policies: list[str]) -> None:
    for index, (policy, colour) in enumerate(zip(policies, policy_colours(policies), strict=True)):
        rows = jobs.filter(pl.col("policy") == policy)
        for shift, column, alpha in ((-0.2, "predicted_late", 0.35), (0.2, "late", 1.0)):
            looks = {"facecolor": colour, "alpha": alpha}
            draw_box(panel, index + shift, rows[column], 0.32, (0, 100), **looks)
        done = rows["completion"].is_not_null().sum()
        write_above(panel, index, f"{done} of {len(rows)}")
    panel.axhline(0, color=PALETTE[6], lw=1)
    panel.set_xticks(range(len(policies)), policies)
    panel.set(
        title="Fig. 8: of those that completed, predicted (pale) and real",
        ylabel="completion minus target (slots)",
    )
    panel.margins(y=0.12)


def _progress(panel: Any, progress: pl.DataFrame, policies: list[str]) -> None:
    for policy, colour in zip(policies, policy_colours(policies), strict=True):
        rows = progress.filter(pl.col("policy") == policy)
        panel.scatter(rows["predicted"], rows["measured"], color=colour, s=14, alpha=0.6)
    panel.plot([0, 1], [0, 1], color=PALETTE[6], linewidth=1.0, linestyle=":")
    panel.set(
        title="Share of a job's work, by the end of each slot", xlabel="predicted", ylabel="real"
    )

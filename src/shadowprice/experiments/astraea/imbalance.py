"""Fig. 1: one virtual cluster is full for hours while another is half idle.

The job log of the paper's two clusters (Helios's Venus) isn't among the open trace files. Eight
virtual clusters of Helios's Earth have a public log of the GPUs in use in each minute.
"""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from shadowprice.core.errors import Fault, InputError
from shadowprice.experiments.framework import ExperimentSettings, Tables
from shadowprice.experiments.style import PALETTE
from shadowprice.traces.locate import ENVIRONMENT, traces_folder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FOLDER: Final = Path("helios") / "Earth_vcs"
FILE: Final = "cluster_sequence_vc.csv.gz"
UNDERUSED: Final = 0.5
"""Largest share of GPUs in use at which a virtual cluster counts as underused."""

MINUTES_DRAWN: Final = 3 * 24 * 60
MINUTES_PER_POINT: Final = 10
_MINUTES_PER_HOUR: Final = 60


def measure_fig1(_settings: ExperimentSettings) -> Tables:
    """Compare all pairs of virtual clusters, and return the use of the most unequal one."""
    clusters = read_use(traces_folder() / FOLDER)
    rows = []
    for full, other in permutations(clusters, 2):
        unequal = (
            (clusters[full]["use"].to_numpy() >= 1.0)
            & (clusters[full]["waiting"].to_numpy() > 0)
            & (clusters[other]["use"].to_numpy() <= UNDERUSED)
        )
        start, minutes = longest_stretch(unequal)
        rows.append(
            {
                "full": full,
                "full_gpus": clusters[full]["gpus"].max(),
                "underused": other,
                "underused_gpus": clusters[other]["gpus"].max(),
                "hours": float(unequal.sum()) / _MINUTES_PER_HOUR,
                "longest_hours": minutes / _MINUTES_PER_HOUR,
                "start_minute": start,
            }
        )
    # Of equal stretches, the one beside which more GPUs are idle.
    pairs = pl.DataFrame(rows).sort(
        ["longest_hours", "underused_gpus", "full", "underused"],
        descending=[True, True, False, False],
    )
    chosen = pairs.row(0, named=True)
    first = max(0, chosen["start_minute"] - MINUTES_DRAWN // 6)
    use = pl.concat(
        clusters[name]
        .slice(first, MINUTES_DRAWN)
        .select(
            "time",
            pl.lit(name).alias("virtual_cluster"),
            (pl.int_range(pl.len()) / _MINUTES_PER_HOUR).alias("hour"),
            "use",
        )
        .gather_every(MINUTES_PER_POINT)
        for name in (chosen["full"], chosen["underused"])
    )
    return {"use": use, "pairs": pairs.drop("start_minute")}


def read_use(folder: Path) -> dict[str, pl.DataFrame]:
    """Return the GPUs, their use and the GPUs waited for in each minute, by virtual cluster.

    Raises `InputError` if there are fewer than two logs.
    """
    paths = sorted(folder.glob(f"*/{FILE}"))
    if len(paths) < 2:
        hint = (
            "get analysis/2_cluster characterization/Earth_vcs of github.com/S-Lab-System-Group/"
            f"HeliosArtifact as {FOLDER} in the folder that {ENVIRONMENT} names"
        )
        raise InputError(Fault(str(folder), "there are no logs of virtual clusters", hint))
    running, idle = pl.col("running_gpu_num"), pl.col("idle_gpu_num")
    clusters = {
        path.parent.name: pl.read_csv(path)
        .select(
            "time",
            (running + idle).alias("gpus"),
            (running / (running + idle)).alias("use"),
            pl.col("pending_gpu_num").alias("waiting"),
        )
        .sort("time")
        for path in paths
    }
    common = pl.concat(table.select("time") for table in clusters.values())
    common = common.group_by("time").len().filter(pl.col("len") == len(clusters)).select("time")
    return {name: table.join(common, on="time", how="semi") for name, table in clusters.items()}


def longest_stretch(holds: NDArray[np.bool_]) -> tuple[int, int]:
    """Return the start and the length of the longest run of true values, the first if several."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], holds, [False])).astype(np.int8)))
    if not len(edges):
        return 0, 0
    lengths = edges[1::2] - edges[::2]
    longest = int(np.argmax(lengths))
    return int(edges[2 * longest]), int(lengths[longest])


def draw_fig1(tables: Tables, figure: Figure) -> None:
    """Draw the use of the two virtual clusters over three days."""
    panel = figure.subplots()
    for (name,), colour in zip(
        tables["use"].select("virtual_cluster").unique(maintain_order=True).iter_rows(),
        PALETTE,
        strict=False,
    ):
        mine = tables["use"].filter(pl.col("virtual_cluster") == name)
        panel.plot(mine["hour"], 100 * mine["use"], color=colour, label=name)
    panel.set(xlabel=f"hours from {tables['use']['time'][0]}", ylabel="GPUs in use (%)")
    panel.set_ylim(0, 105)
    panel.legend(title="virtual cluster")

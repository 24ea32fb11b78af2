"""Figures 1, 4 to 13 and Table 2 of Astraea."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from shadowprice.experiments.framework import Experiment, ExperimentSettings, Tables

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SOURCE = "Wang, Zhou, Han, Chen, Li, IEEE TC 72(3), 2023"


def _declare(
    name: str, module: str, title: str, reported: str, size: tuple[float, float] = (9.0, 4.2)
) -> Experiment:
    """Declare an experiment whose module is imported when it runs."""
    where = f"shadowprice.experiments.astraea.{module}"

    def measure(settings: ExperimentSettings) -> Tables:
        tables: Tables = getattr(import_module(where), f"measure_{name}")(settings)
        return tables

    def draw(tables: Tables, figure: Figure) -> None:
        getattr(import_module(where), f"draw_{name}")(tables, figure)

    kind = "Table" if name.startswith("table") else "Fig."
    number = "4" if name == "settings" else name.removeprefix("table").removeprefix("fig")
    return Experiment(
        name=f"astraea-{name}",
        title=title,
        source=f"{SOURCE}, {kind} {number}",
        reported=reported,
        measure=measure,
        draw=draw,
        size=size,
    )


EXPERIMENTS = (
    _declare(
        "fig1",
        "imbalance",
        "Use of two virtual clusters of Helios",
        "The GPUs of vcHvQ are all in use for about 14 hours while those of vcvG2 are idle or "
        "underused.",
        (9.0, 3.6),
    ),
    _declare(
        "fig4",
        "efficiency",
        "Total revenue of four schedulers, by jobs and servers",
        "Astraea's total revenue is 1.58, 1.24 and 1.35 times that of BatchSche, Gandiva_fair and "
        "HiveD over jobs, 1.63, 1.22 and 1.46 times over servers.",
        (13.0, 6.0),
    ),
    _declare(
        "fig5",
        "ratio",
        "Astraea's revenue over an offline optimum",
        "Above 0.6 with 5 to 15 jobs of 2 users on 5 to 45 servers; it falls with jobs and rises "
        "with servers, by 0.22 at most.",
        (13.0, 4.2),
    ),
    _declare(
        "fig6",
        "ratio",
        "Four schedulers' revenue over an offline optimum",
        "Astraea's ratio is above the others' everywhere.",
        (13.0, 4.2),
    ),
    _declare(
        "fig7",
        "fairness",
        "Revenue fairness ratio of each user",
        "BatchSche is at 1 for every user; under Astraea more users reach 1 than under "
        "Gandiva_fair and HiveD.",
        (14.0, 6.0),
    ),
    _declare(
        "fig8",
        "fairness",
        "Variance of the revenue fairness ratio",
        "Astraea's variance is much smaller than Gandiva_fair's and HiveD's.",
    ),
    _declare(
        "fig9",
        "pricing",
        "Running time by number of jobs",
        "It grows with jobs; about 1.56 s for the schedule of a job.",
        (9.0, 3.6),
    ),
    _declare(
        "fig10",
        "pricing",
        "Running time by number of servers",
        "It grows with servers; about 1.56 s for the schedule of a job.",
        (9.0, 3.6),
    ),
    _declare(
        "fig11",
        "pricing",
        "Total revenue when theta is wrong",
        "Under high load an underestimate of 80 % earns more than an overestimate.",
    ),
    _declare(
        "fig12",
        "pricing",
        "Ideal revenue and price of admitted jobs",
        "Every job's ideal revenue is above its price.",
    ),
    _declare(
        "fig13",
        "efficiency",
        "Workers in use over time",
        "Astraea and Gandiva_fair reach 100 %, BatchSche and HiveD rarely; Astraea's makespan is "
        "0.83 times Gandiva_fair's and 0.67 times HiveD's.",
    ),
    _declare(
        "table2",
        "efficiency",
        "Revenue per job and fairness by number of users",
        "Revenue per job 599.64, 571.55, 611.28, 581.06 and variance 0.7053, 0.78126, 0.7979, "
        "0.7388 with 5, 8, 11, 14 users.",
        (15.0, 3.8),
    ),
    _declare(
        "settings",
        "efficiency",
        "What each part of the setting does to Astraea's advantage",
        "Astraea's total revenue is 1.58, 1.24 and 1.35 times that of BatchSche, Gandiva_fair and "
        "HiveD.",
        (9.5, 7.0),
    ),
)

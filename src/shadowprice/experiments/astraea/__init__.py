"""Figures 1, 4 to 13 and Table 2 of Astraea."""

from __future__ import annotations

from types import ModuleType

from shadowprice.experiments.astraea import figures, ratio
from shadowprice.experiments.framework import Experiment

SOURCE = "Wang, Zhou, Han, Chen, Li, IEEE TC 72(3), 2023"


def _declare(
    name: str,
    title: str,
    reported: str,
    size: tuple[float, float] = (9.0, 4.2),
    module: ModuleType = figures,
) -> Experiment:
    """Declare the experiment with the functions ``measure_NAME`` and ``draw_NAME`` of a module."""
    kind = "Table" if name.startswith("table") else "Fig."
    # The experiment on settings varies the setting of Fig. 4.
    number = "4" if name == "settings" else name.removeprefix("table").removeprefix("fig")
    measure, draw = (getattr(module, f"{step}_{name}") for step in ("measure", "draw"))
    source = f"{SOURCE}, {kind} {number}"
    return Experiment(f"astraea-{name}", title, source, reported, measure, draw, size)


EXPERIMENTS = (
    _declare(
        "fig1",
        "Use of two virtual clusters of Helios",
        "The GPUs of vcHvQ are all in use for about 14 hours while those of vcvG2 are idle or "
        "underused.",
        (9.0, 3.6),
    ),
    _declare(
        "fig4",
        "Total revenue of four schedulers, by jobs and servers",
        "Astraea's total revenue is 1.58, 1.24 and 1.35 times that of BatchSche, Gandiva_fair and "
        "HiveD over jobs, 1.63, 1.22 and 1.46 times over servers.",
        (13.0, 6.0),
    ),
    _declare(
        "fig5",
        "Astraea's revenue over an offline optimum",
        "Above 0.6 with 5 to 15 jobs of 2 users on 5 to 45 servers; it falls with jobs and rises "
        "with servers, by 0.22 at most.",
        (13.0, 4.2),
        ratio,
    ),
    _declare(
        "fig6",
        "Four schedulers' revenue over an offline optimum",
        "Astraea's ratio is above the others' everywhere.",
        (13.0, 4.2),
        ratio,
    ),
    _declare(
        "fig7",
        "Revenue fairness ratio of each user",
        "BatchSche is at 1 for every user; under Astraea more users reach 1 than under "
        "Gandiva_fair and HiveD.",
        (14.0, 6.0),
    ),
    _declare(
        "fig8",
        "Variance of the revenue fairness ratio",
        "Astraea's variance is much smaller than Gandiva_fair's and HiveD's.",
    ),
    _declare(
        "fig9",
        "Running time by number of jobs",
        "It grows with jobs; about 1.56 s for the schedule of a job.",
        (9.0, 3.6),
    ),
    _declare(
        "fig10",
        "Running time by number of servers",
        "It grows with servers; about 1.56 s for the schedule of a job.",
        (9.0, 3.6),
    ),
    _declare(
        "fig11",
        "Total revenue when theta is wrong",
        "Under high load an underestimate of 80 % earns more than an overestimate.",
    ),
    _declare(
        "fig12",
        "Ideal revenue and price of admitted jobs",
        "Every job's ideal revenue is above its price.",
    ),
    _declare(
        "fig13",
        "Workers in use over time",
        "Astraea and Gandiva_fair reach 100 %, BatchSche and HiveD rarely; Astraea's makespan is "
        "0.83 times Gandiva_fair's and 0.67 times HiveD's.",
    ),
    _declare(
        "table2",
        "Revenue per job and fairness by number of users",
        "Revenue per job 599.64, 571.55, 611.28, 581.06 and variance 0.7053, 0.78126, 0.7979, "
        "0.7388 with 5, 8, 11, 14 users.",
        (15.0, 3.8),
    ),
    _declare(
        "settings",
        "Effect of each part of the setting on Astraea's advantage",
        "Astraea's total revenue is 1.58, 1.24 and 1.35 times that of BatchSche, Gandiva_fair and "
        "HiveD.",
        (9.5, 7.0),
    ),
)

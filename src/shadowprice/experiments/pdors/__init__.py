"""Figures 3.11 to 3.14 of PD-ORS's thesis."""

from shadowprice.experiments.framework import Experiment
from shadowprice.experiments.pdors import rounding, utility

SOURCE = "Yu, MSc thesis (Iowa State 2019)"

EXPERIMENTS = (
    Experiment(
        name="pdors-fig3.11",
        title="Total utility over the number of jobs, beside OASiS on the same machines",
        source=f"{SOURCE}, Fig. 3.11",
        reported="PD-ORS well above OASiS throughout; more than 7 times its utility at 15 jobs "
        "(30 machines, 100 slots, internal links 40 times as fast).",
        measure=utility.measure_jobs,
        draw=utility.draw_jobs,
        size=(11.0, 4.4),
    ),
    Experiment(
        name="pdors-fig3.12",
        title="Total utility over the ratio of internal to external bandwidth",
        source=f"{SOURCE}, Fig. 3.12",
        reported="Rises rapidly at first, slowly beyond a ratio of 30, when most jobs are "
        "co-located (20 machines, 50 slots).",
        measure=utility.measure_ratios,
        draw=utility.draw_ratios,
        size=(11.0, 4.4),
    ),
    Experiment(
        name="pdors-fig3.13",
        title="Rounds of rounding until a placement is feasible, over the gain factor",
        source=f"{SOURCE}, Fig. 3.13",
        reported="Fewest rounds, 570, at G = 1.006; more on either side, fewer than 1,000 for "
        "every G from 1 to 1.01 (50 machines, 100 slots).",
        measure=rounding.measure,
        draw=rounding.draw_rounds,
        size=(14.0, 4.4),
    ),
    Experiment(
        name="pdors-fig3.14",
        title="Cost of rounded placements over that of the relaxation and of the optimum",
        source=f"{SOURCE}, Fig. 3.14",
        reported="At most 1.0025 for every G from 1 to 1.01 (50 machines, 100 slots).",
        measure=rounding.measure,
        draw=rounding.draw_ratios,
        size=(11.0, 4.4),
    ),
)

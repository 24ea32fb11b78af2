"""Figures 3 to 8 of OASiS's evaluation, and what the length of a slot does to them."""

from shadowprice.experiments.framework import Experiment
from shadowprice.experiments.oasis import ratio, testbed, timeliness, utility

SOURCE = "Bao, Peng, Wu, Li (INFOCOM 2018)"

EXPERIMENTS = (
    Experiment(
        name="oasis-fig3",
        title="Total utility over the number of jobs, under five schedulers",
        source=f"{SOURCE}, Fig. 3",
        reported="OASiS the highest throughout, the more so the more jobs there are (T = 300, "
        "50 + 50 servers, 100 to 400 jobs).",
        measure=utility.measure_policies,
        draw=utility.draw_policies,
        size=(13.5, 4.4),
    ),
    Experiment(
        name="oasis-fig4",
        title="Actual minus target completion time",
        source=f"{SOURCE}, Fig. 4",
        reported="OASiS the closest to zero for both kinds of jobs, with the smallest variance "
        "(100 time-sensitive and 100 time-critical jobs, T = 100).",
        measure=timeliness.measure,
        draw=timeliness.draw,
        size=(11.0, 4.6),
    ),
    Experiment(
        name="oasis-fig5",
        title="Performance ratio: the offline optimum over what OASiS earns",
        source=f"{SOURCE}, Fig. 5",
        reported="Around 1.1 to 1.5, with no clear trend in servers or in the range of priorities "
        "(10 jobs, T = 10).",
        measure=ratio.measure,
        draw=ratio.draw,
        size=(13.5, 4.4),
    ),
    Experiment(
        name="oasis-fig6",
        title="Total utility with U/L estimated at 20 % to 1000 % of its value",
        source=f"{SOURCE}, Fig. 6",
        reported="Underestimates earn more than overestimates when resources are scarce (T = 300).",
        measure=utility.measure_scales,
        draw=utility.draw_scales,
        size=(11.0, 7.0),
    ),
    Experiment(
        name="oasis-fig7",
        title="Total utility on the testbed, simulated",
        source=f"{SOURCE}, Fig. 7",
        reported="As in Fig. 3, OASiS the highest, by less than in a large system (9 servers, 12 "
        "jobs, T = 10).",
        measure=testbed.measure,
        draw=testbed.draw_utility,
        size=(9.0, 4.4),
    ),
    Experiment(
        name="oasis-fig8",
        title="Actual minus target completion time on the testbed, simulated",
        source=f"{SOURCE}, Fig. 8",
        reported="As in Fig. 4, OASiS the closest to zero (9 servers, 12 jobs, T = 10).",
        measure=testbed.measure_targets,
        draw=testbed.draw_lateness,
        size=(9.0, 4.4),
    ),
    Experiment(
        name="oasis-slots",
        title="Total utility in slots of 1 to 12 hours",
        source=f"{SOURCE}, Figs. 3 and 6",
        reported='A slot "can be 1 hour or longer"; the axes of Figs. 3 and 6 go to 8,000.',
        measure=utility.measure_slots,
        draw=utility.draw_slots,
        size=(15.0, 4.4),
    ),
)

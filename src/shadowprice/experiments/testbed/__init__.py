"""The testbed of OASiS's section V-B with real jobs: Figs. 7 and 8, measured and predicted."""

from shadowprice.experiments.framework import Experiment
from shadowprice.experiments.testbed import measure, paced, virtual

EXPERIMENTS = (
    Experiment(
        name="testbed",
        title="Twelve real jobs on nine servers: utility and timeliness, predicted and measured",
        source="Bao et al., INFOCOM 2018, Figs. 7 and 8",
        reported="OASiS earns the most, and completes closest to the targets.",
        measure=measure.measure_testbed,
        draw=measure.draw_testbed,
        size=(13.0, 8.4),
        executors=("local", "kubernetes", "ray"),
    ),
    Experiment(
        name="testbed-starts",
        title="The same servers and jobs, simulated: utility and promises by the cost of a start",
        source="Bao et al., INFOCOM 2018, Fig. 7",
        reported="OASiS earns the most; a start costs almost nothing.",
        measure=measure.measure_starts,
        draw=measure.draw_starts,
        size=(12.0, 4.6),
    ),
    Experiment(
        name="testbed-virtual",
        title="The same servers and jobs on the live service in virtual time, ten draws, by the "
        "knowledge of OASiS",
        source="Bao et al., INFOCOM 2018, Figs. 7 and 8",
        reported="OASiS earns the most, and completes closest to the targets.",
        measure=virtual.measure_virtual,
        draw=virtual.draw_virtual,
        size=(15.0, 5.0),
    ),
    Experiment(
        name="testbed-paced",
        title="One draw in real time with jobs that keep the stated pace, and its simulation",
        source="Bao et al., INFOCOM 2018, Fig. 7",
        reported="OASiS earns the most.",
        measure=paced.measure_paced,
        draw=paced.draw_paced,
        size=(8.0, 4.5),
        executors=("local", "kubernetes", "ray"),
    ),
)

"""The testbed of OASiS's section V-B with real jobs: Figs. 7 and 8, measured and predicted."""

from shadowprice.experiments.framework import Experiment
from shadowprice.experiments.testbed import drawing, measure

EXPERIMENTS = (
    Experiment(
        name="testbed",
        title="Twelve real jobs on nine servers: utility and timeliness, predicted and measured",
        source="Bao et al., INFOCOM 2018, Figs. 7 and 8",
        reported="OASiS earns the most, and completes closest to the targets.",
        measure=measure.measure_testbed,
        draw=drawing.draw_testbed,
        size=(13.0, 8.4),
        executors=("local", "kubernetes", "ray"),
    ),
)

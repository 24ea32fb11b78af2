"""Real jobs on the live service, compared with the simulator."""

from shadowprice.experiments.elastic import measure
from shadowprice.experiments.framework import Experiment

EXPERIMENTS = (
    Experiment(
        name="elastic-training",
        title="Real jobs of two tenants: utility, promises, and predicted progress",
        source="this project (design/0029-measuring-and-bags.md)",
        reported="Aim: real runs equal the simulator's prediction for the same files.",
        measure=measure.measure_elastic,
        draw=measure.draw_elastic,
        size=(13.0, 7.4),
        executors=("local", "ray"),
    ),
)

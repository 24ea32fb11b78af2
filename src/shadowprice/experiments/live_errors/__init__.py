"""The live service under every policy, when jobs take longer or shorter than they state."""

from shadowprice.experiments.framework import Experiment
from shadowprice.experiments.live_errors import measure

EXPERIMENTS = (
    Experiment(
        name="live-errors",
        title="Value, promises, moves and lost work on the live service, by error of stated work",
        source="this project",
        reported="Aim: OASiS with errors of 5 % earns 95 % of what it earns simulated; rolling is "
        "first at every error.",
        measure=measure.measure_errors,
        draw=measure.draw_errors,
        size=(12.0, 8.0),
    ),
)

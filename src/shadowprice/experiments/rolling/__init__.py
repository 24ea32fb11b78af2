"""Utility of `rolling` compared with every other policy, of its parts, and with a bound."""

from shadowprice.experiments.framework import Experiment
from shadowprice.experiments.rolling import gap, parts, traces

SOURCE = "this project (design/0017-rolling.md)"

EXPERIMENTS = (
    Experiment(
        name="rolling-traces",
        title="Value earned of the value on offer, under every policy, on every workload",
        source=SOURCE,
        reported="Aim: on every workload rolling earns at least as much as every policy that does "
        "not know the future.",
        measure=traces.measure,
        draw=traces.draw,
        size=(12.0, 6.5),
    ),
    Experiment(
        name="rolling-parts",
        title="Value earned without parts of rolling, and with restart costs",
        source=SOURCE,
        reported="Aim: every part brings something.",
        measure=parts.measure_parts,
        draw=parts.draw,
        size=(11.0, 5.0),
    ),
    Experiment(
        name="rolling-misstated",
        title="Value earned when jobs take 0.5 to 2 times the work they state",
        source=SOURCE,
        reported="Aim: promises change, and nothing else breaks.",
        measure=parts.measure_misstated,
        draw=parts.draw,
        size=(11.0, 5.0),
    ),
    Experiment(
        name="rolling-gap",
        title="How much of the gap is prices, how much arriving online, how much not revising",
        source=SOURCE,
        reported="No figure: the bound of `shadowprice bound` is set beside what policies earn.",
        measure=gap.measure,
        draw=gap.draw,
        size=(10.0, 4.6),
    ),
)

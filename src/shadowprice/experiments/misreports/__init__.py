"""What a tenant gains, and what others lose, if it misreports its jobs."""

from shadowprice.experiments.framework import Experiment
from shadowprice.experiments.misreports import measure

EXPERIMENTS = (
    Experiment(
        name="misreports",
        title="Gain of a tenant that misreports its jobs and loss of the others, by policy",
        source="this project (design/0046-values-of-tenants-without-budgets.md)",
        reported="Aim: the others lose at most 2 %, and the liar gains nothing on average.",
        measure=measure.measure,
        draw=measure.draw,
        size=(12.0, 8.0),
    ),
)

"""Run a function over tasks in real processes, with copies against stragglers.

    from shadowprice.training import bag

    with bag.Workers(evaluate, processes=24) as workers:
        outcome = workers.run(trials, copies=2, directory="results")
    outcome.results     # in the order of the tasks

The first copy of a task to end wins, and the others are killed. Side effects happen once: see
`Attempt.claim` and `Attempt.directory`. A `CopyStrategy` chooses the number of copies, such as that
of the package ``shadowprice``:

    from shadowprice.cloning.api import CopyPlanner, Pareto

    workers.run(trials, copies=CopyPlanner(Pareto.of_mean(1.8, 30.0)), deadline=120.0)
"""

from shadowprice.training.bag.attempt import Attempt, current
from shadowprice.training.bag.copies import CopyStrategy, Plan
from shadowprice.training.bag.outcome import BagResult, CopyEnding, Progress, TaskFailedError, Try
from shadowprice.training.bag.workers import Workers

__all__ = [
    "Attempt",
    "BagResult",
    "CopyEnding",
    "CopyStrategy",
    "Plan",
    "Progress",
    "TaskFailedError",
    "Try",
    "Workers",
    "current",
]

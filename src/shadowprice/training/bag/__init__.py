"""Run a function over tasks in real processes, with copies against stragglers.

    from shadowprice.cloning.api import Pareto
    from shadowprice.training import bag

    with bag.Workers(evaluate, processes=24) as workers:
        outcome = workers.run(trials, law=Pareto.of_mean(1.8, 30.0), deadline=120.0,
                              miss_probability=0.05, directory="results")
    outcome.results     # in the order of the tasks

`shadowprice.cloning` plans the copies. The first copy of a task to end wins, and the others are
killed. Side effects happen once: see `Attempt.claim` and `Attempt.directory`.
"""

from shadowprice.training.bag.attempt import Attempt, current
from shadowprice.training.bag.outcome import Ending, Outcome, Progress, TaskFailedError, Try
from shadowprice.training.bag.planning import Plan, measured, plan_copies
from shadowprice.training.bag.workers import Workers

__all__ = [
    "Attempt",
    "Ending",
    "Outcome",
    "Plan",
    "Progress",
    "TaskFailedError",
    "Try",
    "Workers",
    "current",
    "measured",
    "plan_copies",
]

"""An engine whose policy answers from a script."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from shadowprice.core.cluster import Cluster
from shadowprice.core.events import (
    Commit,
    Decision,
    JobsArrived,
    PolicyEvent,
)
from shadowprice.core.policy import Capabilities, View
from shadowprice.core.schedule import Schedule
from shadowprice.engine import Engine
from tests.support.workloads import make_cluster

Answer = Callable[[View, PolicyEvent], Iterable[Decision]]


class Scripted:
    """A policy that answers from a script."""

    def __init__(self, answer: Answer, *, plans: bool = True, wakes: bool = False) -> None:
        self.answer = answer
        self.capabilities = Capabilities(plans_ahead=plans, wakes_every_slot=wakes)
        self.events: list[PolicyEvent] = []

    def resume(self, view: View) -> None:
        pass  # it knows nothing of earlier events that it needs

    def parameters_in_force(self) -> Mapping[str, object]:
        return {}

    def decide(self, view: View, event: PolicyEvent) -> Iterable[Decision]:
        self.events.append(event)
        return self.answer(view, event)


def on_arrival(*decisions: Decision) -> Answer:
    return lambda _, event: decisions if isinstance(event, JobsArrived) else ()


def commit(*entries: tuple[int, int, int, int]) -> Commit:
    return Commit("job", Schedule.of(entries), 1.0, 2.0, 1.0)


GOOD = ((0, 0, 4, 0), (0, 3, 0, 1), (1, 1, 4, 0), (1, 3, 0, 1))


def engine(answer: Answer, on: Cluster | None = None, until: int | None = None) -> Engine:
    return Engine(on or make_cluster(), Scripted(answer), until=until, saves_policy_state=False)

"""The engine counts the cost of restarts in plans, and the simulator charges it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from fractions import Fraction

import pytest

from shadowprice.core.cluster import Cluster
from shadowprice.core.errors import EventError, PolicyError
from shadowprice.core.events import (
    CapacityChanged,
    Commit,
    Decision,
    JobsArrived,
    JobsDisplaced,
    PolicyEvent,
)
from shadowprice.core.job import Job, StepModel
from shadowprice.core.policy import Capabilities, Status, View
from shadowprice.core.schedule import Schedule
from shadowprice.engine import Engine
from shadowprice.engine.records import (
    cluster_from_record,
    cluster_record,
    event_from_record,
    event_record,
)
from shadowprice.simulator.driver import Simulation
from tests.support.workloads import make_cluster, make_job


class Scripted:
    """Commits the given schedules, one after the other."""

    def __init__(self, *plans: Schedule, charges: bool = True) -> None:
        self.capabilities = Capabilities(plans_ahead=True, elastic=True, charges_restarts=charges)
        self.plans = list(plans)

    def parameters_in_force(self) -> Mapping[str, object]:
        return {}

    def resume(self, view: View) -> None:
        del view

    def decide(self, view: View, event: PolicyEvent) -> Iterable[Decision]:
        if isinstance(event, JobsArrived):
            names = [job.name for job in event.jobs]
        else:
            names = list(event.jobs) if isinstance(event, JobsDisplaced) else []
        for name in names:
            yield Commit(name, self.plans.pop(0), 1.0, 1.0, 0.0)


ON = make_cluster(2, 0)


def hour_job(restart: int) -> Job:
    """Return a job of six slots on one worker that loses some seconds when it moves."""
    return make_job(
        ON,
        epochs=1,
        chunks=2,
        minibatches=1800,
        speed=StepModel(Fraction(1)),
        ps_amounts=None,
        restart_seconds=Fraction(restart),
    )


def rows(*entries: tuple[int, int]) -> Schedule:
    return Schedule.of([(slot, server, 1, 0) for slot, server in entries])


STAYING = rows(*((slot, 0) for slot in range(6)))
MOVING = rows((0, 0), (1, 0), (2, 1), (3, 1), (4, 1), (5, 1))
LONGER = rows((0, 0), (1, 0), (2, 1), (3, 1), (4, 1), (5, 1), (6, 1))


def test_a_plan_that_forgets_its_restarts_is_refused() -> None:
    job = hour_job(60)
    with pytest.raises(PolicyError, match=r"the schedule makes .* lost to 1 restarts"):
        Engine(ON, Scripted(MOVING)).handle(JobsArrived(0, (job,)))
    for plan in (STAYING, LONGER):
        engine = Engine(ON, Scripted(plan))
        engine.handle(JobsArrived(0, (job,)))
        assert engine.jobs["job"].status is Status.ADMITTED
    Engine(ON, Scripted(MOVING)).handle(JobsArrived(0, (hour_job(0),)))


def test_the_charged_amount_suffices_and_no_less() -> None:
    """The simulator's progress equals the engine's, to the unit."""
    job = hour_job(60)
    engine = Simulation(ON, [job], Scripted(LONGER)).run()
    record = engine.jobs["job"]
    assert record.status is Status.FINISHED
    assert record.completion == 6
    # Seven slots of 600 s less one restart of 60 s, in millionths of mini-batches of 1 s.
    assert record.progress == (7 * 600 - 60) * 10**6


def test_a_plan_that_does_not_charge_falls_short_and_is_planned_again() -> None:
    job = hour_job(60)
    # Noticed at the end of slot 2, in which it moved.
    later = rows(*((slot, 1) for slot in range(3, 7)))
    policy = Scripted(MOVING, later, charges=False)
    engine = Simulation(ON, [job], policy).run()
    record = engine.jobs["job"]
    assert record.plans == 2
    assert record.completion == 6
    # The second plan continues where the first one was: no second restart.
    assert record.progress == (7 * 600 - 60) * 10**6


STARTING = replace(ON, restart_first=True)


def test_a_first_start_costs_nothing_unless_the_cluster_says_so() -> None:
    job = hour_job(60)
    with pytest.raises(PolicyError, match=r"the schedule makes .* lost to 1 restarts"):
        Engine(STARTING, Scripted(STAYING)).handle(JobsArrived(0, (job,)))
    with pytest.raises(PolicyError, match=r"the schedule makes .* lost to 2 restarts"):
        Engine(STARTING, Scripted(MOVING)).handle(JobsArrived(0, (job,)))
    Engine(STARTING, Scripted(STAYING)).handle(JobsArrived(0, (hour_job(0),)))


@pytest.mark.parametrize(("cluster", "lost"), [(ON, 60), (STARTING, 120)])
def test_the_simulator_yields_what_is_left_of_a_first_start(cluster: Cluster, lost: int) -> None:
    engine = Simulation(cluster, [hour_job(60)], Scripted(LONGER)).run()
    assert engine.jobs["job"].progress == (7 * 600 - lost) * 10**6


def test_a_plan_that_forgets_the_first_start_is_made_again() -> None:
    later = rows(*((slot, 0) for slot in range(1, 7)))
    engine = Simulation(STARTING, [hour_job(60)], Scripted(STAYING, later, charges=False)).run()
    record = engine.jobs["job"]
    assert (record.plans, record.completion) == (2, 6)
    assert record.progress == (7 * 600 - 60) * 10**6


def test_the_cost_of_a_restart_may_change_while_jobs_run() -> None:
    engine = Engine(ON, Scripted(STAYING))
    engine.handle(JobsArrived(0, (hour_job(0),)))
    for change, seconds, first in (
        (CapacityChanged(0, restart_seconds=Fraction(90)), 90, False),
        (CapacityChanged(0, restart_first=True), 90, True),
        (CapacityChanged(0), 90, True),
    ):
        assert event_from_record(json.loads(json.dumps(event_record(change)))) == change
        engine.handle(change)
        assert (engine.cluster.restart_seconds, engine.cluster.restart_first) == (seconds, first)
    assert engine.open_jobs["job"].job.restart == 0  # existing ones keep theirs
    for wrong in (Fraction(-1), ON.slot_seconds + 1):
        with pytest.raises(EventError, match="negative, or longer than a slot"):
            engine.handle(CapacityChanged(0, restart_seconds=wrong))


def test_a_cluster_is_kept_with_what_a_first_start_costs() -> None:
    for on in (ON, STARTING):
        assert cluster_from_record(cluster_record(on)).restart_first is on.restart_first
    assert "restart_first" not in cluster_record(ON)  # as it was written before there was one

"""The engine's requirements of a bag's plan, and its counting of units."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from shadowprice.core.bag import TaskCopies
from shadowprice.core.cluster import Cluster, Role
from shadowprice.core.errors import PolicyError, ShadowpriceError
from shadowprice.core.events import (
    Commit,
    Completed,
    Decision,
    DriverEvent,
    JobsArrived,
    JobsDisplaced,
    Pause,
    Place,
    PolicyEvent,
    Promise,
    Queue,
    ServerLost,
    SlotBegan,
    SlotEnded,
    Start,
)
from shadowprice.core.job import Job
from shadowprice.core.policy import Capabilities, Status, View
from shadowprice.core.refusal import RefusalReason
from shadowprice.core.schedule import Placement, Schedule
from shadowprice.engine import Engine
from shadowprice.engine.journal import Header, JournalReader, JournalWriter, replay
from tests.support.bag_cases import build_bag, exponential, pareto, place_cluster
from tests.support.policies import EarliestPlanner
from tests.support.validation import recompute_usage

PLAN = [(0, 0, 4, 0), (0, 1, 3, 0), (1, 0, 4, 0), (1, 1, 1, 0), (2, 0, 2, 0)]
COPIES = (TaskCopies(0, 2, 2), TaskCopies(1, 3, 1))


class Fixed:
    """Commits the same plan to every bag."""

    capabilities = Capabilities(plans_ahead=True, runs_bags=True)

    def __init__(
        self,
        plan: Iterable[tuple[int, int, int, int]] = PLAN,
        copies: tuple[TaskCopies, ...] = COPIES,
        later: tuple[list[tuple[int, int, int, int]], tuple[TaskCopies, ...]] | None = None,
    ) -> None:
        self.plan, self.copies, self.later = plan, copies, later
        self.displaced: list[JobsDisplaced] = []
        self.left: tuple[int, ...] = ()

    def resume(self, view: View) -> None:
        pass  # it knows nothing of earlier events that it needs

    def parameters_in_force(self) -> Mapping[str, object]:
        return {}

    def decide(self, view: View, event: PolicyEvent) -> Iterable[Decision]:
        if isinstance(event, JobsArrived):
            for job in event.jobs:
                yield Commit(job.name, Schedule.of(self.plan), 1.0, 1.0, 0.0, self.copies)
        elif isinstance(event, JobsDisplaced):
            self.displaced.append(event)
            for name in event.jobs:
                self.left = view.open_jobs[name].tasks_left
                if self.later is not None:
                    plan, copies = self.later
                    yield Commit(name, Schedule.of(plan), 1.0, 1.0, 0.0, copies)


def two_groups(cluster: Cluster, deadline: float = 6.0) -> Job:
    return build_bag(cluster, pareto(2, 2.0, 0.5), exponential(3, 1.0), deadline=deadline)


def run(policy: Fixed, *done: tuple[int, ...]) -> tuple[Engine, list[DriverEvent]]:
    on = place_cluster(role=Role.ANY)
    engine = Engine(on, policy)
    events: list[DriverEvent] = [JobsArrived(0, (two_groups(on),))]
    for slot, finished in enumerate(done):
        events.append(SlotBegan(slot))
        events.append(SlotEnded(slot, {"bag": sum(finished)}, {"bag": finished}))
    for event in events:
        engine.handle(event)
    return engine, events


@pytest.mark.parametrize(
    ("plan", "copies", "message"),
    [
        (PLAN, (), "for \\[0, 0\\] tasks by group, but \\[2, 3\\] remain"),
        (PLAN, (TaskCopies(0, 2, 2), TaskCopies(1, 2, 1)), "\\[2, 2\\] tasks by group"),
        (PLAN, (*COPIES, TaskCopies(2, 1, 1)), "not copies of its tasks"),
        (PLAN, (TaskCopies(0, 2, 0), TaskCopies(1, 3, 1)), "not copies of its tasks"),
        (PLAN[1:], COPIES, "3 workers in the first slot for 7 copies"),
        ([*PLAN, (3, 0, 3, 0)], COPIES, "copies run without a break and none starts later"),
        ([*PLAN, (4, 0, 1, 0)], COPIES, "copies run without a break and none starts later"),
        ([*PLAN, (2, 1, 1, 1)], COPIES, "no parameter servers"),
        ([(slot, 0, 4, 0) for slot in range(7)], COPIES, "no plan may use slot 6"),
    ],
)
def test_a_plan_that_breaks_a_rule_is_refused(
    plan: list[tuple[int, int, int, int]], copies: tuple[TaskCopies, ...], message: str
) -> None:
    with pytest.raises(PolicyError, match=message):
        run(Fixed(plan, copies))


def test_a_training_job_has_no_copies() -> None:
    on = place_cluster()
    engine = Engine(on, Fixed())
    from tests.support.workloads import make_job

    trainer = make_job(on, worker_amounts={"gpu": 1000}, ps_amounts=None)
    with pytest.raises(PolicyError, match="isn't a bag of tasks"):
        engine.handle(JobsArrived(0, (trainer,)))


def test_finished_tasks_are_counted_by_group_and_their_places_given_back() -> None:
    engine, _ = run(Fixed(), (1, 2))
    record = engine.jobs["bag"]
    assert record.progress == 3
    assert record.tasks_left == (1, 1)
    assert record.unfinished == [1, 1]
    # One task in two copies and one in one copy still run: at most three units.
    assert record.plan.rows() == [[0, 0, 4, 0], [0, 1, 3, 0], [1, 0, 3, 0], [2, 0, 2, 0]]
    assert engine.ledger.used[0, :, 0].tolist() == [3000, 0, 0, 0]
    assert engine.ledger.used[1, :, 0].tolist() == [2000, 0, 0, 0]
    assert (recompute_usage(engine.ledger) == engine.ledger.used).all()


def test_a_bag_is_done_with_its_last_task() -> None:
    engine, _ = run(Fixed(), (1, 2), (1, 1))
    record = engine.jobs["bag"]
    assert (record.status, record.completion) == (Status.FINISHED, 1)
    assert not engine.ledger.used.any()


def test_a_plan_that_ends_with_tasks_left_is_planned_again_for_those() -> None:
    policy = Fixed(later=([(3, 2, 2, 0), (4, 2, 1, 0)], (TaskCopies(1, 1, 2),)))
    engine, _ = run(policy, (1, 2), (1, 0), (0, 0))
    assert policy.displaced == [JobsDisplaced(3, ("bag",), None)]
    assert policy.left == (0, 1)
    record = engine.jobs["bag"]
    assert (record.plans, record.unfinished, record.progress) == (2, [1], 4)
    engine.handle(SlotBegan(3))
    commands = engine.handle(SlotEnded(3, {"bag": 1}, {"bag": (1,)}))
    assert any(isinstance(command, Completed) for command in commands)


def test_a_lost_server_displaces_a_bag_with_what_it_finished() -> None:
    policy = Fixed(later=([(1, 2, 4, 0)], (TaskCopies(0, 1, 2), TaskCopies(1, 2, 1))))
    engine, _ = run(policy, (1, 1))
    engine.handle(ServerLost(1, engine.cluster.names[0]))
    assert policy.left == (1, 2)
    assert engine.jobs["bag"].plan.rows() == [[1, 2, 4, 0]]


@pytest.mark.parametrize("done", [(3, 0), (1,), (1, 1, 1), (-1, 1)])
def test_a_driver_that_contradicts_itself_is_reported(done: tuple[int, ...]) -> None:
    with pytest.raises(ShadowpriceError, match="bag 'bag' finished"):
        run(Fixed(), done)


def test_a_bags_progress_names_its_tasks() -> None:
    engine, _ = run(Fixed())
    engine.handle(SlotBegan(0))
    with pytest.raises(ShadowpriceError, match="finished None tasks in slot 0"):
        engine.handle(SlotEnded(0, {"bag": 1}))


def test_the_journal_of_a_bag_replays(tmp_path: Path) -> None:
    _, events = run(Fixed(), (1, 2), (1, 0))
    engine = Engine(place_cluster(role=Role.ANY), Fixed())
    with JournalWriter(tmp_path / "journal.jsonl", Header.of(engine, "fixed")) as writer:
        for event in events:
            engine.handle(event)
            assert engine.last is not None
            writer.add(engine.last, engine)
    reader = JournalReader(tmp_path / "journal.jsonl")
    again = replay(reader, reader.header.engine())
    assert again.jobs["bag"].unfinished == engine.jobs["bag"].unfinished
    assert again.state_digest() == engine.state_digest()
    other, _ = run(Fixed(), (1, 2), (0, 1))
    assert other.state_digest() != engine.state_digest()


def test_a_policy_without_bags_is_not_called() -> None:
    on = place_cluster()
    engine = Engine(on, EarliestPlanner())
    engine.handle(JobsArrived(0, (two_groups(on),)))
    record = engine.jobs["bag"]
    assert record.status is Status.REFUSED
    assert record.refusal is not None
    assert record.refusal.reason is RefusalReason.POLICY
    assert "shadowprice policies" in record.refusal.message


class Placer:
    """Places a bag slot by slot as the test says."""

    capabilities = Capabilities(runs_bags=True, wakes_every_slot=True)

    def __init__(self, *steps: list[Decision]) -> None:
        self.steps = list(steps)

    def resume(self, view: View) -> None:
        pass  # it knows nothing of earlier events that it needs

    def parameters_in_force(self) -> Mapping[str, object]:
        return {}

    def decide(self, view: View, event: PolicyEvent) -> Iterable[Decision]:
        if isinstance(event, JobsArrived):
            yield from (Queue(job.name) for job in event.jobs)
        elif isinstance(event, SlotBegan) and self.steps:
            yield from self.steps.pop(0)


def stood(*entries: tuple[int, int, int], copies: tuple[TaskCopies, ...] = ()) -> Place:
    return Place("bag", Placement.of(entries), copies)


FIRST = stood((0, 4, 0), (1, 3, 0), copies=COPIES)


def placed(*steps: list[Decision], done: tuple[tuple[int, ...], ...] = ()) -> Engine:
    """Place a bag slot by slot; the last slot begins, and ends if ``done`` is given."""
    on = place_cluster(role=Role.ANY)
    engine = Engine(on, Placer(*steps))
    engine.handle(JobsArrived(0, (two_groups(on),)))
    for slot in range(len(steps)):
        engine.handle(SlotBegan(slot))
        if slot < len(done):
            engine.handle(SlotEnded(slot, {"bag": sum(done[slot])}, {"bag": done[slot]}))
        elif slot + 1 < len(steps):
            engine.handle(SlotEnded(slot, {}))
    return engine


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([[stood((0, 4, 0), (1, 3, 0))]], "without new copies, it is placed with 4 workers"),
        ([[stood((0, 4, 0), copies=COPIES)]], "4 workers for 7 copies"),
        ([[stood((0, 4, 0), (1, 3, 0), copies=COPIES[:1])]], "\\[2, 0\\] tasks by group"),
        ([[stood((0, 4, 0), (1, 3, 1), copies=COPIES)]], "no parameter servers"),
        ([[stood((0, 4, 0), (1, -3, 0), copies=COPIES)]], "a negative number of workers"),
        ([[stood((0, 5, 0), (1, 2, 0), copies=COPIES)]], "would overbook"),
        ([[stood(copies=COPIES)]], "placed on no server; pause it instead"),
        ([[FIRST], [stood((0, 4, 0), (2, 1, 0))]], "1 workers on server 2, where only 0 run"),
        ([[FIRST], [stood((0, 4, 0), (1, 4, 0))]], "4 workers on server 1, where only 3 run"),
        ([[FIRST], [FIRST]], "\\[2, 3\\] tasks by group, but \\[1, 1\\] remain"),
        ([[], [], [], [], [], [], [FIRST]], "placed in slot 6, but its deadline fell in slot 5"),
        ([[Promise("bag", 6)]], "promised for slot 6, but its deadline falls in slot 5"),
    ],
)
def test_copies_that_are_placed_against_a_rule_are_refused(
    steps: list[list[Decision]], message: str
) -> None:
    with pytest.raises(PolicyError, match=message):
        placed(*steps, done=((1, 2),) if len(steps) == 2 else ())


def test_a_training_job_is_not_placed_with_copies() -> None:
    from tests.support.workloads import make_job

    on = place_cluster()
    trainer = make_job(on, worker_amounts={"gpu": 1000}, ps_amounts=None)
    engine = Engine(on, Placer([Place(trainer.name, Placement.of([(0, 1, 0)]), COPIES)]))
    engine.handle(JobsArrived(0, (trainer,)))
    with pytest.raises(PolicyError, match="isn't a bag of tasks"):
        engine.handle(SlotBegan(0))


def test_copies_that_are_placed_start_shrink_and_start_again() -> None:
    again = (TaskCopies(0, 1, 1), TaskCopies(1, 1, 3))
    engine = placed(
        [FIRST],
        [stood((0, 3, 0))],
        [Pause("bag")],
        done=((1, 2), (0, 0)),
    )
    assert isinstance(engine.policy, Placer)
    engine.policy.steps.append([stood((2, 4, 0), copies=again)])
    record = engine.jobs["bag"]
    assert (record.plans, record.unfinished, record.copies_running) == (1, [1, 1], 0)
    assert not engine.running
    engine.handle(SlotEnded(2, {}))
    (order,) = [one for one in engine.handle(SlotBegan(3)) if isinstance(one, Start)]
    assert (order.plan, order.copies) == (2, again)
    assert (record.plans, record.unfinished, record.copies_running) == (2, [1, 1], 4)
    assert engine.ledger.used[0, :, 0].tolist() == [0, 0, 4000, 0]
    commands = engine.handle(SlotEnded(3, {"bag": 2}, {"bag": (1, 1)}))
    assert any(isinstance(command, Completed) for command in commands)
    assert not engine.ledger.used.any()

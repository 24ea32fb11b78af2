"""Refusals of the engine, and the order of its actions."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from shadowprice.core.cluster import Cluster
from shadowprice.core.errors import EventError, PolicyError, ShadowpriceError
from shadowprice.core.events import (
    Charge,
    Commit,
    Completed,
    Decided,
    Decision,
    Displaced,
    Drop,
    JobCancelled,
    JobsArrived,
    JobsDisplaced,
    Pause,
    Place,
    PolicyEvent,
    Promise,
    Queue,
    Reject,
    Resize,
    ServerBack,
    ServerLost,
    SlotBegan,
    SlotEnded,
    Start,
    Stop,
)
from shadowprice.core.policy import Status, View
from shadowprice.core.refusal import Refusal, RefusalReason
from shadowprice.core.schedule import EMPTY_SCHEDULE, Placement, Schedule
from shadowprice.engine import Engine
from tests.support.scripted_policy import GOOD, Scripted, commit, engine, on_arrival
from tests.support.validation import recompute_usage
from tests.support.workloads import make_cluster, make_job

WHY = Refusal(RefusalReason.POLICY, "because")


def test_a_plan_runs_slot_by_slot_and_completes() -> None:
    cluster = make_cluster()
    made = engine(on_arrival(commit(*GOOD)), cluster)
    assert made.handle(JobsArrived(0, (make_job(cluster),))) == [Decided(0, commit_of(made))]
    first, second = Placement((0, 3), (4, 0), (0, 1)), Placement((1, 3), (4, 0), (0, 1))
    assert made.handle(SlotBegan(0)) == [Start(0, "job", first)]
    assert made.handle(SlotEnded(0, {"job": 4})) == []
    assert made.handle(SlotBegan(1)) == [Resize(1, "job", second)]
    assert made.handle(SlotEnded(1, {"job": 4})) == [
        Stop(2, "job", finished=True),
        Completed(1, "job", 10.0),
    ]
    assert made.state.idle
    assert not made.ledger.used.any()


def commit_of(made: Engine) -> Commit:
    plan = made.jobs["job"].plan
    return next(
        d
        for d in (made.policy.answer(made.view, JobsArrived(0, ())))
        if d.schedule is plan  # type: ignore[attr-defined]
    )


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        (((0, 0, 4, 0), (0, 3, 0, 1)), r"makes 4 progress units of the 8 that remain \(2\)"),
        (((0, 0, 4, 0), (0, 1, 4, 0), (0, 3, 0, 2)), "8 workers, but its 4 allowed counts"),
        (((0, 0, 4, 0), (1, 0, 4, 0)), r"break \(6\) or \(7\)"),
        (((0, 0, 1, 0), (0, 3, 0, 2), *GOOD[2:]), r"break \(6\) or \(7\)"),
        (((0, 3, 4, 0), (0, 4, 0, 1), *GOOD[2:]), "workers on a server for parameter servers"),
        (((0, 0, 4, 1), *GOOD[2:]), "parameter servers on a server for workers"),
        (((0, 0, 5, 0), (0, 1, -1, 0), (0, 3, 0, 1), *GOOD[2:]), "negative number"),
        ((*GOOD[:2], (12, 0, 4, 0), (12, 3, 0, 1)), "no plan may use slot 12"),
        ((), "empty schedule"),
    ],
)
def test_a_schedule_that_breaks_a_constraint_is_refused(
    entries: tuple[tuple[int, int, int, int], ...], words: str
) -> None:
    cluster = make_cluster()
    with pytest.raises(PolicyError, match=words) as caught:
        engine(on_arrival(commit(*entries)), cluster).handle(JobsArrived(0, (make_job(cluster),)))
    assert "job 'job' (arrived in slot 0" in str(caught.value)


def test_overbooking_is_refused_and_nothing_is_reserved() -> None:
    cluster = make_cluster(gpus=3)
    made = engine(on_arrival(commit(*GOOD)), cluster)
    with pytest.raises(PolicyError, match="overbook gpu of server 'gpu-0' in slot 0"):
        made.handle(JobsArrived(0, (make_job(cluster),)))
    assert not made.ledger.used.any()
    assert not made.ledger.reservations


def test_a_plan_in_the_past_or_beyond_the_timespan_is_refused() -> None:
    cluster = make_cluster()
    made = engine(on_arrival(commit(*GOOD)), cluster)
    with pytest.raises(PolicyError, match="planned for slot 0, which has passed"):
        made.handle(JobsArrived(2, (make_job(cluster, arrival=2),)))
    with pytest.raises(PolicyError, match="no plan may use slot 1 or later"):
        engine(on_arrival(commit(*GOOD)), cluster, until=1).handle(
            JobsArrived(0, (make_job(cluster),))
        )


@pytest.mark.parametrize(
    ("decisions", "words"),
    [
        ((), "decided nothing"),
        ((Reject("job", WHY), Queue("job")), "Queue needs an open job"),
        ((Queue("stranger"),), "'stranger' is unknown"),
        ((Queue("job"), Pause("job")), "has no placement"),
        ((commit(*GOOD), Reject("job", WHY)), "cannot become refused"),
        ((commit(*GOOD), Place("job", Placement((0, 3), (1, 0), (0, 1)))), "follows a plan"),
        ((Place("job", Placement((), (), ())),), "placed on no server"),
        ((Place("job", Placement((0, 3), (7, 0), (0, 2))),), "7 workers"),
        ((Charge("job", 0, "a", "b", {"worker": 1}),), "unknown tenant 'a'"),
    ],
)
def test_decisions_that_make_no_sense(decisions: tuple[Decision, ...], words: str) -> None:
    cluster = make_cluster()
    with pytest.raises(PolicyError, match=words):
        engine(on_arrival(*decisions), cluster).handle(JobsArrived(0, (make_job(cluster),)))


def test_a_job_that_can_never_fit_is_refused_before_the_policy_sees_it() -> None:
    cluster = make_cluster()
    made = engine(on_arrival())
    huge = make_job(cluster, worker_amounts={"gpu": 5000, "cpu": 1000})
    (decided,) = made.handle(JobsArrived(0, (huge,)))
    assert isinstance(decided, Decided)
    assert isinstance(decided.decision, Reject)
    assert decided.decision.refusal.reason is RefusalReason.NEVER_FITS
    assert decided.decision.refusal.bottleneck == "gpu of worker servers"
    assert made.policy.events == []  # type: ignore[attr-defined]


def test_a_lost_server_displaces_its_jobs_and_the_rest_of_their_plan_is_released() -> None:
    cluster = make_cluster()

    def answer(view: View, event: PolicyEvent) -> Iterable[Decision]:
        if isinstance(event, JobsArrived):
            return [commit(*GOOD)]
        if isinstance(event, JobsDisplaced):
            assert not view.ledger.used.any()
            assert view.is_lost(1)
            state = view.open_jobs["job"]
            assert state.remaining == 4
            return [commit((1, 2, 4, 0), (1, 4, 0, 1))]
        return []

    made = engine(answer, cluster)
    made.handle(JobsArrived(0, (make_job(cluster),)))
    made.handle(SlotBegan(0))
    made.handle(SlotEnded(0, {"job": 4}))
    made.handle(ServerLost(1, cluster.names[1]))
    assert made.handle(SlotBegan(1)) == [Resize(1, "job", Placement((2, 4), (4, 0), (0, 1)))]
    done = made.handle(SlotEnded(1, {"job": 4}))
    assert Completed(1, "job", 10.0) in done
    made.handle(ServerBack(2, cluster.names[1]))
    assert (made.ledger.capacity == cluster.capacity).all()


def test_a_plan_that_falls_short_is_planned_again() -> None:
    cluster = make_cluster()

    def answer(view: View, event: PolicyEvent) -> Iterable[Decision]:
        if isinstance(event, JobsDisplaced):
            assert event.server is None
            if view.slot > 2:
                return [Drop("job", WHY)]
            return [commit(*((slot, *rest) for slot in (1, 2) for rest in ((0, 4, 0), (3, 0, 1))))]
        return on_arrival(commit(*GOOD))(view, event)

    made = engine(answer, cluster)
    made.handle(JobsArrived(0, (make_job(cluster),)))
    seen = []
    for slot, gained in enumerate((3, 1, 3)):
        made.handle(SlotBegan(slot))
        commands = made.handle(SlotEnded(slot, {"job": gained}))
        seen.append([command.job for command in commands if isinstance(command, Displaced)])
    # Noticed with the first slot that yields too little, not when the plan ends.
    assert seen == [["job"], [], ["job"]]
    assert made.jobs["job"].status is Status.DROPPED
    assert made.jobs["job"].refusal is WHY
    assert not made.ledger.used.any()


def test_a_cancelled_job_stops_and_gives_everything_back() -> None:
    cluster = make_cluster()
    made = engine(on_arrival(commit(*GOOD)), cluster)
    made.handle(JobsArrived(0, (make_job(cluster),)))
    made.handle(SlotBegan(0))
    made.handle(SlotEnded(0, {"job": 4}))
    assert made.handle(JobCancelled(1, "job")) == [Stop(1, "job", finished=False)]
    assert made.handle(JobCancelled(1, "job")) == []
    assert made.jobs["job"].status is Status.CANCELLED
    assert made.state.idle
    assert not made.ledger.used.any()


def test_a_placement_lasts_until_it_is_changed() -> None:
    cluster = make_cluster()
    here = Placement((0, 3), (2, 0), (0, 1))

    def answer(view: View, event: PolicyEvent) -> Iterable[Decision]:
        if isinstance(event, JobsArrived):
            return [Place("job", here)]
        if isinstance(event, SlotBegan) and event.slot == 2:
            return [Pause("job")]
        if isinstance(event, SlotBegan) and event.slot == 3:
            return [Place("job", here)]
        return []

    made = Engine(cluster, Scripted(answer, plans=False, wakes=True), saves_policy_state=False)
    made.handle(JobsArrived(0, (make_job(cluster),)))
    seen = []
    for slot in range(4):
        seen.append([type(c).__name__ for c in made.handle(SlotBegan(slot)) if c_is_move(c)])
        made.handle(SlotEnded(slot, {"job": 2} if slot != 2 else {}))
    assert seen == [["Start"], [], ["Stop"], ["Start"]]
    assert made.jobs["job"].progress == 6


@pytest.mark.parametrize("promised", [False, True])
def test_a_paused_job_without_a_promise_is_queued_again(promised: bool) -> None:
    cluster = make_cluster()
    here = Placement((0, 3), (2, 0), (0, 1))

    def answer(view: View, event: PolicyEvent) -> Iterable[Decision]:
        if isinstance(event, JobsArrived):
            promise = [Promise("job", 9)] if promised else []
            return [*promise, Place("job", here)]
        if isinstance(event, SlotBegan) and event.slot == 1:
            return [Pause("job")]
        if isinstance(event, SlotBegan) and event.slot == 2:
            return [Place("job", here)]
        return [Pause("job"), Place("job", here)] if isinstance(event, SlotBegan) else []

    made = Engine(cluster, Scripted(answer, plans=False, wakes=True), saves_policy_state=False)
    made.handle(JobsArrived(0, (make_job(cluster),)))
    seen = []
    for slot in range(3):
        made.handle(SlotBegan(slot))
        seen.append(made.jobs["job"].status)
        made.handle(SlotEnded(slot, {"job": 2} if slot != 1 else {}))
    paused = Status.ADMITTED if promised else Status.QUEUED
    assert seen == [Status.ADMITTED, paused, Status.ADMITTED]


def c_is_move(command: object) -> bool:
    return isinstance(command, Start | Resize | Stop)


def test_events_out_of_order_are_refused() -> None:
    cluster = make_cluster()
    made = engine(on_arrival(commit(*GOOD)), cluster)
    made.handle(SlotBegan(3))
    with pytest.raises(EventError, match="comes too late: slot 4 is next"):
        made.handle(JobsArrived(3, (make_job(cluster, arrival=3),)))
    with pytest.raises(EventError, match="comes too early: slot 3 runs"):
        made.handle(JobsArrived(5, (make_job(cluster, arrival=3),)))
    with pytest.raises(EventError, match="expected SlotEnded"):
        made.handle(SlotBegan(4))
    made.handle(SlotEnded(3, {}))
    with pytest.raises(ShadowpriceError, match="comes too late"):
        made.handle(JobsArrived(3, (make_job(cluster, arrival=3),)))
    with pytest.raises(ShadowpriceError, match="expected SlotBegan"):
        made.handle(SlotEnded(4, {}))
    with pytest.raises(ShadowpriceError, match="never arrived"):
        made.handle(JobCancelled(4, "ghost"))


def test_slots_with_work_cannot_be_skipped_and_arrivals_are_unique() -> None:
    cluster = make_cluster()
    made = engine(on_arrival(commit(*GOOD)), cluster)
    made.handle(JobsArrived(0, (make_job(cluster),)))
    with pytest.raises(ShadowpriceError, match="skipped"):
        made.handle(SlotBegan(1))
    with pytest.raises(ShadowpriceError, match="arrived twice"):
        made.handle(JobsArrived(0, (make_job(cluster),)))
    made.handle(SlotBegan(0))
    with pytest.raises(ShadowpriceError, match="without running"):
        made.handle(SlotEnded(0, {"other": 1}))


def test_the_ledger_rolls_over_its_horizon() -> None:
    cluster = make_cluster(horizon=3)
    made = engine(on_arrival(Queue("job")), cluster)
    standing = Placement((0, 3), (1, 0), (0, 1))
    made.handle(JobsArrived(0, (make_job(cluster),)))
    made.ledger.place("job", standing, *pair(cluster))
    for slot in range(20):
        made.ledger.advance(slot)
        assert (recompute_usage(made.ledger) == made.ledger.used).all()
        if slot % 4 == 1:
            made.ledger.release("job")
            plan = Schedule.of([(slot + 2, 1, 2, 0), (slot + 2, 3, 0, 1)])
            made.ledger.reserve("job", plan, *pair(cluster))
        if slot % 4 == 3:
            assert made.ledger.used[0, 1].any()
            assert len(made.ledger.release("job"))
            made.ledger.place("job", standing, *pair(cluster))
    with pytest.raises(ShadowpriceError, match="cannot return"):
        made.ledger.advance(3)
    assert made.ledger.release("nobody") is EMPTY_SCHEDULE


def pair(cluster: Cluster) -> tuple[np.ndarray, np.ndarray | None]:
    made = make_job(cluster)
    return made.worker, made.ps

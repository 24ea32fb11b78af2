"""The truth by itself: what is measured, what fails, what is taken back, what is read back."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, select, update

from shadowprice.core.errors import InputError, PolicyError, ShadowpriceError
from shadowprice.core.job import MICRO
from shadowprice.core.policy import unwrap_policy
from shadowprice.executors.contract import (
    Ended,
    Ending,
    Obstacle,
    PartlyEnded,
    Progressed,
    Started,
)
from shadowprice.policies.choice import PolicyChoice
from shadowprice.policies.rolling.policy import RollingPolicy
from shadowprice.service.clock import SECOND, MonotonicWallClock
from shadowprice.service.state import slot_operations
from shadowprice.service.state.commit_result import CommitResult
from shadowprice.service.state.durable_engine import DurableEngine
from shadowprice.service.state.job_views import State
from shadowprice.service.state.operations import (
    CancelJob,
    ReviseJob,
    SetServerAvailability,
    SubmitJobs,
)
from shadowprice.service.state.prices import prices, prices_by_kind
from shadowprice.service.state.recovery import recover
from shadowprice.service.state.report_operations import (
    RecordObstacles,
    RecordProgress,
    RecordReports,
)
from shadowprice.service.state.restart_costs import RestartCostEstimator
from shadowprice.service.state.slot_operations import AdvanceSlots, SlotAdvanceResult
from shadowprice.service.state.store_queries import list_events, list_jobs
from shadowprice.service.state.submission import read_submissions
from shadowprice.service.store import Store, tables
from tests.support.simulated_hours import CLUSTER, SLOT
from tests.support.simulated_world import ManualClock


class Bench:
    """A truth on clocks that are set by hand."""

    def __init__(
        self, where: Path | str, policy: str | PolicyChoice = "oasis", *, virtual: bool = False
    ) -> None:
        self.clock = ManualClock()
        self.store = Store(str(where))
        self.store.open()
        self.choice = PolicyChoice(policy) if isinstance(policy, str) else policy
        self.virtual = virtual
        self.tenant: str | None = None
        self.read()

    def read(self) -> None:
        self.truth = DurableEngine(
            self.store, CLUSTER, self.choice, MonotonicWallClock(self.clock), virtual=self.virtual
        )

    def do(self, operation: Any) -> CommitResult:
        outcome = self.truth.commit([operation])
        for answer in outcome.answers:
            if isinstance(answer, BaseException):
                raise answer
        return outcome

    def submit(self, name: str, **changes: Any) -> None:
        record = {
            "name": name,
            "chunks": 1,
            "minibatches": 60,
            "minibatch_time": "6s",
            "worker": {"gpu": 1, "cpu": 1},
            "utility": {"kind": "sigmoid", "value": 20, "decay": 0.1, "target": "20 slots"},
            "run": {"command": ["train"], "retries": 1},
            **changes,
        }
        result = read_submissions([record], CLUSTER, tenant=self.tenant, runs=True)
        self.do(SubmitJobs(result, at_once=True))

    def asked(self, name: str, **changes: Any) -> SubmitJobs:
        """Return the submission of a job like the first one."""
        record = {**dict(self.truth.state.specs["first"]), "name": name, **changes}
        result = read_submissions([record], CLUSTER, tenant=None, runs=True)
        return SubmitJobs(result, at_once=True)

    def slot(self, slots: int = 1) -> None:
        for _ in range(slots):
            self.clock.advance(SLOT)
            self.do(AdvanceSlots(self.virtual))

    def key(self, name: str) -> str:
        """Return the key of a job; a key is returned as it is."""
        with self.store.reading() as connection:
            table = tables.jobs
            named = select(table.c.key).where(table.c.name == name).order_by(table.c.id.desc())
            return connection.execute(named).scalars().first() or name

    def started(self, name: str) -> None:
        name = self.key(name)
        order = self.truth.state.launch_commands[name]
        at = self.clock.wall() / SECOND
        self.do(RecordReports([Started(order.id, name, order.generation, at)]))

    def again(self, name: str) -> None:
        """Lose a job's generation, and start the next one in the next slot."""
        name = self.key(name)
        generation = self.truth.state.launch_commands[name].generation
        at = self.clock.wall() / SECOND
        self.do(RecordReports([Ended(0, name, generation, at, Ending.LOST, None, "the node died")]))
        self.slot()
        assert self.truth.state.launch_commands[name].generation == generation + 1

    def report(self, name: str, minibatches: float) -> None:
        name = self.key(name)
        generation = self.truth.state.launch_commands[name].generation
        told = Progressed(name, generation, int(minibatches * MICRO), {"loss": 0.5}, 0.0)
        self.do(RecordProgress({name: told}, [told]))

    def kinds(self, name: str) -> list[str]:
        with self.store.reading() as connection:
            return [event.kind for event in list_events(connection, after=0, job=self.key(name))]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    result = Bench(tmp_path / "data")
    yield result
    result.store.close()


@pytest.mark.parametrize("set_by", [0, -30 * 86_400, 30 * 86_400])
def test_a_restored_copy_reuses_no_numbers_of_events(tmp_path: Path, set_by: int) -> None:
    """Also if the clock was set while the service was down, and after thousands of events."""
    bench = Bench(tmp_path / "data")
    bench.submit("early")
    bench.clock.set_by = set_by * SECOND
    bench.read()
    at_backup = bench.truth.state.next_event_id
    bench.truth.state.next_event_id += 50_000  # events that the backup lacks, in ten seconds
    bench.clock.advance(10)
    lost = bench.truth.state.next_event_id
    bench.read()
    assert at_backup < lost < bench.truth.state.next_event_id < 2**53
    bench.store.close()


def test_numbers_of_events_grow_after_the_clock_was_set_back(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "data")
    bench.read()
    bench.submit("early")
    last = bench.truth.state.next_event_id
    for moved in (400 * 86_400, 80 * 365 * 86_400):  # the second is before 1970
        bench.clock.set_by = -moved * SECOND
        bench.read()
        assert bench.truth.state.next_event_id >= last
        bench.submit(f"after-{moved}")
        last = bench.truth.state.next_event_id
    bench.store.close()


def test_the_time_of_several_exits_is_that_of_the_first(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "data", "fifo")
    bench.submit("first", chunks=2, minibatches=60)
    bench.slot()
    bench.started("first")
    generation = bench.truth.state.launch_commands["first"].generation
    at = bench.clock.wall() / SECOND
    for ended, text in (
        (("worker-0",), "worker-0 exited 0 at 20"),
        (("worker-0", "worker-2"), "worker-0, worker-2 exited 0, the first at 20"),
    ):
        report = PartlyEnded("first", generation, at, ended, ("worker-1",))
        bench.do(RecordReports([report]))
        reason = bench.truth.state.views["first"].reason
        assert reason is not None
        assert str(reason["message"]).startswith(text)


def test_a_job_that_is_paused_without_a_promise_waits_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "data", "srtf")
    run = {"command": ["train"], "checkpoints": True}
    whole = {"chunks": 12, "workers": {"min": 12, "max": 12}, "run": run}
    bench.submit("long", **whole, minibatches=600)
    bench.slot()
    bench.started("long")
    assert bench.truth.state.views["long"].state is State.RUNNING
    bench.submit("short", **whole, minibatches=20)
    bench.slot()
    view = bench.truth.state.views["long"]
    assert view.state is State.STANDBY
    assert view.reason is not None
    assert (view.reason["code"], view.reason["resource"]) == ("standby", "gpu")
    generation = bench.truth.state.launch_commands["short"].generation
    end = Ended(0, "short", generation, bench.clock.wall() / SECOND, Ending.DONE, 0, "")
    bench.do(RecordReports([end]))
    bench.slot()
    bench.started("long")
    view = bench.truth.state.views["long"]
    assert (view.state, view.reason) == (State.RUNNING, None)
    bench.store.close()


def test_a_paused_job_that_becomes_late_is_abandoned_and_not_refused(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "data", "rolling")
    in_slot = SLOT // 6  # mini-batches of one worker

    def submit(name: str, workers: tuple[int, int], slots: int, by: int, value: float) -> None:
        bench.submit(
            name,
            chunks=workers[1],
            minibatches=in_slot * slots,
            workers={"min": workers[0], "max": workers[1]},
            utility={"kind": "deadline", "value": value, "by": f"{by} slots"},
            run={"command": ["train"], "checkpoints": True},
        )

    submit("first", (8, 8), 12, 12, 100)
    submit("low", (1, 8), 5, 8, 50)  # its plan isn't promised, and it runs on spare capacity
    bench.slot()
    bench.started("first")
    bench.started("low")
    submit("second", (4, 4), 10, 11, 300)  # takes the spare capacity
    bench.slot()
    bench.started("second")
    view = bench.truth.state.views["low"]
    assert (view.state, view.promise) == (State.STANDBY, None)
    assert view.reason is not None
    assert view.reason["message"].startswith("waits for gpu of g servers")
    for _ in range(8):
        if "low" in bench.truth.state.engine.open_jobs:
            bench.slot()
    kinds = bench.kinds("low")
    assert kinds[-2:] == ["stopped", "given-up"]
    assert "refused" not in kinds
    bench.store.close()


@pytest.mark.parametrize("policy", ["oasis", "rolling"])
def test_decisions_keep_the_reason_that_a_job_has_partly_ended(tmp_path: Path, policy: str) -> None:
    bench = Bench(tmp_path / "data", policy)
    bench.submit("first", chunks=2, minibatches=60)
    bench.slot()
    bench.started("first")
    generation = bench.truth.state.launch_commands["first"].generation
    at = bench.clock.wall() / SECOND
    report = PartlyEnded("first", generation, at, ("worker-0",), ("worker-1",))
    bench.do(RecordReports([report]))
    reason = bench.truth.state.views["first"].reason
    assert reason is not None
    assert reason["code"] == "partly-ended"
    promised = bench.truth.state.views["first"].promise
    for _ in range(40):  # without progress, the plan is extended
        bench.slot()
        view = bench.truth.state.views["first"]
        if "first" in bench.truth.state.engine.running and view.generation == generation:
            assert view.reason == reason
        if view.promise != promised:
            break
    else:
        pytest.fail("the promise never moved")
    assert "first" in bench.truth.state.engine.running
    bench.store.close()


def test_the_end_of_a_generation_that_was_never_commanded_completes_no_job(bench: Bench) -> None:
    bench.submit("first")
    for elapsed in (0, 1):  # before its first generation, and while that runs
        bench.slot(elapsed)
        now = bench.clock.wall() / SECOND
        bench.do(RecordReports([Ended(0, "first", 7, now, Ending.DONE, 0, "")]))
        assert bench.truth.state.views["first"].state.open
    assert "finished" not in bench.kinds("first")


def test_a_job_that_was_done_later_is_not_abandoned_for_the_slots_before(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "data", "rolling")
    bench.submit(
        "first", minibatches=30, utility={"kind": "deadline", "value": 20, "by": "6 slots"}
    )
    bench.slot()
    order = bench.truth.state.launch_commands["first"]
    bench.clock.advance(4 * SLOT)  # nothing was recorded meanwhile, not even the start
    done = bench.clock.wall() / SECOND - SLOT / 2
    end = Ended(0, "first", order.generation, done, Ending.DONE, 0, "")
    bench.do(AdvanceSlots(reports=[end], since=bench.clock.wall()))
    view = bench.truth.state.views.get("first")
    assert view is None or view.state is State.FINISHED
    assert bench.kinds("first")[-1] == "finished"
    bench.store.close()


@pytest.mark.parametrize("together", [False, True])
def test_a_revised_file_that_names_a_family_can_be_submitted_again(
    bench: Bench, together: bool
) -> None:
    families = {"resnet": {"throughput": {1: 0.2}, "restart": "3s"}}
    file = {
        "name": "job",
        "family": "resnet",
        "minibatches": 60,
        "worker": {"gpu": 1, "cpu": 1},
        "utility": {"kind": "constant", "value": 20},
        "run": {"command": ["train"]},
    }

    def submit(**changes: Any) -> SubmitJobs:
        record = {key: value for key, value in {**file, **changes}.items() if value is not None}
        result = read_submissions([record], CLUSTER, tenant=None, runs=True, families=families)
        return SubmitJobs(result, at_once=True)

    bench.do(submit())
    steps = [
        ReviseJob("job", {"priority": 2}),
        submit(priority=2),
        ReviseJob("job", {"minibatches": 50}),
        submit(priority=2, minibatches=50),
        # The job states its own speed from now on, and keeps the family's restart cost.
        ReviseJob("job", {"throughput": {1: 0.3}}),
        ReviseJob("job", {"priority": 3}),
        submit(priority=3, minibatches=50, throughput={1: 0.3}, family=None),
    ]
    if together:
        answers = bench.truth.commit(steps).answers
    else:
        answers = [bench.do(step).answers[0] for step in steps]
    assert answers[1] == answers[3] == answers[6] == [("job", None)]
    [(_, problem)] = bench.do(submit()).answers[0]
    assert problem is not None
    assert problem.code == "name-conflict"


def restarted(bench: Bench, name: str, cost: float, *, after: float = SLOT) -> None:
    """Let a new job lose its first generation, and report a restart cost some seconds later."""
    bench.submit(name)
    name = bench.key(name)
    bench.slot()
    bench.again(name)
    metrics = {"change_checkpoint": 0.0, "change_start": cost - 1.0, "change_first_step": 1.0}
    order = bench.truth.state.launch_commands[name]
    at = bench.truth.state.calendar.begins(order.slot) / SECOND + after
    report = Progressed(name, order.generation, MICRO, metrics, at)
    bench.do(RecordProgress({name: report}, [report]))
    bench.do(CancelJob(name))


def test_a_new_job_has_the_median_restart_cost_of_its_tenant(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "data", "rolling")
    bench.submit("stated", restart="30s")
    assert bench.truth.state.engine.jobs["stated"].job.restart == Fraction(1, 2)
    for index, seconds in enumerate((3.0, 6.0, 60.0)):
        restarted(bench, f"first-{index}", seconds)
    bench.submit("next")
    assert bench.truth.state.engine.jobs["next"].job.restart == Fraction(6, 60)
    assert bench.truth.state.views["next"].state.open
    bench.submit("states-it", restart="0s")
    assert bench.truth.state.engine.jobs["states-it"].job.restart == 0
    # A repeated submission is the same job. Measurements outlive the process.
    before = bench.truth.state.engine.state_digest()
    bench.submit("next")
    bench.read()
    assert bench.truth.state.engine.state_digest() == before
    restarts = bench.truth.state.restarts
    assert restarts.estimate(None, None, float(SLOT)) == Fraction(6, 60)
    assert restarts.estimate(None, Fraction(1, 60), float(SLOT)) == Fraction(1, 60)
    bench.store.close()


def test_huge_restart_costs_of_a_tenant_leave_other_tenants_promises(tmp_path: Path) -> None:
    promises = []
    for attacks in (False, True):
        bench = Bench(tmp_path / f"data-{attacks}")
        for index in range(4):
            bench.tenant = "attacker"
            restarted(bench, f"attack-{index}", 1e6 if attacks else 2.0)
        bench.read()
        bench.tenant = "honest"
        bench.submit("honest")
        assert bench.truth.state.engine.jobs[bench.key("honest")].job.restart == 0
        promises.append(bench.truth.state.views[bench.key("honest")].promise)
        bench.store.close()
    assert promises[0] is not None
    assert promises[0] == promises[1]


def test_a_restart_costs_at_most_what_the_service_observed(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "data", "rolling")
    for index in range(3):
        restarted(bench, f"first-{index}", 1e6, after=12.0)
    assert bench.truth.state.restarts.record() == {
        "": {"seconds": [pytest.approx(12.0)] * 3, "factors": []}
    }
    bench.store.close()


def test_a_first_generation_is_no_restart(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "data", "rolling")
    bench.submit("first")
    bench.slot()
    change(bench, "first", 1.0, change_first_step=4.0)
    assert bench.truth.state.restarts.record() == {}
    bench.store.close()


def test_a_stated_restart_cost_is_scaled_by_how_late_the_tenants_jobs_started(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path / "data", "rolling")

    def begins(name: str, after: float, worked: float, **stated: str) -> None:
        """Let a job begin in the next slot, and report first so many seconds into it."""
        bench.submit(name, chunks=1, workers={"max": 1}, **stated)
        bench.slot()
        bench.started(name)
        order = bench.truth.state.launch_commands[name]
        at = bench.truth.state.calendar.begins(order.slot) / SECOND + after
        for moment, seconds in ((after - 0.1, 0.0), (after, worked), (after + 20.0, worked + 20.0)):
            told = Progressed(
                name, order.generation, int(seconds / 6.0 * MICRO), {}, at - after + moment
            )
            bench.do(RecordProgress({name: told}, [told]))
        bench.do(CancelJob(name))

    asked = count()

    def expected(**stated: str) -> Any:
        name = f"next-{next(asked)}"
        bench.submit(name, **stated)
        found = bench.truth.state.engine.jobs[name].job.restart
        bench.do(CancelJob(name))
        return pytest.approx(found, abs=0.011)  # rounded up to a hundredth of a slot

    begins("a", 14.0, 2.0, restart="6s")
    begins("late", 40.0, 12.0, restart="6s")  # what it did by then tells of its speed
    begins("b", 21.0, 3.0, restart="6s")
    assert expected(restart="6s") == 6 / 60
    begins("c", 32.0, 2.0, restart="15s")
    # 12 of 6 seconds, 18 of 6, 30 of 15: twice as long in the median. Of those that say nothing,
    # it tells nothing.
    assert bench.truth.state.restarts.record()[""]["factors"] == pytest.approx([2.0, 3.0, 2.0])
    assert expected(restart="6s") == 12 / 60
    assert expected(restart="50s") == 1
    assert expected(restart="0s") == 0
    assert expected() == 0
    for name in "defgh":  # shorter than is said: who says more may have seen worse
        begins(name, 3.0, 1.0, restart="20s")
    assert expected(restart="6s") == 6 / 60
    bench.read()
    assert len(bench.truth.state.restarts.record()[""]["factors"]) == 8
    bench.store.close()


def test_a_job_that_runs_at_half_its_speed_is_planned_anew(bench: Bench) -> None:
    bench.submit("slow")
    bench.slot()
    bench.started("slow")
    promise = bench.truth.state.views["slow"].promise
    for slot in range(1, 5):
        bench.clock.advance(SLOT - 1)
        bench.report("slow", 5.0 * slot)  # 10 were stated
        bench.clock.advance(1)
        bench.do(AdvanceSlots())
    assert "remeasured" in bench.kinds("slow")
    job = bench.truth.state.engine.jobs["slow"].job
    assert job.required == 60 * MICRO
    assert job.gain(1) == 5 * MICRO
    assert job.work == 60
    assert bench.truth.state.views["slow"].required == 60.0
    later = bench.truth.state.views["slow"].promise
    assert promise is not None
    assert later is not None
    # 60 mini-batches at 5 a slot on one worker, the first whole slot begun in slot 1.
    assert later == 12
    assert later > promise
    assert bench.kinds("slow").count("moved") >= 1


def test_slots_that_nothing_was_heard_of_say_nothing_of_a_jobs_speed(bench: Bench) -> None:
    bench.submit("far", minibatches=400, utility={"kind": "constant", "value": 20})
    bench.slot()
    bench.started("far")
    record_report = [10.0, 20.0, 30.0, 40.0, None, None, None, None, 90.0, 100.0, 110.0, 120.0]
    for done in record_report:
        bench.clock.advance(SLOT - 1)
        if done is not None:
            bench.report("far", done)
        bench.clock.advance(1)
        bench.do(AdvanceSlots(stale_jobs=frozenset() if done is not None else frozenset({"far"})))
    assert bench.truth.state.views["far"].progress == 120.0
    assert "remeasured" not in bench.kinds("far")


def test_a_story_tells_of_progress_that_went_back_or_never_came(bench: Bench) -> None:
    for name in ("back", "never", "says"):
        bench.submit(name, minibatches=400, utility={"kind": "constant", "value": 20})
    bench.slot()
    for name in ("back", "never", "says"):
        bench.started(name)
    for done in (50.0, 90.0, 30.0, 20.0, 100.0, 10.0):
        bench.report("back", done)
    for done in (50.0, 50.0, 60.0):
        bench.report("says", done)
    assert bench.truth.state.views["back"].progress == 100.0
    assert bench.kinds("back").count("misreported") == 1
    assert "misreported" not in bench.kinds("says")
    at = bench.clock.wall() / SECOND
    ends = [Ended(0, name, 1, at, Ending.DONE, 0, "") for name in ("never", "says")]
    told = {
        event.job: event.data
        for event in bench.do(RecordReports(ends)).events
        if event.kind == "finished"
    }
    assert told["never"]["reported"] is False
    assert "reported" not in told["says"]
    # One that goes on from a checkpoint begins before where the one before it was.
    generation = bench.truth.state.launch_commands["back"].generation
    failed = Ended(0, "back", generation, at, Ending.FAILED, 1, "killed")
    bench.do(RecordReports([failed]))
    bench.slot()
    bench.started("back")
    for done in (40.0, 60.0):
        bench.report("back", done)
    assert bench.kinds("back").count("misreported") == 1
    bench.report("back", 50.0)
    assert bench.kinds("back").count("misreported") == 2


def test_an_older_report_that_arrives_later_is_no_fault_of_the_job(bench: Bench) -> None:
    bench.submit("late", minibatches=400, utility={"kind": "constant", "value": 20})
    bench.slot()
    bench.started("late")
    key = bench.key("late")
    generation = bench.truth.state.launch_commands[key].generation
    for done, at in ((50, 10.0), (90, 12.0), (80, 11.0), (90, 12.0), (100, 13.0)):
        point = Progressed(key, generation, done * MICRO, {}, at)
        bench.do(RecordProgress({key: point}, [point]))
    assert bench.truth.state.views[key].progress == 100.0
    assert "misreported" not in bench.kinds("late")
    back = Progressed(key, generation, 60 * MICRO, {}, 14.0)
    bench.do(RecordProgress({key: back}, [back]))
    assert bench.kinds("late").count("misreported") == 1


def test_who_was_displaced_says_what_it_waits_for_until_it_runs(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "data", "fifo")
    bench.submit("one", utility={"kind": "constant", "value": 20}, workers={"max": 1})
    bench.slot()
    bench.started("one")
    [server] = bench.truth.state.launch_commands["one"].servers
    bench.do(SetServerAvailability(server))
    view = bench.truth.state.views["one"]
    assert not view.servers
    assert view.reason is not None
    assert f"{server} was lost" in view.reason["message"]
    bench.slot()
    view = bench.truth.state.views["one"]
    assert view.servers
    assert view.servers != (server,)
    assert view.reason is None
    bench.store.close()


def test_an_end_belongs_to_the_slot_in_which_it_came_however_many_passed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A batch ends after half a second of real time, which a busy machine spends on a few slots.
    monkeypatch.setattr(slot_operations, "ADVANCE_TIME_BUDGET_SECONDS", math.inf)
    whole = {"kind": "constant", "value": 20}
    for name in ("done", "fails"):
        bench.submit(name, minibatches=400, utility=whole, workers={"max": 1})
    bench.slot()
    for name in ("done", "fails"):
        bench.started(name)
    began = bench.truth.state.engine.slot_running
    assert began is not None
    bench.slot(2)
    missed = bench.clock.wall() / SECOND
    bench.clock.advance(10 * SLOT)  # nobody was there; reports come in no order
    reports = [
        Ended(0, "done", 1, missed + 3.5 * SLOT, Ending.DONE, 0, ""),
        Ended(0, "fails", 1, missed + 1.5 * SLOT, Ending.FAILED, 1, "killed"),
    ]
    outcome = bench.do(AdvanceSlots(reports=reports))
    assert outcome.answers == [SlotAdvanceResult(caught_up=True)]
    assert outcome.views["done"].state is State.FINISHED
    assert outcome.views["done"].completion == began + 2 + 3
    assert "retrying" in bench.kinds("fails")
    assert bench.truth.state.launch_commands["fails"].generation > 1
    assert bench.truth.state.engine.slot_running == began + 12


def test_slots_in_which_nobody_listened_are_counted_as_stated_until_a_job_is_heard(
    bench: Bench,
) -> None:
    for name in ("posts", "files", "silent"):
        bench.submit(name, minibatches=400, utility={"kind": "constant", "value": 20})
    bench.slot()
    for name in ("posts", "files", "silent"):
        bench.started(name)
    for done in (10.0, 20.0):
        bench.clock.advance(SLOT - 1)
        for name in ("posts", "files"):
            bench.report(name, done)
        bench.clock.advance(1)
        bench.do(AdvanceSlots())
    bench.read()  # the service was away for five slots
    bench.clock.advance(5 * SLOT)
    since = bench.truth.state.clock.now()
    bench.report("files", 60.0)
    bench.do(AdvanceSlots(since=since, last_reports={"files": since}))
    views = bench.truth.state.views
    assert views["files"].progress == 60.0
    assert views["posts"].progress == 20.0 + 5 * 10.0
    assert views["silent"].progress == views["posts"].progress  # as it always was
    # From then on what a job says counts again, and nothing of it is taken for its speed.
    for _ in range(4):
        bench.slot()
        bench.report("posts", views["posts"].progress)
    assert views["posts"].progress == 70.0
    bench.report("posts", 90.0)
    assert views["posts"].progress == 90.0
    assert "remeasured" not in bench.kinds("files")


def test_what_a_job_does_again_after_a_failure_says_nothing_of_its_speed(bench: Bench) -> None:
    bench.submit("again", minibatches=200, utility={"kind": "constant", "value": 20})
    bench.slot()
    order = bench.truth.state.launch_commands["again"]

    def slots(reports: list[float]) -> None:
        bench.started("again")
        for done in reports:
            bench.clock.advance(SLOT - 1)
            bench.report("again", done)
            bench.clock.advance(1)
            bench.do(AdvanceSlots())

    slots([10.0 * slot for slot in range(1, 7)])  # 10 a slot, as was stated
    at = bench.clock.wall() / SECOND
    end = Ended(0, "again", order.generation, at, Ending.FAILED, 1, "killed")
    bench.do(RecordReports([end]))
    bench.slot()
    assert bench.truth.state.launch_commands["again"].generation > order.generation
    # Six slots in which nothing more is counted, and then it goes on as fast as it always was.
    slots([10.0 * slot for slot in range(1, 10)])
    assert bench.truth.state.views["again"].progress == 90.0
    assert "remeasured" not in bench.kinds("again")


def test_a_report_of_nothing_is_a_measurement(bench: Bench) -> None:
    bench.submit("silent")
    bench.submit("stuck")
    bench.slot()
    for name in ("silent", "stuck"):
        bench.started(name)
    bench.slot()  # neither has said anything: both are counted by time
    assert bench.truth.state.views["stuck"].progress > 0
    bench.report("stuck", 0)
    for _ in range(3):
        bench.slot()
        assert bench.truth.state.views["stuck"].progress == 0
        bench.report("stuck", 0)
    assert bench.truth.state.views["silent"].progress > 20
    bench.read()  # and after a restart of the service
    bench.slot()
    assert bench.truth.state.views["stuck"].progress == 0
    bench.report("stuck", 10.0)
    bench.slot()
    assert bench.truth.state.views["stuck"].progress == 10.0
    assert "moved" in bench.kinds("stuck")  # its tenant is told


def test_a_job_that_keeps_its_speed_is_left_alone(bench: Bench) -> None:
    bench.submit("right")
    bench.slot()
    bench.started("right")
    for slot in range(1, 5):
        bench.clock.advance(SLOT - 1)
        bench.report("right", 10.0 * slot)
        bench.clock.advance(1)
        bench.do(AdvanceSlots())
    assert "remeasured" not in bench.kinds("right")
    assert "moved" not in bench.kinds("right")


CHANGE = {"change_checkpoint": 2.0, "change_away": 50.0, "change_start": 9.0}


def change(bench: Bench, name: str, minibatches: float, **seconds: float) -> None:
    """Let a job report the cost of its restart, a slot after its generation was commanded."""
    order = bench.truth.state.launch_commands[name]
    at = bench.truth.state.calendar.ends(order.slot) / SECOND
    metrics = {**CHANGE, **seconds}
    told = Progressed(name, order.generation, int(minibatches * MICRO), metrics, at)
    bench.do(RecordProgress({name: told}, []))


def test_what_a_change_cost_takes_the_place_of_what_was_stated(bench: Bench) -> None:
    bench.submit("moved", restart="3s")
    bench.slot()
    bench.again("moved")
    bench.started("moved")
    assert bench.truth.state.engine.jobs["moved"].job.restart == Fraction(3, 60)
    change(bench, "moved", 10.0)  # not fully known yet; as fast as stated
    bench.slot()
    assert bench.truth.state.engine.jobs["moved"].job.restart == Fraction(3, 60)
    # It was paused before it was started: being away was the schedule's doing, not a cost.
    change(bench, "moved", 15.0, change_first_step=4.0)
    change(bench, "moved", 20.0, change_first_step=40.0)  # one generation, one change
    bench.slot()
    assert bench.truth.state.engine.jobs["moved"].job.restart == Fraction(15, 60)
    assert bench.kinds("moved").count("remeasured") == 1
    for minibatches in (30.0, 40.0):
        change(bench, "moved", minibatches, change_first_step=40.0)
        bench.slot()
    assert bench.kinds("moved").count("remeasured") == 1
    bench.read()  # what was learnt is in the journal
    assert bench.truth.state.engine.jobs["moved"].job.restart == Fraction(15, 60)


def test_the_next_plan_counts_what_a_change_cost(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "data", "rolling")
    bench.submit("moved", restart="3s")
    bench.slot()
    bench.again("moved")
    bench.started("moved")

    def counted() -> float:
        policy = bench.truth.state.engine.policy
        assert isinstance(policy, RollingPolicy)
        return float(policy._state.jobs.restart_loss[policy._state.jobs.rows["moved"]])

    assert counted() == 3 / 60
    change(bench, "moved", 15.0, change_first_step=4.0)
    bench.slot()
    assert counted() == 15 / 60
    bench.store.close()


def test_the_cost_of_a_change_is_the_median_of_the_newest_and_at_most_a_slot(
    bench: Bench,
) -> None:
    bench.submit("a")
    job, restarts = bench.truth.state.engine.jobs["a"].job, RestartCostEstimator()
    assert restarts.revise(job, 60.0) is None

    def note(name: str, generation: int, first_step: float, *, resized: bool) -> None:
        metrics = {**CHANGE, "change_first_step": first_step}
        restarts.note(name, None, generation, metrics, resized=resized, observed=lambda: 1e3)

    for generation, first in enumerate([0.0, 0.0, 500.0, 7.0, 7.0, 7.0], 2):
        note("a", generation, first, resized=False)
    revised = restarts.revise(job, 60.0)
    assert revised is not None
    assert revised.restart == Fraction(18, 60)
    assert restarts.revise(revised, 60.0) is None
    note("a", 4, 1e300, resized=True)  # an earlier generation
    assert restarts.revise(revised, 60.0) is None
    for generation in range(8, 13):
        note("a", generation, 1e300, resized=True)
    revised = restarts.revise(job, 60.0)
    assert revised is not None
    assert revised.restart == 1
    note("b", 2, 0.0, resized=True)
    moved = restarts.revise(replace(job, name="b"), 100.0)
    assert moved is not None
    assert moved.restart == Fraction(61, 100)
    note("c", 2, -1.0, resized=True)
    assert restarts.revise(replace(job, name="c"), 60.0) is None


def test_only_exit_0_finishes_a_job(bench: Bench) -> None:
    bench.submit("counted")
    bench.slot()
    bench.started("counted")
    bench.report("counted", 1_000.0)
    bench.slot(2)
    view = bench.truth.state.views["counted"]
    assert view.state == "running"
    assert view.progress < 60.0
    order = bench.truth.state.launch_commands["counted"]
    at = bench.clock.wall() / SECOND
    end = Ended(0, "counted", order.generation, at, Ending.DONE, 0, "")
    done = bench.do(RecordReports([end]))
    assert done.views["counted"].state == "finished"
    assert bench.do(RecordReports([end])).views == {}  # word that comes again


def test_failures_are_retried_and_losses_cost_nothing(bench: Bench) -> None:
    bench.submit("failing")
    for ending in (Ending.LOST, Ending.FAILED, Ending.LOST, Ending.FAILED):
        bench.slot(2)
        bench.started("failing")
        order = bench.truth.state.launch_commands["failing"]
        at = bench.clock.wall() / SECOND
        end = Ended(0, "failing", order.generation, at, ending, 1, "why", ("last line",))
        outcome = bench.do(RecordReports([end]))
    view = outcome.views["failing"]
    assert view.state == "failed"
    assert view.reason is not None
    assert "last line" in view.reason["message"]
    kinds = bench.kinds("failing")
    assert (kinds.count("lost"), kinds.count("retrying"), kinds.count("failed")) == (2, 1, 1)


def test_an_operation_that_fails_costs_its_neighbours_nothing(bench: Bench) -> None:
    class Wrong:
        def perform(self, batch: Any) -> None:
            raise ShadowpriceError("no")

    class Broken:
        def perform(self, batch: Any) -> None:
            raise ZeroDivisionError

    bench.submit("first")
    [one] = read_submissions(
        [{**dict(bench.truth.state.specs["first"]), "name": "second"}],
        CLUSTER,
        tenant=None,
        runs=True,
    )
    outcome = bench.truth.commit([Wrong(), Broken(), SubmitJobs([one], at_once=True)])
    assert [type(answer) for answer in outcome.answers[:2]] == [ShadowpriceError, ZeroDivisionError]
    assert outcome.answers[2] == [("second", None)]
    assert bench.truth.state.views["second"].state == "admitted"
    assert bench.kinds("second") == ["submitted", "admitted"]


def test_submissions_that_wait_share_an_event_and_are_answered_one_by_one(bench: Bench) -> None:
    bench.submit("first")
    before = bench.truth.state.engine.sequence
    asked = [bench.asked(name) for name in ("a", "b", "a")]
    asked += [bench.asked("first"), bench.asked("b", chunks=2)]
    outcome = bench.truth.commit(asked)
    assert bench.truth.state.engine.sequence == before + 1
    assert outcome.answers[:4] == [[("a", None)], [("b", None)], [("a", None)], [("first", None)]]
    [[(name, problem)]] = outcome.answers[4:]
    assert (name, problem.code) == ("b", "name-conflict")
    for name in ("a", "b"):
        assert bench.kinds(name) == ["submitted", "admitted"]


def test_one_that_cannot_be_decided_on_costs_those_beside_it_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.submit("first")
    kind: Any = type(bench.truth.state.engine.policy)
    decide = kind.decide

    def stumbling(policy: Any, view: Any, event: Any) -> Any:
        if any(job.name == "b" for job in getattr(event, "jobs", ())):
            raise ZeroDivisionError
        return decide(policy, view, event)

    monkeypatch.setattr(kind, "decide", stumbling)
    before = bench.truth.state.engine.sequence
    outcome = bench.truth.commit([bench.asked(name) for name in ("a", "b", "c")])
    assert outcome.answers[0] == [("a", None)]
    assert isinstance(outcome.answers[1], PolicyError)
    assert outcome.answers[2] == [("c", None)]
    assert bench.truth.state.engine.sequence == before + 2
    assert "b" not in bench.truth.state.views
    assert bench.kinds("b") == []
    assert bench.kinds("c") == ["submitted", "admitted"]


@pytest.mark.parametrize("policy", ["oasis", "rolling", "fifo", "drf", "las", "pdors"])
def test_what_is_read_back_is_what_was(tmp_path: Path, policy: str) -> None:
    bench = Bench(tmp_path / "data", policy, virtual=True)
    for index in range(12):
        bench.submit(f"job-{index}", chunks=1 + index % 3)
        if index % 3 == 2:
            bench.slot()
        if index == 6:
            bench.truth.write_snapshot()
    bench.do(CancelJob(next(reversed(bench.truth.state.views))))
    digest, views = bench.truth.state.engine.state_digest(), dict(bench.truth.state.views)
    orders = dict(bench.truth.state.launch_commands)
    bench.read()
    assert bench.truth.state.recovered_events > 0
    assert bench.truth.state.engine.state_digest() == digest
    assert bench.truth.state.views == views
    assert bench.truth.state.launch_commands == orders
    assert {order.generation for order in bench.truth.state.launch_commands.values()} == {
        order.generation for order in orders.values()
    }
    bench.slot(30)
    with bench.store.reading() as connection:
        ended = list_jobs(connection, limit=100)
    assert {view.state.open for view in ended} == {False}
    bench.store.close()


def test_a_policy_that_cannot_take_plans_over_is_refused_with_the_mend(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "data", "oasis")
    bench.submit("planned")
    bench.truth.write_snapshot()  # two: the one before is no way round
    assert len(bench.truth.state.engine.jobs["planned"].plan) > 1
    bench.choice = PolicyChoice("backfill", {})
    with pytest.raises(InputError, match=r"^--policy: backfill can't continue.*keep the policy"):
        bench.read()
    bench.choice = PolicyChoice("pdors", {})
    bench.read()
    assert len(bench.truth.state.engine.jobs["planned"].plan) > 1
    bench.store.close()


@pytest.mark.parametrize("ends", ["killed", "read back", "written"])
def test_a_snapshot_is_written_in_pieces_while_things_happen(tmp_path: Path, ends: str) -> None:
    bench = Bench(tmp_path / "data", "rolling", virtual=True)
    for index in range(60):
        bench.submit(f"job-{index}", chunks=3)
        bench.slot(index % 2)
    before = _snapshots(bench)
    taken = bench.truth.state.engine.sequence
    pieces = 0
    while not pieces or bench.truth.snapshotting:
        bench.truth.write_snapshot_step(0.0)
        pieces += 1
        if ends != "written" and pieces == 4:
            break
        bench.submit(f"meanwhile-{pieces}")
        bench.slot(pieces % 2)
    digest, views = bench.truth.state.engine.state_digest(), dict(bench.truth.state.views)
    if ends == "written":
        assert pieces > 6
        [newest] = _snapshots(bench) - before
        assert taken <= newest < bench.truth.state.engine.sequence
    else:
        assert bench.truth.snapshotting
        assert _snapshots(bench) == before  # none, or a whole one
        if ends == "read back":
            bench.truth.recover()
            assert not bench.truth.snapshotting
    bench.read()
    assert bench.truth.state.recovered_events == bench.truth.state.engine.sequence - max(
        _snapshots(bench)
    )
    assert bench.truth.state.engine.state_digest() == digest
    assert bench.truth.state.views == views
    bench.store.close()


def test_a_snapshot_lets_the_journal_go_that_nobody_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shadowprice.service.state.durable_engine.JOURNAL_DELETE_BATCH", 4)
    bench = Bench(tmp_path / "data", virtual=True)
    ends = []
    for _ in range(3):
        for _ in range(11):
            bench.submit(f"job-{bench.truth.state.next_job}")
        bench.truth.write_snapshot()
        ends.append(bench.truth.state.engine.sequence)
    bench.submit("last")
    with bench.store.reading() as connection:
        kept = connection.execute(select(tables.journal.c.sequence)).scalars().all()
    assert _snapshots(bench) == set(ends[1:])
    assert kept == list(range(ends[1] + 1, bench.truth.state.engine.sequence + 1))
    digest = bench.truth.state.engine.state_digest()
    with bench.store.transaction() as connection:  # the one before is as good
        connection.execute(delete(tables.snapshots).where(tables.snapshots.c.sequence == ends[2]))
    bench.read()
    assert bench.truth.state.engine.state_digest() == digest
    bench.store.close()


def _snapshots(bench: Bench) -> set[int]:
    with bench.store.reading() as connection:
        return set(connection.execute(select(tables.snapshots.c.sequence)).scalars())


def test_orders_are_not_kept_where_nothing_runs(bench: Bench) -> None:
    bench.virtual = True
    bench.read()
    for index in range(4):
        bench.submit(f"job-{index}")
        bench.slot()
    result = recover(
        bench.store, CLUSTER, bench.choice, bench.truth.state.clock, virtual=True
    )  # of each start and end, none of which anybody acknowledges
    assert result.recovered_events > 8
    assert not result.engine.unacknowledged


def test_what_is_to_run_since_the_last_start_is_waited_for_after_the_next(bench: Bench) -> None:
    bench.virtual = True
    bench.read()
    bench.submit("shown")
    bench.slot()
    bench.truth.write_snapshot()
    bench.virtual = False
    bench.read()  # from now on jobs really run, and no snapshot says so yet
    bench.submit("real")
    bench.slot()
    waited = dict(bench.truth.state.engine.unacknowledged)
    assert {order.job for order in waited.values()} == {"real"}
    bench.read()
    assert bench.truth.state.engine.unacknowledged == waited


@pytest.mark.parametrize("snapshot", ["at its end", "of its beginning"])
def test_the_state_of_a_policy_with_other_sources_is_not_read(
    tmp_path: Path, snapshot: str
) -> None:
    """The stored state lacks attributes of the current class; its label names other sources."""
    bench = Bench(tmp_path / "data", "rolling", virtual=True)
    for index in range(8):
        bench.submit(f"job-{index}", chunks=3)
        bench.slot(index % 2)
    views = dict(bench.truth.state.views)
    promises = {name: view.promise for name, view in views.items() if view.promise is not None}
    assert 4 <= len(promises) < len(views)
    digest = bench.truth.state.engine.state_digest()
    policy: Any = unwrap_policy(bench.truth.state.engine.policy)
    del policy._state.is_estimate, policy._state.jobs.expected_remaining
    bench.truth.state.engine.session._saved = None
    if snapshot == "at its end":
        bench.truth.write_snapshot()
    bench.truth._memory_is_large = False
    row = bench.truth.policy_state_row(bench.truth.state.clock.now())
    assert row is not None
    with bench.store.transaction() as connection:
        connection.execute(delete(tables.memory))
        connection.execute(tables.memory.insert(), [row])
    _label_with_other_sources(bench)
    bench.read()
    assert bench.truth.state.engine.state_digest() == digest
    assert bench.truth.state.views == views
    bench.submit("another")  # in the middle of a slot, of which the jobs that run have the yield
    bench.slot(40)
    with bench.store.reading() as connection:
        ended = list_jobs(connection, limit=100)
    assert {view.state for view in ended} == {State.FINISHED}
    kept = {view.name: view.promise for view in ended if view.name in promises}
    assert kept == promises
    bench.store.close()


def _label_with_other_sources(bench: Bench) -> None:
    """Label the stored policy state as another version's."""
    label = json.dumps(["rolling", {}, "0.1.0+0123456789abcdef"])
    with bench.store.transaction() as connection:
        bench.store.put(connection, "policy", label)
        connection.execute(update(tables.memory).values(policy=label))
        for row in connection.execute(select(tables.snapshots)).all():
            state = json.loads(zlib.decompress(row.state))
            state["versions"]["sources"] = "0123456789abcdef"
            connection.execute(
                update(tables.snapshots)
                .where(tables.snapshots.c.sequence == row.sequence)
                .values(state=zlib.compress(json.dumps(state).encode()))
            )


def test_the_policy_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    promises = []
    for again in (False, True):
        bench = Bench(tmp_path / str(again), "rolling", virtual=True)
        for index in range(15):
            bench.submit(f"job-{index}", chunks=4, minibatches=40)
            bench.slot(index % 2)
            if again:
                bench.read()
        with bench.store.reading() as connection:
            promises.append([view.first_promise for view in list_jobs(connection, limit=100)])
        bench.store.close()
    assert promises[0] == promises[1]
    assert any(promise is not None for promise in promises[0])


def test_damaged_snapshots_fall_back_to_the_one_before(bench: Bench, caplog: Any) -> None:
    bench.submit("first")
    bench.truth.write_snapshot()
    bench.submit("second")
    bench.truth.write_snapshot()
    bench.submit("third")
    newest = bench.truth.state.engine.sequence - 1
    digest = bench.truth.state.engine.state_digest()
    with bench.store.transaction() as connection:
        table = tables.snapshots
        connection.execute(
            table.update().where(table.c.sequence == newest).values(state=b"nonsense")
        )
    bench.read()
    assert bench.truth.state.engine.state_digest() == digest
    assert "is damaged" in caplog.text


def test_the_calendar_and_the_slots_agree(bench: Bench) -> None:
    bench.submit("any")
    bench.slot(3)
    running = bench.truth.state.engine.slot_running
    assert running == bench.truth.state.calendar.slot_at(bench.clock.wall())
    assert bench.truth.state.calendar.slot == Fraction(SLOT * SECOND)


def test_a_familys_curve_is_marked_until_it_is_measured(bench: Bench) -> None:
    family = {"throughput": {1: 1 / 6}, "family": "resnet50", "minibatch_time": None}
    bench.submit("new", **family)
    assert bench.truth.state.views["new"].to_resource().speed.record == {
        "source": "family",
        "family": "resnet50",
        "measured": [],
    }
    bench.slot()
    bench.started("new")
    for slot in range(1, 5):  # as fast as the family: nothing is revised, but it is known
        bench.clock.advance(SLOT - 1)
        bench.report("new", 10.0 * slot)
        bench.clock.advance(1)
        bench.do(AdvanceSlots())
    assert bench.truth.state.views["new"].to_resource().speed.measured == (1,)
    assert "remeasured" not in bench.kinds("new")
    bench.read()  # a service that begins again knows it, too
    assert bench.truth.state.views["new"].measured == (1,)
    bench.do(ReviseJob("new", {"throughput": {1: 0.2}}))
    assert bench.truth.state.views["new"].to_resource().speed.source == "stated"
    with pytest.raises(ShadowpriceError, match="the curve of `family` is missing"):
        bench.submit("none", family="resnet50", minibatch_time=None)


def test_prices_are_published_once_a_slot_and_for_changed_servers(bench: Bench) -> None:
    bench.submit("a")
    first = bench.truth.present_state().prices
    bench.submit("b")
    assert bench.truth.present_state().prices is first
    bench.slot()
    begun = bench.truth.present_state().prices
    assert begun is not first
    assert begun == prices_by_kind(
        prices(bench.truth.state.engine, bench.truth.state.calendar, "oasis", 1)
    )
    assert max(begun.values()) > 0.0
    bench.do(SetServerAvailability(CLUSTER.names[0]))
    assert bench.truth.present_state().prices is not begun


def test_events_of_closed_jobs_have_their_ids_and_tenants(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "fifo")
    bench.tenant = "red"
    bench.submit("a")
    key = bench.key("a")
    number = bench.truth.state.views[key].id
    bench.slot()
    bench.started(key)
    bench.do(CancelJob(key))
    assert key not in bench.truth.state.views
    lost = Ended(0, key, 1, bench.clock.wall() / SECOND, Ending.LOST, None, "the node died")
    for operation, kind in (
        (RecordObstacles([Obstacle(key, 1, ("gpu-1",), "it doesn't end")]), "obstructed"),
        (RecordReports([lost]), "lost"),
    ):
        [event] = bench.do(operation).events
        assert (event.kind, event.job, event.job_id, event.tenant) == (kind, key, number, "red")
    bench.store.close()

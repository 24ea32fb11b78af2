"""The durable engine: measurements, failures, rollback and recovery."""

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
)
from shadowprice.policies.choice import PolicyChoice
from shadowprice.policies.rolling.policy import RollingPolicy
from shadowprice.service.clock import SECOND
from shadowprice.service.state import slot_operations
from shadowprice.service.state.job_views import State
from shadowprice.service.state.operations import (
    SubmitJobs,
    cancel_job,
    revise_job,
    set_server_availability,
)
from shadowprice.service.state.prices import prices, prices_by_kind
from shadowprice.service.state.recovery import recover
from shadowprice.service.state.report_operations import (
    RecordProgress,
    RecordReports,
    record_obstacles,
)
from shadowprice.service.state.restart_costs import RestartCostEstimator
from shadowprice.service.state.slot_operations import AdvanceResult, AdvanceSlots
from shadowprice.service.state.store_queries import list_jobs
from shadowprice.service.state.submission import read_submissions
from shadowprice.service.store import StoreError, tables
from tests.support.engine_bench import EngineBench
from tests.support.simulated_hours import CLUSTER, SLOT, disk_full_error


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[EngineBench]:
    result = EngineBench(tmp_path / "data")
    yield result
    result.store.close()


@pytest.mark.parametrize("set_by", [0, -30 * 86_400, 30 * 86_400])
def test_a_restored_copy_reuses_no_numbers_of_events(tmp_path: Path, set_by: int) -> None:
    """Also if the clock was set while the service was down, and after thousands of events."""
    bench = EngineBench(tmp_path / "data")
    bench.submit("early")
    bench.clock.set_by = set_by * SECOND
    bench.recover()
    at_backup = bench.durable.state.next_event_id
    bench.durable.state.next_event_id += 50_000  # events that the backup lacks, in ten seconds
    bench.clock.advance(10)
    lost = bench.durable.state.next_event_id
    bench.recover()
    assert at_backup < lost < bench.durable.state.next_event_id < 2**53
    bench.store.close()


def test_numbers_of_events_grow_after_the_clock_was_set_back(tmp_path: Path) -> None:
    bench = EngineBench(tmp_path / "data")
    bench.recover()
    bench.submit("early")
    last = bench.durable.state.next_event_id
    for moved in (400 * 86_400, 80 * 365 * 86_400):  # the second is before 1970
        bench.clock.set_by = -moved * SECOND
        bench.recover()
        assert bench.durable.state.next_event_id >= last
        bench.submit(f"after-{moved}")
        last = bench.durable.state.next_event_id
    bench.store.close()


def test_a_clock_that_is_set_back_delays_no_snapshot(bench: EngineBench) -> None:
    bench.recover()
    bench.submit("job")
    bench.clock.set_by = -3_600 * SECOND
    bench.durable.state.clock.follow(-3_600 * SECOND)
    bench.clock.advance(601)
    assert bench.durable.snapshot_due()


def test_the_time_of_several_exits_is_that_of_the_first(tmp_path: Path) -> None:
    bench = EngineBench(tmp_path / "data", "fifo")
    bench.submit("first", chunks=2, minibatches=60)
    bench.advance()
    bench.report_start("first")
    generation = bench.durable.state.desired["first"].generation
    at = bench.clock.wall() / SECOND
    for ended, text in (
        (("worker-0",), "worker-0 exited 0 at 20"),
        (("worker-0", "worker-2"), "worker-0, worker-2 exited 0, the first at 20"),
    ):
        report = PartlyEnded("first", generation, at, ended, ("worker-1",))
        bench.commit(RecordReports([report]))
        reason = bench.durable.state.views["first"].reason
        assert reason is not None
        assert str(reason["message"]).startswith(text)


def test_a_job_that_is_paused_without_a_promise_waits_again(tmp_path: Path) -> None:
    bench = EngineBench(tmp_path / "data", "srtf")
    run = {"command": ["train"], "checkpoints": True}
    whole = {"chunks": 12, "workers": {"min": 12, "max": 12}, "run": run}
    bench.submit("long", **whole, minibatches=600)
    bench.advance()
    bench.report_start("long")
    assert bench.durable.state.views["long"].state is State.RUNNING
    bench.submit("short", **whole, minibatches=20)
    bench.advance()
    view = bench.durable.state.views["long"]
    assert view.state is State.STANDBY
    assert view.reason is not None
    assert (view.reason["code"], view.reason["resource"]) == ("standby", "gpu")
    generation = bench.durable.state.desired["short"].generation
    end = Ended(0, "short", generation, bench.clock.wall() / SECOND, Ending.DONE, 0, "")
    bench.commit(RecordReports([end]))
    bench.advance()
    bench.report_start("long")
    view = bench.durable.state.views["long"]
    assert (view.state, view.reason) == (State.RUNNING, None)
    bench.store.close()


def test_a_paused_job_that_becomes_late_is_abandoned_and_not_refused(tmp_path: Path) -> None:
    bench = EngineBench(tmp_path / "data", "rolling")
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
    bench.advance()
    bench.report_start("first")
    bench.report_start("low")
    submit("second", (4, 4), 10, 11, 300)  # takes the spare capacity
    bench.advance()
    bench.report_start("second")
    view = bench.durable.state.views["low"]
    assert (view.state, view.promise) == (State.STANDBY, None)
    assert view.reason is not None
    assert view.reason["message"].startswith("waits for gpu of g servers")
    for _ in range(8):
        if "low" in bench.durable.state.engine.open_jobs:
            bench.advance()
    kinds = bench.event_kinds("low")
    assert kinds[-2:] == ["stopped", "given-up"]
    assert "refused" not in kinds
    bench.store.close()


@pytest.mark.parametrize("policy", ["oasis", "rolling"])
def test_decisions_keep_the_reason_that_a_job_has_partly_ended(tmp_path: Path, policy: str) -> None:
    bench = EngineBench(tmp_path / "data", policy)
    bench.submit("first", chunks=2, minibatches=60)
    bench.advance()
    bench.report_start("first")
    generation = bench.durable.state.desired["first"].generation
    at = bench.clock.wall() / SECOND
    report = PartlyEnded("first", generation, at, ("worker-0",), ("worker-1",))
    bench.commit(RecordReports([report]))
    reason = bench.durable.state.views["first"].reason
    assert reason is not None
    assert reason["code"] == "partly-ended"
    promised = bench.durable.state.views["first"].promise
    for _ in range(40):  # without progress, the plan is extended
        bench.advance()
        view = bench.durable.state.views["first"]
        if "first" in bench.durable.state.engine.running and view.generation == generation:
            assert view.reason == reason
        if view.promise != promised:
            break
    else:
        pytest.fail("the promise never moved")
    assert "first" in bench.durable.state.engine.running
    bench.store.close()


def test_the_end_of_a_generation_that_was_never_commanded_completes_no_job(
    bench: EngineBench,
) -> None:
    bench.submit("first")
    for elapsed in (0, 1):  # before its first generation, and while that runs
        bench.advance(elapsed)
        now = bench.clock.wall() / SECOND
        bench.commit(RecordReports([Ended(0, "first", 7, now, Ending.DONE, 0, "")]))
        assert bench.durable.state.views["first"].state.open
    assert "finished" not in bench.event_kinds("first")


def test_a_job_that_was_done_later_is_not_abandoned_for_the_slots_before(tmp_path: Path) -> None:
    bench = EngineBench(tmp_path / "data", "rolling")
    bench.submit(
        "first", minibatches=30, utility={"kind": "deadline", "value": 20, "by": "6 slots"}
    )
    bench.advance()
    order = bench.durable.state.desired["first"]
    bench.clock.advance(4 * SLOT)  # nothing was recorded meanwhile, not even the start
    done = bench.clock.wall() / SECOND - SLOT / 2
    end = Ended(0, "first", order.generation, done, Ending.DONE, 0, "")
    bench.commit(AdvanceSlots(reports=[end], reports_since=bench.clock.wall()))
    view = bench.durable.state.views.get("first")
    assert view is None or view.state is State.FINISHED
    assert bench.event_kinds("first")[-1] == "finished"
    bench.store.close()


@pytest.mark.parametrize("together", [False, True])
def test_a_revised_file_that_names_a_family_can_be_submitted_again(
    bench: EngineBench, together: bool
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

    bench.commit(submit())
    steps = [
        revise_job("job", {"priority": 2}),
        submit(priority=2),
        revise_job("job", {"minibatches": 50}),
        submit(priority=2, minibatches=50),
        # The job states its own speed from now on, and keeps the family's restart cost.
        revise_job("job", {"throughput": {1: 0.3}}),
        revise_job("job", {"priority": 3}),
        submit(priority=3, minibatches=50, throughput={1: 0.3}, family=None),
    ]
    if together:
        answers = bench.durable.commit(steps).answers
    else:
        answers = [bench.commit(step).answers[0] for step in steps]
    assert answers[1] == answers[3] == answers[6] == [("job", None)]
    [(_, problem)] = bench.commit(submit()).answers[0]
    assert problem is not None
    assert problem.code == "name-conflict"


def restarted(bench: EngineBench, name: str, cost: float, *, after: float = SLOT) -> None:
    """Let a new job lose its first generation, and report a restart cost some seconds later."""
    bench.submit(name)
    name = bench.job_key(name)
    bench.advance()
    bench.lose_generation(name)
    metrics = {"change_checkpoint": 0.0, "change_start": cost - 1.0, "change_first_step": 1.0}
    order = bench.durable.state.desired[name]
    at = bench.durable.state.calendar.begins(order.slot) / SECOND + after
    report = Progressed(name, order.generation, MICRO, metrics, at)
    bench.commit(RecordProgress({name: report}, [report]))
    bench.commit(cancel_job(name))


def test_a_new_job_has_the_median_restart_cost_of_its_tenant(tmp_path: Path) -> None:
    bench = EngineBench(tmp_path / "data", "rolling")
    bench.submit("stated", restart="30s")
    assert bench.durable.state.engine.jobs["stated"].job.restart == Fraction(1, 2)
    for index, seconds in enumerate((3.0, 6.0, 60.0)):
        restarted(bench, f"first-{index}", seconds)
    bench.submit("next")
    assert bench.durable.state.engine.jobs["next"].job.restart == Fraction(6, 60)
    assert bench.durable.state.views["next"].state.open
    bench.submit("states-it", restart="0s")
    assert bench.durable.state.engine.jobs["states-it"].job.restart == 0
    # A repeated submission is the same job. Measurements outlive the process.
    before = bench.durable.state.engine.state_digest()
    bench.submit("next")
    bench.recover()
    assert bench.durable.state.engine.state_digest() == before
    restarts = bench.durable.state.restarts
    assert restarts.estimate(None, None, float(SLOT)) == Fraction(6, 60)
    assert restarts.estimate(None, Fraction(1, 60), float(SLOT)) == Fraction(1, 60)
    bench.store.close()


def test_huge_restart_costs_of_a_tenant_leave_other_tenants_promises(tmp_path: Path) -> None:
    promises = []
    for attacks in (False, True):
        bench = EngineBench(tmp_path / f"data-{attacks}")
        for index in range(4):
            bench.tenant = "attacker"
            restarted(bench, f"attack-{index}", 1e6 if attacks else 2.0)
        bench.recover()
        bench.tenant = "honest"
        bench.submit("honest")
        assert bench.durable.state.engine.jobs[bench.job_key("honest")].job.restart == 0
        promises.append(bench.durable.state.views[bench.job_key("honest")].promise)
        bench.store.close()
    assert promises[0] is not None
    assert promises[0] == promises[1]


def test_a_restart_costs_at_most_what_the_service_observed(tmp_path: Path) -> None:
    bench = EngineBench(tmp_path / "data", "rolling")
    for index in range(3):
        restarted(bench, f"first-{index}", 1e6, after=12.0)
    assert bench.durable.state.restarts.record() == {
        "": {"seconds": [pytest.approx(12.0)] * 3, "factors": []}
    }
    bench.store.close()


def test_a_first_generation_is_no_restart(tmp_path: Path) -> None:
    bench = EngineBench(tmp_path / "data", "rolling")
    bench.submit("first")
    bench.advance()
    change(bench, "first", 1.0, change_first_step=4.0)
    assert bench.durable.state.restarts.record() == {}
    bench.store.close()


def test_a_stated_restart_cost_is_scaled_by_how_late_the_tenants_jobs_started(
    tmp_path: Path,
) -> None:
    bench = EngineBench(tmp_path / "data", "rolling")

    def begins(name: str, after: float, worked: float, **stated: str) -> None:
        """Let a job start in the next slot, and report first some seconds into it."""
        bench.submit(name, chunks=1, workers={"max": 1}, **stated)
        bench.advance()
        bench.report_start(name)
        order = bench.durable.state.desired[name]
        at = bench.durable.state.calendar.begins(order.slot) / SECOND + after
        for moment, seconds in ((after - 0.1, 0.0), (after, worked), (after + 20.0, worked + 20.0)):
            report = Progressed(
                name, order.generation, int(seconds / 6.0 * MICRO), {}, at - after + moment
            )
            bench.commit(RecordProgress({name: report}, [report]))
        bench.commit(cancel_job(name))

    numbers = count()

    def expected(**stated: str) -> Any:
        name = f"next-{next(numbers)}"
        bench.submit(name, **stated)
        found = bench.durable.state.engine.jobs[name].job.restart
        bench.commit(cancel_job(name))
        return pytest.approx(found, abs=0.011)  # rounded up to a hundredth of a slot

    begins("a", 14.0, 2.0, restart="6s")
    begins("late", 40.0, 12.0, restart="6s")  # its progress by then shows its speed
    begins("b", 21.0, 3.0, restart="6s")
    assert expected(restart="6s") == 6 / 60
    begins("c", 32.0, 2.0, restart="15s")
    # 12 of 6 seconds, 18 of 6, 30 of 15: twice as long in the median. Jobs that report nothing
    # don't count.
    assert bench.durable.state.restarts.record()[""]["factors"] == pytest.approx([2.0, 3.0, 2.0])
    assert expected(restart="6s") == 12 / 60
    assert expected(restart="50s") == 1
    assert expected(restart="0s") == 0
    assert expected() == 0
    for name in "defgh":  # less than reported: a job that reports more may have measured worse
        begins(name, 3.0, 1.0, restart="20s")
    assert expected(restart="6s") == 6 / 60
    bench.recover()
    assert len(bench.durable.state.restarts.record()[""]["factors"]) == 8
    bench.store.close()


def test_a_job_that_runs_at_half_its_speed_is_replanned(bench: EngineBench) -> None:
    bench.submit("slow")
    bench.advance()
    bench.report_start("slow")
    promise = bench.durable.state.views["slow"].promise
    for slot in range(1, 5):
        bench.clock.advance(SLOT - 1)
        bench.report_progress("slow", 5.0 * slot)  # 10 were stated
        bench.clock.advance(1)
        bench.commit(AdvanceSlots())
    assert "remeasured" in bench.event_kinds("slow")
    job = bench.durable.state.engine.jobs["slow"].job
    assert job.required == 60 * MICRO
    assert job.gain(1) == 5 * MICRO
    assert job.work == 60
    assert bench.durable.state.views["slow"].required == 60.0
    later = bench.durable.state.views["slow"].promise
    assert promise is not None
    assert later is not None
    # 60 mini-batches at 5 a slot on one worker, the first whole slot begun in slot 1.
    assert later == 12
    assert later > promise
    assert bench.event_kinds("slow").count("moved") >= 1


def test_slots_of_a_downtime_do_not_measure_a_jobs_speed(bench: EngineBench) -> None:
    bench.submit("far", minibatches=400, utility={"kind": "constant", "value": 20})
    bench.advance()
    bench.report_start("far")
    record_report = [10.0, 20.0, 30.0, 40.0, None, None, None, None, 90.0, 100.0, 110.0, 120.0]
    for done in record_report:
        bench.clock.advance(SLOT - 1)
        if done is not None:
            bench.report_progress("far", done)
        bench.clock.advance(1)
        bench.commit(
            AdvanceSlots(stale_jobs=frozenset() if done is not None else frozenset({"far"}))
        )
    assert bench.durable.state.views["far"].progress == 120.0
    assert "remeasured" not in bench.event_kinds("far")


def test_a_history_has_progress_that_decreased_or_never_came(bench: EngineBench) -> None:
    for name in ("back", "never", "says"):
        bench.submit(name, minibatches=400, utility={"kind": "constant", "value": 20})
    bench.advance()
    for name in ("back", "never", "says"):
        bench.report_start(name)
    for done in (50.0, 90.0, 30.0, 20.0, 100.0, 10.0):
        bench.report_progress("back", done)
    for done in (50.0, 50.0, 60.0):
        bench.report_progress("says", done)
    assert bench.durable.state.views["back"].progress == 100.0
    assert bench.event_kinds("back").count("misreported") == 1
    assert "misreported" not in bench.event_kinds("says")
    at = bench.clock.wall() / SECOND
    ends = [Ended(0, name, 1, at, Ending.DONE, 0, "") for name in ("never", "says")]
    finished = {
        event.job: event.data
        for event in bench.commit(RecordReports(ends)).events
        if event.kind == "finished"
    }
    assert finished["never"]["reported"] is False
    assert "reported" not in finished["says"]
    # One that continues from a checkpoint begins before the end of the previous one.
    generation = bench.durable.state.desired["back"].generation
    failed = Ended(0, "back", generation, at, Ending.FAILED, 1, "killed")
    bench.commit(RecordReports([failed]))
    bench.advance()
    bench.report_start("back")
    for done in (40.0, 60.0):
        bench.report_progress("back", done)
    assert bench.event_kinds("back").count("misreported") == 1
    bench.report_progress("back", 50.0)
    assert bench.event_kinds("back").count("misreported") == 2


def test_an_older_report_that_arrives_later_is_no_fault_of_the_job(bench: EngineBench) -> None:
    bench.submit("late", minibatches=400, utility={"kind": "constant", "value": 20})
    bench.advance()
    bench.report_start("late")
    key = bench.job_key("late")
    generation = bench.durable.state.desired[key].generation
    for done, at in ((50, 10.0), (90, 12.0), (80, 11.0), (90, 12.0), (100, 13.0)):
        point = Progressed(key, generation, done * MICRO, {}, at)
        bench.commit(RecordProgress({key: point}, [point]))
    assert bench.durable.state.views[key].progress == 100.0
    assert "misreported" not in bench.event_kinds("late")
    back = Progressed(key, generation, 60 * MICRO, {}, 14.0)
    bench.commit(RecordProgress({key: back}, [back]))
    assert bench.event_kinds("late").count("misreported") == 1


def test_a_displaced_job_has_the_reason_of_its_wait_until_it_runs(tmp_path: Path) -> None:
    bench = EngineBench(tmp_path / "data", "fifo")
    bench.submit("one", utility={"kind": "constant", "value": 20}, workers={"max": 1})
    bench.advance()
    bench.report_start("one")
    [server] = bench.durable.state.desired["one"].servers
    bench.commit(set_server_availability(server))
    view = bench.durable.state.views["one"]
    assert not view.servers
    assert view.reason is not None
    assert f"{server} was lost" in view.reason["message"]
    bench.advance()
    view = bench.durable.state.views["one"]
    assert view.servers
    assert view.servers != (server,)
    assert view.reason is None
    bench.store.close()


def test_an_end_belongs_to_the_slot_in_which_it_came_however_many_passed(
    bench: EngineBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A batch ends after half a second of real time, which a busy machine spends on a few slots.
    monkeypatch.setattr(slot_operations, "ADVANCE_TIME_BUDGET_SECONDS", math.inf)
    whole = {"kind": "constant", "value": 20}
    for name in ("done", "fails"):
        bench.submit(name, minibatches=400, utility=whole, workers={"max": 1})
    bench.advance()
    for name in ("done", "fails"):
        bench.report_start(name)
    began = bench.durable.state.engine.slot_running
    assert began is not None
    bench.advance(2)
    missed = bench.clock.wall() / SECOND
    bench.clock.advance(10 * SLOT)  # the service was down; reports come in any order
    reports = [
        Ended(0, "done", 1, missed + 3.5 * SLOT, Ending.DONE, 0, ""),
        Ended(0, "fails", 1, missed + 1.5 * SLOT, Ending.FAILED, 1, "killed"),
    ]
    outcome = bench.commit(AdvanceSlots(reports=reports))
    assert outcome.answers == [AdvanceResult((), is_caught_up=True)]
    assert outcome.views["done"].state is State.FINISHED
    assert outcome.views["done"].completion == began + 2 + 3
    assert "retrying" in bench.event_kinds("fails")
    assert bench.durable.state.desired["fails"].generation > 1
    assert bench.durable.state.engine.slot_running == began + 12


def test_slots_of_a_downtime_count_as_stated_until_a_job_reports(
    bench: EngineBench,
) -> None:
    for name in ("posts", "files", "silent"):
        bench.submit(name, minibatches=400, utility={"kind": "constant", "value": 20})
    bench.advance()
    for name in ("posts", "files", "silent"):
        bench.report_start(name)
    for done in (10.0, 20.0):
        bench.clock.advance(SLOT - 1)
        for name in ("posts", "files"):
            bench.report_progress(name, done)
        bench.clock.advance(1)
        bench.commit(AdvanceSlots())
    bench.recover()  # the service was away for five slots
    bench.clock.advance(5 * SLOT)
    since = bench.durable.state.clock.now()
    bench.report_progress("files", 60.0)
    bench.commit(AdvanceSlots(reports_since=since, last_reports={"files": since}))
    views = bench.durable.state.views
    assert views["files"].progress == 60.0
    assert views["posts"].progress == 20.0 + 5 * 10.0
    assert views["silent"].progress == views["posts"].progress  # as it always was
    # From then on a job's reports count again, and this one isn't taken for its speed.
    for _ in range(4):
        bench.advance()
        bench.report_progress("posts", views["posts"].progress)
    assert views["posts"].progress == 70.0
    bench.report_progress("posts", 90.0)
    assert views["posts"].progress == 90.0
    assert "remeasured" not in bench.event_kinds("files")


def test_repeated_work_after_a_failure_does_not_measure_a_jobs_speed(
    bench: EngineBench,
) -> None:
    bench.submit("again", minibatches=200, utility={"kind": "constant", "value": 20})
    bench.advance()
    order = bench.durable.state.desired["again"]

    def slots(reports: list[float]) -> None:
        bench.report_start("again")
        for done in reports:
            bench.clock.advance(SLOT - 1)
            bench.report_progress("again", done)
            bench.clock.advance(1)
            bench.commit(AdvanceSlots())

    slots([10.0 * slot for slot in range(1, 7)])  # 10 a slot, as was stated
    at = bench.clock.wall() / SECOND
    end = Ended(0, "again", order.generation, at, Ending.FAILED, 1, "killed")
    bench.commit(RecordReports([end]))
    bench.advance()
    assert bench.durable.state.desired["again"].generation > order.generation
    # Six slots in which nothing counts, and then it continues at its usual speed.
    slots([10.0 * slot for slot in range(1, 10)])
    assert bench.durable.state.views["again"].progress == 90.0
    assert "remeasured" not in bench.event_kinds("again")


def test_a_report_of_nothing_is_a_measurement(bench: EngineBench) -> None:
    bench.submit("silent")
    bench.submit("stuck")
    bench.advance()
    for name in ("silent", "stuck"):
        bench.report_start(name)
    bench.advance()  # neither has reported anything: both are counted by time
    assert bench.durable.state.views["stuck"].progress > 0
    bench.report_progress("stuck", 0)
    for _ in range(3):
        bench.advance()
        assert bench.durable.state.views["stuck"].progress == 0
        bench.report_progress("stuck", 0)
    assert bench.durable.state.views["silent"].progress > 20
    bench.recover()  # and after a restart of the service
    bench.advance()
    assert bench.durable.state.views["stuck"].progress == 0
    bench.report_progress("stuck", 10.0)
    bench.advance()
    assert bench.durable.state.views["stuck"].progress == 10.0
    assert "moved" in bench.event_kinds("stuck")  # its tenant is notified


def test_a_job_that_keeps_its_speed_is_left_alone(bench: EngineBench) -> None:
    bench.submit("right")
    bench.advance()
    bench.report_start("right")
    for slot in range(1, 5):
        bench.clock.advance(SLOT - 1)
        bench.report_progress("right", 10.0 * slot)
        bench.clock.advance(1)
        bench.commit(AdvanceSlots())
    assert "remeasured" not in bench.event_kinds("right")
    assert "moved" not in bench.event_kinds("right")


CHANGE = {"change_checkpoint": 2.0, "change_away": 50.0, "change_start": 9.0}


def change(bench: EngineBench, name: str, minibatches: float, **seconds: float) -> None:
    """Let a job report the cost of its restart, a slot after its generation was commanded."""
    order = bench.durable.state.desired[name]
    at = bench.durable.state.calendar.ends(order.slot) / SECOND
    metrics = {**CHANGE, **seconds}
    report = Progressed(name, order.generation, int(minibatches * MICRO), metrics, at)
    bench.commit(RecordProgress({name: report}, []))


def test_a_measured_cost_of_a_change_replaces_the_stated_one(bench: EngineBench) -> None:
    bench.submit("moved", restart="3s")
    bench.advance()
    bench.lose_generation("moved")
    bench.report_start("moved")
    assert bench.durable.state.engine.jobs["moved"].job.restart == Fraction(3, 60)
    change(bench, "moved", 10.0)  # not fully known yet; as fast as stated
    bench.advance()
    assert bench.durable.state.engine.jobs["moved"].job.restart == Fraction(3, 60)
    # It was paused before it was started: the schedule caused that, so it isn't a cost.
    change(bench, "moved", 15.0, change_first_step=4.0)
    change(bench, "moved", 20.0, change_first_step=40.0)  # one generation, one change
    bench.advance()
    assert bench.durable.state.engine.jobs["moved"].job.restart == Fraction(15, 60)
    assert bench.event_kinds("moved").count("remeasured") == 1
    for minibatches in (30.0, 40.0):
        change(bench, "moved", minibatches, change_first_step=40.0)
        bench.advance()
    assert bench.event_kinds("moved").count("remeasured") == 1
    bench.recover()  # what was learnt is in the journal
    assert bench.durable.state.engine.jobs["moved"].job.restart == Fraction(15, 60)


def test_the_next_plan_counts_what_a_change_cost(tmp_path: Path) -> None:
    bench = EngineBench(tmp_path / "data", "rolling")
    bench.submit("moved", restart="3s")
    bench.advance()
    bench.lose_generation("moved")
    bench.report_start("moved")

    def counted() -> float:
        policy = bench.durable.state.engine.policy
        assert isinstance(policy, RollingPolicy)
        return float(policy._state.jobs.restart_loss[policy._state.jobs.rows["moved"]])

    assert counted() == 3 / 60
    change(bench, "moved", 15.0, change_first_step=4.0)
    bench.advance()
    assert counted() == 15 / 60
    bench.store.close()


def test_the_cost_of_a_change_is_the_median_of_the_newest_and_at_most_a_slot(
    bench: EngineBench,
) -> None:
    bench.submit("a")
    job, restarts = bench.durable.state.engine.jobs["a"].job, RestartCostEstimator()
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


def test_only_exit_0_finishes_a_job(bench: EngineBench) -> None:
    bench.submit("counted")
    bench.advance()
    bench.report_start("counted")
    bench.report_progress("counted", 1_000.0)
    bench.advance(2)
    view = bench.durable.state.views["counted"]
    assert view.state == "running"
    assert view.progress < 60.0
    order = bench.durable.state.desired["counted"]
    at = bench.clock.wall() / SECOND
    end = Ended(0, "counted", order.generation, at, Ending.DONE, 0, "")
    done = bench.commit(RecordReports([end]))
    assert done.views["counted"].state == "finished"
    assert bench.commit(RecordReports([end])).views == {}  # a repeated report


def test_failures_are_retried_and_losses_cost_nothing(bench: EngineBench) -> None:
    bench.submit("failing")
    for ending in (Ending.LOST, Ending.FAILED, Ending.LOST, Ending.FAILED):
        bench.advance(2)
        bench.report_start("failing")
        order = bench.durable.state.desired["failing"]
        at = bench.clock.wall() / SECOND
        end = Ended(0, "failing", order.generation, at, ending, 1, "why", ("last line",))
        outcome = bench.commit(RecordReports([end]))
    view = outcome.views["failing"]
    assert view.state == "failed"
    assert view.reason is not None
    assert "last line" in view.reason["message"]
    kinds = bench.event_kinds("failing")
    assert (kinds.count("lost"), kinds.count("retrying"), kinds.count("failed")) == (2, 1, 1)


def test_an_operation_that_fails_costs_its_neighbours_nothing(bench: EngineBench) -> None:
    class Wrong:
        def perform(self, batch: Any) -> None:
            raise ShadowpriceError("no")

    class Broken:
        def perform(self, batch: Any) -> None:
            raise ZeroDivisionError

    bench.submit("first")
    [one] = read_submissions(
        [{**dict(bench.durable.state.specs["first"]), "name": "second"}],
        CLUSTER,
        tenant=None,
        runs=True,
    )
    outcome = bench.durable.commit([Wrong(), Broken(), SubmitJobs([one], at_once=True)])
    assert [type(answer) for answer in outcome.answers[:2]] == [ShadowpriceError, ZeroDivisionError]
    assert outcome.answers[2] == [("second", None)]
    assert bench.durable.state.views["second"].state == "admitted"
    assert bench.event_kinds("second") == ["submitted", "admitted"]


def test_an_operation_that_fails_alone_is_answered_with_its_error(bench: EngineBench) -> None:
    class Broken:
        def perform(self, batch: Any) -> None:
            batch.set_value("half", "done")
            raise ZeroDivisionError("a bug")

    bench.submit("first")
    result = bench.durable.commit([Broken()])
    assert [repr(answer) for answer in result.answers] == ["ZeroDivisionError('a bug')"]
    assert bench.store.get("half") is None
    assert set(bench.durable.state.views) == {"first"}
    bench.submit("second")
    assert bench.durable.state.views["second"].state == "admitted"


@pytest.mark.parametrize("alone", [True, False])
def test_a_store_that_fails_is_no_answer_of_an_operation(bench: EngineBench, alone: bool) -> None:
    class Broken:
        def perform(self, batch: Any) -> None:
            def fail(point: str) -> None:
                if point == "begin":  # of the attempt to perform the operations one by one
                    raise disk_full_error()

            bench.store.fault = fail
            if alone:
                raise disk_full_error()
            raise ZeroDivisionError

    with pytest.raises(StoreError, match="disk is full"):
        bench.durable.commit([Broken()] if alone else [Broken(), Broken()])


def test_submissions_that_wait_share_an_event_and_are_answered_one_by_one(
    bench: EngineBench,
) -> None:
    bench.submit("first")
    before = bench.durable.state.engine.sequence
    submissions = [bench.build_submission(name) for name in ("a", "b", "a")]
    submissions += [bench.build_submission("first"), bench.build_submission("b", chunks=2)]
    outcome = bench.durable.commit(submissions)
    assert bench.durable.state.engine.sequence == before + 1
    assert outcome.answers[:4] == [[("a", None)], [("b", None)], [("a", None)], [("first", None)]]
    [[(name, problem)]] = outcome.answers[4:]
    assert (name, problem.code) == ("b", "name-conflict")
    for name in ("a", "b"):
        assert bench.event_kinds(name) == ["submitted", "admitted"]


def test_one_that_cannot_be_decided_on_costs_those_beside_it_nothing(
    bench: EngineBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.submit("first")
    kind: Any = type(bench.durable.state.engine.policy)
    decide = kind.decide

    def stumbling(policy: Any, view: Any, event: Any) -> Any:
        if any(job.name == "b" for job in getattr(event, "jobs", ())):
            raise ZeroDivisionError
        return decide(policy, view, event)

    monkeypatch.setattr(kind, "decide", stumbling)
    before = bench.durable.state.engine.sequence
    outcome = bench.durable.commit([bench.build_submission(name) for name in ("a", "b", "c")])
    assert outcome.answers[0] == [("a", None)]
    assert isinstance(outcome.answers[1], PolicyError)
    assert outcome.answers[2] == [("c", None)]
    assert bench.durable.state.engine.sequence == before + 2
    assert "b" not in bench.durable.state.views
    assert bench.event_kinds("b") == []
    assert bench.event_kinds("c") == ["submitted", "admitted"]


@pytest.mark.parametrize("policy", ["oasis", "rolling", "fifo", "drf", "las", "pdors"])
def test_a_stored_value_is_read_unchanged(tmp_path: Path, policy: str) -> None:
    bench = EngineBench(tmp_path / "data", policy, virtual=True)
    for index in range(12):
        bench.submit(f"job-{index}", chunks=1 + index % 3)
        if index % 3 == 2:
            bench.advance()
        if index == 6:
            bench.durable.write_snapshot()
    bench.commit(cancel_job(next(reversed(bench.durable.state.views))))
    digest, views = bench.durable.state.engine.state_digest(), dict(bench.durable.state.views)
    orders = dict(bench.durable.state.desired)
    bench.recover()
    assert bench.durable.state.recovered_events > 0
    assert bench.durable.state.engine.state_digest() == digest
    assert bench.durable.state.views == views
    assert bench.durable.state.desired == orders
    assert {order.generation for order in bench.durable.state.desired.values()} == {
        order.generation for order in orders.values()
    }
    bench.advance(30)
    with bench.store.reading() as connection:
        ended = list_jobs(connection, limit=100)
    assert {view.state.open for view in ended} == {False}
    bench.store.close()


def test_a_policy_that_cannot_resume_plans_is_refused_with_a_hint(tmp_path: Path) -> None:
    bench = EngineBench(tmp_path / "data", "oasis")
    bench.submit("planned")
    bench.durable.write_snapshot()  # two: the one before is no substitute
    assert len(bench.durable.state.engine.jobs["planned"].plan) > 1
    bench.choice = PolicyChoice("backfill", {})
    with pytest.raises(InputError, match=r"^--policy: backfill can't continue.*keep the policy"):
        bench.recover()
    bench.choice = PolicyChoice("pdors", {})
    bench.recover()
    assert len(bench.durable.state.engine.jobs["planned"].plan) > 1
    bench.store.close()


@pytest.mark.parametrize("ends", ["killed", "read back", "written"])
def test_a_snapshot_is_written_in_pieces_while_things_happen(tmp_path: Path, ends: str) -> None:
    bench = EngineBench(tmp_path / "data", "rolling", virtual=True)
    for index in range(60):
        bench.submit(f"job-{index}", chunks=3)
        bench.advance(index % 2)
    before = _snapshots(bench)
    taken = bench.durable.state.engine.sequence
    pieces = 0
    while not pieces or bench.durable.snapshotting:
        bench.durable.write_snapshot_step(0.0)
        pieces += 1
        if ends != "written" and pieces == 4:
            break
        bench.submit(f"meanwhile-{pieces}")
        bench.advance(pieces % 2)
    digest, views = bench.durable.state.engine.state_digest(), dict(bench.durable.state.views)
    if ends == "written":
        assert pieces > 6
        [newest] = _snapshots(bench) - before
        assert taken <= newest < bench.durable.state.engine.sequence
    else:
        assert bench.durable.snapshotting
        assert _snapshots(bench) == before  # none, or a complete one
        if ends == "read back":
            bench.durable.recover()
            assert not bench.durable.snapshotting
    bench.recover()
    assert bench.durable.state.recovered_events == bench.durable.state.engine.sequence - max(
        _snapshots(bench)
    )
    assert bench.durable.state.engine.state_digest() == digest
    assert bench.durable.state.views == views
    bench.store.close()


def test_a_snapshot_deletes_the_part_of_the_journal_that_is_no_longer_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shadowprice.service.state.durable_engine.JOURNAL_DELETE_BATCH", 4)
    bench = EngineBench(tmp_path / "data", virtual=True)
    ends = []
    for _ in range(3):
        for _ in range(11):
            bench.submit(f"job-{bench.durable.state.next_job}")
        bench.durable.write_snapshot()
        ends.append(bench.durable.state.engine.sequence)
    bench.submit("last")
    with bench.store.reading() as connection:
        kept = connection.execute(select(tables.journal.c.sequence)).scalars().all()
    assert _snapshots(bench) == set(ends[1:])
    assert kept == list(range(ends[1] + 1, bench.durable.state.engine.sequence + 1))
    digest = bench.durable.state.engine.state_digest()
    with bench.store.transaction() as connection:  # the one before is as good
        connection.execute(delete(tables.snapshots).where(tables.snapshots.c.sequence == ends[2]))
    bench.recover()
    assert bench.durable.state.engine.state_digest() == digest
    bench.store.close()


def _snapshots(bench: EngineBench) -> set[int]:
    with bench.store.reading() as connection:
        return set(connection.execute(select(tables.snapshots.c.sequence)).scalars())


def test_orders_are_not_kept_where_nothing_runs(bench: EngineBench) -> None:
    bench.virtual = True
    bench.recover()
    for index in range(4):
        bench.submit(f"job-{index}")
        bench.advance()
    result = recover(
        bench.store, CLUSTER, bench.choice, bench.durable.state.clock, virtual=True
    )  # of each start and end, none of which is acknowledged
    assert result.recovered_events > 8
    assert not result.engine.unacknowledged


def test_commands_since_the_last_start_are_awaited_after_the_next(
    bench: EngineBench,
) -> None:
    bench.virtual = True
    bench.recover()
    bench.submit("shown")
    bench.advance()
    bench.durable.write_snapshot()
    bench.virtual = False
    bench.recover()  # from now on jobs really run, and no snapshot says so yet
    bench.submit("real")
    bench.advance()
    waited = dict(bench.durable.state.engine.unacknowledged)
    assert {order.job for order in waited.values()} == {"real"}
    bench.recover()
    assert bench.durable.state.engine.unacknowledged == waited


@pytest.mark.parametrize("policy", ["rolling", "fifo"])
def test_the_journal_is_replayed_in_the_mode_that_wrote_it(bench: EngineBench, policy: str) -> None:
    bench.choice = PolicyChoice(policy)
    bench.recover()
    bench.durable.write_snapshot()
    bench.submit("endless", walltime="2 slots")
    bench.submit("waiting")
    bench.advance()
    bench.report_start("endless")
    bench.advance(4)  # only a service whose jobs really run abandons the first one
    assert "given-up" in bench.event_kinds("endless")
    digest = bench.durable.state.engine.state_digest()
    bench.virtual = True
    bench.recover()
    engine = bench.durable.state.engine
    assert bench.durable.state.recovered_events > 4
    assert engine.state_digest() == digest
    assert not engine.state.acknowledges
    assert not engine.unacknowledged
    # And back: each part of the journal has a snapshot of its own mode.
    bench.advance(2)
    digest = bench.durable.state.engine.state_digest()
    bench.virtual = False
    bench.recover()
    assert bench.durable.state.engine.state_digest() == digest
    assert bench.durable.state.engine.state.acknowledges


@pytest.mark.parametrize("snapshot", ["at its end", "of its beginning"])
def test_the_state_of_a_policy_with_other_sources_is_not_read(
    tmp_path: Path, snapshot: str
) -> None:
    """The stored state lacks attributes of the current class; its label names other sources."""
    bench = EngineBench(tmp_path / "data", "rolling", virtual=True)
    for index in range(8):
        bench.submit(f"job-{index}", chunks=3)
        bench.advance(index % 2)
    views = dict(bench.durable.state.views)
    promises = {name: view.promise for name, view in views.items() if view.promise is not None}
    assert 4 <= len(promises) < len(views)
    digest = bench.durable.state.engine.state_digest()
    policy: Any = unwrap_policy(bench.durable.state.engine.policy)
    del policy._state.is_estimate, policy._state.jobs.expected_remaining
    bench.durable.state.engine.session._saved = None
    if snapshot == "at its end":
        bench.durable.write_snapshot()
    bench.durable._policy_state_is_large = False
    row = bench.durable.policy_state_row()
    assert row is not None
    with bench.store.transaction() as connection:
        connection.execute(delete(tables.policy_state))
        connection.execute(tables.policy_state.insert(), [row])
    _label_with_other_sources(bench)
    bench.recover()
    assert bench.durable.state.engine.state_digest() == digest
    assert bench.durable.state.views == views
    bench.submit("another")  # in the middle of a slot, with the progress of the running jobs
    bench.advance(40)
    with bench.store.reading() as connection:
        ended = list_jobs(connection, limit=100)
    assert {view.state for view in ended} == {State.FINISHED}
    kept = {view.name: view.promise for view in ended if view.name in promises}
    assert kept == promises
    bench.store.close()


def _label_with_other_sources(bench: EngineBench) -> None:
    """Label the stored policy state as another version's."""
    label = json.dumps(["rolling", {}, "0.1.0+0123456789abcdef"])
    with bench.store.transaction() as connection:
        bench.store.put(connection, "policy", label)
        connection.execute(update(tables.policy_state).values(policy=label))
        for row in connection.execute(select(tables.snapshots)).all():
            state = json.loads(zlib.decompress(row.state))
            state["versions"]["sources"] = "0123456789abcdef"
            connection.execute(
                update(tables.snapshots)
                .where(tables.snapshots.c.sequence == row.sequence)
                .values(state=zlib.compress(json.dumps(state).encode()))
            )


def test_the_policy_continues_unchanged(tmp_path: Path) -> None:
    promises = []
    for again in (False, True):
        bench = EngineBench(tmp_path / str(again), "rolling", virtual=True)
        for index in range(15):
            bench.submit(f"job-{index}", chunks=4, minibatches=40)
            bench.advance(index % 2)
            if again:
                bench.recover()
        with bench.store.reading() as connection:
            promises.append([view.first_promise for view in list_jobs(connection, limit=100)])
        bench.store.close()
    assert promises[0] == promises[1]
    assert any(promise is not None for promise in promises[0])


def test_damaged_snapshots_fall_back_to_the_one_before(bench: EngineBench, caplog: Any) -> None:
    bench.submit("first")
    bench.durable.write_snapshot()
    bench.submit("second")
    bench.durable.write_snapshot()
    bench.submit("third")
    newest = bench.durable.state.engine.sequence - 1
    digest = bench.durable.state.engine.state_digest()
    with bench.store.transaction() as connection:
        table = tables.snapshots
        connection.execute(
            table.update().where(table.c.sequence == newest).values(state=b"nonsense")
        )
    bench.recover()
    assert bench.durable.state.engine.state_digest() == digest
    assert "is damaged" in caplog.text


def test_the_calendar_and_the_slots_agree(bench: EngineBench) -> None:
    bench.submit("any")
    bench.advance(3)
    running = bench.durable.state.engine.slot_running
    assert running == bench.durable.state.calendar.slot_at(bench.clock.wall())
    assert bench.durable.state.calendar.slot == Fraction(SLOT * SECOND)


def test_a_familys_curve_is_marked_until_it_is_measured(bench: EngineBench) -> None:
    family = {"throughput": {1: 1 / 6}, "family": "resnet50", "minibatch_time": None}
    bench.submit("new", **family)
    assert bench.durable.state.views["new"].to_resource().speed.record == {
        "source": "family",
        "family": "resnet50",
        "measured": [],
    }
    bench.advance()
    bench.report_start("new")
    for slot in range(1, 5):  # as fast as the family: nothing is revised, but it counts as measured
        bench.clock.advance(SLOT - 1)
        bench.report_progress("new", 10.0 * slot)
        bench.clock.advance(1)
        bench.commit(AdvanceSlots())
    assert bench.durable.state.views["new"].to_resource().speed.measured == (1,)
    assert "remeasured" not in bench.event_kinds("new")
    bench.recover()  # a restarted service has it, too
    assert bench.durable.state.views["new"].measured == (1,)
    bench.commit(revise_job("new", {"throughput": {1: 0.2}}))
    assert bench.durable.state.views["new"].to_resource().speed.source == "stated"
    with pytest.raises(ShadowpriceError, match="the curve of `family` is missing"):
        bench.submit("none", family="resnet50", minibatch_time=None)


def test_prices_are_published_once_a_slot_and_for_changed_servers(bench: EngineBench) -> None:
    bench.submit("a")
    first = bench.durable.present_state().prices
    bench.submit("b")
    assert bench.durable.present_state().prices is first
    bench.advance()
    begun = bench.durable.present_state().prices
    assert begun is not first
    assert begun == prices_by_kind(
        prices(bench.durable.state.engine, bench.durable.state.calendar, "oasis", 1)
    )
    assert max(begun.values()) > 0.0
    bench.commit(set_server_availability(CLUSTER.names[0]))
    assert bench.durable.present_state().prices is not begun


def test_events_of_closed_jobs_have_their_ids_and_tenants(tmp_path: Path) -> None:
    bench = EngineBench(tmp_path, "fifo")
    bench.tenant = "red"
    bench.submit("a")
    key = bench.job_key("a")
    number = bench.durable.state.views[key].id
    bench.advance()
    bench.report_start(key)
    bench.commit(cancel_job(key))
    assert key not in bench.durable.state.views
    lost = Ended(0, key, 1, bench.clock.wall() / SECOND, Ending.LOST, None, "the node died")
    for operation, kind in (
        (record_obstacles([Obstacle(key, 1, ("gpu-1",), "it doesn't end")]), "obstructed"),
        (RecordReports([lost]), "lost"),
    ):
        [event] = bench.commit(operation).events
        assert (event.kind, event.job, event.job_id, event.tenant) == (kind, key, number, "red")
    bench.store.close()

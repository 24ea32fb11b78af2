"""Exits after a stop command: progress decides whether a job that exits 0 is complete."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from shadowprice.core.events import ServerState
from shadowprice.core.job import MICRO
from shadowprice.executors.contract import Ended, Ending, Progressed
from shadowprice.service.clock import SECOND
from shadowprice.service.state.job_views import State
from shadowprice.service.state.operations import set_server_availability, update_servers
from shadowprice.service.state.report_operations import RecordProgress, RecordReports
from shadowprice.service.state.store_queries import job, list_events
from shadowprice.service.store import tables
from tests.support.engine_bench import EngineBench
from tests.support.simulated_hours import CLUSTER

WORK = 60

POLICIES = [
    "backfill",
    "dorm",
    "drf",
    "elasticflow",
    "fifo",
    "pdors",
    "las",
    "oasis",
    "rolling",
    "rrh",
    "srtf",
]


class MovedJob(EngineBench):
    """A job that reported some progress, and whose server is then drained."""

    work = WORK

    def __init__(self, folder: Path, progress: float | None) -> None:
        folder.mkdir(exist_ok=True)
        super().__init__(folder / "state.db", "fifo")
        seconds = 6 * WORK // self.work  # six minutes in all
        self.submit("train", minibatches=self.work, minibatch_time=f"{seconds}s")
        self.advance()
        self.report_start("train")
        self.clock.advance(20)
        if progress is not None:
            self.report_progress(progress)
        self.clock.advance(20)

    @property
    def now(self) -> float:
        """Seconds since 1970."""
        return self.clock.wall() / SECOND

    def drain(self) -> None:
        """Drain the server of the job, and begin the next slot."""
        [server] = self.durable.state.desired["train"].servers
        amounts = dict(zip(CLUSTER.resources, CLUSTER.capacity[0].tolist(), strict=True))
        state = ServerState(CLUSTER.roles[0], amounts, drained=True)
        self.commit(update_servers({server: state}, "drain"))
        self.advance()

    def report_progress(self, progress: float, *, is_point: bool = True) -> None:
        """Report progress of the first generation; ``is_point``: the curve has a point of it."""
        report = Progressed("train", 1, round(progress * MICRO), {}, self.now, checkpoints=True)
        self.commit(RecordProgress({"train": report}, [report] if is_point else []))

    def exits(
        self,
        ending: Ending,
        code: int,
        reason: str = "every worker exited 0",
        *,
        from_outside: bool = False,
    ) -> None:
        """Record the end of the first generation."""
        self.clock.advance(1)
        tail = ("cannot save: No space left on device",) if code else ()
        end = Ended(
            self.stop_command(), "train", 1, self.now, ending, code, reason, tail,
            from_outside=from_outside,
        )  # fmt: skip
        self.commit(RecordReports([end]))

    def stop_command(self) -> int:
        """Return the number of the command that stopped the first generation; 0 without one."""
        table = tables.commands
        query = select(func.max(table.c.id)).where(
            (table.c.generation > 1) | (table.c.kind == "stop")
        )
        with self.store.reading() as connection:
            return int(connection.execute(query).scalar() or 0)

    def ends(self) -> list[Mapping[str, Any]]:
        """Return the data of the job's `ended` events."""
        with self.store.reading() as connection:
            events = list_events(connection, job="train")
        return [event.data for event in events if event.kind == "ended"]


@pytest.mark.parametrize("progress", [0.0, 4.0, 54.0])
def test_exit_0_on_a_stop_below_the_work_is_a_stop(tmp_path: Path, progress: float) -> None:
    bench = MovedJob(tmp_path, progress)
    bench.drain()
    bench.exits(Ending.DONE, 0)
    assert "train" in bench.durable.state.engine.open_jobs
    [end] = bench.ends()
    assert end["reason"] == (
        f"exited 0 after the order to stop, at {progress:g} of 60 mini-batches; it continues later"
    )


def test_exit_0_on_a_stop_completes_a_job_with_its_work(tmp_path: Path) -> None:
    bench = MovedJob(tmp_path, 60.0)
    bench.drain()
    bench.exits(Ending.DONE, 0)
    assert "train" not in bench.durable.state.engine.open_jobs
    assert bench.event_kinds("train")[-1] == "finished"


def test_exit_0_on_a_stop_without_reports_is_judged_by_time(tmp_path: Path) -> None:
    """One slot of several has passed: the script obeyed the command, and is not complete."""
    bench = MovedJob(tmp_path, None)
    record = bench.durable.state.engine.jobs["train"]
    bench.drain()
    share = record.progress / record.job.required
    assert 0 < share < 0.5
    bench.exits(Ending.DONE, 0)
    assert "train" in bench.durable.state.engine.open_jobs
    [end] = bench.ends()
    assert end["reason"].startswith(
        f"exited 0 after the order to stop, at {share:.0%} of its expected time; it continues later"
    )


class PlainCommand(MovedJob):
    """Return a job of ``submit -- COMMAND`` with one step, whose script counts its own steps."""

    work = 1

    def events(self, kind: str) -> list[Mapping[str, Any]]:
        """Return the data of the job's events of a kind."""
        with self.store.reading() as connection:
            return [e.data for e in list_events(connection, job="train") if e.kind == kind]


@pytest.mark.parametrize("steps", [0.0, 1.0, 2.0, 400.0])
def test_reported_steps_of_a_plain_command_do_not_count_as_progress(
    tmp_path: Path, steps: float
) -> None:
    silent, reporting = PlainCommand(tmp_path / "a", None), PlainCommand(tmp_path / "b", steps)
    for bench in (silent, reporting):
        bench.advance()
    progress = [b.durable.state.engine.jobs["train"].progress for b in (silent, reporting)]
    assert progress[0] == progress[1] > 0
    reports = reporting.events("misreported")
    assert len(reports) == (steps > 1)
    assert all("submit it with --steps" in report["reason"] for report in reports)
    reporting.drain()
    reporting.exits(Ending.DONE, 0)
    assert "train" in reporting.durable.state.engine.open_jobs, "it was stopped, not finished"


def test_progress_share_of_a_plain_command_is_counted(tmp_path: Path) -> None:
    bench = PlainCommand(tmp_path, 0.25)
    assert bench.durable.state.engine.jobs["train"].measured == MICRO // 4
    assert bench.events("misreported") == []


def test_full_share_of_a_plain_command_is_all_of_its_time(tmp_path: Path) -> None:
    """1.0 is also what a script that counts its own steps reports first."""
    bench = PlainCommand(tmp_path, 0.25)
    bench.report_progress(1.0)
    bench.drain()
    bench.exits(Ending.DONE, 0)
    assert "train" not in bench.durable.state.engine.open_jobs


def test_checkpoints_of_a_plain_command_count_though_its_steps_do_not(tmp_path: Path) -> None:
    bench = PlainCommand(tmp_path, 3.0)
    assert bench.durable.state.engine.jobs["train"].job.resumable is True


def test_checkpoints_count_with_the_first_progress(tmp_path: Path) -> None:
    """A loading process reports that too, and a stop would lose its start."""
    bench = MovedJob(tmp_path, 0.0)
    assert bench.durable.state.engine.jobs["train"].job.resumable is None
    assert bench.durable.state.engine.view.is_unstoppable("train")
    bench.report_progress(1.0)
    assert bench.durable.state.engine.jobs["train"].job.resumable is True
    assert not bench.durable.state.engine.view.is_unstoppable("train")


@pytest.mark.parametrize("is_point", [True, False])
def test_work_that_is_reported_after_the_stop_completes_a_job(
    tmp_path: Path, is_point: bool
) -> None:
    bench = MovedJob(tmp_path, 54.0)
    bench.drain()
    bench.report_progress(60.0, is_point=is_point)
    bench.exits(Ending.DONE, 0)
    assert "train" not in bench.durable.state.engine.open_jobs


@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_that_is_done_as_it_is_stopped_needs_no_other_place(
    tmp_path: Path, policy: str
) -> None:
    """Otherwise it would wait for a server, perhaps until it is worth nothing."""
    bench = EngineBench(tmp_path / "state.db", policy)
    bench.submit("train", minibatches=10)
    while "train" not in bench.durable.state.desired:
        bench.advance()
    bench.report_start("train")
    for server in CLUSTER.names:
        bench.commit(set_server_availability(server))
    assert "train" not in bench.durable.state.engine.running
    now = bench.clock.wall() / SECOND
    bench.commit(
        RecordReports([Ended(0, "train", 1, now, Ending.DONE, 0, "every worker exited 0")])
    )
    with bench.store.reading() as connection:
        stored = job(connection, "train")
    assert stored is not None
    assert stored[0].state is State.FINISHED
    assert bench.event_kinds("train").count("finished") == 1
    for server in CLUSTER.names:
        bench.commit(set_server_availability(server, back=True))
    bench.submit("next")
    for _ in range(20):
        bench.advance()
        if "next" in bench.durable.state.engine.running:
            break
    assert [*bench.durable.state.engine.running] == ["next"]
    bench.store.close()


def test_exit_0_without_a_stop_completes_a_job_whatever_it_reported(tmp_path: Path) -> None:
    bench = MovedJob(tmp_path, 4.0)
    bench.exits(Ending.DONE, 0)
    assert "train" not in bench.durable.state.engine.open_jobs
    assert bench.ends() == []


@pytest.mark.parametrize("is_stopped", [False, True])
def test_exit_0_on_a_signal_from_outside_is_a_loss(tmp_path: Path, is_stopped: bool) -> None:
    """The machine shuts down, perhaps after the scheduler stopped the job."""
    bench = MovedJob(tmp_path, 4.0)
    if is_stopped:
        bench.drain()
    bench.exits(Ending.DONE, 0, from_outside=True)
    view, record = bench.durable.state.views["train"], bench.durable.state.engine.jobs["train"]
    assert record.failures == view.lost == (0 if is_stopped else 1)
    if is_stopped:
        assert [end["reason"].partition(",")[0] for end in bench.ends()] == [
            "exited 0 after the order to stop"
        ]
        return
    assert view.setback == {
        "code": "lost",
        "message": "it received a signal that the scheduler did not send, and exited 0 at 4 of 60 "
        "mini-batches; it continues later",
    }
    assert "retrying" not in bench.event_kinds("train")


def test_exit_0_on_a_signal_from_outside_completes_a_job_with_its_work(tmp_path: Path) -> None:
    bench = MovedJob(tmp_path, 60.0)
    bench.exits(Ending.DONE, 0, from_outside=True)
    assert "train" not in bench.durable.state.engine.open_jobs
    assert "lost" not in bench.event_kinds("train")


@pytest.mark.parametrize("late", [0, 1])
@pytest.mark.parametrize(
    ("code", "limits"),
    [
        ("time-limit", {"walltime": "2 slots"}),
        ("no-value", {"minibatches": 6, "utility": {"kind": "deadline", "value": 9, "by": "150s"}}),
    ],
)
def test_an_exit_before_a_job_was_abandoned_counts_though_it_is_reported_after(
    tmp_path: Path, code: str, limits: Mapping[str, Any], late: int
) -> None:
    bench = EngineBench(tmp_path / "state.db", "fifo")
    bench.submit("train", **{"minibatches": WORK, **limits})
    bench.advance()
    bench.report_start("train")
    generation = bench.durable.state.desired["train"].generation
    while "train" in bench.durable.state.engine.open_jobs:
        bench.advance()
    begins = bench.durable.state.calendar.begins(bench.durable.state.next_slot - 1)
    ended = Ended(0, "train", generation, begins / SECOND + late, Ending.DONE, 0, "")
    for _ in range(2):
        bench.commit(RecordReports([ended]))
    with bench.store.reading() as connection:
        result = job(connection, "train")
    assert result is not None
    view, kinds = result[0], bench.event_kinds("train")
    if late:
        assert view.state is State.FAILED
        assert view.reason is not None
        assert view.reason["code"] == code
        assert "finished" not in kinds
    else:
        assert (view.state, view.reason) == (State.FINISHED, None)
        assert kinds[-1] == "finished"
        assert kinds.count("finished") == 1
    bench.store.close()


def test_a_save_that_failed_on_a_stop_is_in_the_jobs_history(tmp_path: Path) -> None:
    bench = MovedJob(tmp_path, 30.0)
    bench.drain()
    bench.exits(Ending.FAILED, 1, "worker-0 exited 1 after the order to stop (143 was expected)")
    assert "train" in bench.durable.state.engine.open_jobs
    [end] = bench.ends()
    assert end["code"] == 1
    assert end["reason"].splitlines() == [
        "worker-0 exited 1 after the order to stop (143 was expected)",
        "cannot save: No space left on device",
    ]


@pytest.mark.parametrize(
    ("ending", "code", "state"),
    [(Ending.DONE, 0, State.FINISHED), (Ending.FAILED, 3, State.FAILED)],
)
def test_a_job_that_ended_while_the_service_was_down_is_closed_at_its_end(
    tmp_path: Path, ending: Ending, code: int, state: State
) -> None:
    bench = EngineBench(tmp_path / "state.db", "fifo")
    bench.submit("train", run={"command": ["train"]})
    bench.advance()
    bench.report_start("train")
    bench.clock.advance(20)
    ended = bench.clock.wall() / SECOND
    bench.clock.advance(1000)
    bench.commit(RecordReports([Ended(0, "train", 1, ended, ending, code, "it ended")]))
    with bench.store.reading() as connection:
        stored = job(connection, "train")
    assert stored is not None
    view = stored[0]
    assert view.state is state
    assert view.closed == int(ended * SECOND)
    assert view.completion_at == (int(ended * SECOND) if state is State.FINISHED else None)

"""Reports stay until they are recorded: whatever fails, none is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shadowprice.core.cluster import Role
from shadowprice.core.errors import EventError, PolicyError
from shadowprice.core.events import ServerState
from shadowprice.executors.contract import (
    Ended,
    Ending,
    InvalidProgress,
    PartlyEnded,
    Report,
    ServerGone,
    ServerInfo,
    ServerSeen,
    Started,
    StartRefused,
)
from shadowprice.service.execution.reconciler import Reconciler
from shadowprice.service.execution.server_discovery import ServerDiscovery
from shadowprice.service.problems import ProblemError
from shadowprice.service.state.batch import Batch
from shadowprice.service.state.operations import SubmitJobs, set_server_availability, update_servers
from shadowprice.service.state.report_operations import RecordReports
from shadowprice.service.state.store_queries import list_events
from shadowprice.service.state.submission import read_submissions
from tests.support.simulated_hours import CLUSTER, SLOT, SimulatedHour, disk_full_error


class Played(SimulatedHour):
    """A service whose reports come as a test says."""

    async def begin(self, *names: str) -> None:
        """Let jobs be submitted, and start."""
        await self._open()
        for name in names:
            self.world.work[name] = 1e9
            record: dict[str, Any] = {
                "name": name,
                "chunks": 1,
                "minibatches": 60,
                "minibatch_time": "6s",
                "worker": {"gpu": 1},
                "utility": {"kind": "sigmoid", "value": 20, "decay": 0.1, "target": "20 slots"},
                "run": {"command": ["train"], "retries": 3},
            }
            result = read_submissions([record], CLUSTER, tenant=None, runs=True)
            await self.writer.do(SubmitJobs(result, at_once=True))
        self.world.advance(SLOT)
        for _ in range(3):
            await self._turn()
        assert all(self.state(name) == "running" for name in names)

    def state(self, name: str) -> str:
        return str(self._look(name).state)

    def end(self, name: str, ending: Ending = Ending.DONE) -> Ended:
        """Let the processes of a job end, and return the executor's report, once."""
        process = self.world.processes[name, 1]
        self.world._end(process, self.world.now, ending, 0, "")
        assert isinstance(process.end, Ended)
        return process.end

    async def hear(self, *reports: Report, later: bool = False) -> None:
        """Record reports; later: once the backoff is over."""
        if later:
            for entry in self.execution.pending.unrecorded.values():
                entry.due = 0.0
        self.execution.pending.received += reports
        await self.execution.record_pending()

    @property
    def failures(self) -> float:
        registry = self.writer.metrics.registry
        result = registry.get_sample_value("shadowprice_failures_total", {"component": "report"})
        return result or 0.0


def play(folder: Path, scenario: Callable[[Played], Awaitable[None]]) -> None:
    async def run_scenario() -> None:
        hour = Played(folder, "fifo", threads=False)
        try:
            await scenario(hour)
        finally:
            hour.store.close()

    asyncio.run(run_scenario())


class Bug:
    """Raises for reports on one job, until it is fixed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, job: str, error: Exception) -> None:
        self.mended = False
        perform = RecordReports.perform

        def failing(operation: RecordReports, batch: Batch) -> Any:
            if not self.mended and any(report.job == job for report in operation.reports):
                raise error
            return perform(operation, batch)

        monkeypatch.setattr(RecordReports, "perform", failing)


@pytest.mark.parametrize("error", [PolicyError("a passing bug"), EventError("out of order")])
def test_unrecordable_report_is_kept_and_blocks_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    others = ("one", "two", "three")

    async def scenario(hour: Played) -> None:
        await hour.begin("one", "bad", "two", "three")
        bug = Bug(monkeypatch, "bad", error)
        await hour.hear(*(hour.end(name) for name in ("one", "bad", "two", "three")))
        assert [hour.state(name) for name in others] == ["finished"] * 3
        assert hour.state("bad") == "running"
        assert hour.world.forgotten == {(name, 1) for name in others}
        message = "failed to record a report on generation 1 of 'bad': "
        assert hour.execution.health_error == f"{message}{type(error).__name__}: {error}"
        [obstacle] = hour.execution.obstacles()
        assert (obstacle.job, obstacle.generation) == ("bad", 1)
        assert obstacle.reason.startswith("the report of its end can't be recorded")
        assert str(error) not in obstacle.reason  # it may name other tenants' jobs
        await hour.hear()  # its backoff isn't over
        assert hour.failures == 1
        await hour.hear(later=True)
        assert hour.failures == 2
        bug.mended = True
        await hour.hear(later=True)
        assert hour.state("bad") == "finished"
        assert hour.execution.health_error is None
        assert hour.execution.obstacles() == []
        assert ("bad", 1) in hour.world.forgotten

    play(tmp_path, scenario)


def test_report_left_out_of_a_commit_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []

    async def leaving_out(operation: object) -> object:
        assert isinstance(operation, RecordReports)
        taken.append(len(operation.reports))
        return (
            [report for report in operation.reports if report.job == "bad"]
            if len(taken) == 1
            else None
        )

    async def scenario(hour: Played) -> None:
        await hour.begin("one", "bad")
        monkeypatch.setattr(hour.writer, "do", leaving_out)
        await hour.hear(hour.end("one"), hour.end("bad"))
        assert hour.world.forgotten == {("one", 1)}
        assert hour.execution.health_error is not None
        await hour.hear(later=True)
        assert hour.world.forgotten == {("one", 1), ("bad", 1)}
        assert hour.execution.health_error is None

    play(tmp_path, scenario)
    assert taken == [2, 1]


def test_unrecorded_start_is_dropped_after_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(hour: Played) -> None:
        await hour.begin("job")
        bug = Bug(monkeypatch, "job", PolicyError("a passing bug"))
        await hour.hear(Started(1, "job", 1, hour.world.now))
        assert hour.execution.health_error is not None
        assert hour.execution.obstacles() == []  # it runs, and can end
        bug.mended = True
        await hour.hear(hour.end("job"))
        assert hour.state("job") == "finished"
        assert hour.execution.health_error is None
        assert not hour.execution.pending.unrecorded

    play(tmp_path, scenario)


def test_only_an_end_or_a_refused_start_that_cannot_be_recorded_is_an_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(hour: Played) -> None:
        await hour.begin("job")
        Bug(monkeypatch, "job", PolicyError("a passing bug"))
        now = hour.world.now
        for report in (
            InvalidProgress("job", 1, now, "steps: expected an integer"),
            PartlyEnded("job", 1, now, ("worker-0",), ("worker-1",)),
        ):
            await hour.hear(report)
            assert hour.execution.health_error is not None
            await hour.execution.sync_reports()
            assert hour.execution.obstacles() == []
        with hour.store.reading() as connection:
            kinds = [event.kind for event in list_events(connection, after=0, job="job")]
        assert "obstructed" not in kinds
        await hour.hear(StartRefused(2, "job", 2, now, "a server is missing"))
        [obstacle] = hour.execution.obstacles()
        assert (obstacle.job, obstacle.generation) == ("job", 2)
        assert obstacle.reason.startswith("the report of its refused start can't be recorded")

    play(tmp_path, scenario)


# ------------------------------------------------------------------ servers


def test_unrecordable_server_report_blocks_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = ServerDiscovery.apply_report

    async def failing(self: ServerDiscovery, report: ServerSeen | ServerGone) -> None:
        raise KeyError("a bug")

    async def scenario(hour: Played) -> None:
        await hour.begin("job")
        monkeypatch.setattr(ServerDiscovery, "apply_report", failing)
        await hour.hear(ServerGone("g-1", hour.world.now), hour.end("job"))
        assert hour.state("job") == "finished"
        message = "failed to record a report on server 'g-1': KeyError: 'a bug'"
        assert hour.execution.health_error == message
        monkeypatch.setattr(ServerDiscovery, "apply_report", server)
        await hour.hear(later=True)
        assert set(hour.writer.published.servers.unavailable) == {"g-1"}
        assert hour.execution.health_error is None

    play(tmp_path, scenario)


def test_newer_server_report_replaces_an_unrecorded_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = ServerDiscovery.apply_report
    seen = ServerSeen(ServerInfo("g-1", {"gpu": 4000, "cpu": 16000}), 0.0)

    async def failing(self: ServerDiscovery, report: ServerSeen | ServerGone) -> None:
        if report is seen:
            raise KeyError("a bug")
        await server(self, report)

    async def scenario(hour: Played) -> None:
        await hour.begin("job")
        monkeypatch.setattr(ServerDiscovery, "apply_report", failing)
        await hour.hear(seen)
        assert hour.execution.health_error is not None
        await hour.hear(ServerGone("g-1", hour.world.now))
        monkeypatch.setattr(ServerDiscovery, "apply_report", server)
        await hour.hear(later=True)
        assert set(hour.writer.published.servers.unavailable) == {"g-1"}
        assert hour.execution.health_error is None

    play(tmp_path, scenario)


def test_servers_that_the_executor_closes_are_cordoned_or_drained(tmp_path: Path) -> None:
    has = {"gpu": 4000, "cpu": 16000}

    def seen(*, takes_work: bool = True, evicts: bool = False) -> ServerSeen:
        return ServerSeen(ServerInfo("g-1", has, takes_work=takes_work, evicts=evicts), 0.0)

    async def scenario(hour: Played) -> None:
        def states() -> tuple[set[str], set[str], set[str]]:
            servers = hour.writer.published.servers
            return set(servers.unavailable), set(servers.drained), set(servers.cordoned)

        async def set_by_operator(**state: bool) -> None:
            changed = ServerState(Role.ANY, has, **state)
            await hour.writer.do(update_servers({"g-1": changed}, "changed"))

        is_open: tuple[set[str], ...] = (set(), set(), set())
        is_cordoned: tuple[set[str], ...] = ({"g-1"}, set(), {"g-1"})
        is_drained: tuple[set[str], ...] = ({"g-1"}, {"g-1"}, set())
        await hour.begin("job")
        await hour.hear(seen(takes_work=False))
        assert states() == is_cordoned
        await hour.hear(seen(takes_work=False, evicts=True))
        assert states() == is_drained
        await hour.hear(seen())
        assert states() == is_open
        for state, expected in (({"cordoned": True}, is_cordoned), ({"drained": True}, is_drained)):
            await set_by_operator(**state)
            await hour.hear(seen())
            assert states() == expected, "what an operator closed stays closed"
            await hour.hear(ServerGone("g-1", hour.world.now))
            assert states() == ({"g-1"}, set(), set())
            await hour.hear(seen())
            assert states() == expected, "as before the loss"
            await set_by_operator()
        assert states() == is_open

    play(tmp_path, scenario)


def test_lost_server_that_returns_closed_takes_no_work(tmp_path: Path) -> None:
    closed = ServerInfo("g-1", {"gpu": 4000, "cpu": 16000}, takes_work=False)

    async def scenario(hour: Played) -> None:
        await hour.begin("job")
        await hour.hear(ServerGone("g-1", hour.world.now))
        await hour.hear(ServerSeen(closed, 0.0))
        assert set(hour.writer.published.servers.cordoned) == {"g-1"}
        await hour.hear(ServerSeen(replace(closed, takes_work=True), 0.0))
        assert not hour.writer.published.servers.unavailable

    play(tmp_path, scenario)


def test_server_closed_before_a_start_of_the_service_is_opened_later(tmp_path: Path) -> None:
    closed = ServerInfo("g-1", {"gpu": 4000, "cpu": 16000}, takes_work=False)

    async def scenario(hour: Played) -> None:
        await hour.begin("job")
        await hour.hear(ServerSeen(closed, 0.0))
        discovery = ServerDiscovery(hour.writer, [], discovers=False)  # that of the next process
        await discovery.apply_report(ServerSeen(closed, 0.0))
        assert set(hour.writer.published.servers.cordoned) == {"g-1"}
        await discovery.apply_report(ServerSeen(replace(closed, takes_work=True), 0.0))
        assert not hour.writer.published.servers.unavailable

    play(tmp_path, scenario)


@pytest.mark.parametrize("error", [PolicyError("a passing bug"), None])
def test_server_lost_during_a_write_failure_is_recorded_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    """None: the store is closed."""

    async def scenario(hour: Played) -> None:
        await hour.begin("job")
        gone = ServerGone("g-1", hour.world.now)
        with monkeypatch.context() as patch:
            if error is None:
                hour.store.fault = _full
                with pytest.raises(ProblemError):
                    await hour.hear(gone)
                hour.store.fault = lambda _: None
            else:
                patch.setattr(set_server_availability, "__wrapped__", _raising(error))
                await hour.hear(gone)
                assert hour.execution.health_error is not None
        assert not hour.writer.published.servers.unavailable
        await hour.hear(later=True)
        assert set(hour.writer.published.servers.unavailable) == {"g-1"}
        assert hour.execution.health_error is None

    play(tmp_path, scenario)


def _full(point: str) -> None:
    raise disk_full_error()


def _raising(error: Exception) -> Callable[..., None]:
    def raising(*_: object, **_options: object) -> None:
        raise error

    return raising


# ------------------------------------------------------------------ found again


def test_missed_end_is_found_by_the_next_resync(tmp_path: Path) -> None:
    async def scenario(hour: Played) -> None:
        await hour.begin("job")
        hour.end("job")  # reported without a listener
        hour.execution._resync = True
        await hour.execution.sync_reports()
        assert hour.state("job") == "finished"
        assert ("job", 1) in hour.world.forgotten

    play(tmp_path, scenario)


def test_repeated_failure_report_does_not_extend_the_backoff() -> None:
    outbox = Reconciler()
    lost = Ended(0, "job", 1, 0.0, Ending.LOST, None, "")
    outbox.record_report(lost, 0)
    waits = dict(outbox._not_before)
    for _ in range(5):
        outbox.record_report(lost, 0)
    assert outbox._not_before == waits
    outbox.record_report(Ended(0, "job", 2, 0.0, Ending.LOST, None, ""), 0)
    assert outbox._not_before["job"] > waits["job"]

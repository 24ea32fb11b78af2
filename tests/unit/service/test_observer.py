"""Observed jobs are recorded, together with the decisions that the policy would have made."""

from __future__ import annotations

import contextlib
import itertools
import json
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import event, select

from shadowprice.executors.contract import ObservedJob, ServerAllocation
from shadowprice.rest import StoredEvent
from shadowprice.service.clock import SECOND, to_datetime
from shadowprice.service.execution.observer import record_observation
from shadowprice.service.queries.comparison import compare_jobs, comparison, totals
from shadowprice.service.queries.timeline import past_bars, planned_bars
from shadowprice.service.read_model import ReadModel
from shadowprice.service.state.operations import cancel_job
from shadowprice.service.state.store_queries import jobs_of_all_tenants, list_events
from shadowprice.service.store import tables
from tests.support.engine_bench import EngineBench
from tests.support.examples import example_count
from tests.support.simulated_hours import SLOT, Crash


class ObserverBench(EngineBench):
    """A durable engine that runs nothing, and the jobs of the observed scheduler."""

    def __init__(self, folder: Path, policy: str = "fifo") -> None:
        super().__init__(folder, policy, virtual=True)

    @property
    def now(self) -> float:
        return self.clock.wall() / SECOND

    def look(self, *jobs: ObservedJob) -> None:
        self.commit(record_observation(jobs))

    def rows(self, job: str) -> list[tuple[int, int | None, str]]:
        table = tables.observed
        with self.store.reading() as connection:
            result = connection.execute(
                select(table).where(table.c.job == job).order_by(table.c.id)
            )
            return [(row.since, row.ended, row.placement) for row in result]

    def outcome(self, job: str) -> Any:
        table = tables.outcomes
        with self.store.reading() as connection:
            return connection.execute(select(table).where(table.c.job == job)).first()

    def published(self) -> ReadModel:
        first = self.durable.present_state()
        published = ReadModel(first.servers, desired=first.desired)
        for view in first.views.values():
            published.put_job(view)
        return published

    def compared(self, scope: str | None = None) -> dict[str, Any]:
        with self.store.reading() as connection:
            return comparison(
                connection,
                self.published(),
                planned_bars(self.durable.state, 10),
                now=self.clock.wall(),
                days=30.0,
                scope=scope,
            ).record

    def pair(self, name: str) -> dict[str, Any]:
        with self.store.reading() as connection:
            by_name = {job.view.name: job for job in compare_jobs(connection, self.published())}
        return by_name[name].to_resource().record


@pytest.fixture
def bench(tmp_path: Path):
    made = ObserverBench(tmp_path)
    yield made
    made.store.close()


def on(*servers: str) -> tuple[ServerAllocation, ...]:
    return tuple(ServerAllocation(server, 1) for server in servers)


def test_ended_job_earns_its_utility(bench: ObserverBench) -> None:
    bench.submit("a")
    bench.advance()
    began = bench.now
    bench.look(ObservedJob("a", on("gpu-1"), began))
    bench.advance(3)
    bench.look(ObservedJob("a", on("gpu-1"), began))
    ended = bench.now
    bench.advance(20)
    bench.look()
    slot = bench.durable.state.calendar.slot_at(int(ended * SECOND))
    compared = bench.pair("a")
    assert compared["observed"]["state"] == "ended"
    assert compared["observed"]["completion"] == wall_time_text(ended)
    # value / (1 + exp(decay (d - target))), from the slot in which it arrived
    with bench.store.reading() as connection:
        [one] = compare_jobs(connection, bench.published())
    assert one.view.arrival is not None
    duration = slot - one.view.arrival
    assert one.utility == pytest.approx(20 / (1 + 2.718281828459045 ** (0.1 * (duration - 20))))
    assert compared["simulated"]["state"] == "finished"
    assert compared["gain"] == pytest.approx(
        compared["simulated"]["utility"] - compared["observed"]["utility"]
    )
    assert bench.compared()["observed"]["utility"] == compared["observed"]["utility"]


def wall_time_text(moment: float) -> str:
    return to_datetime(int(moment * SECOND)).isoformat().replace("+00:00", "Z")


def test_unmanaged_job_has_no_utility(bench: ObserverBench) -> None:
    bench.submit("a")
    began = bench.now
    for _ in range(2):
        bench.look(ObservedJob("stranger", on("gpu-1"), began, "red"))
        bench.advance()
    bench.look()
    compared = bench.compared()
    assert compared["jobs"] == 1
    assert compared["observed"]["utility"] == 0
    [stranger] = compared["unmanaged_jobs"]["newest"]
    assert stranger["name"] == "stranger"
    assert stranger["utility"] is None
    assert stranger["state"] == "ended"
    assert compared["utilization"]["unknown_jobs"] == 1
    assert bench.compared("blue")["unmanaged_jobs"]["count"] == 0
    assert bench.compared("red")["unmanaged_jobs"]["count"] == 1


def test_failed_job_earns_nothing(bench: ObserverBench) -> None:
    bench.submit("a")
    bench.submit("b")
    began = bench.now
    bench.look(ObservedJob("a", on("gpu-1"), began), ObservedJob("b", on("gpu-2"), began))
    bench.advance()
    ended = bench.now - 1
    over = ObservedJob("a", on("gpu-1"), began, ended=ended, done=False)
    well = ObservedJob("b", on("gpu-2"), began, ended=ended, done=True)
    for _ in range(3):  # it may be reported repeatedly
        bench.look(over, well)
        bench.advance()
    assert bench.pair("a")["observed"] == {
        "state": "failed",
        "started": wall_time_text(began),
        "completion": wall_time_text(ended),
        "utility": 0.0,
        "runs": 1,
    }
    observed = bench.compared()["observed"]
    assert (observed["failed"], observed["finished"], observed["assumed_completed"]) == (1, 1, 0)
    kinds = [event.kind for event in _events(bench) if event.kind.startswith("real")]
    assert kinds == ["real-started", "real-started", "real-ended", "real-ended"]


def _events(bench: ObserverBench) -> list[StoredEvent]:
    with bench.store.reading() as connection:
        return list_events(connection, after=0, limit=1_000)


def test_job_between_two_polls_is_recorded_from_its_end(bench: ObserverBench) -> None:
    bench.submit("a")
    bench.look()
    bench.advance()
    over = ObservedJob("a", on("gpu-1"), bench.now - 30, ended=bench.now - 10, done=True)
    bench.look(over)
    bench.look(over)
    assert len(bench.rows("a")) == 1
    assert bench.pair("a")["observed"]["state"] == "ended"
    assert bench.outcome("a").runs == 1


def test_move_and_restart_are_distinguished(bench: ObserverBench) -> None:
    bench.submit("a")
    began = bench.now
    bench.look(ObservedJob("a", on("gpu-1"), began))
    bench.advance()
    bench.look(ObservedJob("a", on("gpu-2"), began))  # moved
    moved = bench.now
    bench.advance()
    bench.look(ObservedJob("a", on("gpu-2"), began))
    last = bench.now
    bench.advance()
    anew = bench.now - 5
    bench.look(ObservedJob("a", on("gpu-2"), anew))  # ended, and started again
    assert [(since / SECOND, ended and ended / SECOND) for since, ended, _ in bench.rows("a")] == [
        (began, moved),
        (moved, last),
        (anew, None),
    ]
    assert bench.outcome("a").runs == 3


def test_job_that_ended_during_a_downtime_ended_when_last_seen(
    bench: ObserverBench,
) -> None:
    bench.submit("a")
    began = bench.now
    bench.look(ObservedJob("a", on("gpu-1"), began))
    bench.advance()
    bench.look(ObservedJob("a", on("gpu-1"), began))
    last = bench.now
    bench.clock.advance(100 * SLOT)
    bench.recover()  # a restart
    bench.look()
    assert bench.outcome("a").ended / SECOND == last


def test_withdrawn_job_is_not_compared(bench: ObserverBench) -> None:
    bench.submit("a")
    bench.look(ObservedJob("a", on("gpu-1"), bench.now))
    bench.commit(cancel_job("a"))
    bench.look()
    compared = bench.compared()
    assert (compared["jobs"], compared["withdrawn"], compared["observed"]["utility"]) == (0, 1, 0)


def test_run_that_ended_before_the_submission_is_another_job(bench: ObserverBench) -> None:
    bench.look(ObservedJob("a", on("gpu-1"), bench.now))
    bench.advance()
    bench.look()
    bench.advance()
    bench.submit("a")
    assert bench.pair("a")["observed"]["state"] == "not seen"
    began = bench.now
    bench.look(ObservedJob("a", on("gpu-1"), began))
    assert bench.pair("a")["observed"]["started"] == wall_time_text(began)


def test_totals_are_sums_of_the_jobs(bench: ObserverBench) -> None:
    for name in "abcd":
        bench.submit(name)
    bench.look(*(ObservedJob(name, on("gpu-1"), bench.now) for name in "abc"))
    bench.advance(4)
    bench.look(ObservedJob("c", on("gpu-1"), bench.now))
    bench.advance(30)
    with bench.store.reading() as connection:
        result = compare_jobs(connection, bench.published())
    computed = totals(result)
    jobs = [entry.to_resource() for entry in result]
    assert computed.simulated.utility == sum(job.simulated.utility or 0 for job in jobs)
    assert computed.observed.utility == sum(job.observed.utility or 0 for job in jobs)
    assert (computed.observed.running, computed.observed.waiting) == (1, 1)
    assert computed.both.jobs == 2


# ------------------------------------------------------------------ any history

Moment = Mapping[str, tuple[int, str]]


@st.composite
def histories(draw: st.DrawFn) -> list[Moment]:
    """Jobs that run at each poll: by job, since which poll, and where."""
    looks = draw(st.integers(1, 12))
    runs = draw(
        st.lists(
            st.tuples(
                st.sampled_from("ab"),
                st.integers(0, looks),
                st.integers(1, 6),
                st.sampled_from(["gpu-1", "gpu-2"]),
            ),
            max_size=6,
        )
    )
    results: list[dict[str, tuple[int, str]]] = [{} for _ in range(looks)]
    for job, first, length, server in runs:
        for at in range(first, min(looks, first + length)):
            results[at].setdefault(job, (first, server))
    hidden = draw(st.sets(st.tuples(st.sampled_from("ab"), st.integers(0, looks - 1)), max_size=3))
    for job, at in hidden:
        results[at].pop(job, None)
    return results


@pytest.mark.extended
@settings(max_examples=example_count(40), deadline=None)
@given(history=histories(), crashes=st.sets(st.integers(0, 60), max_size=6))
def test_random_histories_are_recorded_as_observed(
    history: list[Moment], crashes: Iterable[int]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        bench = ObserverBench(Path(folder))
        try:
            _follow(bench, history, set(crashes))
        finally:
            bench.store.close()


def _follow(bench: ObserverBench, history: list[Moment], crashes: set[int]) -> None:
    began = bench.clock.wall()
    writes = iter(range(10_000))

    def fault(_: str) -> None:
        if next(writes) in crashes:
            raise Crash

    bench.submit("a")
    bench.store.fault = fault
    moments = []
    for look in history:
        bench.clock.advance(10)
        moments.append(bench.clock.wall())
        jobs = [
            ObservedJob(job, on(server), (began + (first * 10 + 7) * SECOND) / SECOND)
            for job, (first, server) in look.items()
        ]
        with contextlib.suppress(Crash):  # then the poll may not have been recorded
            bench.commit(record_observation(jobs))
            continue
        bench.store.fault = lambda _: None
        bench.recover()
        bench.look(*jobs)
        bench.store.fault = fault
    for job in "ab":
        rows = bench.rows(job)
        spans = [(since, ended or moments[-1], place) for since, ended, place in rows]
        for (_, ended, _), (since, _, _) in itertools.pairwise(spans):
            assert ended <= since, "two places at once"
        shown = [moment for moment, look in zip(moments, history, strict=True) if job in look]
        for moment, look in zip(moments, history, strict=True):
            if job not in look:
                continue
            place = json.dumps([[look[job][1], 1, 0]])
            assert any(a <= moment <= b and where == place for a, b, where in spans), "not kept"
        assert all(any(since <= at <= ended for at in shown) for since, ended, _ in spans), (
            "what nobody saw"
        )
        outcome = bench.outcome(job)
        assert (outcome is None) == (not shown)
        if shown:
            running = job in history[-1]
            assert outcome.ended == (None if running else shown[-1])
            assert outcome.started == min(since for since, _, _ in rows)
            assert (outcome.utility is not None) == (job == "a" and not running)


def test_observed_bars_end_at_the_last_poll(bench: ObserverBench) -> None:
    bench.look(ObservedJob("a", on("gpu-1"), bench.now))
    bench.advance()
    bench.look(ObservedJob("a", on("gpu-1"), bench.now - SLOT))
    last = bench.clock.wall()
    bench.advance(5)
    with bench.store.reading() as connection:
        calendar, now = bench.durable.state.calendar, bench.clock.wall()
        [bar], cut = past_bars(connection, calendar, 0, now, observed=True)
    assert not cut
    assert bar.ends == pytest.approx(float(bench.durable.state.calendar.in_slots(last)))


def test_open_jobs_beyond_the_limit_of_a_poll_do_not_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shadowprice.service.execution.observer.MAX_JOBS_PER_OBSERVATION", 3)
    watched = ObserverBench(tmp_path)
    jobs = [
        ObservedJob(f"job-{number}", (ServerAllocation("box-0", 1, 0),), watched.now)
        for number in range(5)
    ]
    watched.look(*jobs[:3])
    watched.look(*reversed(jobs))  # the open jobs come last
    open_jobs = [job.job for job in jobs if [row[1] for row in watched.rows(job.job)] == [None]]
    assert set(open_jobs) >= {"job-0", "job-1", "job-2"}


def test_only_names_of_own_runs_are_keys(bench: ObserverBench) -> None:
    bench.tenant = "red"
    bench.submit("train")
    bench.submit("red/train")
    bench.look(
        ObservedJob("red/train", on("gpu-1"), bench.now, "blue"),
        ObservedJob("red/train", on("gpu-2"), bench.now, "red"),
    )
    assert bench.rows("red/train") == []
    assert [len(bench.rows(f"{tenant}/red%2Ftrain")) for tenant in ("blue", "red")] == [1, 1]
    bench.look(ObservedJob("red/train", on("gpu-1"), bench.now, is_own=True))
    assert [row[1] for row in bench.rows("red/train")] == [None]


@pytest.mark.parametrize("is_reversed", [False, True])
def test_of_several_runs_of_a_job_the_newest_running_one_counts(
    bench: ObserverBench, is_reversed: bool
) -> None:
    bench.submit("a")
    now = bench.now
    ended = ObservedJob("a", on("gpu-1"), now - 10, ended=now - 5, done=True)
    older = ObservedJob("a", on("gpu-1"), now - 30)
    newer = ObservedJob("a", on("gpu-2"), now - 20)
    bench.look(*((ended, newer, older) if is_reversed else (older, newer, ended)))
    [(since, end, placement)] = bench.rows("a")
    assert (since, end) == (int((now - 20) * SECOND), None)
    assert json.loads(placement) == [["gpu-2", 1, 0]]


def test_events_of_closed_jobs_have_their_ids(bench: ObserverBench) -> None:
    bench.submit("a")
    [number] = (view.id for view in bench.durable.state.views.values())
    bench.look(ObservedJob("a", on("gpu-1"), bench.now))
    bench.commit(cancel_job("a"))
    bench.advance()
    assert "a" not in bench.durable.state.views
    bench.look()
    [ended] = (event for event in _events(bench) if event.kind == "real-ended")
    assert ended.job_id == number


def test_jobs_are_found_by_name_in_the_order_of_an_index(bench: ObserverBench) -> None:
    queries: list[tuple[str, Any]] = []

    def record(_conn: Any, _cursor: Any, statement: str, values: Any, *_: Any) -> None:
        if "GROUP BY" in statement:
            queries.append((statement, values))

    with bench.store.reading() as connection:
        event.listen(connection.engine, "before_cursor_execute", record)
        try:
            jobs_of_all_tenants(connection, "a")
            bench.look(ObservedJob("a", on("gpu-1"), bench.now))
        finally:
            event.remove(connection.engine, "before_cursor_execute", record)
        assert len(queries) >= 2
        for statement, values in queries:
            plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values).all()
            steps = " ".join(row.detail for row in plan)
            index = "observed_by_job (job=?" if "observed" in statement else "jobs_by_name (name=?"
            assert f"USING COVERING INDEX {index}" in steps
            assert "FOR GROUP BY" not in steps

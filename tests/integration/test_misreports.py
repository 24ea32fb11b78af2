"""Invalid progress requests are refused, and each kind appears once in the job history."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import func, select

from shadowprice.service.auth import progress_token
from shadowprice.service.state.report_operations import MAX_REPORTED_ERRORS
from shadowprice.service.store import StoreError, tables
from tests.support.services import RunningService, job, run_service
from tests.support.simulated_world import ManualClock
from tests.support.waiting import wait_until


def post(live: RunningService, name: str, content: Any, generation: int = 1) -> httpx.Response:
    token = progress_token(live.service.key, name, generation)
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    headers = {"Content-Type": "application/json"}
    with live.as_(token) as client:
        return client.post(f"/v1/jobs/{name}/progress", content=text, headers=headers)


def history_messages(live: RunningService, name: str) -> list[str]:
    history = live.client.get(f"/v1/jobs/{name}/explain").json()
    return [
        event["data"]["reason"] for event in history["events"] if event["kind"] == "misreported"
    ]


def begun(live: RunningService, clock: ManualClock, *names: str) -> None:
    for name in names:
        response = live.client.post("/v1/jobs", json=job(name))
        assert response.status_code == 200, response.text
    clock.advance(3_600)
    for name in names:
        wait_until(lambda path=f"/v1/jobs/{name}": live.client.get(path).json()["generation"] == 1)


def journal(live: RunningService) -> int:
    with live.service.store.reading() as connection:
        counted = connection.execute(select(func.count()).select_from(tables.journal))
        return int(counted.scalar_one())


def test_each_fault_is_reported_once_of_a_generation_and_again_by_no_restart(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    with run_service(tmp_path, clock=clock) as live:
        begun(live, clock, "a")
        for content, status, reason in (
            ({"minibatches": -1}, 422, "progress.minibatches: it is not a count; write the number"),
            (b'{"minibatches": NaN}', 422, "progress.minibatches: it is not a count"),
            (b'{"minibatches": 1', 400, "not JSON: "),
            ({"minibatch": 1}, 422, "did you mean 'minibatches'?"),
            ({"minibatches": 1, "generation": 2}, 403, "the token is valid for generation 1 only"),
        ):
            for _ in range(3):
                assert post(live, "a", content).status_code == status
            assert reason in history_messages(live, "a")[-1]
        assert len(history_messages(live, "a")) == 4
        lines = live.client.get("/v1/jobs/a/explain").json()["lines"]
        assert sum("generation 1 sends an invalid progress report" in line for line in lines) == 4
        assert post(live, "a", {"minibatches": 1}).status_code == 202
    with run_service(tmp_path, clock=clock) as live:
        assert post(live, "a", {"minibatches": -1}).status_code == 422
        assert len(history_messages(live, "a")) == 4
        assert post(live, "a", [1]).status_code == 422
        assert "it is not a JSON object" in history_messages(live, "a")[4]


def test_a_report_with_an_invalid_metric_is_accepted_and_named(tmp_path: Path) -> None:
    clock = ManualClock()
    with run_service(tmp_path, clock=clock) as live:
        begun(live, clock, "a", "b")
        for done, metrics in enumerate(
            (
                b'{"loss": 1%s}' % (b"0" * 5_000),
                b'{"\xe9": 1}',
                b'{"loss": NaN}',
                b'{"loss": -Infinity, "accuracy": 1e999}',
                b'{"loss": "high", "accuracy": 0.5}',
                b'{"loss": 1, "loss": 2}',
                b'{"\\ud800": 1}',
                b"[1]",
            ),
            start=1,
        ):
            report = b'{"minibatches": %d, "metrics": %s}' % (done, metrics)
            assert post(live, "a", report).status_code == 202
            assert post(live, "b", {"minibatches": done}).status_code == 202
        reasons = history_messages(live, "a")
        assert "'high' is not a number" in reasons[0]
        assert [len(reasons), history_messages(live, "b")] == [3, []]
        lines = live.client.get("/v1/jobs/a/explain").json()["lines"]
        parts = "generation 1 sends progress reports with invalid parts, left out: progress.metrics"
        assert sum(parts in line for line in lines) == 3


def test_invalid_metrics_do_not_hide_that_reports_are_refused(tmp_path: Path) -> None:
    clock = ManualClock()
    with run_service(tmp_path, clock=clock) as live:
        begun(live, clock, "a")
        for index in range(2 * MAX_REPORTED_ERRORS):
            report = {"minibatches": index, "metrics": {"loss": f"high{index}"}}
            assert post(live, "a", report).status_code == 202
        assert post(live, "a", {"minibatches": -1}).status_code == 422
        reasons = history_messages(live, "a")
        assert len(reasons) == MAX_REPORTED_ERRORS + 1
        assert reasons[-1].startswith("progress.minibatches: it is not a count")


def test_faults_that_differ_each_time_fill_nothing(tmp_path: Path) -> None:
    clock = ManualClock()
    with run_service(tmp_path, clock=clock) as live:
        begun(live, clock, "a")
        before = journal(live)
        for index in range(60):
            wrong = {f"\x1b[31m{index}" + "x" * 60_000: 1, "minibatches": "z" * index}
            assert post(live, "a", wrong).status_code == 422
        assert len(history_messages(live, "a")) == MAX_REPORTED_ERRORS
        assert all(
            len(entry) <= 500 and "\x1b" not in entry for entry in history_messages(live, "a")
        )
        assert journal(live) == before


def test_no_other_user_adds_to_a_jobs_history(tmp_path: Path) -> None:
    clock = ManualClock()
    with run_service(tmp_path, clock=clock) as live:
        begun(live, clock, "a", "b")
        wrong = {"minibatches": -1}
        assert post(live, "a", wrong, generation=2).status_code == 422  # made by its key, not run
        address = "/v1/jobs/a/progress"
        assert live.client.post(address, json=wrong).status_code == 401
        with live.as_(progress_token(live.service.key, "b", 1)) as other:
            assert other.post(address, json=wrong).status_code == 401
        live.client.delete("/v1/jobs/b")
        assert post(live, "b", wrong).status_code == 422
        assert post(live, "none", wrong).status_code == 422
        assert history_messages(live, "a") == history_messages(live, "b") == []


def test_failed_reports_are_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    with run_service(tmp_path, clock=clock) as live:
        begun(live, clock, "a")
        writer = live.service.require_writer()
        monkeypatch.setattr(writer, "health_error", str(StoreError("the disk is full")))
        assert post(live, "a", {"minibatches": -1}).status_code == 422
        monkeypatch.undo()
        assert history_messages(live, "a") == []
        assert post(live, "a", {"minibatches": -1}).status_code == 422
        assert len(history_messages(live, "a")) == 1

"""The timeline of past and promised placements, against the ledger and the plans."""

from __future__ import annotations

import base64
import math
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from shadowprice.core.amounts import UNLIMITED
from shadowprice.inputs.files import resolve_cluster
from shadowprice.service.api import monitoring
from shadowprice.service.queries.timeline import (
    BAR_EXPECTED,
    BAR_PAST,
    BAR_PLANNED,
    JobDemand,
    JobInfo,
    TimelineBar,
    utilization_levels,
)
from tests.support.services import CLUSTER, RunningService, job, run_service
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory):
    cluster = CLUSTER | {"tenants": [{"name": "red"}, {"name": "blue"}]}
    with run_service(tmp_path_factory.mktemp("timeline"), policy="oasis", cluster=cluster) as found:
        for index in range(6):
            more = {
                "worker": {"gpu": 1 + index % 3, "cpu": 2},
                "tenant": ("red", "blue")[index % 2],
            }
            found.client.post("/v1/jobs", json=job(f"job-{index}", minibatches=50, **more))
        yield found


def levels_of(expected: dict[str, Any]) -> NDArray[np.uint8]:
    raw = np.frombuffer(base64.b64decode(expected["levels"]), np.uint8)
    return raw.reshape(len(expected["servers"]), expected["last"] - expected["first"])


def test_future_levels_match_the_reservation_ledger(live: RunningService) -> None:
    body = live.client.get("/v1/timeline", params={"past_slots": 3, "future_slots": 40}).json()
    engine = live.service.require_writer()._durable.state.engine
    capacity = engine.cluster.capacity
    limited = (capacity > 0) & (capacity < UNLIMITED)
    levels = levels_of(body)
    seen = 0
    for later, used in enumerate(engine.ledger.used):
        slot = engine.ledger.start + later
        if not body["next_slot"] <= slot < body["last"]:
            continue
        share = np.where(limited, used / np.where(limited, capacity, 1), 0).max(axis=1)
        wanted = [math.ceil(255 * entry - 1e-6) for entry in share]
        assert levels[:, slot - body["first"]].tolist() == wanted
        seen += any(wanted)
    assert seen > 3


def test_future_bars_match_the_plans(live: RunningService) -> None:
    body = live.client.get("/v1/timeline", params={"past_slots": 0, "future_slots": 60}).json()
    bars = body["bars"]
    result = set()
    for index, number in enumerate(bars["job"]):
        assert bars["kind"][index] == BAR_PLANNED
        for slot in range(int(bars["start"][index]), int(bars["end"][index])):
            job = body["jobs"][number]
            result.add(
                (
                    job["job_id"],
                    slot,
                    bars["server"][index],
                    bars["workers"][index],
                    bars["ps"][index],
                )
            )
    state = live.service.require_writer()._durable.state
    engine = state.engine
    names = engine.cluster.names
    planned = {
        (state.views[key].id, slot, names[server], workers, ps)
        for key, record in engine.open_jobs.items()
        for slot, server, workers, ps in record.plan.rows()
        if slot < body["last"]
    }
    assert result == planned
    assert planned


def test_timeline_of_one_server_or_job_is_a_subset(live: RunningService) -> None:
    response_body = live.client.get("/v1/timeline", params={"future_slots": 30}).json()
    body = live.client.get("/v1/timeline", params={"future_slots": 30, "server": "g-1"}).json()
    assert body["servers"] == ["g-1"]
    assert levels_of(body).tolist() == [levels_of(response_body)[1].tolist()]
    assert set(body["bars"]["server"]) <= {"g-1"}
    mine = live.client.get("/v1/timeline", params={"future_slots": 30, "job": "job-0"}).json()
    assert [entry["job"] for entry in mine["jobs"]] == ["job-0"]
    assert mine["levels"] is None
    assert live.client.get("/v1/timeline", params={"server": "h"}).status_code == 404
    assert live.client.get("/v1/timeline", params={"job": "nobody"}).status_code == 404
    assert live.client.get("/v1/timeline", params={"future_slots": 0}).status_code == 422


def test_other_tenants_are_anonymous(live: RunningService) -> None:
    with live.as_(live.token("red")) as red:
        body = red.get("/v1/timeline", params={"future_slots": 30}).json()
        response_body = live.client.get("/v1/timeline", params={"future_slots": 30}).json()
        assert body["bars"]["share"] == response_body["bars"]["share"]
        hidden = [entry for entry in body["jobs"] if entry["tenant"] != "red"]
        assert hidden
        assert all(set(entry.values()) == {None} for entry in hidden)
        assert red.get("/v1/timeline", params={"job": "job-1"}).status_code == 404
        assert red.get("/v1/timeline", params={"job": "job-0"}).status_code == 200


def test_past_bars_match_executed_plans(tmp_path: Path) -> None:
    """Nothing really runs here, so a committed plan comes true slot by slot."""
    cluster = {"slot": "1s", "horizon": 30, "servers": CLUSTER["servers"]}
    quick = job("quick", minibatches=8, minibatch_time="1s", chunks=2)
    quick["utility"] = {"kind": "constant", "value": 9}
    with run_service(tmp_path, policy="oasis", cluster=cluster) as live:
        body = live.client.post("/v1/jobs", json=quick).json()
        assert body["state"] == "admitted"
        before = live.client.get("/v1/timeline", params={"future_slots": 30, "job": "quick"}).json()
        planned = slots_of(before)
        wait_until(lambda: live.client.get("/v1/jobs/quick").json()["state"] == "finished")
        after = live.client.get("/v1/timeline", params={"past_slots": 60, "job": "quick"}).json()
        assert set(after["bars"]["kind"]) == {BAR_PAST}
        assert slots_of(after) == planned
        history = live.client.get("/v1/prices/history", params={"past_slots": 60}).json()["slots"]
        assert history
        now = live.client.get("/v1/prices", params={"slots": 1}).json()["slots"][0]
        assert history[0].keys() == now.keys()
        assert history[0]["kinds"].keys() == now["kinds"].keys()


def slots_of(expected: dict[str, Any]) -> set[tuple[str, int, int]]:
    bars = expected["bars"]
    return {
        (server, slot, workers)
        for server, begins, ends, workers in zip(
            bars["server"], bars["start"], bars["end"], bars["workers"], strict=True
        )
        for slot in range(round(begins), round(ends))
    }


def test_unplanned_job_has_an_expected_duration(tmp_path: Path) -> None:
    cluster = {"slot": "2s", "horizon": 30, "servers": CLUSTER["servers"]}
    long = job("long", minibatches=100, minibatch_time="1s", chunks=1)
    with run_service(tmp_path, policy="fifo", cluster=cluster) as live:
        live.client.post("/v1/jobs", json=long)
        wait_until(lambda: live.client.get("/v1/jobs/long").json()["state"] == "running")
        body = live.client.get("/v1/timeline", params={"future_slots": 100, "job": "long"}).json()
        record = live.service.require_writer()._durable.state.engine.open_jobs["long"]
        [at] = [index for index, what in enumerate(body["bars"]["kind"]) if what == BAR_EXPECTED]
        # One worker makes two mini-batches a slot, fifty slots in all, from its first one on.
        assert body["bars"]["end"][at] == record.started + 50


def test_levels_of_a_large_cluster_take_little_memory() -> None:
    servers = [{"name": "g", "count": 2_000, "capacity": {"gpu": 8, "cpu": 64}}]
    cluster = resolve_cluster({"slot": "1min", "servers": servers})
    demand = JobDemand(cluster.demand({"gpu": 1000}), cluster.demand({}))
    bars = [TimelineBar("a", "g-1999", 10.0, 11.5, 4, 0, BAR_PAST)]
    tracemalloc.start()
    levels = utilization_levels(bars, JobInfo(demands={"a": demand}), cluster, 10, 1010)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert levels[-1, :3].tolist() == [128, 64, 0]
    assert levels.sum() == 192
    assert peak < 2 * levels.nbytes


def test_cached_timelines_are_limited_in_number_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitoring, "MAX_CACHED_RESPONSES", 3)
    monkeypatch.setattr(monitoring, "MAX_CACHED_BYTES", 10)
    cache: dict[Any, Any] = {}
    for key, size, kept in (("a", 4, 1), ("b", 4, 2), ("a", 5, 2), ("c", 2, 1), ("d", 99, 1)):
        entry = monitoring._CachedResponse(b"x" * size, 0, 0.0, 0.0)
        monitoring._cache_response(cache, key, entry)
        assert len(cache) == kept
        assert cache[key] is entry
    for key in range(4):
        monitoring._cache_response(cache, key, monitoring._CachedResponse(b"", 0, 0.0, 0.0))
    assert [*cache] == [3]

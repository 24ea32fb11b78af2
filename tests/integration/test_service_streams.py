"""Streams, waiting requests and followed logs end with their token."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from shadowprice.client import Client, Endpoint, ServiceError
from shadowprice.executors.contract import LogChunk
from shadowprice.service.api import jobs as job_routes
from shadowprice.service.api.jobs import MAX_WAIT_SECONDS
from shadowprice.service.state.batch import Batch
from shadowprice.service.state.operations import decide_backlog
from tests.support.recording_executor import RecordingExecutor
from tests.support.services import RunningService, job, run_service
from tests.support.waiting import WAIT_LIMIT_SECONDS, wait_until

pytestmark = pytest.mark.processes


class Logging(RecordingExecutor):
    """Has a log that never ends."""

    async def logs(
        self,
        job: str,
        generation: int | None = None,
        process: str = "worker-0",
        *,
        start: int | None = None,
        max_bytes: int = 65_536,
    ) -> LogChunk:
        at = start or 0
        return LogChunk(1, process, at, at + 1, ".", complete=False)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with run_service(
        tmp_path_factory.mktemp("streams"), executor=Logging(), observe=False
    ) as found:
        yield found


class Follower(threading.Thread):
    """Thread that follows the event stream of a token until it ends."""

    def __init__(self, live: RunningService, token: str, after: int | None = None) -> None:
        super().__init__(daemon=True)
        self.live, self.token, self.after = live, token, after
        self.lines: list[str] = []
        self.ended = False
        self.refused = False

    def run(self) -> None:
        query = {} if self.after is None else {"after": self.after}
        with (
            self.live.as_(self.token) as client,
            client.stream("GET", "/v1/events", params=query, timeout=WAIT_LIMIT_SECONDS) as answer,
        ):
            if answer.status_code == 401:
                self.refused = True
                return
            assert answer.status_code == 200
            for line in answer.iter_lines():
                self.lines.append(line)
        self.ended = True

    def hears(self, text: str) -> bool:
        return any(text in line for line in self.lines)


@contextmanager
def following(live: RunningService, token: str, after: int | None = None) -> Iterator[Follower]:
    follower = Follower(live, token, after)
    follower.start()
    wait_until(lambda: bool(follower.lines) or follower.refused)
    yield follower


def _made(live: RunningService, **more: Any) -> dict[str, Any]:
    return dict(live.client.post("/v1/tokens", json={"tenant": "red", **more}).json())


def _submit(live: RunningService, name: str) -> None:
    run = {"command": ["train"]}
    live.client.post("/v1/jobs", json=job(name, tenant="red", run=run)).raise_for_status()


@pytest.mark.parametrize("busy", [False, True])
def test_a_stream_ends_when_its_token_is_revoked(live: RunningService, busy: bool) -> None:
    token, other = _made(live), _made(live)
    with (
        following(live, token["token"]) as follower,
        following(live, other["token"]) as staying,
    ):
        _submit(live, f"before {busy}")
        wait_until(lambda: follower.hears(f"before {busy}"))
        live.client.delete(f"/v1/tokens/{token['id']}").raise_for_status()
        if busy:  # events after the revocation must not be sent
            _submit(live, "after")
        follower.join(WAIT_LIMIT_SECONDS)
        assert follower.ended
        assert not follower.hears("after")
        _submit(live, f"later {busy}")
        wait_until(lambda: staying.hears(f"later {busy}"))
        assert not staying.ended
        live.client.delete(f"/v1/tokens/{other['id']}")
        staying.join(WAIT_LIMIT_SECONDS)


@pytest.mark.parametrize("after", [None, 0])
def test_a_stream_ends_when_its_token_expires(live: RunningService, after: int | None) -> None:
    for life in (1, 4, 16):  # a busy machine may let a token expire before it is used
        start = time.monotonic()
        token = _made(live, expires=f"{life}s")
        with following(live, token["token"], after) as follower:
            follower.join(WAIT_LIMIT_SECONDS)
        if not follower.refused:
            break
    assert follower.ended
    assert time.monotonic() - start >= life


def test_following_client_learns_why_the_stream_ended(live: RunningService) -> None:
    token = _made(live, expires="1s")
    with Client(Endpoint(live.address, token["token"])) as client:
        with pytest.raises(ServiceError) as caught:
            for _ in client.events():
                pass
        assert caught.value.code == "unauthenticated"


def test_log_stream_ends_when_its_token_expires(live: RunningService) -> None:
    _submit(live, "logged")
    token = _made(live)
    with Client(Endpoint(live.address, token["token"])) as client:
        pieces = client.follow_logs("logged")
        assert next(iter(pieces)).text == "."
        live.client.delete(f"/v1/tokens/{token['id']}").raise_for_status()
        with pytest.raises(ServiceError) as caught:
            list(pieces)
        assert caught.value.code == "unauthenticated"


def test_waiting_request_ends_when_its_token_expires(
    live: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(batch: Batch, _maximum: int) -> int:
        return len(batch.state.backlog)

    monkeypatch.setattr(decide_backlog, "__wrapped__", never)
    # The wait itself never ends.
    monkeypatch.setattr(job_routes, "time", SimpleNamespace(monotonic=lambda: 0.0))
    token = _made(live, expires="1s")
    jobs = {"jobs": [job("waits", tenant="red", run={"command": ["train"]})]}
    with live.as_(token["token"]) as client:
        response = client.post("/v1/jobs", params={"wait": int(MAX_WAIT_SECONDS)}, json=jobs)
        assert response.status_code == 401

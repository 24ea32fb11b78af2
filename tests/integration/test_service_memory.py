"""Limits of a tenant's jobs and bytes, and requests for which there is too little memory."""

from __future__ import annotations

import asyncio
import itertools
import signal
import socket
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

import httpx
import pytest
import yaml
from starlette.requests import ClientDisconnect

from shadowprice.core import bounds
from shadowprice.service.api import requests
from shadowprice.service.auth import progress_token
from shadowprice.service.problems import ProblemError
from shadowprice.service.settings import MAX_BODY_BYTES, ServiceSettings
from shadowprice.service.usage import (
    MAX_BODIES,
    MAX_TENANT_REQUESTS,
    Usage,
    added_memory,
    estimate_memory,
)
from tests.support.service_process import ServiceProcess
from tests.support.services import CLUSTER, job, run_service
from tests.support.waiting import WAIT_LIMIT_SECONDS, wait_until

LIMITS = ("--max-open-jobs", "3", "--max-open-memory", "1MiB")


@contextmanager
def serving(folder: Path, *more: str) -> Iterator[ServiceProcess]:
    cluster = folder / "cluster.yaml"
    cluster.write_text(yaml.safe_dump(dict(CLUSTER)))
    service = ServiceProcess(folder / "data", cluster, *more)
    try:
        yield service
    finally:
        service.kill(signal.SIGTERM)


def as_tenant(service: ServiceProcess, tenant: str) -> httpx.Client:
    token = service.client.post("/v1/tokens", json={"tenant": tenant}).json()["token"]
    headers = {"Authorization": f"Bearer {token}"}
    return httpx.Client(base_url=service.client.base_url, headers=headers, timeout=None)


def as_job(service: ServiceProcess, key: str) -> httpx.Client:
    """Return a client with the token with which a job's first generation reports."""
    with closing(sqlite3.connect(service.folder / "shadowprice.db")) as connection:
        query = "SELECT value FROM meta WHERE key = 'key'"
        [(secret,)] = connection.execute(query).fetchall()
    token = progress_token(bytes.fromhex(secret), key, 1)
    headers = {"Authorization": f"Bearer {token}"}
    return httpx.Client(base_url=service.client.base_url, headers=headers, timeout=None)


def runs(name: str, words: int = 0, **more: Any) -> dict[str, Any]:
    """Return a job whose command has some words of 1,100 bytes."""
    return job(name, run={"command": ["sleep", "600", *["x" * 1_100] * words]}, **more)


def refusal(answer: httpx.Response) -> str:
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (429, "tenant-limit"), answer.text
    assert "retry-after" in answer.headers
    [error] = problem["errors"]
    return f"{problem['detail']}; {error['hint']}"


def test_open_jobs_and_bytes_of_a_tenant_are_limited(tmp_path: Path) -> None:
    with (
        serving(tmp_path, *LIMITS) as service,
        as_tenant(service, "vision") as vision,
        as_tenant(service, "speech") as speech,
    ):
        assert "1,048,576 bytes" in refusal(vision.post("/v1/jobs", json=runs("big", 996)))
        for name in "abc":
            assert vision.post("/v1/jobs", json=runs(name)).is_success
        assert "--max-open-jobs" in refusal(vision.post("/v1/jobs", json=runs("d")))
        assert vision.post("/v1/jobs", json=runs("a")).is_success  # the same job again
        many = {"jobs": [runs(f"m{number}") for number in range(4)]}
        refusal(speech.post("/v1/jobs", json=many))
        assert speech.post("/v1/jobs", json=runs("theirs")).is_success
        assert vision.delete("/v1/jobs/a").is_success
        assert vision.post("/v1/jobs", json=runs("d", 830)).is_success
        labels = {f"k{number}": "v" * 1_000 for number in range(90)}
        refusal(vision.patch("/v1/jobs/b", json={"labels": labels}))
        # The operator isn't limited, and may submit for a tenant.
        assert service.client.post("/v1/jobs", json=runs("e", tenant="vision")).is_success
    with serving(tmp_path, *LIMITS) as service, as_tenant(service, "vision") as vision:
        refusal(vision.post("/v1/jobs", json=runs("f")))  # open jobs count after a restart


def test_a_tenant_at_its_limit_can_repeat_and_revise(tmp_path: Path) -> None:
    with serving(tmp_path, *LIMITS) as service, as_tenant(service, "vision") as vision:
        large = runs("large", 600)
        for _ in range(2):
            assert vision.post("/v1/jobs", json=large).is_success
        assert vision.post("/v1/jobs", json=runs("next", 290)).is_success
        refusal(vision.post("/v1/jobs", json=runs("other", 100)))
        labels = {f"k{number}": "v" * 1_000 for number in range(8)}
        # The second one is larger than the free memory, but replaces as much.
        for value in (labels, {**labels, "k0": "w" * 1_000}):
            large["labels"] = value
            assert vision.patch("/v1/jobs/large", json={"labels": value}).is_success
        assert vision.delete("/v1/jobs/large").is_success
        assert vision.post("/v1/jobs", json=runs("other", 600)).is_success
        # The name of a cancelled job is free: its file would run again.
        refusal(vision.post("/v1/jobs", json=large))


def test_a_revision_reserves_what_it_adds() -> None:
    record = {"utility": {"kind": "deadline", "by": "4h"}, "priority": 1, "labels": {"a": "b"}}
    usage = Usage()
    usage.set("job", {**record, "tenant": "vision"})
    memory = estimate_memory({**record, "tenant": "vision"})
    full = ServiceSettings(Path("cluster.yaml"), "data", max_open_memory=memory)
    for changes in ({"priority": 2}, {"deadline": "8h"}, {"labels": None}, {"labels": {"a": "c"}}):
        with usage.reserve(full, "vision", 0, added_memory(record, changes)):
            pass
    for changes in ({"labels": {"a": "b" * 999}}, {"walltime": "1h"}):
        with (
            pytest.raises(ProblemError, match="exceed the limit"),
            usage.reserve(full, "vision", 0, added_memory(record, changes)),
        ):
            pass


def test_concurrent_requests_do_not_exceed_a_limit_together(tmp_path: Path) -> None:
    with (
        serving(tmp_path, "--max-open-jobs", "5") as service,
        as_tenant(service, "vision") as vision,
        ThreadPoolExecutor(16) as threads,
    ):
        names = [f"job-{number}" for number in range(40)]
        answers = list(threads.map(lambda name: vision.post("/v1/jobs", json=runs(name)), names))
        assert sorted({answer.status_code for answer in answers}) == [200, 429]
        assert sum(answer.is_success for answer in answers) == 5
        assert len(vision.get("/v1/jobs").json()["jobs"]) == 5


def test_concurrent_large_bodies_are_limited(tmp_path: Path) -> None:
    with (
        run_service(tmp_path) as live,
        live.as_(live.token("vision")) as vision,
        ExitStack() as stack,
    ):
        # Four requests whose bodies lack their last byte: a fifth one is too much.
        url = urlsplit(live.address)
        head = (
            f"POST /v1/quote HTTP/1.1\r\nHost: x\r\nContent-Length: {MAX_BODY_BYTES}\r\n"
            f"Authorization: {vision.headers['Authorization']}\r\n\r\n"
        )
        request_count = MAX_BODIES // MAX_BODY_BYTES
        for _ in range(request_count):
            connection = stack.enter_context(socket.create_connection((url.hostname, url.port)))
            connection.sendall(head.encode() + b" " * (MAX_BODY_BYTES - 1))
        received = live.service.require_writer().usage._bodies
        # An earlier request would be the one within the limit, and the last of the four refused.
        wait_until(lambda: received["vision"] == request_count * (MAX_BODY_BYTES - 1))
        body = b"{}" + b" " * 10_000
        assert "at once" in refusal(vision.post("/v1/quote", content=body))
        with live.as_(live.token("speech")) as speech:
            assert speech.post("/v1/quote", content=body).status_code == 422
        stack.close()
        wait_until(lambda: vision.post("/v1/quote", content=body).status_code == 422)


def test_bodies_count_their_memory() -> None:
    usage = Usage()
    with ExitStack() as bodies:
        for _ in range(2 * MAX_TENANT_REQUESTS):  # small requests that wait for their responses
            bodies.enter_context(usage.receive("vision"))(100)
        bodies.enter_context(usage.receive("vision"))(MAX_BODY_BYTES)
        bodies.enter_context(usage.receive("speech"))(MAX_BODY_BYTES)
    with usage.receive("vision") as count:
        count(MAX_BODIES - 1)
        count(1)
        with pytest.raises(ProblemError, match="present requests exceed"):
            count(1)


def begin_requests(usage: Usage, stack: ExitStack, tenant: str, connections: int) -> int:
    """Begin requests of a tenant up to its limit; return their number."""
    for number in range(connections + 1):
        try:
            stack.enter_context(usage.handle(tenant, connections))
        except ProblemError:
            return number
    raise AssertionError("no limit")


def test_connection_limit_is_per_tenant() -> None:
    usage = Usage()
    with ExitStack() as stack:
        assert begin_requests(usage, stack, "greedy", 10_000) == MAX_TENANT_REQUESTS
        # Many accounts together leave some to a later tenant.
        numbers = [begin_requests(usage, stack, f"greedy-{n}", 1_000) for n in range(40)]
        assert sum(numbers) + MAX_TENANT_REQUESTS < 1_000 - 1_000 // 8 + 40
        assert begin_requests(usage, stack, "honest", 1_000) >= 1
    with ExitStack() as stack:
        assert begin_requests(usage, stack, "vision", 800) == 350
        assert begin_requests(usage, stack, "speech", 800) == 175
    with ExitStack() as stack:
        assert begin_requests(usage, stack, "vision", 800) == 350


def send_slowly(url: SplitResult, head: str, stack: ExitStack) -> None:
    """Send the beginning of a request on a connection of its own, which the stack closes."""
    connection = stack.enter_context(socket.create_connection((url.hostname, url.port)))
    connection.sendall(head.encode())


def test_slow_requests_are_limited_per_tenant(tmp_path: Path) -> None:
    with (
        serving(tmp_path) as service,
        as_tenant(service, "vision") as vision,
        as_tenant(service, "speech") as speech,
        ExitStack() as stack,
    ):
        assert vision.post("/v1/jobs", json=runs("own")).is_success
        url = urlsplit(str(service.client.base_url))
        digest = "0" * 64
        token = vision.headers["Authorization"]
        heads = [
            "POST /v1/quote HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n",
            f"PUT /v1/uploads/{digest} HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n",
        ]
        slow_heads = itertools.cycle(f"{head}Authorization: {token}\r\n\r\nx" for head in heads)
        for head in itertools.islice(slow_heads, MAX_TENANT_REQUESTS):
            send_slowly(url, head, stack)

        def is_limited() -> bool:
            # The request of the poll before may have been within the limit instead of a slow one.
            send_slowly(url, next(slow_heads), stack)
            return vision.get("/v1/jobs").status_code == 429

        wait_until(is_limited)
        assert "wait for some responses" in refusal(vision.get("/v1/jobs"))
        assert speech.post("/v1/jobs", json=runs("theirs")).is_success
        assert service.client.get("/v1/jobs").is_success
        with as_job(service, "vision/own") as own:  # reports count apart
            report = {"generation": 1, "minibatches": 1.0}
            assert own.post("/v1/jobs/own/progress", json=report).status_code != 429
        stack.close()
        wait_until(lambda: vision.get("/v1/jobs").is_success)


def test_slow_reports_of_unknown_jobs_are_limited(tmp_path: Path) -> None:
    """A token outlives its job, and may not take the connections of all tenants."""
    with (
        serving(tmp_path) as service,
        as_job(service, "vision/gone") as gone,
        as_tenant(service, "vision") as vision,
        ExitStack() as stack,
    ):
        url = urlsplit(str(service.client.base_url))
        head = (
            "POST /v1/jobs/gone/progress HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n"
            f"Authorization: {gone.headers['Authorization']}\r\n\r\nx"
        )
        for _ in range(MAX_TENANT_REQUESTS):
            send_slowly(url, head, stack)
        report = {"generation": 1, "minibatches": 1.0}

        def is_limited() -> bool:
            send_slowly(url, head, stack)
            return gone.post("/v1/jobs/gone/progress", json=report).status_code == 429

        wait_until(is_limited)
        assert vision.post("/v1/jobs", json=runs("plain")).is_success


@pytest.mark.parametrize("how", ["disconnects", "pauses", "drips"])
def test_body_timeout_returns_problem_details(how: str) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b"{"
        if how == "disconnects":
            raise ClientDisconnect
        if how == "pauses":
            await asyncio.sleep(WAIT_LIMIT_SECONDS)
        while True:
            await asyncio.sleep(0.01)
            yield b" "

    async def read() -> None:
        stream, started = body(), time.monotonic()
        idle_seconds = 0.05 if how == "pauses" else 60.0
        max_seconds = 0.1 if how == "drips" else 600.0
        while True:
            await requests.read_chunk(stream, idle_seconds, started, max_seconds)

    words = {"disconnects": "disconnected", "pauses": "no data came", "drips": "more than 0.1 s"}
    with pytest.raises(ProblemError, match=words[how]) as caught:
        asyncio.run(read())
    assert caught.value.status == 400


def test_large_bodies_are_parsed_outside_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[tuple[int, int]] = []

    def parse(text: bytes, **options: Any) -> Any:
        threads.append((len(text), threading.get_ident()))
        return parse_json(text, **options)

    parse_json = requests.parse_json
    monkeypatch.setattr(requests, "parse_json", parse)
    with run_service(tmp_path) as live, live.as_(live.token("vision")) as vision:
        threads.clear()
        assert vision.post("/v1/jobs", json=job("small")).is_success
        many = {"jobs": [job(f"many-{number}") for number in range(100)]}
        assert vision.post("/v1/jobs", json=many).status_code == 202
        response = vision.patch(
            "/v1/jobs/small", json={f"key-{number}": 1 for number in range(999)}
        )
        assert (response.status_code, len(response.json()["errors"])) == (422, 999)
        keys = {f"key-{number}": 1 for number in range(bounds.ENTRIES.maximum + 1)}
        response = vision.post("/v1/quote", json=job("wide", labels=keys))
        assert "body.labels: 10,001 exceeds the limit" in response.json()["detail"]
    (small, loop), *large = threads
    assert small <= requests.MAX_INLINE_BODY_BYTES < min(size for size, _ in large)
    assert loop not in {thread for _, thread in large}


def test_out_of_memory_returns_503_and_logs_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def parse(_text: bytes, **_options: Any) -> Any:
        raise MemoryError

    with run_service(tmp_path) as live, live.as_(live.token("vision")) as vision:
        assert vision.post("/v1/jobs", json=job("before")).is_success
        with monkeypatch.context() as patch:
            patch.setattr(requests, "parse_json", parse)
            response = vision.post("/v1/quote", json=job("large"))
            assert (response.status_code, response.json()["code"]) == (503, "memory")
            assert "retry-after" in response.headers
            assert vision.get("/v1/jobs/before").is_success
        assert vision.post("/v1/jobs", json=job("after")).is_success
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert [record.getMessage() for record in errors] == ["out of memory in POST /v1/quote"]
    assert errors[0].exc_info is None

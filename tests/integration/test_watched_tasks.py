"""A background task with an unexpected error is restarted, and the error is reported."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from shadowprice.core.errors import ShadowpriceError
from shadowprice.executors.contract import ExecutorOptions, Report
from shadowprice.executors.local.executor import LocalExecutor
from shadowprice.service import event_stream
from shadowprice.service.execution.controller import ExecutionController
from shadowprice.service.execution.observer import ObservationLoop
from shadowprice.service.service import Service
from shadowprice.service.store import Store
from tests.support.services import RunningService, job, run_service
from tests.support.waiting import WAIT_LIMIT_SECONDS, wait_until

pytestmark = pytest.mark.processes

CLUSTER = {"slot": "1s", "horizon": 600, "servers": [{"name": "machine", "capacity": {"cpu": 4}}]}


class Switch:
    """Switch of a fault, with the number of times that it was hit."""

    on = False
    met = 0

    def __call__(self) -> None:
        if self.on:
            self.met += 1
            raise KeyError("a bug")


Patch = Callable[[pytest.MonkeyPatch, Switch], None]


def _watching(patch: pytest.MonkeyPatch, fault: Switch) -> None:
    watch = LocalExecutor.watch

    async def failing(self: LocalExecutor) -> AsyncIterator[Report]:
        async for report in watch(self):
            fault()  # an event that left the executor's queue is lost
            yield report

    patch.setattr(LocalExecutor, "watch", failing)


def _before(patch: pytest.MonkeyPatch, fault: Switch, owner: Any, name: str) -> None:
    """Patch a method to raise first if the fault is on."""
    original = getattr(owner, name)
    if asyncio.iscoroutinefunction(original):

        async def later(*arguments: Any) -> Any:
            fault()
            return await original(*arguments)

        patch.setattr(owner, name, later)
    else:

        def now(*arguments: Any) -> Any:
            fault()
            return original(*arguments)

        patch.setattr(owner, name, now)


def _encoding(patch: pytest.MonkeyPatch, fault: Switch) -> None:
    _before(patch, fault, event_stream, "event_resource")


def _method(owner: Any, name: str) -> Patch:
    return lambda patch, fault: _before(patch, fault, owner, name)


FAULTS: dict[str, tuple[Patch, str, str]] = {
    "watch": (_watching, "following the executor's reports", "watch"),
    "reports": (_method(ExecutionController, "sync_reports"), "recording reports", "runner"),
    "orders": (_method(ExecutionController, "send_commands"), "sending commands", "runner"),
    "resync": (
        _method(LocalExecutor, "_check_supervisor"),
        "resyncing with the running jobs",
        "resync",
    ),
    "events": (_encoding, "delivering events", "events"),
}


def executor_in(folder: Path, live: list[RunningService]) -> LocalExecutor:
    (folder / "local").mkdir(exist_ok=True)

    def failed(what: str) -> None:
        for service in live:
            service.service.metrics.count_failure(what)

    options = ExecutorOptions(
        str(folder / "local" / "executor"), settings={"cgroup": "off"}, failed=failed
    )
    return LocalExecutor(options)


@contextmanager
def viewing(live: RunningService) -> Iterator[list[str]]:
    """Follow the event stream, and reconnect whenever it ends."""
    seen: list[str] = []
    over = threading.Event()

    def follow() -> None:
        last = 0
        with live.as_(live.service.token_file.read_text().strip()) as client:
            while not over.is_set():
                head = {"Last-Event-ID": str(last)}
                with client.stream("GET", "/v1/events", headers=head) as lines:
                    for line in lines.iter_lines():
                        if line.startswith("id: "):
                            last = int(line[4:])
                            seen.append(line)
                        if over.is_set():
                            return

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        live.service.close_streams()
        thread.join(WAIT_LIMIT_SECONDS)


def free(folder: Path) -> None:
    """Check that every lock is free."""

    async def begun() -> None:
        executor = executor_in(folder, [])
        await executor.open()
        await executor.close()

    asyncio.run(begun())
    store = Store(str(folder / "data"))
    assert store.open()
    store.close()


@pytest.mark.parametrize("where", FAULTS)
@pytest.mark.parametrize("mended", [True, False], ids=["mended", "for-good"])
def test_failed_background_task_is_restarted_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, *, mended: bool
) -> None:
    """With ``for-good`` the fault remains when the service is stopped."""
    patch, said, counted = FAULTS[where]
    fault = Switch()
    patch(monkeypatch, fault)
    live: list[RunningService] = []
    executor = executor_in(tmp_path, live)
    with run_service(tmp_path, cluster=CLUSTER, executor=executor) as one:
        live.append(one)
        client = one.client
        command = f"while [ ! -e {tmp_path}/end ]; do sleep 0.1; done"
        run = {"command": ["/bin/sh", "-c", command]}
        with viewing(one) as seen:
            fault.on = True
            record = job("job", worker={"cpu": 1}, workers={"max": 1}, minibatches=500, run=run)
            assert client.post("/v1/jobs", json=record).is_success
            wait_until(lambda: client.get("/readyz").status_code == 503)
            wait_until(lambda: fault.met > 2 or where == "events")
            health_error = client.get("/v1/service").json()["health_error"]
            assert health_error == f"{said} failed: KeyError: 'a bug'"
            registry = one.service.metrics.registry
            count = registry.get_sample_value("shadowprice_failures_total", {"component": counted})
            assert count is not None
            assert count >= (1 if where == "events" else 3)
            if mended:
                fault.on = False
                wait_until(lambda: client.get("/readyz").status_code == 200)
                (tmp_path / "end").touch()
                wait_until(lambda: client.get("/v1/jobs/job").json()["state"] == "finished")
                assert client.get("/v1/service").json()["health_error"] is None
                last = client.get("/v1/service").json()["last_event"]
                wait_until(lambda: f"id: {last}" in seen)
                assert len(seen) == len(set(seen))
            else:
                (tmp_path / "end").touch()
    free(tmp_path)


def test_observing_service_reports_failed_observation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = Switch()
    _before(monkeypatch, fault, ObservationLoop, "poll")
    executor = executor_in(tmp_path, [])
    with run_service(tmp_path, cluster=CLUSTER, executor=executor, observe=True) as live:
        fault.on = True
        wait_until(lambda: live.client.get("/readyz").status_code == 503)
        health_error = live.client.get("/v1/service").json()["health_error"]
        assert health_error == "observing the running jobs failed: KeyError: 'a bug'"
        fault.on = False
        wait_until(lambda: live.client.get("/readyz").status_code == 200)
    free(tmp_path)


@pytest.mark.parametrize("owner", [LocalExecutor, ExecutionController])
def test_failed_shutdown_of_a_task_does_not_block_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: type
) -> None:
    fault = Switch()
    _before(monkeypatch, fault, owner, "_close_bell" if owner is LocalExecutor else "close")
    executor = executor_in(tmp_path, [])
    ended: list[Service] = []

    def serve() -> None:
        with run_service(tmp_path, cluster=CLUSTER, executor=executor) as live:
            ended.append(live.service)
            fault.on = True

    with pytest.raises(ShadowpriceError, match="see its log"):
        serve()
    fault.on = False
    assert fault.met == 1
    store = Store(str(tmp_path / "data"))
    assert store.open()
    store.close()
    [service] = ended
    assert service.writer is not None
    assert service.writer._thread._shutdown
    if owner is LocalExecutor:
        free(tmp_path)


def test_failed_check_of_one_generation_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    care = LocalExecutor._check_supervisor
    looked: list[str] = []

    def failing(self: LocalExecutor, entry: Any) -> None:
        if entry.job == "bad":
            raise KeyError("a bug")
        looked.append(entry.job)
        care(self, entry)

    monkeypatch.setattr(LocalExecutor, "_check_supervisor", failing)
    executor = executor_in(tmp_path, [])
    with run_service(tmp_path, cluster=CLUSTER, executor=executor) as live:
        run = {"command": ["sleep", "600"], "grace": "1s"}
        for name in ("bad", "good"):
            record = job(name, worker={"cpu": 1}, workers={"max": 1}, minibatches=500, run=run)
            assert live.client.post("/v1/jobs", json=record).is_success
        wait_until(lambda: looked.count("good") > 2)
        wait_until(lambda: live.client.get("/readyz").status_code == 503)
        for name in ("bad", "good"):
            assert live.client.delete(f"/v1/jobs/{name}").is_success
        wait_until(lambda: live.client.get("/readyz").status_code == 200)

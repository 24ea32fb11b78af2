"""Services that listen on a port of their own, in a thread of the test's process."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import yaml

from shadowprice.executors.contract import Executor
from shadowprice.policies.choice import PolicyChoice
from shadowprice.service.clock import Clock
from shadowprice.service.server import serve
from shadowprice.service.service import Service
from shadowprice.service.settings import ServiceSettings
from tests.support.waiting import WAIT_LIMIT_SECONDS

CLUSTER: Mapping[str, Any] = {
    "slot": "1h",
    "horizon": 50,
    "servers": [{"name": "g", "count": 4, "capacity": {"gpu": 8, "cpu": 64}}],
}


def job(name: str, **changes: Any) -> dict[str, Any]:
    """Return a small job: the work of a few slots for one worker."""
    return {
        "name": name,
        "chunks": 4,
        "minibatches": 10,
        "minibatch_time": "6min",
        "worker": {"gpu": 1, "cpu": 2},
        "utility": {"kind": "sigmoid", "value": 50, "decay": 0.1, "target": "20 slots"},
        **changes,
    }


def build_client(address: str, headers: Mapping[str, str]) -> httpx.Client:
    """Return a client that loads no certificate authorities: plain HTTP needs none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return httpx.Client(
        base_url=address, headers=headers, timeout=WAIT_LIMIT_SECONDS, verify=context
    )


@dataclass
class RunningService:
    """A listening service, and a client with the operator's token."""

    service: Service
    address: str
    client: httpx.Client
    _tokens: list[str] = field(default_factory=list)

    def token(self, tenant: str, **more: Any) -> str:
        answer = self.client.post("/v1/tokens", json={"tenant": tenant, **more})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["token"])

    def as_(self, token: str | None) -> httpx.Client:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return build_client(self.address, headers)


@contextmanager
def run_service(
    folder: Path,
    *,
    cluster: Mapping[str, Any] = CLUSTER,
    policy: str | PolicyChoice = "fifo",
    data: str | None = None,
    clock: Clock | None = None,
    executor: Executor | None = None,
    name: str = "data",
    port: int = 0,
    observe: bool | None = None,
    users: Mapping[str, tuple[str, ...]] | None = None,
    trainingjobs: str | None = None,
    lease: tuple[str, str] | None = None,
    families: Path | None = None,
    values: str = "auto",
) -> Iterator[RunningService]:
    """Run a service in a thread; without an executor it only observes."""
    path = folder / "cluster.yaml"
    path.write_text(yaml.safe_dump(dict(cluster)))
    settings = ServiceSettings(
        cluster=path,
        data=data or str(folder / name),
        port=port,
        policy=policy if isinstance(policy, PolicyChoice) else PolicyChoice(policy),
        executor="none" if executor is None else "local",
        observe=executor is None if observe is None else observe,
        token_file=folder / "operator.token" if data else None,
        users=users or {},
        trainingjobs=trainingjobs,
        lease=lease,
        families=families,
        values=values,
    )
    service = Service(settings, clock, executor)
    ready = threading.Event()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            serve(settings, lambda _: ready.set(), service)
        except BaseException as error:
            failures.append(error)
            ready.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert ready.wait(WAIT_LIMIT_SECONDS)
        if failures:
            raise failures[0]
        token = service.token_file.read_text().strip()
        headers = {"Authorization": f"Bearer {token}"}
        with build_client(service.address, headers) as client:
            yield RunningService(service, service.address, client)
    finally:
        service.request_exit()
        thread.join(WAIT_LIMIT_SECONDS)
        assert not thread.is_alive()
    if failures:
        raise failures[0]

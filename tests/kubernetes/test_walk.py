"""Resources edited, deleted and applied at random on real kubelets, with a service that is killed.

The last request of each resource must be fulfilled in the end; see `walking`.

``KUBERNETES_WALKS=40 KUBERNETES_SEED=1000`` tries others, and more of them.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tools.testbed import Testbed
from tools.testbed.audit import Audit

from tests.kubernetes.changing import begun
from tests.kubernetes.operators import first_line, installed, killed
from tests.kubernetes.replicas import QUICK
from tests.kubernetes.walking import RESOURCES, RandomWalk

WALKS = int(os.environ.get("KUBERNETES_WALKS", "2"))
SEED = int(os.environ.get("KUBERNETES_SEED", "1"))

STEPS = 40
"""Number of actions in a walk."""

SETTLED = 150.0
"""Seconds until everything is as requested: kubelet 1.20 takes 70 to remove some pods."""


class ServeProcess:
    """The service, which is killed and restarted."""

    def __init__(self, bed: Testbed, folder: Path) -> None:
        self._bed, self._folder = bed, folder
        self.start()

    def start(self) -> None:
        """Start it; it responds later."""
        self._process = begun(
            self._bed,
            self._folder,
            str(self._folder / "data"),
            self._bed.kubeconfig,
            "SIGKILL",
            self._folder / "never",
            LEASE=json.dumps(QUICK),
        )
        self.alive = True

    def kill(self) -> None:
        """Kill it, unless it is killed already."""
        if self.alive:
            assert self._process.poll() is None, self.said()
            killed(self._process)
            assert self._process.stdout is not None
            self._process.stdout.close()
        self.alive = False

    @contextmanager
    def open_client(self) -> Iterator[httpx.Client]:
        """Wait until it responds, and send it a request."""
        line = first_line(self._process)
        assert line, self.said()
        token = (self._folder / "data" / "operator.token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}"}
        address = json.loads(line)["address"]
        with httpx.Client(base_url=address, headers=headers, timeout=30) as client:
            yield client

    def said(self) -> str:
        """Return its last output."""
        return (self._folder / "log").read_text()[-3000:]


def jobs_of(client: httpx.Client) -> dict[str, Any]:
    """Return every job that the service ever had."""
    body = client.get("/v1/jobs?limit=500").json()["jobs"]
    return {one["name"]: client.get(f"/v1/jobs/{one['name']}").json() for one in body}


@pytest.mark.parametrize("seed", range(SEED, SEED + WALKS))
def test_after_a_walk_the_state_is_the_last_requested_one(
    testbed: Testbed, tmp_path: Path, seed: int
) -> None:
    installed(testbed)
    # New names for each try: this one may be the second.
    walk = RandomWalk(
        testbed, seed, tuple(f"walk-{letter}-{tmp_path.name[-1]}" for letter in "abcd")
    )
    service = ServeProcess(testbed, tmp_path)
    try:
        _walked(walk, service)
        with service.open_client() as client:
            _settled(walk, service, client)
            for name in walk.lasting():
                walk.delete(name)
            _settled(walk, service, client)
        chosen = "labelSelector=shadowprice.io/service%3Dshadowprice"
        for kind in ("secrets", "services"):
            assert testbed.ask("GET", f"/api/v1/namespaces/default/{kind}?{chosen}")["items"] == []
        faults = Audit.read(testbed.audit).of_service("shadowprice").faults()
        assert faults == [], walk.description()
    finally:
        service.kill()
        for item in testbed.ask("GET", RESOURCES)["items"]:  # the next walk must not find them
            walk.delete(item["metadata"]["name"])
            walk.forsake(item["metadata"]["name"])


def _walked(walk: RandomWalk, service: ServeProcess) -> None:
    chance, back = walk.chance, 0.0
    for _ in range(STEPS):
        walk.step()
        # Most actions are close together; a change of generations takes some seconds.
        time.sleep(chance.choice([0.0, 0.1, 0.5, 1.0, 4.0]))
        if service.alive and chance.random() < 0.08:
            service.kill()
            back = time.monotonic() + chance.choice([0.0, 1.0, 5.0])
            walk.note("the service is killed")
        elif not service.alive and time.monotonic() >= back:
            service.start()
            walk.note("the service is started")
    if not service.alive:
        service.start()


def _settled(walk: RandomWalk, service: ServeProcess, client: httpx.Client) -> None:
    until = time.monotonic() + SETTLED
    while faults := walk.faults(jobs_of(client)):
        assert time.monotonic() < until, "\n".join([*faults, walk.description(), service.said()])
        time.sleep(1.0)

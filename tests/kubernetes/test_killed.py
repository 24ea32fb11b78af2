"""The whole service killed (SIGKILL) before every step of a generation change, and started again.

A step is a request that writes, of the executor or of what follows resources, or a transaction of
the store. What was done before a step is done after the one before it, so each moment between two
that lasts is tried. The step that comes again, after the new start, is let through, and the next is
killed: recoveries are cut off, too. A step is known by what it asks for, of whatever generation; a
status, an event and a transaction by how many came before. The audit log is the judge.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from tools.testbed import ApiError, Testbed
from tools.testbed.audit import Audit

from tests.contract.harness import BASE
from tests.kubernetes.operators import (
    User,
    eventually,
    first_line,
    installed,
    killed,
    manifest,
)

PATIENCE = 180.0
"""Seconds from one kill to the next: kubelet 1.20 takes 70 to let go of a pod that never began."""

MAIN = """
import json, os, pathlib, re, signal, threading
from shadowprice.cli.main import run
from shadowprice.kubernetes.connection import Connection
from shadowprice.service.truth import Truth

armed, log = pathlib.Path(os.environ["ARMED"]), pathlib.Path(os.environ["STEPS"])
one_at_a_time = threading.Lock()

def step(kind, which=""):
    with one_at_a_time:
        if not armed.exists():
            return
        before = log.read_text().splitlines() if log.exists() else []
        mine = [line for line in before if line.startswith(kind + "|")]
        key = f"{kind}|{which or len(mine) // 2}"
        with log.open("a") as stream:
            stream.write(key + "\\n")
        most = json.loads(armed.read_text()).get(kind, 0)
        if key not in mine and len(set(mine)) < most:
            os.kill(os.getpid(), signal.SIGKILL)

request, commit = Connection.request, Truth.commit

async def asked(self, method, path, **more):
    if method != "GET" and "/leases" not in path:
        kind, _, rest = path.rpartition("/namespaces/")[2].partition("/")[2].partition("/")
        kind = f"{method} {kind}{'/status' if rest.endswith('/status') else ''}"
        body = more.get("body") or {}
        # Whichever generation: of each new one there would be a first time again.
        which = f"{path} {body.get('metadata', {}).get('name')} {body.get('gracePeriodSeconds')}"
        which = re.sub(r"(sp-[0-9a-f]{16})-\\d+", r"\\1", which)
        states = json.loads((body.get("data") or {}).get("generations", "{}")).values()
        which += str(sorted((one["phase"], "stop" in one, "closing" in one) for one in states))
        counted = kind.endswith("/status") or kind.endswith(" events")
        step(kind, "" if counted else which)
    return await request(self, method, path, **more)

def committed(self, operations):
    step("commit")
    return commit(self, operations)

Connection.request, Truth.commit = asked, committed
run()
"""

GROUPS: Mapping[str, Mapping[str, int]] = {
    "records": {"POST configmaps": 99, "PUT configmaps": 99},
    "licences": {
        "POST secrets": 99,
        "DELETE secrets": 99,
        "POST services": 99,
        "DELETE services": 99,
    },
    "pods": {"POST pods": 99, "DELETE pods": 99},
    "resources": {"PATCH trainingjobs": 99, "PATCH trainingjobs/status": 8, "POST events": 5},
    "store": {"commit": 10},
}
"""How often it is killed at most before each kind of step, together as one test. Of what is done
anew after every start, statuses and transactions, there is no end."""


class Killable:
    """A service that is killed where a file says, and started again."""

    def __init__(self, bed: Testbed, folder: Path) -> None:
        self.bed = bed
        self.folder = folder
        self.armed, self.steps = folder / "armed", folder / "steps"
        self.process: subprocess.Popen[str] | None = None
        self.kills = 0
        cluster = {"slot": "2s", "horizon": 3000}
        # The other one joins, for the API server has it.
        cluster["servers"] = [{"name": "one", "capacity": {"cpu": 2, "gpu": 2}}]
        (folder / "cluster.yaml").write_text(yaml.safe_dump(cluster))

    def start(self) -> None:
        """Start it, whoever was killed before; again, where that is killed, too."""
        leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
        words = ["serve", "-c", str(self.folder / "cluster.yaml"), "-p", "drf", "-o", "json"]
        words += ["--data", str(self.folder / "data"), "--listen", "127.0.0.1:0"]
        words += ["--executor", "kubernetes", "--address", str(self.bed.kubeconfig)]
        words += ["--executor-set", "namespace=default", "--executor-set", f"image={BASE}"]
        words += ["--trainingjobs", str(self.bed.kubeconfig)]
        while True:
            try:  # of one that was killed: it would have to run out, and nothing rests on it
                self.bed.ask("DELETE", f"{leases}/shadowprice-executor")
            except ApiError as error:
                if error.status != 404:
                    raise
            with (self.folder / "log").open("a") as log:
                self.process = subprocess.Popen(
                    [sys.executable, "-c", MAIN, *words],
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    env={**os.environ, "ARMED": str(self.armed), "STEPS": str(self.steps)},
                )
            if first_line(self.process):
                return
            assert self.process.wait(60) == -signal.SIGKILL, self.said()
            self.kills += 1
            self.end()

    def goes_on(self) -> bool:
        """Start it again where it was killed, and say so."""
        assert self.process is not None
        code = self.process.poll()
        assert code in {None, -signal.SIGKILL}, (code, self.said())
        if code is None:
            return False
        self.kills += 1
        self.end()
        self.start()
        return True

    def said(self) -> str:
        """Return what it said last."""
        return (self.folder / "log").read_text()[-3000:]

    def end(self) -> None:
        """End it for good."""
        if self.process is not None:
            killed(self.process)
            assert self.process.stdout is not None
            self.process.stdout.close()


def job(name: str, workers: int) -> dict[str, Any]:
    """A GPU a worker, of the three that the cluster has: alone it has all, beside another not."""
    return manifest(
        name,
        chunks=3,
        worker={"cpu": "0.2", "gpu": 1},
        workers={"max": workers},
        minibatches=3600,
        run={"command": ["sleep", "3600"], "grace": "1s", "pod": {"pull": "Never"}},
    )


def status(bed: Testbed, name: str) -> dict[str, Any] | None:
    """Return what is told of a job, None where its resource is gone."""
    path = f"/apis/shadowprice.io/v1alpha1/namespaces/default/trainingjobs/{name}"
    try:
        return dict(bed.ask("GET", path).get("status") or {})
    except ApiError as error:
        if error.status != 404:
            raise
        return None


def runs(bed: Testbed, name: str, workers: int) -> bool:
    """Whether a job is told to run with so many workers."""
    told = status(bed, name) or {}
    return told.get("state") == "running" and told.get("workers") == workers


def change(user: User, service: Killable, mark: str, group: Mapping[str, int]) -> list[str]:
    """Let a job give one of three GPUs to another, and both go; return the steps that came.

    It is killed before each step of a group, and started again, on the way.
    """
    bed = user.bed
    first, second = f"first-{mark}", f"second-{mark}"
    user.apply(job(first, 3))
    eventually(lambda: runs(bed, first, 3), f"every GPU for {first}")
    service.armed.write_text(json.dumps(group))

    def told() -> str:
        known = [status(bed, first), status(bed, second), service.said()]
        return json.dumps(known, indent=1) + service.steps.read_text()

    def through(done: Callable[[], bool]) -> None:
        until = time.monotonic() + PATIENCE
        while not done():
            if service.goes_on():
                until = time.monotonic() + PATIENCE
            states = {(status(bed, name) or {}).get("state") for name in (first, second)}
            assert not states & {"finished", "failed", "refused"}, told()
            assert time.monotonic() < until, told()
            time.sleep(0.1)

    user.apply(job(second, 1))
    through(lambda: runs(bed, first, 2) and runs(bed, second, 1))
    generation = (status(bed, first) or {})["generation"]
    assert generation >= 2
    user.delete(first, second)
    through(lambda: status(bed, first) is None and status(bed, second) is None)
    service.armed.unlink()
    service.goes_on()
    return service.steps.read_text().splitlines()


@pytest.mark.parametrize("name", sorted(GROUPS))
def test_a_service_killed_before_any_step_of_a_change_loses_and_doubles_nothing(
    testbed: Testbed, tmp_path: Path, name: str
) -> None:
    group = GROUPS[name]
    user = installed(testbed)
    service = Killable(testbed, tmp_path)
    began = time.time()
    service.start()
    try:
        steps = change(user, service, name, group)
        chosen = "labelSelector=shadowprice.io/service%3Dshadowprice"  # others' are not forgotten
        for kind in ("pods", "secrets", "services"):
            path = f"/api/v1/namespaces/default/{kind}?{chosen}"
            eventually(lambda path=path: testbed.ask("GET", path)["items"] == [], kind)  # type: ignore[misc]
        records = testbed.ask("GET", f"/api/v1/namespaces/default/configmaps?{chosen}")["items"]
        own = [item["data"] for item in records if f"-{name}." in item["data"]["job"]]
        assert len(own) == 2
        for data in own:
            assert json.loads(data["generations"]) == {}, data
    finally:
        service.end()
    kinds = Counter(step.partition("|")[0] for step in set(steps))
    assert kinds.keys() >= group.keys()
    tried = {kind: min(kinds[kind], most) for kind, most in group.items()}
    assert service.kills == sum(tried.values()), tried
    audit = Audit.read(testbed.audit).of_service("shadowprice")
    assert audit.faults() == []
    mine = {(pod.job, pod.generation) for pod in audit.of_jobs() if pod.made >= began}
    assert len({job for job, _ in mine}) == 2
    assert len(mine) >= 3

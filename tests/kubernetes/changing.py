"""A generation change that is interrupted before every step: shared code of its tests.

A step is a write request of the executor or of the controller, or a transaction of the store. The
work before a step is the work after the previous one, so every lasting state is tried. The
interrupted step passes when it is repeated, and the next one is interrupted; so recoveries are
interrupted too. A step is identified by its request, for any generation; statuses, events and
transactions by their number. The audit log is the judge.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import yaml
from tools.testbed import ApiError, Testbed
from tools.testbed.audit import Audit

from tests.contract.harness import BASE
from tests.kubernetes.operators import User, eventually, manifest

PATIENCE = 180.0
"""Timeout of one step in seconds: kubelet 1.20 takes 70 s to remove a pod that never started."""

MAIN = """
import asyncio, json, os, pathlib, re, signal, threading, time
from shadowprice.cli.main import run
from shadowprice.kubernetes import lease
from shadowprice.kubernetes.connection import ApiClient
from shadowprice.service.state.durable_engine import DurableEngine

armed, log = pathlib.Path(os.environ["ARMED"]), pathlib.Path(os.environ["STEPS"])
happens = os.environ["HAPPENS"].split(",")
if "LEASE" in os.environ:
    (
        lease.LEASE_DURATION_SECONDS,
        lease.RENEW_INTERVAL_SECONDS,
        lease.RENEW_DEADLINE_MARGIN_SECONDS,
    ) = json.loads(os.environ["LEASE"])
one_at_a_time = threading.Lock()
interrupted = freezing = False
on_their_way = 0

def step(kind, which=""):
    '''Whether it is to be frozen before a step; it is killed at once.'''
    global interrupted, freezing
    with one_at_a_time:
        if interrupted or not armed.exists():
            return False  # whoever was, and goes on, does not lead any more
        before = log.read_text().splitlines() if log.exists() else []
        mine = [line for line in before if line.startswith(kind + "|")]
        key = f"{kind}|{which or len(mine) // 2}"
        with log.open("a") as stream:
            stream.write(key + "\\n")
        most, tried = json.loads(armed.read_text()).get(kind, 0), len(set(mine))
        if key in mine or tried >= most:
            return False
        interrupted = True
        if happens[(tried + len(kind)) % len(happens)] == "SIGKILL":
            os.kill(os.getpid(), signal.SIGKILL)
        freezing = True
        return True

def freeze():
    global freezing
    os.kill(os.getpid(), signal.SIGSTOP)
    freezing = False

request, commit = ApiClient.request, DurableEngine.commit

async def asked(self, method, path, **more):
    global on_their_way
    if method == "GET" or "/leases" in path:
        return await request(self, method, path, **more)
    while freezing:
        await asyncio.sleep(0.01)
    kind, _, rest = path.rpartition("/namespaces/")[2].partition("/")[2].partition("/")
    kind = f"{method} {kind}{'/status' if rest.endswith('/status') else ''}"
    body = more.get("body") or {}
    # Whichever generation: of each new one there would be a first time again.
    which = f"{path} {body.get('metadata', {}).get('name')} {body.get('gracePeriodSeconds')}"
    which = re.sub(r"(sp-[0-9a-f]{16})-\\d+", r"\\1", which)
    states = json.loads((body.get("data") or {}).get("generations", "{}")).values()
    which += str(sorted((one["phase"], "stop" in one, "closing" in one) for one in states))
    counted = kind.endswith("/status") or kind.endswith(" events")
    if step(kind, "" if counted else which):
        while on_their_way:  # what is with the server nobody takes back
            await asyncio.sleep(0.01)
        freeze()
    on_their_way += 1
    try:
        return await request(self, method, path, **more)
    finally:
        on_their_way -= 1

def committed(self, operations):
    if step("commit"):
        while on_their_way:
            time.sleep(0.01)
        freeze()
    return commit(self, operations)

ApiClient.request, DurableEngine.commit = asked, committed
run()
"""
"""A service that sends itself a signal before each new step, in turns those of ``HAPPENS``."""

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
"""Maximum number of interruptions before each kind of step; each group is one test.

Statuses and transactions are repeated after every start, so their number has no limit.
"""


class InterruptedService(Protocol):
    """A service that is interrupted during a change."""

    armed: Path
    """The kinds of steps that are interrupted; None for no interruption."""
    steps: Path
    """The steps that were seen."""

    def goes_on(self) -> bool:
        """Restart what was interrupted; return whether anything was."""

    def said(self) -> str:
        """Return the service's last output."""


def begun(
    bed: Testbed,
    folder: Path,
    data: str,
    address: Path,
    happens: str,
    armed: Path,
    *more: str,
    **variables: str,
) -> subprocess.Popen[str]:
    """Start a service that interrupts itself, with a cluster of three GPUs."""
    cluster = {"slot": "2s", "horizon": 3000}
    # The other server joins, because the API server has it.
    cluster["servers"] = [{"name": "one", "capacity": {"cpu": 2, "gpu": 2}}]
    (folder / "cluster.yaml").write_text(yaml.safe_dump(cluster))
    words = ["serve", "-c", str(folder / "cluster.yaml"), "-p", "drf", "-o", "json"]
    words += ["--data", data, "--listen", "127.0.0.1:0"]
    words += ["--executor", "kubernetes", "--address", str(address)]
    words += ["--executor-set", "namespace=default", "--executor-set", f"image={BASE}"]
    words += ["--trainingjobs", str(address), *more]
    own = {"ARMED": str(armed), "STEPS": str(armed.with_name("steps")), "HAPPENS": happens}
    with (folder / "log").open("a") as log:
        return subprocess.Popen(
            [sys.executable, "-c", MAIN, *words],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, **own, **variables},
        )


def job(name: str, workers: int) -> dict[str, Any]:
    """One GPU a worker, of the cluster's three:

    alone a job has all, beside another one it doesn't.
    """
    return manifest(
        name,
        chunks=3,
        worker={"cpu": "0.2", "gpu": 1},
        workers={"max": workers},
        minibatches=3600,
        run={
            "command": ["sleep", "3600"],
            "grace": "1s",
            "checkpoints": True,  # otherwise it would keep its placement
            "pod": {"pull": "Never"},
        },
    )


def status(bed: Testbed, name: str) -> dict[str, Any] | None:
    """Return a job's placement in the status, None if its resource is gone."""
    path = f"/apis/shadowprice.io/v1alpha1/namespaces/default/trainingjobs/{name}"
    try:
        return dict(bed.ask("GET", path).get("status") or {})
    except ApiError as error:
        if error.status != 404:
            raise
        return None


def runs(bed: Testbed, name: str, workers: int) -> bool:
    """Whether a job's status has this number of workers."""
    describe_progress = status(bed, name) or {}
    return (
        describe_progress.get("state") == "running" and describe_progress.get("workers") == workers
    )


def change(
    user: User, service: InterruptedService, mark: str, group: Mapping[str, int]
) -> list[str]:
    """Let a job release one of three GPUs for another, and delete both; return the steps that were
    seen.

    The service is interrupted before each step of a group, and restarted.
    """
    bed = user.bed
    first, second = f"first-{mark}", f"second-{mark}"
    user.apply(job(first, 3))
    eventually(lambda: runs(bed, first, 3), f"every GPU for {first}")
    service.armed.write_text(json.dumps(group))

    def describe_progress() -> str:
        known = [status(bed, first), status(bed, second), service.said()]
        return json.dumps(known, indent=1) + service.steps.read_text()

    def through(done: Callable[[], bool]) -> None:
        until = time.monotonic() + PATIENCE
        while not done():
            if service.goes_on():
                until = time.monotonic() + PATIENCE
            states = {(status(bed, name) or {}).get("state") for name in (first, second)}
            assert not states & {"finished", "failed", "refused"}, describe_progress()
            assert time.monotonic() < until, describe_progress()
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


def nothing_is_left(bed: Testbed, mark: str) -> None:
    """Wait until no object of a change's generations is left; its records are empty."""
    chosen = "labelSelector=shadowprice.io/service%3Dshadowprice"  # those of other tests stay
    for kind in ("pods", "secrets", "services"):
        path = f"/api/v1/namespaces/default/{kind}?{chosen}"
        eventually(lambda path=path: bed.ask("GET", path)["items"] == [], kind)  # type: ignore[misc]

    def empty() -> bool:
        records = bed.ask("GET", f"/api/v1/namespaces/default/configmaps?{chosen}")["items"]
        own = [record["data"] for record in records if f"-{mark}." in record["data"]["job"]]
        assert len(own) == 2
        return all(json.loads(data["generations"]) == {} for data in own)

    eventually(empty, "the end of all records")


def tried(steps: Sequence[str], group: Mapping[str, int]) -> int:
    """Return the number of planned interruptions by the seen steps; all kinds occurred."""
    kinds = Counter(step.partition("|")[0] for step in set(steps))
    assert kinds.keys() >= group.keys(), "\n".join(steps)
    return sum(min(kinds[kind], most) for kind, most in group.items())


def judged(bed: Testbed, since: float) -> None:
    """Check in the audit log what happened to the pods of a change that began at a time."""
    audit = Audit.read(bed.audit).of_service("shadowprice")
    assert audit.faults() == []
    mine = {(pod.job, pod.generation) for pod in audit.of_jobs() if pod.made >= since}
    assert len({job for job, _ in mine}) == 2
    assert len(mine) >= 3

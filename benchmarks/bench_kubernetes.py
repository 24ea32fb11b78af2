"""TrainingJobs on many nodes: from a resource to its status, and what that asks of the API server.

A real API server with hollow nodes, which take pods and only say that they run (`make testbed`);
``shadowprice serve --executor kubernetes`` follows the resources. They are applied at a steady
rate, then deleted all at once: ``python -m benchmarks.bench_kubernetes --nodes 500 --jobs 1000``.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import yaml
from tools.testbed import Testbed
from tools.testbed.audit import entries
from tools.testbed.places import missing

from shadowprice.kubernetes.connection import Connection
from shadowprice.kubernetes.errors import UnreachableError
from shadowprice.kubernetes.informer import Informer
from shadowprice.kubernetes.names import API_VERSION, KIND, PLURAL

ROOT = Path(__file__).resolve().parents[1]
RESOURCES = f"/apis/{API_VERSION}/namespaces/default/{PLURAL}"
USER = "service"


def resource(name: str) -> dict[str, Any]:
    """Return a job of one worker that asks for a core."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "chunks": 2,
            "minibatches": 600,
            "minibatch_time": "1s",
            "worker": {"cpu": 1},
            "workers": {"max": 1},
            "utility": {"kind": "sigmoid", "value": 5, "decay": 0.01, "target": "2h"},
            "run": {"command": ["sleep", "600"], "grace": "1s", "image": "none:1"},
        },
    }


class Followed:
    """When each resource was first seen in each state.

    Parameters
    ----------
    connection : Connection
        To the API server.
    """

    def __init__(self, connection: Connection) -> None:
        self.seen: dict[str, dict[str, float]] = {}
        self.informer = Informer(connection, RESOURCES, self._reduce, self._changed)

    @staticmethod
    def _reduce(found: Mapping[str, Any]) -> tuple[str, str]:
        told = found.get("status", {})
        return str(found["metadata"]["name"]), str(told.get("state", ""))

    def _changed(self, _: str, old: tuple[str, str] | None, new: tuple[str, str] | None) -> None:
        now = time.monotonic()
        name, state = new or old or ("", "")
        self.seen.setdefault(name, {}).setdefault(state if new else "gone", now)

    def count(self, state: str) -> int:
        """Return how many were ever seen so."""
        return sum(state in seen for seen in self.seen.values())

    async def until(self, state: str, count: int, patience: float) -> None:
        """Wait until so many were."""
        end = time.monotonic() + patience
        while self.count(state) < count and time.monotonic() < end:
            await asyncio.sleep(0.1)


def told(what: str, seconds: Sequence[float], of: int) -> None:
    """Print a line of the table."""
    p50, p99, worst = np.quantile(seconds, [0.5, 0.99, 1.0]) if seconds else [float("nan")] * 3
    print(f"{what:<36}{len(seconds):>6} of {of}{p50:>9.2f}{p99:>9.2f}{worst:>9.2f}", flush=True)


async def measure(bed: Testbed, jobs: int, rate: float) -> None:
    """Apply, wait, delete."""
    connection = await Connection.open(str(bed.kubeconfig))
    followed = Followed(connection)
    await followed.informer.start()
    applied: dict[str, float] = {}
    began = time.monotonic()
    for number in range(jobs):
        await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
        name = f"job-{number}"
        applied[name] = time.monotonic()
        await connection.post(RESOURCES, resource(name))
    print(f"applied {jobs} at {jobs / (time.monotonic() - began):.1f} a second", flush=True)
    await followed.until("running", jobs, 300.0)
    print(f"{'seconds':<36}{'jobs':>14}{'median':>9}{'p99':>9}{'most':>9}")
    first = [
        min(at for state, at in seen.items() if state) - applied[name]
        for name, seen in followed.seen.items()
        if any(seen)
    ]
    told("applied until its status is told", first, jobs)
    ran = [
        seen["running"] - applied[one] for one, seen in followed.seen.items() if "running" in seen
    ]
    told("applied until its pod runs", ran, jobs)
    began = time.monotonic()
    with suppress(UnreachableError):  # deleting many takes the server longer than it has to answer
        await connection.delete(RESOURCES)
    await followed.until("gone", jobs, 300.0)
    gone = [seen["gone"] - began for seen in followed.seen.values() if "gone" in seen]
    told("all deleted at once, until gone", gone, jobs)
    await followed.informer.close()
    await connection.close()


def reconciled(address: str, token: Path) -> None:
    """Print how long the service took for a look at a resource, by its own histogram."""
    headers = {"Authorization": f"Bearer {token.read_text().strip()}"}
    text = httpx.get(f"{address}/metrics", headers=headers, timeout=60.0).text
    counts = {}
    for line in text.splitlines():
        found = re.fullmatch(r'\w+_trainingjob_seconds_bucket\{le="([^"]+)"\} (\S+)', line)
        if found:
            counts[float(found[1])] = float(found[2])
    total = counts[math.inf]
    for share in (0.5, 0.99):
        most = next(at for at, count in sorted(counts.items()) if count >= share * total)
        print(f"{share:.0%} of {total:.0f} looks at a resource took at most {most:g} s", flush=True)


def asked(bed: Testbed, jobs: int) -> None:
    """Print what the service asked the API server for."""
    calls: Counter[str] = Counter()
    for line in entries(bed.audit):
        if line["stage"] != "ResponseComplete":  # a stream has a line when it begins, too
            continue
        if line["user"]["username"] == USER and line["verb"] not in {"list", "watch"}:
            about = line.get("objectRef", {})
            what = "/".join(filter(None, (about.get("resource"), about.get("subresource"))))
            calls[f"{line['verb']} {what}"] += 1
    print(f"{'calls':<36}{'a job':>9}")
    for what, count in calls.most_common(14):
        print(f"{what:<36}{count / jobs:>9.2f}")
    print(f"{'all':<36}{calls.total() / jobs:>9.2f}")


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--nodes", type=int, default=100)
    options.add_argument("--jobs", type=int, default=200)
    options.add_argument("--rate", type=float, default=10.0, help="resources applied a second")
    options.add_argument("--policy", default="rolling")
    options.add_argument("--slot", default="30s")
    given = options.parse_args()
    if why := missing():
        print(why)
        return
    with (
        tempfile.TemporaryDirectory() as folder,
        Testbed(hollow=given.nodes, users={USER: ("system:masters",)}) as bed,
    ):
        bed.kubectl("apply", "-f", str(ROOT / "deploy" / "kubernetes" / "crd.yaml"))
        cluster = Path(folder) / "cluster.yaml"
        server = {"name": "hollow-0", "capacity": {"cpu": 1}}
        cluster.write_text(
            yaml.safe_dump({"slot": given.slot, "horizon": 400, "servers": [server]})
        )
        words = ["serve", "-c", str(cluster), "--policy", given.policy, "--executor", "kubernetes"]
        words += ["--address", str(bed.kubeconfig_of(USER)), "--data", f"{folder}/data"]
        words += ["--listen", "127.0.0.1:0"]
        words += ["--executor-set", "namespace=default", "--executor-set", "image=none:1"]
        with Path(folder, "log").open("wb") as log:
            service = subprocess.Popen(
                [str(Path(sys.executable).with_name("shadowprice")), *words],
                stdout=log,
                stderr=log,
                cwd=folder,
            )
        try:
            until = time.monotonic() + 120.0
            while b"http" not in Path(folder, "log").read_bytes():
                if service.poll() is not None or time.monotonic() > until:
                    sys.exit(Path(folder, "log").read_text())
                time.sleep(0.2)
            ticks = sum(os.times()[2:4])
            asyncio.run(measure(bed, given.jobs, given.rate))
            address = re.search(r"http://[\w.:]+", Path(folder, "log").read_text())
            assert address is not None
            reconciled(address[0], Path(folder, "data", "operator.token"))
        finally:
            service.send_signal(signal.SIGTERM)
            service.wait(60)
        spent = sum(os.times()[2:4]) - ticks
        print(f"the service's processor time: {1000 * spent / given.jobs:.0f} ms a job")
        asked(bed, given.jobs)


if __name__ == "__main__":
    main()

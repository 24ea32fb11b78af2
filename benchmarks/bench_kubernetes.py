"""TrainingJobs on many nodes: from a resource to its status, and what that asks of the API server.

A real API server with hollow nodes, which take pods and only say that they run (`make testbed`),
and tell a line as their log; ``shadowprice serve --executor kubernetes`` follows the resources.
They are applied at a steady rate, then deleted all at once:
``python -m benchmarks.bench_kubernetes --nodes 500 --jobs 1000``.
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
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import yaml
from tools.testbed import Testbed
from tools.testbed.audit import entries
from tools.testbed.hollow import Logs
from tools.testbed.places import missing

from shadowprice.kubernetes.connection import ApiClient
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

    def __init__(self, connection: ApiClient) -> None:
        self.seen: dict[str, dict[str, float]] = {}
        self.informer = Informer(connection, RESOURCES, self._reduce, self._changed)

    @staticmethod
    def _reduce(found: Mapping[str, Any]) -> tuple[str, str]:
        print_row = found.get("status", {})
        return str(found["metadata"]["name"]), str(print_row.get("state", ""))

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


def print_row(what: str, seconds: Sequence[float], of: int) -> None:
    """Print a line of the table."""
    p50, p99, worst = np.quantile(seconds, [0.5, 0.99, 1.0]) if seconds else [float("nan")] * 3
    print(f"{what:<36}{len(seconds):>6} of {of}{p50:>9.2f}{p99:>9.2f}{worst:>9.2f}", flush=True)


async def measure(
    bed: Testbed, jobs: int, rate: float, patience: float, between: Callable[[str], None]
) -> None:
    """Apply, wait, delete; ``between`` tells what that took, after either half."""
    connection = await ApiClient.open(str(bed.kubeconfig))
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
    await followed.until("running", jobs, patience)
    print(f"{'seconds':<36}{'jobs':>14}{'median':>9}{'p99':>9}{'most':>9}")
    first = [
        min(at for state, at in seen.items() if state) - applied[name]
        for name, seen in followed.seen.items()
        if any(seen)
    ]
    print_row("applied until its status is told", first, jobs)
    ran = [
        seen["running"] - applied[one] for one, seen in followed.seen.items() if "running" in seen
    ]
    print_row("applied until its pod runs", ran, jobs)
    between("until all run")
    began = time.monotonic()
    # One by one, as kubectl does: a request for all of them at once the server cuts off midway.
    requested: dict[str, float] = {}

    async def delete(name: str) -> None:
        await connection.delete(f"{RESOURCES}/{name}")
        requested[name] = time.monotonic()

    await asyncio.gather(*map(delete, applied))
    print(f"asked for all of that in {time.monotonic() - began:.1f} s", flush=True)
    await followed.until("gone", jobs, patience)
    gone = [seen["gone"] - began for seen in followed.seen.values() if "gone" in seen]
    print_row("all deleted at once, until gone", gone, jobs)
    own = [
        max(0.0, seen["gone"] - requested[name])
        for name, seen in followed.seen.items()
        if "gone" in seen
    ]
    print_row("of each, from when it was asked for", own, jobs)
    between("until all are gone")
    await followed.informer.close()
    await connection.close()


class Spent:
    """What was asked, and what it took, since the last time that it was told.

    Parameters
    ----------
    bed : Testbed
        The cluster.
    service : int
        The service's process.
    address : str
        Where it answers.
    token : Path
        Its operator's token.
    jobs : int
        How many jobs it is divided by.
    """

    def __init__(self, bed: Testbed, service: int, address: str, token: Path, jobs: int) -> None:
        self._bed = bed
        self._jobs = jobs
        self._address = address
        self._headers = {"Authorization": f"Bearer {token.read_text().strip()}"}
        named = {**bed.plane.components, "hollow nodes": bed.hollow.component}
        self._pids = {name: one.pid for name, one in named.items()}
        self._pids["service"] = service
        self._read = 0
        self._counted: dict[str, Mapping[float, float]] = {}
        self._since = time.monotonic()
        self._ticks = self._processors()

    def tell(self, what: str) -> None:
        """Print it."""
        now, ticks = time.monotonic(), self._processors()
        spent = now - self._since
        used = {name: ticks[name] - self._ticks[name] for name in ticks}
        load = " ".join(f"{one:.1f}" for one in os.getloadavg())
        print(f"-- {what}: {spent:.0f} s, load {load}")
        for name, seconds in sorted(used.items(), key=lambda one: -one[1]):
            each = 1000 * seconds / self._jobs
            print(f"{name:<36}{seconds / spent:>9.2f} cores{each:>9.0f} ms a job")
        self._quantiles("a look at a resource", "shadowprice_trainingjob_seconds", self._own())
        etcd = self._metrics("etcd")
        self._quantiles("etcd writes to disk", "etcd_disk_wal_fsync_duration_seconds", etcd)
        server = self._bed.access.ask("GET", "/metrics")
        for verb in ("POST", "PUT", "PATCH", "DELETE"):
            name = "apiserver_request_duration_seconds"
            self._quantiles(f"API server, {verb}", name, server, f'verb="{verb}"')
        self._quantiles("API server, of these in etcd", "etcd_request_duration_seconds", server)
        self._calls()
        self._since, self._ticks = time.monotonic(), self._processors()

    def _processors(self) -> dict[str, float]:
        """Return the processor time of every program, in seconds."""
        found = {}
        for name, pid in self._pids.items():
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            found[name] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return found

    def _own(self) -> str:
        return httpx.get(f"{self._address}/metrics", headers=self._headers, timeout=60.0).text

    def _metrics(self, name: str) -> str:
        words = self._bed.component(name).words
        address = words[words.index("--listen-client-urls") + 1]
        return httpx.get(f"{address}/metrics", timeout=60.0).text

    def _quantiles(self, what: str, name: str, text: str, verb: str = "") -> None:
        """Print median and 99th percentile of a histogram, as its buckets tell them."""
        counts: defaultdict[float, float] = defaultdict(float)
        for line in text.splitlines():
            if line.startswith(f"{name}_bucket{{") and verb in line:
                at = re.search(r'le="([^"]+)"', line)
                assert at is not None
                counts[float(at[1])] += float(line.rpartition(" ")[2])
        before = self._counted.get(what, {})
        self._counted[what] = counts
        new = {at: count - before.get(at, 0.0) for at, count in counts.items()}
        total = new.get(math.inf, 0.0)
        if not total:
            return
        quantiles = [
            next(at for at, count in sorted(new.items()) if count >= share * total)
            for share in (0.5, 0.99)
        ]
        print(
            f"{what:<36}{total:>9.0f} times; 50% at most {quantiles[0]:g} s, 99% {quantiles[1]:g} s"
        )

    def _calls(self) -> None:
        """Print what the service asked the API server for, a job, and what answers took there."""
        took: defaultdict[str, list[float]] = defaultdict(list)
        number = -1
        for number, line in enumerate(entries(self._bed.audit)):
            if number < self._read or line["stage"] != "ResponseComplete":
                continue  # a stream has a line when it begins, too
            if line["user"]["username"] == USER and line["verb"] != "watch":
                about = line.get("objectRef", {})
                what = "/".join(filter(None, (about.get("resource"), about.get("subresource"))))
                came, left = (
                    datetime.fromisoformat(line[key].replace("Z", "+00:00")).timestamp()
                    for key in ("requestReceivedTimestamp", "stageTimestamp")
                )
                took[f"{line['verb']} {what}"].append(left - came)
        self._read = number + 1
        for what, seconds in sorted(took.items(), key=lambda one: -len(one[1]))[:14]:
            each, mean = len(seconds) / self._jobs, 1000 * sum(seconds) / len(seconds)
            print(f"{what:<36}{each:>9.2f} a job{mean:>12.0f} ms an answer")
        count = sum(map(len, took.values()))
        print(f"{'all':<36}{count / self._jobs:>9.2f} a job", flush=True)


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--nodes", type=int, default=100)
    options.add_argument("--jobs", type=int, default=200)
    options.add_argument("--rate", type=float, default=10.0, help="resources applied a second")
    options.add_argument("--policy", default="rolling")
    options.add_argument("--slot", default="30s")
    options.add_argument("--patience", type=float, default=300.0, help="seconds for either half")
    given = options.parse_args()
    if why := missing():
        print(why)
        return
    with (
        tempfile.TemporaryDirectory() as folder,
        Testbed(hollow=given.nodes, users={USER: ("system:masters",)}) as bed,
        closing(Logs(bed.hollow.address, bed.folder)),
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
            address = re.search(r"http://[\w.:]+", Path(folder, "log").read_text())
            assert address is not None
            token = Path(folder, "data", "operator.token")
            spent = Spent(bed, service.pid, address[0], token, given.jobs)
            asyncio.run(measure(bed, given.jobs, given.rate, given.patience, spent.tell))
        finally:
            service.send_signal(signal.SIGTERM)
            service.wait(60)


if __name__ == "__main__":
    main()

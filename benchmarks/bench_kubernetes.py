"""TrainingJobs on many nodes: times from resource to status, and the load of the API server.

Runs a real API server with hollow nodes, which accept pods and only report that they run, with one
line as their log (`make testbed`). ``shadowprice serve --executor kubernetes`` watches the
resources. The benchmark creates them at a steady rate, then deletes all together:
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
    """Return the TrainingJob of a job with one worker that requests one core."""
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


class StateWatch:
    """Watches the resources; `first_seen` has the time of each state of each resource, by name.

    Parameters
    ----------
    connection : ApiClient
        Connection to the API server.
    """

    def __init__(self, connection: ApiClient) -> None:
        self.first_seen: dict[str, dict[str, float]] = {}
        self.informer = Informer(connection, RESOURCES, self._reduce, self._changed)

    @staticmethod
    def _reduce(item: Mapping[str, Any]) -> tuple[str, str]:
        status = item.get("status", {})
        return str(item["metadata"]["name"]), str(status.get("state", ""))

    def _changed(self, _: str, old: tuple[str, str] | None, new: tuple[str, str] | None) -> None:
        now = time.monotonic()
        name, state = new or old or ("", "")
        self.first_seen.setdefault(name, {}).setdefault(state if new else "gone", now)

    def count(self, state: str) -> int:
        """Return the number of resources that have ever been in a state."""
        return sum(state in times for times in self.first_seen.values())

    async def wait(self, state: str, count: int, timeout: float) -> None:
        """Wait until a number of resources have been in a state, or until the timeout."""
        end = time.monotonic() + timeout
        while self.count(state) < count and time.monotonic() < end:
            await asyncio.sleep(0.1)


def print_row(label: str, seconds: Sequence[float], jobs: int) -> None:
    """Print quantiles of the seconds of the jobs that have any."""
    p50, p99, worst = np.quantile(seconds, [0.5, 0.99, 1.0]) if seconds else [float("nan")] * 3
    print(f"{label:<36}{len(seconds):>6} of {jobs}{p50:>9.2f}{p99:>9.2f}{worst:>9.2f}", flush=True)


async def measure(
    bed: Testbed, jobs: int, rate: float, timeout: float, print_costs: Callable[[str], None]
) -> None:
    """Create the resources, wait until they run, delete them; print times and costs."""
    connection = await ApiClient.open(str(bed.kubeconfig))
    watch = StateWatch(connection)
    await watch.informer.start()
    created: dict[str, float] = {}
    began = time.monotonic()
    for number in range(jobs):
        await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
        name = f"job-{number}"
        created[name] = time.monotonic()
        await connection.post(RESOURCES, resource(name))
    print(f"created {jobs} at {jobs / (time.monotonic() - began):.1f} per second", flush=True)
    await watch.wait("running", jobs, timeout)
    print(f"{'seconds':<36}{'jobs':>14}{'median':>9}{'p99':>9}{'max':>9}")
    until_status = [
        min(at for state, at in times.items() if state) - created[name]
        for name, times in watch.first_seen.items()
        if any(times)
    ]
    print_row("from creation to a status", until_status, jobs)
    until_running = [
        times["running"] - created[name]
        for name, times in watch.first_seen.items()
        if "running" in times
    ]
    print_row("from creation to a running pod", until_running, jobs)
    print_costs("until all run")
    began = time.monotonic()
    # One by one, as kubectl does: the server ends a request to delete all before it is done.
    requested: dict[str, float] = {}

    async def delete(name: str) -> None:
        await connection.delete(f"{RESOURCES}/{name}")
        requested[name] = time.monotonic()

    await asyncio.gather(*map(delete, created))
    print(f"sent all deletions in {time.monotonic() - began:.1f} s", flush=True)
    await watch.wait("gone", jobs, timeout)
    since_first = [times["gone"] - began for times in watch.first_seen.values() if "gone" in times]
    print_row("from the first deletion until gone", since_first, jobs)
    since_own = [
        max(0.0, times["gone"] - requested[name])
        for name, times in watch.first_seen.items()
        if "gone" in times
    ]
    print_row("from its own deletion until gone", since_own, jobs)
    print_costs("until all are gone")
    await watch.informer.close()
    await connection.close()


class Costs:
    """Processor times, latencies and requests since the last call of `print_costs`.

    Parameters
    ----------
    bed : Testbed
        The cluster.
    service : int
        Process of the service.
    address : str
        URL of the service.
    token : Path
        File of its operator's token.
    jobs : int
        Number of jobs, for costs per job.
    """

    def __init__(self, bed: Testbed, service: int, address: str, token: Path, jobs: int) -> None:
        self._bed = bed
        self._jobs = jobs
        self._address = address
        self._headers = {"Authorization": f"Bearer {token.read_text().strip()}"}
        components = {**bed.plane.components, "hollow nodes": bed.hollow.component}
        self._pids = {name: component.pid for name, component in components.items()}
        self._pids["service"] = service
        self._audit_lines = 0  # lines of the audit log that were printed
        self._buckets: dict[str, Mapping[float, float]] = {}  # of the last call, by histogram
        self._since = time.monotonic()
        self._cpu = self._cpu_seconds()

    def print_costs(self, phase: str) -> None:
        """Print the costs of a phase."""
        now, cpu = time.monotonic(), self._cpu_seconds()
        elapsed = now - self._since
        used = {name: cpu[name] - self._cpu[name] for name in cpu}
        load = " ".join(f"{average:.1f}" for average in os.getloadavg())
        print(f"-- {phase}: {elapsed:.0f} s, load {load}")
        for name, seconds in sorted(used.items(), key=lambda item: -item[1]):
            each = 1000 * seconds / self._jobs
            print(f"{name:<36}{seconds / elapsed:>9.2f} cores{each:>9.0f} ms a job")
        own = self._service_metrics()
        self._quantiles("reconciliation of a resource", "shadowprice_trainingjob_seconds", own)
        etcd = self._metrics("etcd")
        self._quantiles("etcd writes to disk", "etcd_disk_wal_fsync_duration_seconds", etcd)
        server = self._bed.access.ask("GET", "/metrics")
        for verb in ("POST", "PUT", "PATCH", "DELETE"):
            name = "apiserver_request_duration_seconds"
            self._quantiles(f"API server, {verb}", name, server, f'verb="{verb}"')
        self._quantiles("API server, time in etcd", "etcd_request_duration_seconds", server)
        self._print_requests()
        self._since, self._cpu = time.monotonic(), self._cpu_seconds()

    def _cpu_seconds(self) -> dict[str, float]:
        """Return the processor time of each program, in seconds."""
        seconds = {}
        for name, pid in self._pids.items():
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            seconds[name] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return seconds

    def _service_metrics(self) -> str:
        return httpx.get(f"{self._address}/metrics", headers=self._headers, timeout=60.0).text

    def _metrics(self, name: str) -> str:
        words = self._bed.component(name).words
        address = words[words.index("--listen-client-urls") + 1]
        return httpx.get(f"{address}/metrics", timeout=60.0).text

    def _quantiles(self, label: str, name: str, text: str, verb: str = "") -> None:
        """Print the buckets of a histogram's new values that have the median and the p99."""
        counts: defaultdict[float, float] = defaultdict(float)  # by upper bound
        for line in text.splitlines():
            if line.startswith(f"{name}_bucket{{") and verb in line:
                bound = re.search(r'le="([^"]+)"', line)
                assert bound is not None
                counts[float(bound[1])] += float(line.rpartition(" ")[2])
        before = self._buckets.get(label, {})
        self._buckets[label] = counts
        new = {bound: count - before.get(bound, 0.0) for bound, count in counts.items()}
        total = new.get(math.inf, 0.0)
        if not total:
            return
        median, p99 = (
            next(bound for bound, count in sorted(new.items()) if count >= share * total)
            for share in (0.5, 0.99)
        )
        print(f"{label:<36}{total:>9.0f} times; 50% at most {median:g} s, 99% {p99:g} s")

    def _print_requests(self) -> None:
        """Print the service's requests to the API server per job, with their mean duration."""
        durations: defaultdict[str, list[float]] = defaultdict(list)
        number = -1
        for number, line in enumerate(entries(self._bed.audit)):
            # A watch also has a line when it begins.
            if number < self._audit_lines or line["stage"] != "ResponseComplete":
                continue
            if line["user"]["username"] == USER and line["verb"] != "watch":
                target = line.get("objectRef", {})
                kind = "/".join(filter(None, (target.get("resource"), target.get("subresource"))))
                received, responded = (
                    datetime.fromisoformat(line[key].replace("Z", "+00:00")).timestamp()
                    for key in ("requestReceivedTimestamp", "stageTimestamp")
                )
                durations[f"{line['verb']} {kind}"].append(responded - received)
        self._audit_lines = number + 1
        for kind, seconds in sorted(durations.items(), key=lambda item: -len(item[1]))[:14]:
            each, mean = len(seconds) / self._jobs, 1000 * sum(seconds) / len(seconds)
            print(f"{kind:<36}{each:>9.2f} a job{mean:>12.0f} ms each")
        count = sum(map(len, durations.values()))
        print(f"{'all':<36}{count / self._jobs:>9.2f} a job", flush=True)


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--nodes", type=int, default=100)
    options.add_argument("--jobs", type=int, default=200)
    options.add_argument("--rate", type=float, default=10.0, help="resources created per second")
    options.add_argument("--policy", default="rolling")
    options.add_argument("--slot", default="30s")
    options.add_argument("--timeout", type=float, default=300.0, help="maximum seconds of a phase")
    given = options.parse_args()
    if reason := missing():
        print(reason)
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
        argv = ["serve", "-c", str(cluster), "--policy", given.policy, "--executor", "kubernetes"]
        argv += ["--address", str(bed.kubeconfig_of(USER)), "--data", f"{folder}/data"]
        argv += ["--listen", "127.0.0.1:0"]
        argv += ["--executor-set", "namespace=default", "--executor-set", "image=none:1"]
        with Path(folder, "log").open("wb") as log:
            service = subprocess.Popen(
                [str(Path(sys.executable).with_name("shadowprice")), *argv],
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
            costs = Costs(bed, service.pid, address[0], token, given.jobs)
            asyncio.run(measure(bed, given.jobs, given.rate, given.timeout, costs.print_costs))
        finally:
            service.send_signal(signal.SIGTERM)
            service.wait(60)


if __name__ == "__main__":
    main()

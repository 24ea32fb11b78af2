"""The live service under load: submissions, batches, subscribers of events, and a week of slots.

``submissions`` sends jobs directly to the durable engine, and measures processor time. ``single``
submits 100 jobs per second one by one, with 100 subscribers of the event stream. ``batches``
submits batches of 100, accepted as pending, and measures the time until all are decided.
``scrapes`` measures a scrape of the metrics and a query of prices, with 10,000 open jobs.
``decisions`` reads from a service that decides 600 jobs over a horizon of 20,000 slots, and at the
same moments from an idle one. ``week`` runs a week of 1 s slots on a manual clock, and prints the
growth of memory.

The service runs in its own process with ``serve --observe``, so executors aren't measured. Each
request has a scheduled time, at which it is sent even if earlier responses are late, and from which
its latency counts. ``benchmarks.bench_history`` measures the cost of a long history.

Run: ``python -m benchmarks.bench_service [single|batches|submissions|scrapes|decisions|week ...]
[--seconds 60] [--policy rolling]``.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from shadowprice.inputs.files import resolve_cluster
from shadowprice.policies.choice import PolicyChoice
from shadowprice.service.clock import SECOND, MonotonicWallClock
from shadowprice.service.metrics import Metrics
from shadowprice.service.service import warm_up_policy
from shadowprice.service.state.durable_engine import DurableEngine
from shadowprice.service.state.operations import SubmitJobs
from shadowprice.service.state.prices import prices
from shadowprice.service.state.slot_operations import AdvanceSlots
from shadowprice.service.state.submission import read_submissions
from shadowprice.service.store import Store, retention

START = "from shadowprice.cli.main import run; run()"
CLUSTER = """\
slot: 60s
horizon: 120
servers:
  - {name: gpu, count: 64, capacity: {gpu: 8, cpu: 64}}
"""


@dataclass
class Server:
    """A service in a process of its own."""

    address: str
    token: str
    process: subprocess.Popen[str]
    started: float

    def cpu(self) -> float:
        """Return the processor time of the process in seconds."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> float:
        """Return the resident memory of the process in MiB."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * resource.getpagesize() / 2**20


@contextmanager
def serving(folder: Path, policy: str, cluster: str = CLUSTER) -> Iterator[Server]:
    """Run a service without an executor."""
    (folder / "cluster.yaml").write_text(cluster)
    argv = [sys.executable, "-c", START, "serve", "-c", str(folder / "cluster.yaml"), "--data"]
    argv += [
        str(folder / "data"),
        "--listen",
        "127.0.0.1:0",
        "-p",
        policy,
        "--observe",
        "--executor",
        "none",
        "-q",
    ]
    began = time.perf_counter()
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*argv, "-o", "json"], stdout=subprocess.PIPE, stderr=log, text=True
        )
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise SystemExit((folder / "log").read_text())
        token = (folder / "data" / "operator.token").read_text().strip()
        address = json.loads(line)["address"]
        try:
            yield Server(address, token, process, time.perf_counter() - began)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
            process.stdout.close()


# ---------------------------------------------------------------- a client with little overhead


class Connection:
    """A persistent HTTP connection."""

    def __init__(self, server: Server) -> None:
        parts = urlsplit(server.address)
        self._host_port = str(parts.hostname), int(parts.port or 80)
        self._token = server.token
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    def head(self, method: str, path: str, body: bytes) -> bytes:
        """Return the head of a request."""
        return (
            f"{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {self._token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode()

    async def request(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """Send a request; return status and body of the response."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(*self._host_port, limit=1 << 24)
        reader, writer = self._streams
        writer.write(self.head(method, path, body) + body)
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        length = int(head.partition("content-length:")[2].partition("\r\n")[0] or 0)
        return int(head.split(" ", 2)[1]), await reader.readexactly(length)

    async def subscribe(self, received: list[int]) -> None:
        """Read the event stream, and add the number of events to ``received[0]``."""
        reader, writer = await asyncio.open_connection(*self._host_port, limit=1 << 24)
        writer.write(self.head("GET", "/v1/events", b""))
        try:
            while chunk := await reader.read(1 << 16):
                received[0] += chunk.count(b"\nevent: ")
        finally:
            writer.close()

    def close(self) -> None:
        """Close the connection."""
        if self._streams is not None:
            self._streams[1].close()


def job(name: str, minibatches: int = 20) -> dict[str, Any]:
    """Return the record of a job; by default it takes less than a minute."""
    return {
        "name": name,
        "chunks": 4,
        "minibatches": minibatches,
        "minibatch_time": "2s",
        "worker": {"gpu": 1, "cpu": 4},
        "utility": {"kind": "sigmoid", "value": 20, "decay": 0.1, "target": "30 slots"},
    }


def format_percentiles(label: str, times: Sequence[float]) -> str:
    """Format the percentiles of request times as a line."""
    ordered = sorted(times)
    median, p99 = (
        ordered[min(len(ordered) - 1, int(share * len(ordered)))] for share in (0.5, 0.99)
    )
    return (
        f"{label}: {len(ordered)} requests, median {1e3 * median:.1f} ms, "
        f"p99 {1e3 * p99:.1f} ms, longest {1e3 * ordered[-1]:.1f} ms"
    )


async def load(
    server: Server, bodies: Sequence[bytes], rate: float, subscribers: int
) -> tuple[list[float], int, int]:
    """Send submissions at a rate; return latencies, number of errors, and received events."""
    idle: asyncio.Queue[Connection] = asyncio.Queue()
    connections = [Connection(server) for _ in range(32)]
    for connection in connections:
        await connection.request("GET", "/healthz")
        idle.put_nowait(connection)
    received = [0]
    subscriptions = [
        asyncio.create_task(Connection(server).subscribe(received)) for _ in range(subscribers)
    ]
    await asyncio.sleep(1.0)
    times: list[float] = []
    errors = 0
    began = time.perf_counter() + 0.1

    async def submit(scheduled: float, body: bytes) -> None:
        nonlocal errors
        connection = await idle.get()
        status, _ = await connection.request("POST", "/v1/jobs", body)
        times.append(time.perf_counter() - scheduled)
        idle.put_nowait(connection)
        errors += status >= 300

    tasks = []
    for number, body in enumerate(bodies):
        scheduled = began + number / rate
        await asyncio.sleep(max(0.0, scheduled - time.perf_counter()))
        tasks.append(asyncio.create_task(submit(scheduled, body)))
    await asyncio.gather(*tasks)
    await asyncio.sleep(0.5)
    for task in subscriptions:
        task.cancel()
    for task in subscriptions:
        with suppress(asyncio.CancelledError):
            await task
    for connection in connections:
        connection.close()
    return times, errors, received[0]


def single(folder: Path, policy: str, seconds: int) -> None:
    """Submit 100 jobs per second, one by one, with 100 subscribers."""
    with serving(folder, policy) as server:
        bodies = [json.dumps(job(f"s-{number}")).encode() for number in range(100 * seconds)]
        before, began = server.cpu(), time.perf_counter()
        times, errors, events = asyncio.run(load(server, bodies, 100.0, subscribers=100))
        elapsed = time.perf_counter() - began
        print(format_percentiles("single, 100 per second, 100 subscribers", times))
        print(
            f"  {errors} errors; {events / 100:.0f} events per subscriber; the service used "
            f"{server.cpu() - before:.1f} s of CPU in {elapsed:.1f} s, {server.memory():.0f} MiB"
        )


def batches(folder: Path, policy: str, seconds: int) -> None:
    """Submit 1,000 jobs per second in batches of 100, with 100 subscribers."""
    with serving(folder, policy) as server:
        bodies = [
            json.dumps({"jobs": [job(f"b-{batch}-{number}", 2) for number in range(100)]}).encode()
            for batch in range(10 * seconds)
        ]
        before, began = server.cpu(), time.perf_counter()
        times, errors, _ = asyncio.run(load(server, bodies, 10.0, subscribers=100))
        accepted = time.perf_counter() - began

        async def count_pending() -> int:
            connection = Connection(server)
            _, body = await connection.request("GET", "/v1/service")
            connection.close()
            return int(json.loads(body)["pending"])

        pending = asyncio.run(count_pending())
        while asyncio.run(count_pending()):
            time.sleep(0.2)
        decided = time.perf_counter() - began
        print(format_percentiles("batches of 100, 10 per second, 100 subscribers", times))
        print(
            f"  {errors} errors; {pending} of {100 * len(bodies)} pending after "
            f"{accepted:.1f} s, all decided after {decided:.1f} s; "
            f"{server.cpu() - before:.1f} s of CPU"
        )


class ManualClock:
    """A clock whose time is set by the benchmark."""

    now = 1_800_000_000 * SECOND

    def wall(self) -> int:
        """Return the wall-clock time in nanoseconds."""
        return self.now

    def physical(self) -> int:
        """Return the monotonic time, which equals the wall-clock time."""
        return self.now


def submissions(folder: Path, policy: str, jobs: int = 3_000) -> None:
    """Measure the processor time of submissions without a network, alone and in groups of 16."""
    cluster = resolve_cluster(yaml.safe_load(CLUSTER))
    warm_up_policy(cluster, PolicyChoice(policy, {}))
    for together in (1, 16):
        store = Store(str(folder / f"together-{together}"))
        store.open()
        clock = ManualClock()
        durable = DurableEngine(
            store, cluster, PolicyChoice(policy, {}), MonotonicWallClock(clock), virtual=True
        )
        records = [job(f"s-{number}") for number in range(jobs)]
        operations = [
            SubmitJobs(read_submissions([record], cluster, tenant=None, runs=False), True)
            for record in records
        ]
        cpu = time.process_time()
        for first in range(0, jobs, together):
            clock.now += together * SECOND // 100
            for answer in durable.commit(operations[first : first + together]).answers:
                if isinstance(answer, BaseException):
                    raise answer
        spent = (time.process_time() - cpu) / jobs
        print(f"groups of {together}: {1e3 * spent:.2f} ms of CPU per submission, {jobs} open jobs")
        store.close()


def scrapes(folder: Path, policy: str, jobs: int = 10_000) -> None:
    """Measure processor time and growth of memory of scrapes and of price queries."""
    cluster = resolve_cluster(yaml.safe_load(CLUSTER))
    warm_up_policy(cluster, PolicyChoice(policy, {}))
    store = Store(str(folder / "scrapes"))
    store.open()
    clock = ManualClock()
    durable = DurableEngine(
        store, cluster, PolicyChoice(policy, {}), MonotonicWallClock(clock), virtual=True
    )
    for first in range(0, jobs, 500):
        records = [job(f"s-{number}", 20_000) for number in range(first, first + 500)]
        batch = read_submissions(records, cluster, tenant=None, runs=False)
        clock.now += SECOND
        durable.commit([SubmitJobs(batch, at_once=True)])
    state, metrics = durable.present_state(), Metrics()
    for view in state.views.values():
        metrics.count_job(None, view)

    def scrape() -> None:
        metrics.scrape((), state.prices)

    def query() -> None:
        prices(durable.state.engine, durable.state.calendar, policy, 24)

    gc.collect()
    for label, call in (("scrape", scrape), ("24 slots of prices", query)):
        call()
        before, cpu = memory(), time.process_time()
        for _ in range(100):
            call()
        spent = (time.process_time() - cpu) / 100
        print(
            f"{label}: {1e3 * spent:.2f} ms of CPU, {memory() - before:.1f} MiB more after 100, "
            f"{len(state.views)} open jobs"
        )
    store.close()


def memory() -> float:
    """Return the resident memory of this process in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


READS = ("/healthz", "/metrics", "/v1/jobs/d-0", "/v1/jobs?limit=100", "/v1/prices", "/v1/timeline")


def decisions(folder: Path, policy: str) -> None:
    """Read every 10 ms while 600 pending jobs are decided over 20,000 slots.

    An idle service gets the same requests at the same moments, to show the noise of the machine.
    """
    text = CLUSTER.replace("horizon: 120", "horizon: 20_000")
    times: dict[tuple[str, str], list[float]] = {}

    async def read(label: str, connection: Connection, path: str) -> None:
        began = time.perf_counter()
        status, _ = await connection.request("GET", path)
        assert status == 200, (label, path, status)
        times.setdefault((path, label), []).append(time.perf_counter() - began)

    async def probe(busy: Server, idle: Server) -> None:
        deciding, waiting = Connection(busy), Connection(idle)
        await waiting.request("POST", "/v1/jobs", json.dumps(job("d-0", 2_000)).encode())
        jobs = [job(f"d-{number}", 2_000) for number in range(600)]
        await deciding.request("POST", "/v1/jobs", json.dumps({"jobs": jobs}).encode())
        pending, began, cpu = 1, time.perf_counter(), busy.cpu()
        while pending:
            for number in range(48):
                path = READS[number % len(READS)]
                await asyncio.gather(read("deciding", deciding, path), read("idle", waiting, path))
                await asyncio.sleep(0.01)
            pending = json.loads((await deciding.request("GET", "/v1/service"))[1])["pending"]
        print(
            f"600 jobs decided over 20,000 slots in {time.perf_counter() - began:.1f} s, "
            f"{busy.cpu() - cpu:.1f} s of CPU"
        )
        deciding.close()
        waiting.close()

    (folder / "idle").mkdir()
    (folder / "busy").mkdir()
    with (
        serving(folder / "idle", policy, text) as idle,
        serving(folder / "busy", policy, text) as busy,
    ):
        asyncio.run(probe(busy, idle))
    for path, label in sorted(times):
        print(format_percentiles(f"{path}, {label}", times[path, label]))


def week(folder: Path, policy: str, days: float) -> None:
    """Run days of 1 s slots on a manual clock, with a new job every ten seconds."""
    servers = [{"name": "gpu", "count": 8, "capacity": {"gpu": 8, "cpu": 64}}]
    cluster = resolve_cluster({"slot": "1s", "horizon": 60, "servers": servers})
    clock = ManualClock()
    store = Store(str(folder / "week"))
    store.open()
    monotonic = MonotonicWallClock(clock)
    durable = DurableEngine(store, cluster, PolicyChoice(policy, {}), monotonic, virtual=True)
    slots = int(days * 86_400)
    began, cpu = time.perf_counter(), time.process_time()
    for slot in range(slots):
        clock.now += SECOND
        operations: list[Any] = [AdvanceSlots(virtual=True)]
        if slot % 10 == 0:
            submission = read_submissions([job(f"w-{slot}", 4)], cluster, tenant=None, runs=False)
            operations.append(SubmitJobs(submission, at_once=True))
        durable.commit(operations)
        if durable.snapshot_due():
            durable.write_snapshot()
        if slot % 3_600 == 0:  # purge jobs that closed more than a day ago, every hour
            before = monotonic.now() - 86_400 * SECOND
            more = True
            while more:
                old = [job.key for job in retention.expired_jobs(store, before)]
                more = retention.purge(store, before, old) or bool(old)
        if slot % max(1, slots // 28) == 0 or slot == slots - 1:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            size = sum(file.stat().st_size for file in (folder / "week").iterdir())
            print(
                f"  slot {slot:>7,}: {pages * resource.getpagesize() / 2**20:.1f} MiB, "
                f"{sys.getallocatedblocks():,} blocks, store {size / 2**20:.0f} MiB, "
                f"{time.perf_counter() - began:.0f} s, {time.process_time() - cpu:.0f} s of CPU",
                flush=True,
            )
    store.close()


def main() -> None:
    """Run the chosen measurements, by default all."""
    parser = argparse.ArgumentParser(description=__doc__)
    kinds = ["single", "batches", "submissions", "scrapes", "decisions", "week"]
    parser.add_argument(
        "kinds", nargs="*", choices=[*kinds, []], metavar="KIND", help=", ".join(kinds)
    )
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--days", type=float, default=7.0)
    parser.add_argument("--policy", default="rolling")
    options = parser.parse_args()
    for kind in options.kinds or kinds:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            if kind == "submissions":
                submissions(folder, options.policy)
            elif kind == "scrapes":
                scrapes(folder, options.policy)
            elif kind == "decisions":
                decisions(folder, options.policy)
            elif kind == "week":
                week(folder, options.policy, options.days)
            else:
                {"single": single, "batches": batches}[kind](
                    folder, options.policy, options.seconds
                )


if __name__ == "__main__":
    main()

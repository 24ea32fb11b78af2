"""The live service with a long history: every page and listing, and how soon it is back.

``pages`` asks for every page and listing of a service that knows 100,000 closed jobs: how long each
takes, and its processor time. ``recovery`` starts one with as many, thousands of open jobs and
nearly as many events since the last snapshot as there may be, which a process left that was killed;
then kills that one (``kill -9``) after submissions that it answered, and starts it again.

Run: ``python -m benchmarks.bench_history [pages|recovery ...] [--jobs 100000] [--policy rolling]``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import yaml
from benchmarks.bench_service import CLUSTER, Connection, HandClock, Server, job, serving

from shadowprice.inputs.files import resolve_cluster
from shadowprice.service.clock import SECOND, SteadyClock
from shadowprice.service.operations import Submit
from shadowprice.service.recovery import PolicyChoice
from shadowprice.service.slots import Edge
from shadowprice.service.store import Store, tables
from shadowprice.service.submission import read_submissions
from shadowprice.service.truth import SNAPSHOT_EVENTS, Truth
from shadowprice.service.views import JobView, State

SECONDS: Final = 60
"""Length of a slot of `CLUSTER`."""


def fill(folder: Path, jobs: int) -> None:
    """Write a history of closed jobs."""
    states = (State.FINISHED, State.FINISHED, State.REFUSED, State.FAILED, State.CANCELLED)
    store = Store(str(folder / "data"))
    store.open()
    second = 1_000_000_000
    now = time.time_ns() - jobs * second
    text = json.dumps(job("x"))
    on = json.dumps([["gpu-0", 1, 0]])
    for first in range(0, jobs, 5_000):
        rows, events, ran = [], [], []
        for at in range(first, min(jobs, first + 5_000)):
            state, when = states[at % len(states)], now + at * second
            view = JobView(10 + at, f"old-{at}", f"tenant-{at % 20}", state, when, when)
            view = replace(view, arrival=1, promise=9, closed=when + second, generation=1)
            rows.append(
                {
                    "id": view.id,
                    "name": view.name,
                    "tenant": view.tenant,
                    "state": state.value,
                    "open": 0,
                    "submitted": when,
                    "closed": view.closed,
                    "spec": text,
                    "content": "0" * 64,
                    "view": view.stored(),
                    "token": None,
                }
            )
            ran.append(
                {
                    "job": view.name,
                    "generation": 1,
                    "ordered": when,
                    "started": when,
                    "ended": view.closed,
                    "placement": on,
                    "slot": 1,
                    "workers": 1,
                    "ps": 0,
                }
            )
            for part, kind in enumerate(("submitted", "admitted", "started", "finished")):
                data = {"promise": 9, "slot": 1, "generation": 1, "placement": [["gpu-0", 1, 0]]}
                data |= {"payoff": 1.0, "utility": 2.0, "cost": 1.0, "kept": True}
                events.append(
                    {
                        "id": 100 + 4 * at + part,
                        "at": when,
                        "kind": kind,
                        "decision": int(kind == "admitted"),
                        "job": view.name,
                        "tenant": view.tenant,
                        "data": json.dumps(data),
                    }
                )
        with store.transaction() as connection:
            store.write(connection, tables.jobs.insert(), rows)
            store.write(connection, tables.events.insert(), events)
            store.write(connection, tables.generations.insert(), ran)
    store.close()


def ask(server: Server, path: str) -> Any:
    """Return what a service answers."""

    async def asked() -> Any:
        connection = Connection(server)
        status, body = await connection.ask("GET", path)
        connection.close()
        assert status == 200, (path, status, body)
        return json.loads(body)

    return asyncio.run(asked())


def pages(folder: Path, policy: str, jobs: int) -> None:
    """Every page and listing over a long history."""
    with serving(folder, policy):
        pass
    fill(folder, jobs)
    middle = f"/v1/jobs/old-{jobs // 3}"
    paths = {
        "the dashboard's page": "/",
        "newest jobs": "/v1/jobs?limit=100",
        "1,000 jobs": "/v1/jobs?limit=1000",
        "jobs of a state": "/v1/jobs?state=cancelled&limit=100",
        "jobs of three states": "/v1/jobs?state=failed,refused,running&limit=100",
        "jobs of a tenant": "/v1/jobs?tenant=tenant-7&limit=100",
        "jobs of tenant and state": "/v1/jobs?tenant=tenant-7&state=failed&limit=100",
        "a state that is empty": "/v1/jobs?state=running&limit=100",
        "jobs from the middle": f"/v1/jobs?cursor={jobs // 2}&limit=100",
        "the oldest jobs": "/v1/jobs?cursor=110&limit=100",
        "a job": middle,
        "a story": f"{middle}/explain",
        "what ran of a job": f"{middle}/generations",
        "a job's curve": f"{middle}/progress",
        "newest decisions": "/v1/decisions?limit=100",
        "1,000 decisions": "/v1/decisions?limit=1000",
        "decisions of a tenant": "/v1/decisions?tenant=tenant-7&limit=100",
        "decisions on a job": f"/v1/decisions?job=old-{jobs // 3}",
        "servers": "/v1/servers",
        "servers x time": "/v1/timeline",
        "tenants": "/v1/tenants",
        "tokens": "/v1/tokens",
        "prices": "/v1/prices",
        "prices of the past": "/v1/prices/history",
        "what-ifs": "/v1/whatif",
        "the service": "/v1/service",
        "metrics": "/metrics",
    }
    with serving(folder, policy) as server:
        print(f"pages, {jobs:,} jobs of history: median and longest of 20, processor time of one")

        async def each() -> None:
            connection = Connection(server)
            for label, path in paths.items():
                times, cpu = [], server.cpu()
                for _ in range(20):
                    began = time.perf_counter()
                    status, body = await connection.ask("GET", path)
                    times.append(time.perf_counter() - began)
                    assert status == 200, (path, status, body)
                print(
                    f"  {label}: {1e3 * statistics.median(times):.1f} ms, "
                    f"{1e3 * max(times):.1f} ms, {50 * (server.cpu() - cpu):.1f} ms of CPU, "
                    f"{len(body) / 1024:.0f} KiB",
                    flush=True,
                )
            connection.close()

        asyncio.run(each())


def live_and_die(folder: Path, policy: str, waiting: int, events: int) -> None:
    """Take thousands of events in, and be killed shortly before a snapshot would be written."""
    cluster = resolve_cluster(yaml.safe_load(CLUSTER))
    store = Store(str(folder / "data"))
    store.open()
    clock = HandClock()
    clock.at = time.time_ns() - ((events - waiting) // 20 + 2) * SECONDS * SECOND
    truth = Truth(store, cluster, PolicyChoice(policy, {}), SteadyClock(clock), virtual=True)
    first = truth.engine.sequence
    at = 0
    while truth.engine.sequence - first < events:
        record = job(f"s-{at}", 200 if at < waiting else 2)
        found = read_submissions([record], cluster, tenant=None, runs=False)
        truth.commit([Submit(found, at_once=True)])
        at += 1
        if at > waiting and at % 20 == 0:
            clock.at += SECONDS * SECOND
            truth.commit([Edge(virtual=True)])
    print(json.dumps({"open": len(truth.views), "events": truth.engine.sequence - first}))
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)


def recovery(folder: Path, policy: str, jobs: int, waiting: int, events: int) -> None:
    """Start after ``kill -9``, with a long history."""
    with serving(folder, policy) as server:
        print(f"a start with nothing: {server.started:.2f} s, {server.cpu():.2f} s of CPU")
    fill(folder, jobs)
    with serving(folder, policy) as server:
        print(
            f"  with {jobs:,} jobs of history: {server.started:.2f} s, {server.cpu():.2f} s of CPU"
        )
    words = [sys.executable, "-m", "benchmarks.bench_history", "live-and-die"]
    words += ["--folder", str(folder), "--policy", policy]
    lived = subprocess.run(
        [*words, "--open", str(waiting), "--events", str(events)],
        check=False,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert lived.returncode == -signal.SIGKILL, lived.returncode
    known = json.loads(lived.stdout)
    with serving(folder, policy) as server:
        print(
            f"  and {known['events']:,} events of one that was killed, {known['open']:,} jobs "
            f"open: {server.started:.2f} s, {server.cpu():.2f} s of CPU"
        )
        told = ask(server, "/v1/jobs?state=admitted,standby,running,resizing,pending&limit=1000")
        assert len(told["jobs"]) == min(1_000, known["open"]), len(told["jobs"])

        async def submit() -> None:
            connection = Connection(server)
            for at in range(100):
                body = json.dumps(job(f"last-{at}")).encode()
                status, _ = await connection.ask("POST", "/v1/jobs", body)
                assert status == 200, status
            connection.close()

        asyncio.run(submit())
        server.process.kill()
        server.process.wait()
    with serving(folder, policy) as server:
        print(f"  killed with 100 more: {server.started:.2f} s, {server.cpu():.2f} s of CPU")
        newest = ask(server, "/v1/jobs?limit=100")["jobs"]
        assert [one["name"] for one in newest] == [f"last-{at}" for at in reversed(range(100))]


def main() -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", default=["pages", "recovery"], help="pages, recovery")
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--open", type=int, default=2_000, help="jobs that are open when killed")
    parser.add_argument(
        "--events", type=int, default=SNAPSHOT_EVENTS - 100, help="of it since its last snapshot"
    )
    parser.add_argument("--policy", default="rolling")
    parser.add_argument("--folder", type=Path, help="of what is to be killed")
    asked = parser.parse_args()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    for what in asked.what:
        if what == "live-and-die":
            live_and_die(asked.folder, asked.policy, asked.open, asked.events)
        with tempfile.TemporaryDirectory() as name:
            if what == "pages":
                pages(Path(name), asked.policy, asked.jobs)
            else:
                recovery(Path(name), asked.policy, asked.jobs, asked.open, asked.events)


if __name__ == "__main__":
    main()

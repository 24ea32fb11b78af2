"""The live service with a long history: times of requests, of dashboard views, and of recovery.

``pages`` requests every page and list of a service with 100,000 closed jobs and 1,000 open jobs, of
twenty tenants with budgets, and measures times and processor time. ``views`` opens every dashboard
view of the same service in Chromium, and measures the time until the view is complete. ``recovery``
builds a store with as many closed jobs, thousands of open jobs, and almost a snapshot interval of
events. It starts the service on the store, submits jobs, kills the service (``kill -9``), and times
the next start.

Run: ``python -m benchmarks.bench_history [pages|views|recovery ...]
[--jobs 100000] [--policy rolling]``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import yaml
from benchmarks.bench_service import CLUSTER, Connection, ManualClock, Server, job, serving

from shadowprice.inputs.files import resolve_cluster
from shadowprice.policies.choice import PolicyChoice
from shadowprice.service.clock import SECOND, MonotonicWallClock
from shadowprice.service.state.durable_engine import SNAPSHOT_EVENTS, DurableEngine
from shadowprice.service.state.job_views import JobView, State
from shadowprice.service.state.operations import SubmitJobs
from shadowprice.service.state.slot_operations import AdvanceSlots
from shadowprice.service.state.submission import read_submissions
from shadowprice.service.store import Store, tables

SLOT_SECONDS: Final = 60  # length of a slot of `CLUSTER`
TENANTS: Final = 20
OPEN: Final = 1_000  # open jobs during the measurements of `pages` and `views`


def write_history(folder: Path, jobs: int) -> None:
    """Write a history of closed jobs into the service's store."""
    states = (State.FINISHED, State.FINISHED, State.REFUSED, State.FAILED, State.CANCELLED)
    store = Store(str(folder / "data"))
    store.open()
    begin = time.time_ns() - jobs * SECOND
    text = json.dumps(job("x"))
    placement = json.dumps([["gpu-0", 1, 0]])
    for first in range(0, jobs, 5_000):
        rows, events, generations, entries = [], [], [], []
        for number in range(first, min(jobs, first + 5_000)):
            state, submitted = states[number % len(states)], begin + number * SECOND
            view = JobView(
                10 + number,
                f"tenant-{number % 20}/old-{number}",
                f"old-{number}",
                f"tenant-{number % 20}",
                state,
                submitted,
                submitted,
            )
            view = replace(view, arrival=1, promise=9, closed=submitted + SECOND, generation=1)
            rows.append(
                {
                    "id": view.id,
                    "key": view.key,
                    "qualified_name": view.key,
                    "name": view.name,
                    "tenant": view.tenant,
                    "state": state.value,
                    "open": 0,
                    "submitted": submitted,
                    "closed": view.closed,
                    "spec": text,
                    "content": "0" * 64,
                    "view": view.stored(),
                    "token": None,
                }
            )
            generations.append(
                {
                    "job": view.name,
                    "generation": 1,
                    "ordered": submitted,
                    "started": submitted,
                    "ended": view.closed,
                    "placement": placement,
                    "slot": 1,
                    "workers": 1,
                    "ps": 0,
                }
            )
            for part, (kind, points) in enumerate((("debit", -8), ("refund", 8))):
                entries.append(
                    {
                        "id": 2 * number + part + 1,
                        "at": submitted,
                        "tenant": view.tenant,
                        "kind": kind,
                        "points": points * 1_000_000,
                        "balance": min(0, points) * 1_000_000,
                        "job": view.name,
                        "other": None,
                        "note": "",
                    }
                )
            for part, kind in enumerate(("submitted", "admitted", "started", "finished")):
                data = {"promise": 9, "slot": 1, "generation": 1, "placement": [["gpu-0", 1, 0]]}
                data |= {"payoff": 1.0, "utility": 2.0, "cost": 1.0, "kept": True}
                events.append(
                    {
                        "id": 100 + 4 * number + part,
                        "at": submitted,
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
            store.write(connection, tables.generations.insert(), generations)
            store.write(connection, tables.entries.insert(), entries)
    store.close()


def get_json(server: Server, path: str) -> Any:
    """Return the JSON response of a service."""

    async def request() -> Any:
        connection = Connection(server)
        status, body = await connection.request("GET", path)
        connection.close()
        assert status == 200, (path, status, body)
        return json.loads(body)

    return asyncio.run(request())


def prepare(folder: Path, policy: str, jobs: int) -> None:
    """Write a history, and submit open jobs of tenants with budgets."""
    with serving(folder, policy):
        pass  # creates the store
    write_history(folder, jobs)
    with serving(folder, policy) as server:

        async def submit() -> None:
            connection = Connection(server)
            budget = {"points": 1e6, "period": "7d", "carry": 0}
            for number in range(TENANTS):
                body = json.dumps({"share": {}, "budget": budget}).encode()
                path = f"/v1/tenants/tenant-{number}"
                status, response = await connection.request("PUT", path, body)
                assert status == 200, (status, response)
            # Most run for hours, so that later jobs have to wait.
            records = [
                {**job(f"open-{number}", 2_000), "tenant": f"tenant-{number % TENANTS}"}
                for number in range(OPEN)
            ]
            body = json.dumps({"jobs": records}).encode()
            status, response = await connection.request("POST", "/v1/jobs?wait=60", body)
            assert status == 202, (status, response)
            while json.loads((await connection.request("GET", "/v1/service"))[1])["pending"]:
                await asyncio.sleep(0.2)
            connection.close()

        asyncio.run(submit())
        time.sleep(SLOT_SECONDS + 2)  # until a slot begins, and prices are sampled
        newest = get_json(server, f"/v1/jobs?limit={OPEN}")["jobs"]
        states = Counter(record["state"] for record in newest)
        print(f"{jobs:,} closed jobs; newest jobs by state: {dict(states)}")


def pages(folder: Path, policy: str, jobs: int) -> None:
    """Measure the requests of every page and list, with a long history."""
    prepare(folder, policy, jobs)
    closed_job = f"/v1/jobs/old-{jobs // 3}"
    open_states = "state=pending,admitted,standby,running,resizing"
    paths = {
        "the dashboard's page": "/",
        "newest jobs": "/v1/jobs?limit=100",
        "1,000 open jobs": f"/v1/jobs?{open_states}&limit=1000",
        "open jobs": f"/v1/jobs?{open_states}&limit=100",
        "1,000 closed jobs": f"/v1/jobs?cursor={jobs // 2}&limit=1000",
        "jobs of a state": "/v1/jobs?state=cancelled&limit=100",
        "jobs of three states": "/v1/jobs?state=failed,refused,running&limit=100",
        "jobs of a tenant": "/v1/jobs?tenant=tenant-7&limit=100",
        "jobs of tenant and state": "/v1/jobs?tenant=tenant-8&state=failed&limit=100",
        "a state without jobs": "/v1/jobs?state=resizing&limit=100",
        "jobs from the middle": f"/v1/jobs?cursor={jobs // 2}&limit=100",
        "the oldest jobs": "/v1/jobs?cursor=110&limit=100",
        "a closed job": closed_job,
        "its history": f"{closed_job}/explain",
        "its generations": f"{closed_job}/generations",
        "its progress": f"{closed_job}/progress",
        "an open job": "/v1/jobs/open-0",
        "history of the open job": "/v1/jobs/open-0/explain",
        "timeline of the open job": "/v1/timeline?job=open-0&back=60&slots=60",
        "newest decisions": "/v1/decisions?limit=100",
        "1,000 decisions": "/v1/decisions?limit=1000",
        "decisions of a tenant": "/v1/decisions?tenant=tenant-7&limit=100",
        "decisions on a job": f"/v1/decisions?job=old-{jobs // 3}",
        "servers": "/v1/servers",
        "timeline of the servers": "/v1/timeline",
        "the same, 240 slots back and ahead": "/v1/timeline?back=240&slots=240",
        "timeline of an observed scheduler": "/v1/timeline?real=true",
        "timeline of a server": "/v1/timeline?server=gpu-0&back=240&slots=240",
        "a comparison": "/v1/comparison?days=7",
        "jobs of the comparison": "/v1/comparison/jobs?limit=100",
        "tenants": "/v1/tenants",
        "a statement": "/v1/tenants/tenant-7/statement?back=0&limit=1000",
        "100 of 10,000 entries": "/v1/tenants/tenant-7/statement?back=0&limit=100",
        "tokens": "/v1/tokens",
        "prices": "/v1/prices",
        "prices over 240 slots": "/v1/prices?slots=240",
        "prices of the past": "/v1/prices/history?back=1000&limit=500",
        "what-ifs": "/v1/whatif",
        "the service": "/v1/service",
        "metrics": "/metrics",
        "the API's description": "/v1/openapi.json",
    }
    request = json.dumps({**job("quoted"), "tenant": "tenant-7"}).encode()
    with serving(folder, policy) as server:
        print("pages: median and longest of 20 requests, processor time of one")

        async def measure_all() -> None:
            connection = Connection(server)
            for label, path in [*paths.items(), ("a quote", "/v1/quote")]:
                times, cpu = [], server.cpu()
                for _ in range(20):
                    began = time.perf_counter()
                    if label == "a quote":
                        status, body = await connection.request("POST", path, request)
                    else:
                        status, body = await connection.request("GET", path)
                    times.append(time.perf_counter() - began)
                    assert status == 200, (path, status, body)
                print(
                    f"  {label}: {1e3 * statistics.median(times):.1f} ms, "
                    f"{1e3 * max(times):.1f} ms, {50 * (server.cpu() - cpu):.1f} ms of CPU, "
                    f"{len(body) / 1024:.0f} KiB",
                    flush=True,
                )
            connection.close()

        asyncio.run(measure_all())


VIEWS: Final = {
    "cluster": "#/",
    "a server": "#/server/gpu-0",
    "queue": "#/queue",
    "an open job": "#/job/open-0",
    "a closed job": "#/job/old-100",
    "prices": "#/prices",
    "quote": "#/quote",
    "decisions": "#/activity",
    "tenants": "#/tenants",
    "a statement": "#/statement/tenant-7",
    "what if": "#/whatif",
    "observed scheduler": "#/observed",
}
"""Addresses of the dashboard's views."""

COUNT_REQUESTS: Final = """
const realFetch = window.fetch;
window.pending = 0;
window.fetch = async (...words) => {
  if (String(words[0]).includes("/v1/events")) return realFetch(...words);
  window.pending += 1;
  try { return await realFetch(...words); } finally { window.pending -= 1; }
};
"""
"""Counts the pending requests of a page, except the event stream, which never ends."""

OPEN_VIEW: Final = """async (address) => {
  const frame = () => new Promise(requestAnimationFrame);
  const began = performance.now();
  let complete = null;
  location.hash = address;
  await frame();
  for (let quiet = 0; quiet < 5; await frame()) {
    quiet = window.pending ? 0 : quiet + 1;
    if (quiet === 1) complete = performance.now() - began;
  }
  return complete;
}"""
"""Opens a view, and returns the milliseconds until five frames without a pending request begin."""


def views(folder: Path, policy: str, jobs: int) -> None:
    """Open every view in Chromium, at the widths of a computer and a phone."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415  # an extra of the tests

    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    prepare(folder, policy, jobs)
    with serving(folder, policy) as server, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for width, height in ((1400, 900), (390, 844)):
            page = browser.new_page(viewport={"width": width, "height": height})
            page.add_init_script(COUNT_REQUESTS)
            page.goto(server.address)
            page.get_by_label("Token").fill(server.token)
            page.keyboard.press("Enter")
            page.locator(".chip.live").wait_for()
            print(f"views, {width} pixels wide: median and longest of 7 until complete")
            for label, address in VIEWS.items():
                times = []
                for _ in range(7):
                    page.evaluate(OPEN_VIEW, "#/nowhere")
                    times.append(page.evaluate(OPEN_VIEW, address))
                assert page.locator("main h1").inner_text() != "Page not found", label
                median = statistics.median(times)
                print(f"  {label}: {median:.0f} ms, {max(times):.0f} ms", flush=True)
            page.close()
        browser.close()


def run_until_killed(folder: Path, policy: str, jobs: int, waiting: int, events: int) -> None:
    """Process thousands of events, then kill this process shortly before a snapshot is due."""
    cluster = resolve_cluster(yaml.safe_load(CLUSTER))
    store = Store(str(folder / "data"))
    store.open()
    clock = ManualClock()
    # So long ago that all slots of this run have passed when the service starts.
    clock.now = time.time_ns() - ((events - waiting) // 20 + 2) * SLOT_SECONDS * SECOND
    choice = PolicyChoice(policy, {})
    # The first start stores the beginning of slot 0.
    DurableEngine(store, cluster, choice, MonotonicWallClock(clock), virtual=True)
    store.close()
    write_history(folder, jobs)
    store = Store(str(folder / "data"))
    store.open()
    durable = DurableEngine(store, cluster, choice, MonotonicWallClock(clock), virtual=True)
    first = durable.state.engine.sequence
    number = 0
    while durable.state.engine.sequence - first < events:
        record = job(f"s-{number}", 200 if number < waiting else 2)
        submissions = read_submissions([record], cluster, tenant=None, runs=False)
        durable.commit([SubmitJobs(submissions, at_once=True)])
        number += 1
        if number > waiting and number % 20 == 0:
            clock.now += SLOT_SECONDS * SECOND
            [began] = durable.commit([AdvanceSlots(virtual=True)]).answers
            assert began.is_caught_up, began
    slots = durable.state.engine.slot
    print(
        json.dumps(
            {
                "open": len(durable.state.views),
                "events": durable.state.engine.sequence - first,
                "slots": slots,
            }
        )
    )
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)


def recovery(folder: Path, policy: str, jobs: int, waiting: int, events: int) -> None:
    """Measure starts: on an empty store, with a long history, and after ``kill -9``."""
    # Two stores, because the slots of the killed process began in the past.
    before, folder = folder / "before", folder / "killed"
    before.mkdir()
    folder.mkdir()
    with serving(before, policy) as server:
        print(f"start on an empty store: {server.started:.2f} s, {server.cpu():.2f} s of CPU")
    write_history(before, jobs)
    with serving(before, policy) as server:
        print(f"  with {jobs:,} closed jobs: {server.started:.2f} s, {server.cpu():.2f} s of CPU")
    argv = [sys.executable, "-m", "benchmarks.bench_history", "run-until-killed"]
    argv += ["--folder", str(folder), "--policy", policy, "--jobs", str(jobs)]
    killed = subprocess.run(
        [*argv, "--open", str(waiting), "--events", str(events)],
        check=False,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert killed.returncode == -signal.SIGKILL, killed.returncode
    state = json.loads(killed.stdout)
    with serving(folder, policy) as server:
        print(
            f"  and {state['events']:,} events ({state['slots']} slots) of a killed process, "
            f"{state['open']:,} open jobs: {server.started:.2f} s, {server.cpu():.2f} s of CPU"
        )
        response = get_json(
            server, "/v1/jobs?state=admitted,standby,running,resizing,pending&limit=1000"
        )
        assert len(response["jobs"]) == min(1_000, state["open"]), len(response["jobs"])

        async def submit() -> None:
            connection = Connection(server)
            for number in range(100):
                body = json.dumps(job(f"last-{number}")).encode()
                status, _ = await connection.request("POST", "/v1/jobs", body)
                assert status == 200, status
            connection.close()

        asyncio.run(submit())
        server.process.kill()
        server.process.wait()
    with serving(folder, policy) as server:
        print(f"  and 100 more jobs: {server.started:.2f} s, {server.cpu():.2f} s of CPU")
        newest = get_json(server, "/v1/jobs?limit=100")["jobs"]
        expected = [f"last-{number}" for number in reversed(range(100))]
        assert [record["name"] for record in newest] == expected


def main() -> None:
    """Run the chosen measurements."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "kinds", nargs="*", default=["pages", "recovery"], metavar="KIND",
        help="pages, views or recovery",
    )  # fmt: skip
    parser.add_argument("--jobs", type=int, default=100_000, help="closed jobs")
    parser.add_argument("--open", type=int, default=2_000, help="open jobs at the kill")
    parser.add_argument(
        "--events", type=int, default=SNAPSHOT_EVENTS - 100,
        help="events since the last snapshot at the kill",
    )  # fmt: skip
    parser.add_argument("--policy", default="rolling")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)  # of the killed process
    chosen = parser.parse_args()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    if chosen.kinds == ["run-until-killed"]:  # in the process that `recovery` starts
        run_until_killed(chosen.folder, chosen.policy, chosen.jobs, chosen.open, chosen.events)
    unknown = set(chosen.kinds) - {"pages", "views", "recovery"}
    if unknown:
        parser.error(f"unknown kind {min(unknown)!r}; choose pages, views or recovery")
    for kind in chosen.kinds:
        with tempfile.TemporaryDirectory() as name:
            if kind == "recovery":
                recovery(Path(name), chosen.policy, chosen.jobs, chosen.open, chosen.events)
            else:
                measure = pages if kind == "pages" else views
                measure(Path(name), chosen.policy, chosen.jobs)


if __name__ == "__main__":
    main()

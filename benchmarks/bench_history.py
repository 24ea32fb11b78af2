"""The live service with a long history: every page and listing, and how fast it recovers.

``pages`` requests every page and listing of a service that knows 100,000 closed jobs and 1,000 open
ones, of twenty tenants with budgets: how long each takes, and its processor time. ``views`` draws
the dashboard of the same service in Chromium: how long until each view is complete. ``recovery``
builds a store with as many closed jobs, thousands of open ones and almost a full snapshot interval
of events. It starts the service on it, submits jobs, kills it (``kill -9``), and times the next
start.

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
from benchmarks.bench_service import CLUSTER, Connection, HandClock, Server, job, serving

from shadowprice.inputs.files import resolve_cluster
from shadowprice.policies.choice import PolicyChoice
from shadowprice.service.clock import SECOND, MonotonicWallClock
from shadowprice.service.state.durable_engine import SNAPSHOT_EVENTS, DurableEngine
from shadowprice.service.state.job_views import JobView, State
from shadowprice.service.state.operations import SubmitJobs
from shadowprice.service.state.slot_operations import AdvanceSlots
from shadowprice.service.state.submission import read_submissions
from shadowprice.service.store import Store, tables

SECONDS: Final = 60
"""Length of a slot of `CLUSTER`."""

TENANTS: Final = 20
OPEN: Final = 1_000
"""Jobs that are open while pages are asked for."""


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
        rows, events, ran, paid = [], [], [], []
        for at in range(first, min(jobs, first + 5_000)):
            state, when = states[at % len(states)], now + at * second
            view = JobView(
                10 + at,
                f"tenant-{at % 20}/old-{at}",
                f"old-{at}",
                f"tenant-{at % 20}",
                state,
                when,
                when,
            )
            view = replace(view, arrival=1, promise=9, closed=when + second, generation=1)
            rows.append(
                {
                    "id": view.id,
                    "key": view.key,
                    "qualified_name": view.key,
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
            for part, (entry, points) in enumerate((("debit", -8), ("refund", 8))):
                paid.append(
                    {
                        "id": 2 * at + part + 1,
                        "at": when,
                        "tenant": view.tenant,
                        "kind": entry,
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
            store.write(connection, tables.entries.insert(), paid)
    store.close()


def ask(server: Server, path: str) -> Any:
    """Return what a service answers."""

    async def request() -> Any:
        connection = Connection(server)
        status, body = await connection.ask("GET", path)
        connection.close()
        assert status == 200, (path, status, body)
        return json.loads(body)

    return asyncio.run(request())


def settled(folder: Path, policy: str, jobs: int) -> None:
    """Write a history, and let jobs of tenants that pay be open after it."""
    with serving(folder, policy):
        pass
    fill(folder, jobs)
    with serving(folder, policy) as server:

        async def submit() -> None:
            connection = Connection(server)
            budget = {"points": 1e6, "period": "7d", "carry": 0}
            for at in range(TENANTS):
                body = json.dumps({"share": {}, "budget": budget}).encode()
                status, response = await connection.ask("PUT", f"/v1/tenants/tenant-{at}", body)
                assert status == 200, (status, response)
            # Most run for hours, so that who follows waits.
            made = [
                {**job(f"open-{at}", 2_000), "tenant": f"tenant-{at % TENANTS}"}
                for at in range(OPEN)
            ]
            body = json.dumps({"jobs": made}).encode()
            status, response = await connection.ask("POST", "/v1/jobs?wait=60", body)
            assert status == 202, (status, response)
            while json.loads((await connection.ask("GET", "/v1/service"))[1])["pending"]:
                await asyncio.sleep(0.2)
            connection.close()

        asyncio.run(submit())
        time.sleep(SECONDS + 2)  # a slot begins, and a sample of prices is taken
        states = Counter(one["state"] for one in ask(server, f"/v1/jobs?limit={OPEN}")["jobs"])
        print(f"{jobs:,} jobs of history, and newest: {dict(states)}")


def pages(folder: Path, policy: str, jobs: int) -> None:
    """Every page and listing over a long history."""
    settled(folder, policy, jobs)
    middle = f"/v1/jobs/old-{jobs // 3}"
    going = "state=pending,admitted,standby,running,resizing"
    paths = {
        "the dashboard's page": "/",
        "newest jobs": "/v1/jobs?limit=100",
        "1,000 open jobs": f"/v1/jobs?{going}&limit=1000",
        "open jobs": f"/v1/jobs?{going}&limit=100",
        "1,000 closed jobs": f"/v1/jobs?cursor={jobs // 2}&limit=1000",
        "jobs of a state": "/v1/jobs?state=cancelled&limit=100",
        "jobs of three states": "/v1/jobs?state=failed,refused,running&limit=100",
        "jobs of a tenant": "/v1/jobs?tenant=tenant-7&limit=100",
        "jobs of tenant and state": "/v1/jobs?tenant=tenant-8&state=failed&limit=100",
        "a state that is empty": "/v1/jobs?state=resizing&limit=100",
        "jobs from the middle": f"/v1/jobs?cursor={jobs // 2}&limit=100",
        "the oldest jobs": "/v1/jobs?cursor=110&limit=100",
        "a job": middle,
        "a story": f"{middle}/explain",
        "what ran of a job": f"{middle}/generations",
        "a job's curve": f"{middle}/progress",
        "an open job": "/v1/jobs/open-0",
        "its story": "/v1/jobs/open-0/explain",
        "where it runs": "/v1/timeline?job=open-0&back=60&slots=60",
        "newest decisions": "/v1/decisions?limit=100",
        "1,000 decisions": "/v1/decisions?limit=1000",
        "decisions of a tenant": "/v1/decisions?tenant=tenant-7&limit=100",
        "decisions on a job": f"/v1/decisions?job=old-{jobs // 3}",
        "servers": "/v1/servers",
        "servers x time": "/v1/timeline",
        "the same, 240 slots each way": "/v1/timeline?back=240&slots=240",
        "what really ran": "/v1/timeline?real=true",
        "a server x time": "/v1/timeline?server=gpu-0&back=240&slots=240",
        "a comparison": "/v1/comparison?days=7",
        "its jobs": "/v1/comparison/jobs?limit=100",
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
        print("pages: median and longest of 20, processor time of one")

        async def each() -> None:
            connection = Connection(server)
            for label, path in [*paths.items(), ("a quote", "/v1/quote")]:
                times, cpu = [], server.cpu()
                for _ in range(20):
                    began = time.perf_counter()
                    if label == "a quote":
                        status, body = await connection.ask("POST", path, request)
                    else:
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
    "what really ran": "#/observed",
}
"""Views of the dashboard by their addresses."""

COUNT: Final = """
const real = window.fetch;
window.asked = 0;
window.fetch = async (...words) => {
  if (String(words[0]).includes("/v1/events")) return real(...words);
  window.asked += 1;
  try { return await real(...words); } finally { window.asked -= 1; }
};
"""
"""Counts what a page waits for, but for the stream that never ends."""

DRAWN: Final = """async (address) => {
  const frame = () => new Promise(requestAnimationFrame);
  const began = performance.now();
  let stands = null;
  location.hash = address;
  await frame();
  for (let quiet = 0; quiet < 5; await frame()) {
    quiet = window.asked ? 0 : quiet + 1;
    if (quiet === 1) stands = performance.now() - began;
  }
  return stands;
}"""
"""Goes to a view; returns the milliseconds until nothing more was asked for, and it was drawn."""


def views(folder: Path, policy: str, jobs: int) -> None:
    """Let Chromium draw every view, on a computer's screen and a phone's."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415  # of the tests' extra

    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    settled(folder, policy, jobs)
    with serving(folder, policy) as server, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for width, height in ((1400, 900), (390, 844)):
            page = browser.new_page(viewport={"width": width, "height": height})
            page.add_init_script(COUNT)
            page.goto(server.address)
            page.get_by_label("Token").fill(server.token)
            page.keyboard.press("Enter")
            page.locator(".chip.live").wait_for()
            print(f"views, {width} pixels wide: median and longest of 7 until one stands")
            for label, address in VIEWS.items():
                times = []
                for _ in range(7):
                    page.evaluate(DRAWN, "#/nowhere")
                    times.append(page.evaluate(DRAWN, address))
                assert page.locator("main h1").inner_text() != "Page not found", label
                middle = statistics.median(times)
                print(f"  {label}: {middle:.0f} ms, {max(times):.0f} ms", flush=True)
            page.close()
        browser.close()


def live_and_die(folder: Path, policy: str, jobs: int, waiting: int, events: int) -> None:
    """Take thousands of events in, and be killed shortly before a snapshot would be written."""
    cluster = resolve_cluster(yaml.safe_load(CLUSTER))
    store = Store(str(folder / "data"))
    store.open()
    clock = HandClock()
    clock.at = time.time_ns() - ((events - waiting) // 20 + 2) * SECONDS * SECOND
    choice = PolicyChoice(policy, {})
    DurableEngine(
        store, cluster, choice, MonotonicWallClock(clock), virtual=True
    )  # slots are counted from here
    store.close()
    fill(folder, jobs)
    store = Store(str(folder / "data"))
    store.open()
    durable = DurableEngine(store, cluster, choice, MonotonicWallClock(clock), virtual=True)
    first = durable.state.engine.sequence
    at = 0
    while durable.state.engine.sequence - first < events:
        record = job(f"s-{at}", 200 if at < waiting else 2)
        found = read_submissions([record], cluster, tenant=None, runs=False)
        durable.commit([SubmitJobs(found, at_once=True)])
        at += 1
        if at > waiting and at % 20 == 0:
            clock.at += SECONDS * SECOND
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
    """Start after ``kill -9``, with a long history."""
    # Slots are counted from a service's first start, and those of the killed one lie in the past.
    before, folder = folder / "before", folder / "killed"
    before.mkdir()
    folder.mkdir()
    with serving(before, policy) as server:
        print(f"a start with nothing: {server.started:.2f} s, {server.cpu():.2f} s of CPU")
    fill(before, jobs)
    with serving(before, policy) as server:
        print(
            f"  with {jobs:,} jobs of history: {server.started:.2f} s, {server.cpu():.2f} s of CPU"
        )
    words = [sys.executable, "-m", "benchmarks.bench_history", "live-and-die"]
    words += ["--folder", str(folder), "--policy", policy, "--jobs", str(jobs)]
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
            f"  and {known['events']:,} events ({known['slots']} slots) of one that was killed, "
            f"{known['open']:,} jobs open: {server.started:.2f} s, {server.cpu():.2f} s of CPU"
        )
        response = ask(
            server, "/v1/jobs?state=admitted,standby,running,resizing,pending&limit=1000"
        )
        assert len(response["jobs"]) == min(1_000, known["open"]), len(response["jobs"])

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
    if chosen.kinds == ["live-and-die"]:  # the process that `recovery` starts and kills
        live_and_die(chosen.folder, chosen.policy, chosen.jobs, chosen.open, chosen.events)
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

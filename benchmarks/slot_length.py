"""Time lost and promises kept by slot length and start-up time of jobs, on a live service.

For each slot length and start-up time, a service runs sixteen jobs of 2 to 5 slots as real
processes of this machine, at most four at once. A job sleeps for its start-up time, then works
exactly as long as it states, and reports progress. Used time is that from the beginning of a
generation's slot to the generation's end. Lost time is used time minus stated work, and is printed
as a share of the used time.

Run: ``python -m benchmarks.slot_length [--slots 1 2 5 10] [--start-ups 0 0.1 0.3 1]
[--policy rolling]``
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import yaml

from shadowprice.client import Client
from shadowprice.core.errors import ShadowpriceError

JOBS: Final = 16
CORES: Final = 4  # each job uses one
STEPS_PER_SLOT: Final = 5

WORK: Final = """
import json, os, sys, time
load, step, steps = float(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
path = os.environ["SHADOWPRICE_PROGRESS_FILE"]
generation = int(os.environ["SHADOWPRICE_GENERATION"])
saved = int(open("saved").read()) if os.path.exists("saved") else 0
begun = time.monotonic() + load
time.sleep(load)
for done in range(saved + 1, steps + 1):
    time.sleep(max(0.0, begun + (done - saved) * step - time.monotonic()))
    report = json.dumps({"generation": generation, "minibatches": done})
    for name, text in (("saved", str(done)), (path, report)):
        with open(name + ".new", "w") as file:
            file.write(text)
        os.replace(name + ".new", name)
"""
"""Program of a job; it saves after every mini-batch."""


@dataclass(frozen=True, slots=True)
class Result:
    """Result of one service.

    Parameters
    ----------
    lost : float
        Lost time as a share of the used time.
    kept, promised, finished : int
        Jobs that kept their first promise, had one, and finished.
    start_up : float or None
        Start-up time that the service measured, in seconds.
    warned : bool
        Whether the service shows a warning.
    """

    lost: float
    kept: int
    promised: int
    finished: int
    start_up: float | None
    warned: bool


def measure(folder: Path, slot: float, start_up: float, policy: str) -> Result:
    """Run the jobs on a new service."""
    folder.mkdir(parents=True)
    cluster = folder / "cluster.yaml"
    record = {
        "slot": f"{slot:g}s",
        "horizon": 200,
        "servers": [{"name": "server", "capacity": {"cpu": CORES}}],
    }
    cluster.write_text(yaml.safe_dump(record))
    argv = ["serve", "-c", str(cluster), "--data", str(folder / "data"), "-p", policy]
    argv += ["--listen", "127.0.0.1:0", "-q", "-o", "json"]
    with (folder / "log").open("w") as log:
        service = subprocess.Popen(
            [sys.executable, "-m", "shadowprice", *argv],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        assert service.stdout is not None
        address = json.loads(service.stdout.readline())["address"]
        token = (folder / "data" / "operator.token").read_text().strip()
        with Client(address, token) as client:
            return _run(client, folder, slot, start_up)
    except ShadowpriceError:
        print((folder / "log").read_text(), file=sys.stderr)
        raise
    finally:
        service.send_signal(signal.SIGTERM)
        service.wait(60)


def _run(client: Client, folder: Path, slot: float, start_up: float) -> Result:
    step = slot / STEPS_PER_SLOT
    work: dict[str, float] = {}
    for number in range(JOBS):
        name, steps = f"job-{number}", 10 + 7 * number % 21
        workdir = folder / name
        workdir.mkdir()
        (workdir / "work.py").write_text(WORK)
        work[name] = steps * step
        command = [sys.executable, "-I", "-S", "work.py", f"{start_up:g}", f"{step:g}", f"{steps}"]
        client.submit(
            {
                "name": name,
                "chunks": 1,
                "minibatches": steps,
                "minibatch_time": f"{step:g}s",
                "worker": {"cpu": 1},
                "utility": {"kind": "linear", "value": 1000, "slope": -1},
                "run": {"command": command, "workdir": str(workdir), "grace": "5s"},
            }
        )
    while list(client.jobs("pending", "admitted", "standby", "running", "resizing")):
        time.sleep(0.5)
    service = client.service()
    origin = service.origin.timestamp()
    used = useful = 0.0
    kept = promised = finished = 0
    for name, seconds in work.items():
        job = client.job(name).record
        for record in _ended_generations(client, name):
            used += _seconds(str(record["ended"])) - (origin + int(record["slot"]) * slot)
        finished += job["state"] == "finished"
        useful += seconds if job["state"] == "finished" else 0.0
        if job["first_promise_slot"] is not None:
            promised += 1
            kept += (
                job["state"] == "finished" and job["completion_slot"] <= job["first_promise_slot"]
            )
    lost = 1.0 - useful / used
    return Result(lost, kept, promised, finished, service.start_up_seconds, bool(service.warnings))


def _ended_generations(client: Client, name: str) -> list[dict[str, Any]]:
    """Return the generations of a job that ran, once all of them have ended."""
    while True:
        records = [dict(generation.record) for generation in client.generations(name)]
        started = [record for record in records if record["started"]]
        if all(record["ended"] for record in started):
            return started
        time.sleep(0.2)


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slots", type=float, nargs="+", default=[1, 2, 5, 10])
    parser.add_argument("--start-ups", type=float, nargs="+", default=[0, 0.1, 0.3, 1])
    parser.add_argument(
        "--together", type=int, default=1, help="number of services at the same time"
    )
    parser.add_argument("--policy", default="rolling")
    given = parser.parse_args()
    print(
        f"{given.policy}, {JOBS} jobs, {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}"
    )
    print("slot  loads  start-up  share of slot  time lost  promises kept  warned", flush=True)
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(given.together) as pool:
        for slot in given.slots:
            futures = {
                load: pool.submit(measure, Path(name, f"{slot}-{load}"), slot, load, given.policy)
                for load in given.start_ups
            }
            for load, future in futures.items():
                result = future.result()
                seconds = result.start_up or 0.0
                print(
                    f"{slot:>3g} s  {load:>3g} s  {seconds:6.2f} s  {seconds / slot:13.0%}  "
                    f"{result.lost:9.0%}  {result.kept:>6} of {result.promised:<3}  "
                    f"{'yes' if result.warned else 'no':>6}",
                    flush=True,
                )


if __name__ == "__main__":
    main()

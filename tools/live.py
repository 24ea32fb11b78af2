"""Demonstrate the live service: ``make live``.

Start the service on loopback with the local executor, submit the short jobs of two tenants in
``examples/live/jobs.yaml`` at their arrivals, print their progress, and stop when all are closed.
``--example training`` runs the jobs of ``examples/training``, and ``--example families`` those with
the six model families of the papers' testbed; both need torch.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = {
    "live": ROOT / "examples" / "live" / "jobs.yaml",
    "training": ROOT / "examples" / "training" / "jobs.yaml",
    "families": ROOT / "examples" / "training" / "families.yaml",
}
_RUN = "from shadowprice.cli.main import run; run()"
CLOSED_STATES = {"finished", "refused", "failed", "cancelled"}


class Api:
    """A small client of the REST API."""

    def __init__(self, address: str, token: str) -> None:
        self._address, self._token = address, token

    def request(self, method: str, path: str, body: object = None) -> Any:
        """Send a request; return the response."""
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        content = None if body is None else json.dumps(body).encode()
        message = urllib.request.Request(self._address + path, content, headers, method=method)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(message, timeout=30) as response:
                return json.loads(response.read())
        except urllib.error.HTTPError as error:
            raise SystemExit(f"{method} {path}: {error.read().decode(errors='replace')}") from error


def jobs_by_arrival(file: Path) -> list[tuple[float, dict[str, Any]]]:
    """Return a file's jobs as submissions, in order of arrival, with their arrival in seconds."""
    submissions = []
    for job in yaml.safe_load(file.read_text(encoding="utf-8"))["jobs"]:
        arrival = float(str(job.pop("arrival", "0s")).removesuffix("s"))
        argv = job["run"]["command"]
        job["run"]["command"] = [sys.executable, str(file.with_name(argv[1])), *argv[2:]]
        # The job requests one core per worker; numpy would use all cores.
        job["run"]["env"] = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), 1)
        job["run"]["env"]["PYTHONPATH"] = str(ROOT / "src")
        submissions.append((arrival, job))
    return sorted(submissions, key=lambda submission: submission[0])


def clock(text: str | None, began: float) -> str:
    """Format a time of the service as seconds since the first submission."""
    if text is None:
        return "-"
    from datetime import datetime  # noqa: PLC0415  # only here

    return f"{datetime.fromisoformat(text).timestamp() - began:.0f} s"


def line_of(job: dict[str, Any], began: float) -> str:
    """Format a job as a line: state, progress, promise and placement."""
    share = job["progress"] / job["required"] if job["required"] else 0.0
    placement = f"{job['workers']} workers on {', '.join(job['servers'])}" if job["workers"] else ""
    promise = clock(job["promise"], began)
    return f"{job['name']:<15} {job['state']:<9} {share:>5.0%}  promised {promise:<6} {placement}"


def follow(api: Api, file: Path, limit: float) -> list[dict[str, Any]]:
    """Submit jobs at their arrivals and print changes until all are closed; return the jobs."""
    waiting = jobs_by_arrival(file)
    began = time.time()
    names, printed = [job["name"] for _, job in waiting], {}
    while time.time() - began < limit:
        while waiting and waiting[0][0] <= time.time() - began:
            job = waiting.pop(0)[1]
            api.request("POST", "/v1/jobs", job)
        jobs = [job for job in api.request("GET", "/v1/jobs")["jobs"] if job["name"] in names]
        for job in sorted(jobs, key=lambda job: names.index(job["name"])):
            key = (job["state"], job["workers"], job["generation"], job["promise"])
            if printed.get(job["name"]) != key:
                printed[job["name"]] = key
                print(f"{time.time() - began:5.1f} s  {line_of(job, began)}", flush=True)
        if (
            not waiting
            and len(jobs) == len(names)
            and all(job["state"] in CLOSED_STATES for job in jobs)
        ):
            return jobs
        time.sleep(0.5)
    raise SystemExit(f"jobs are still open after {limit:.0f} s")


def main() -> int:
    """Run the demonstration."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--example", choices=EXAMPLES, default="live")
    parser.add_argument("--data", type=Path, default=ROOT / "runs" / "live")
    parser.add_argument("--limit", type=float, default=300.0, help="time limit in seconds")
    chosen = parser.parse_args()
    example = EXAMPLES[chosen.example]
    if chosen.data.exists():
        if any(chosen.data.iterdir()) and not (chosen.data / "operator.token").exists():
            raise SystemExit(f"{chosen.data}: not a data directory; choose another --data")
        shutil.rmtree(chosen.data)
    command = [sys.executable, "-c", _RUN, "serve", "--listen", "127.0.0.1:0"]
    command += ["--cluster", str(example.with_name("cluster.yaml")), "--data", str(chosen.data)]
    chosen.data.parent.mkdir(parents=True, exist_ok=True)
    log = chosen.data.parent / f"{chosen.data.name}.log"
    print("Starting the service (its first start compiles kernels: a minute or two, once)")
    with (
        log.open("w", encoding="utf-8") as errors,
        subprocess.Popen(
            [*command, "--executor", "local", "-o", "json"], stdout=subprocess.PIPE, stderr=errors
        ) as service,
    ):
        try:
            assert service.stdout is not None
            first = service.stdout.readline()
            if not first:
                raise SystemExit(f"the service did not start; see {log}")
            address = json.loads(first)["address"]
            token = (chosen.data / "operator.token").read_text(encoding="ascii").strip()
            print(f"Page   {address}/\nToken  {token}\n")
            api = Api(address, token)
            jobs = follow(api, example, chosen.limit)
            print()
            for job in jobs:
                path = f"/v1/jobs/{job['name']}"
                log_lines = api.request("GET", f"{path}/logs")["text"].strip().splitlines()
                last = log_lines[-1] if log_lines else ""
                print(f"{job['name']:<15} {job['generation']} generations; {last}")
        finally:
            service.send_signal(signal.SIGTERM)
            service.wait(60)
    return 0 if all(job["state"] == "finished" for job in jobs) else 1


if __name__ == "__main__":
    sys.exit(main())

"""A live service of the experiment's own: begun, fed with jobs, watched to their end, stopped."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import yaml

from shadowprice.core.errors import ShadowpriceError

OVER: Final = frozenset({"finished", "refused", "failed", "cancelled"})
_RUN: Final = "from shadowprice.cli.main import run; run()"


@dataclass(frozen=True)
class Lived:
    """What became of one job.

    Parameters
    ----------
    record : mapping
        The job as the service tells it at the end.
    submitted : float
        When, in seconds since the beginning of slot 0.
    curve : sequence of (float, float)
        Reports: seconds since the beginning of slot 0, and mini-batches.
    """

    record: Mapping[str, Any]
    submitted: float
    curve: Sequence[tuple[float, float]]
    began: float | None = None
    """When its first generation was to run: the beginning of that slot, in the same seconds."""
    workers: int = 0
    """What it began with."""

    def start(self, speeds: Mapping[int, float]) -> float | None:
        """Return the seconds that its first start took, None where it never reported.

        Parameters
        ----------
        speeds : mapping of int to float
            Mini-batches a second by number of workers.
        """
        if self.began is None or not self.curve:
            return None
        moment, done = self.curve[0]
        return max(0.0, moment - self.began - done / speeds[self.workers])


class _Api:
    def __init__(self, address: str, token: str) -> None:
        self._address, self._token = address, token
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def ask(self, method: str, path: str, body: object = None) -> Any:
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._address + path, content, headers, method=method)
        try:
            with self._opener.open(request, timeout=60) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            told = error.read().decode(errors="replace")
            raise ShadowpriceError(f"the service refused {method} {path}: {told}") from error


@contextmanager
def _service(folder: Path, cluster: Mapping[str, Any], policy: str) -> Iterator[_Api]:
    """Begin a service on loopback with the local executor, and stop it and all it runs."""
    (folder / "cluster.yaml").write_text(yaml.safe_dump(dict(cluster)))
    data = folder / "data"
    words = [sys.executable, "-c", _RUN, "serve", "--listen", "127.0.0.1:0", "-o", "json"]
    words += ["--cluster", str(folder / "cluster.yaml"), "--data", str(data)]
    with (
        (folder / "log").open("w") as errors,
        subprocess.Popen(
            [*words, "--policy", policy, "--executor", "local"],
            stdout=subprocess.PIPE,
            stderr=errors,
        ) as service,
    ):
        try:
            assert service.stdout is not None
            first = service.stdout.readline()
            if not first:
                told = (folder / "log").read_text().strip().splitlines()
                raise ShadowpriceError(f"the service did not start: {(told or [''])[-1]}")
            api = _Api(json.loads(first)["address"], (data / "operator.token").read_text().strip())
            try:
                yield api
            finally:
                for job in api.ask("GET", "/v1/jobs")["jobs"]:
                    if job["state"] not in OVER:
                        api.ask("DELETE", f"/v1/jobs/{job['name']}")
                        time.sleep(1.0)  # what runs of it is told to end before the service is
        finally:
            service.send_signal(signal.SIGTERM)
            service.wait(60)


def live(
    folder: Path,
    cluster: Mapping[str, Any],
    jobs: Sequence[tuple[float, Mapping[str, Any]]],
    policy: str,
    limit: float,
) -> dict[str, Lived]:
    """Run jobs for real under a policy, and return what became of each by name.

    Parameters
    ----------
    folder : Path
        An empty directory for the service.
    cluster : mapping
        What a cluster file holds.
    jobs : sequence of (float, mapping)
        Seconds after which each is submitted, ascending, and what a job file says of it.
    policy : str
        Who decides.
    limit : float
        Seconds after which what is not over is cancelled.
    """
    with _service(folder, cluster, policy) as api:
        began = time.monotonic()
        waiting = list(jobs)
        while waiting or time.monotonic() - began < limit:
            while waiting and waiting[0][0] <= time.monotonic() - began:
                api.ask("POST", "/v1/jobs", dict(waiting.pop(0)[1]))
            states = {one["state"] for one in api.ask("GET", "/v1/jobs")["jobs"]}
            if not waiting and states <= OVER:
                break
            time.sleep(0.5)
        slot = float(str(cluster["slot"]).removesuffix("s"))
        origin = _moment(api.ask("GET", "/v1/timeline")["origin"])
        found = {}
        for _, job in jobs:
            path = f"/v1/jobs/{job['name']}"
            points = api.ask("GET", f"{path}/progress?limit=5000")["points"]
            record = api.ask("GET", path)
            curve = [(_moment(one["at"]) - origin, float(one["minibatches"])) for one in points]
            ran = api.ask("GET", f"{path}/generations")["generations"]
            first = min(ran, key=lambda one: int(one["generation"]), default=None)
            found[str(job["name"])] = Lived(
                record,
                _moment(record["submitted"]) - origin,
                curve,
                None if first is None else first["slot"] * slot,
                0 if first is None else first["workers"],
            )
        return found


def _moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()

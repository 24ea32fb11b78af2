"""A live service of an experiment's own: begun, fed with jobs, watched to their end, stopped."""

from __future__ import annotations

import json
import math
import secrets
import signal
import subprocess
import sys
import tempfile
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
from shadowprice.policies.choice import PolicyChoice

OVER: Final = frozenset({"finished", "refused", "failed", "cancelled"})
PARTS: Final = ("change_checkpoint", "change_start", "change_first_step")
AWAY: Final = "change_away"
"""Metrics of what a change took; being away counts where a job was moved without a pause."""
_RUN: Final = "from shadowprice.cli.main import run; run()"
_SUBMITTING: Final = 2.0
"""Seconds in which everything of a moment is submitted."""
_LEAVING: Final = 45.0
"""Seconds that what was cancelled has to end."""


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
    base: int = 0
    """The slot from whose beginning on seconds of submission were counted, if from a slot's."""
    changes: Sequence[float] = ()
    """Seconds that it measured of each change of its placement, as far as it did."""
    restart: float | None = None
    """What the service came to count for one, in seconds; None where it stayed as stated."""

    def start(self, speeds: Mapping[int, float]) -> float | None:
        """Return the seconds that its first start took, None where it never got anywhere.

        Parameters
        ----------
        speeds : mapping of int to float
            Mini-batches a second by number of workers.
        """
        if self.began is None:
            return None
        for moment, done in self.curve:
            if done:
                return max(0.0, moment - self.began - done / speeds[self.workers])
        return None


@dataclass(frozen=True, slots=True)
class Where:
    """What runs the jobs of a service, as ``shadowprice serve`` is told.

    Parameters
    ----------
    executor : str
        Its name.
    address : str
        Where jobs run, if elsewhere.
    settings : tuple of str
        ``KEY=VALUE``, as after ``--executor-set``.
    listen : str
        Address at which the service listens, so that jobs reach it.
    """

    executor: str = "local"
    address: str = ""
    settings: tuple[str, ...] = ()
    listen: str = "127.0.0.1:0"

    def words(self) -> list[str]:
        """Return what the command is told."""
        words = ["--listen", self.listen, "--executor", self.executor]
        if self.executor == "kubernetes":
            words += ["--trainingjobs", "none"]  # jobs come by the service's own route
        if self.address:
            words += ["--address", self.address]
        for one in self.settings:
            words += ["--executor-set", one]
        return words

    def mark(self) -> str:
        """Return what names of jobs end in: once used, where an executor remembers them for long.

        Records in an API server outlive the service that wrote them.
        """
        return f"-{secrets.token_hex(3)}" if self.executor == "kubernetes" else ""


HERE: Final = Where()


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
def _service(
    folder: Path, cluster: Mapping[str, Any], who: PolicyChoice, where: Where
) -> Iterator[_Api]:
    """Begin a service, and stop it and all it runs."""
    (folder / "cluster.yaml").write_text(yaml.safe_dump(dict(cluster)))
    data = folder / "data"
    words = [sys.executable, "-c", _RUN, "serve", "-o", "json", *who.words(), *where.words()]
    words += ["--cluster", str(folder / "cluster.yaml"), "--data", str(data)]
    with (
        (folder / "log").open("w") as errors,
        subprocess.Popen(words, stdout=subprocess.PIPE, stderr=errors) as service,
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
                _cancelled(api)
        finally:
            service.send_signal(signal.SIGTERM)
            service.wait(60)


def _cancelled(api: _Api) -> None:
    """Cancel what is not over, and wait until nothing of it runs."""
    waiting = [
        job["name"] for job in api.ask("GET", "/v1/jobs")["jobs"] if job["state"] not in OVER
    ]
    for name in waiting:
        api.ask("DELETE", f"/v1/jobs/{name}")
    until = time.monotonic() + _LEAVING
    while waiting and time.monotonic() < until:
        time.sleep(1.0)  # what runs is told to end before the service is
        waiting = [name for name in waiting if _runs(api, name)]


def _runs(api: _Api, name: str) -> bool:
    ran = api.ask("GET", f"/v1/jobs/{name}/generations")["generations"]
    return any(one["started"] is not None and one["ended"] is None for one in ran)


def live(
    folder: Path,
    cluster: Mapping[str, Any],
    jobs: Sequence[tuple[float, Mapping[str, Any]]],
    who: PolicyChoice,
    limit: float,
    where: Where = HERE,
    *,
    ahead: float | None = None,
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
    who : PolicyChoice
        Who decides.
    limit : float
        Seconds after which what is not over is cancelled.
    where : Where
        What runs them.
    ahead : float, optional
        Seconds count from the beginning of a slot, and jobs are submitted so long before theirs;
        without it they count from when the service was there.
    """
    slot = float(str(cluster["slot"]).removesuffix("s"))
    with _service(folder, cluster, who, where) as api:
        origin = _moment(api.ask("GET", "/v1/timeline")["origin"])
        began = time.time()
        if ahead is not None:
            # The next slot before which there is time to submit.
            began = origin + slot * math.ceil((began + ahead + _SUBMITTING - origin) / slot)
        waiting = [(began + after - (ahead or 0.0), job) for after, job in jobs]
        while waiting or time.time() - began < limit:
            while waiting and waiting[0][0] <= time.time():
                api.ask("POST", "/v1/jobs", dict(waiting.pop(0)[1]))
            states = {one["state"] for one in api.ask("GET", "/v1/jobs")["jobs"]}
            if not waiting and states <= OVER:
                break
            time.sleep(0.5)
        found = {}
        for _, job in jobs:
            path = f"/v1/jobs/{job['name']}"
            points = api.ask("GET", f"{path}/progress?limit=5000")["points"]
            record = api.ask("GET", path)
            curve = [(_moment(one["at"]) - origin, float(one["minibatches"])) for one in points]
            ran = api.ask("GET", f"{path}/generations")["generations"]
            first = min(ran, key=lambda one: int(one["generation"]), default=None)
            events = api.ask("GET", f"{path}/explain")["events"]
            found[str(job["name"])] = Lived(
                record,
                _moment(record["submitted"]) - origin,
                curve,
                None if first is None else first["slot"] * slot,
                0 if first is None else first["workers"],
                round((began - origin) / slot) if ahead is not None else 0,
                _changes(points, events),
                next(
                    (
                        float(one["data"]["restart"])
                        for one in reversed(events)
                        if one["kind"] == "remeasured" and "restart" in one["data"]
                    ),
                    None,
                ),
            )
        return found


def live_once(
    cluster: Mapping[str, Any],
    jobs: Sequence[tuple[float, Mapping[str, Any]]],
    who: PolicyChoice,
    limit: float,
    where: Where,
    *,
    ahead: float | None = None,
) -> dict[str, Lived]:
    """Run jobs for real, keep nothing of the service, and return what became of each by its name.

    Parameters
    ----------
    cluster, jobs, who, limit, where, ahead
        As of `live`; jobs run under names that are used once, where that is needed.
    """
    mark = where.mark()
    asked = [(after, {**job, "name": f"{job['name']}{mark}"}) for after, job in jobs]
    with tempfile.TemporaryDirectory(prefix="shadowprice-live-") as folder:
        found = live(Path(folder), cluster, asked, who, limit, where, ahead=ahead)
    return {name.removesuffix(mark): one for name, one in found.items()}


def _changes(
    points: Sequence[Mapping[str, Any]], events: Sequence[Mapping[str, Any]]
) -> list[float]:
    """Return the seconds of every change that a job measured, as the service counts them."""
    moved = {one["data"]["generation"] for one in events if one["kind"] == "resized"}
    found: dict[int, float] = {}
    for point in points:
        generation, metrics = point["generation"], point["metrics"]
        parts = [metrics.get(part) for part in PARTS]
        if None not in parts and generation not in found:
            away = metrics.get(AWAY, 0.0) if generation in moved else 0.0
            found[generation] = sum(parts) + away
    return [found[generation] for generation in sorted(found)]


def _moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()

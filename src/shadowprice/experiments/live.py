"""Jobs that really run on a live service, and their comparison with a simulation."""

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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import polars as pl
import yaml

from shadowprice.core.errors import MissingExtraError, ShadowpriceError
from shadowprice.core.events import Command, DriverEvent, SlotEnded
from shadowprice.core.job_keys import qualified_name
from shadowprice.core.policy import PolicyContext
from shadowprice.experiments.framework import UnavailableError
from shadowprice.policies.choice import PolicyChoice
from shadowprice.results.observer import Observer
from shadowprice.results.run_directory import RunData
from shadowprice.simulator.scenario import record_run
from shadowprice.simulator.source import ScenarioSource

# ------------------------------------------------------------------ service


CLOSED_STATES: Final = frozenset({"finished", "refused", "failed", "cancelled"})
CHANGE_METRICS: Final = ("change_checkpoint", "change_start", "change_first_step")
"""Metrics that a job reports of a change of its placement; their sum is its duration."""
DOWNTIME_METRIC: Final = "change_away"
"""Time between checkpoint and start. It only counts for a move, not for a scheduled pause."""
_RUN: Final = "from shadowprice.cli.main import run; run()"
_SUBMISSION_SECONDS: Final = 2.0  # time to submit the jobs with one submission time
_PAGE_ENTRIES: Final = 1_000  # maximum number of entries of a page
_STOP_TIMEOUT_SECONDS: Final = 60.0
_CANCELLATION_TIMEOUT_SECONDS: Final = 240.0
"""Includes the end of a pending start, such as of pods that wait for their image."""


@dataclass(frozen=True)
class LiveJobResult:
    """Result of one job that really ran."""

    record: Mapping[str, Any]  # final state of the job in the service's REST API
    submitted: float  # submission time in seconds since the beginning of slot 0
    curve: Sequence[tuple[float, float]]
    """Reports: seconds since the beginning of slot 0, and mini-batches."""
    began: float | None = None
    """Beginning of the first generation's slot, in the same seconds; None if it never ran."""
    workers: int = 0  # number of workers of the first generation
    base: int = 0  # slot from which slots count in results; 0 is the service's first slot
    changes: Sequence[float] = ()  # seconds of each change of its placement that it measured
    restart: float | None = None
    """Restart cost that the service has learnt, in seconds; None if it is still the stated one."""

    @property
    def completion(self) -> int | None:
        """Slot in which it completed; None if it didn't."""
        completed: int | None = self.record["completion_slot"]
        return completed if self.record["state"] == "finished" else None

    @property
    def reason(self) -> str:
        """Message of the service's reason for its state; empty if there is none."""
        message: str = (self.record["reason"] or {}).get("message", "")
        return message

    @property
    def delay_causes(self) -> str:
        """The causes of a broken first promise, with the seconds of each; empty if it was kept."""
        broken = self.record.get("broken_promise")
        causes = () if broken is None else broken["causes"]
        return "; ".join(f"{cause['cause']} {cause['seconds']:.1f} s" for cause in causes)

    def start(self, speeds: Mapping[int, float]) -> float | None:
        """Return the seconds of the job's first start; None without progress.

        They are the time to the first report of progress, less the time that the reported
        mini-batches take. ``speeds`` are mini-batches per second by number of workers.
        """
        if self.began is None:
            return None
        for moment, done in self.curve:
            if done:
                return max(0.0, moment - self.began - done / speeds[self.workers])
        return None


@dataclass(frozen=True, slots=True)
class ExecutorTarget:
    """Executor of a service's jobs, as options of ``shadowprice serve``."""

    executor: str = "local"
    address: str = ""  # address of the executor, if it is elsewhere
    settings: tuple[str, ...] = ()  # values of ``--executor-set``, as ``KEY=VALUE``
    listen: str = "127.0.0.1:0"  # address on which the service listens, reachable for jobs

    def argv(self) -> list[str]:
        """Return the options of the command."""
        argv = ["--listen", self.listen, "--executor", self.executor]
        if self.executor == "kubernetes":
            argv += ["--trainingjobs", "none"]  # jobs come by the service's own route
        if self.address:
            argv += ["--address", self.address]
        for setting in self.settings:
            argv += ["--executor-set", setting]
        return argv

    def name_suffix(self) -> str:
        """Return a suffix for job names, unique if the executor remembers names.

        Records in the API server of Kubernetes outlive the service that wrote them.
        """
        return f"-{secrets.token_hex(3)}" if self.executor == "kubernetes" else ""


LOCAL_TARGET: Final = ExecutorTarget()


class _Api:
    def __init__(self, address: str, token: str) -> None:
        self._address, self._token = address, token
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def request(self, method: str, path: str, body: object = None) -> Any:
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._address + path, content, headers, method=method)
        try:
            with self._opener.open(request, timeout=60) as response:
                return json.loads(response.read())
        except urllib.error.HTTPError as error:
            message = error.read().decode(errors="replace")
            raise ShadowpriceError(f"the service refused {method} {path}: {message}") from error

    def list_all(self, path: str, key: str) -> list[Any]:
        """Return the entries of all pages of a list, newest first."""
        entries: list[Any] = []
        cursor = ""
        while True:
            page = self.request("GET", f"{path}?limit={_PAGE_ENTRIES}{cursor}")
            entries += page[key]
            if page["next"] is None:
                return entries
            cursor = f"&cursor={page['next']}"


@contextmanager
def _service(
    folder: Path, cluster: Mapping[str, Any], choice: PolicyChoice, target: ExecutorTarget
) -> Iterator[_Api]:
    """Start a service, and at the end stop it and all its jobs."""
    (folder / "cluster.yaml").write_text(yaml.safe_dump(dict(cluster)))
    data = folder / "data"
    argv = [sys.executable, "-c", _RUN, "serve", "-o", "json", *choice.argv(), *target.argv()]
    argv += ["--cluster", str(folder / "cluster.yaml"), "--data", str(data)]
    argv += ["--values", "stated"]  # as in the simulations that the runs are compared with
    with (
        (folder / "log").open("w") as errors,
        subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=errors) as service,
    ):
        try:
            assert service.stdout is not None
            first = service.stdout.readline()
            if not first:
                log_lines = (folder / "log").read_text().strip().splitlines()
                raise ShadowpriceError(f"the service did not start: {(log_lines or [''])[-1]}")
            api = _Api(json.loads(first)["address"], (data / "operator.token").read_text().strip())
            try:
                yield api
            finally:
                _cancel_all(api)
        finally:
            _stop(service, _STOP_TIMEOUT_SECONDS)


def _stop(service: subprocess.Popen[bytes], timeout: float) -> None:
    """End a service by SIGTERM, or kill it after ``timeout`` seconds."""
    service.send_signal(signal.SIGTERM)
    try:
        service.wait(timeout)
    except subprocess.TimeoutExpired:
        print(f"killed the service: it ran {timeout:g} s after SIGTERM", file=sys.stderr)
        service.kill()
        service.wait()


def _cancel_all(api: _Api) -> None:
    """Cancel all jobs that aren't over, and wait for their end."""
    jobs = api.list_all("/v1/jobs", "jobs")
    waiting = [job["name"] for job in jobs if job["state"] not in CLOSED_STATES]
    for name in waiting:
        api.request("DELETE", f"/v1/jobs/{name}")
    deadline = time.monotonic() + _CANCELLATION_TIMEOUT_SECONDS
    # A service that stops earlier ends no jobs, and leaves their pods behind.
    while waiting:
        time.sleep(1.0)
        waiting = [name for name in waiting if _has_open_generation(api, name)]
        if waiting and time.monotonic() > deadline:
            print(f"cancelled jobs still run: {', '.join(waiting)}", file=sys.stderr)
            return


def _has_open_generation(api: _Api, name: str) -> bool:
    # A generation without a start time counts too, because some of its processes may exist.
    generations = api.request("GET", f"/v1/jobs/{name}/generations")["generations"]
    return any(generation["ended"] is None for generation in generations)


def _first_generation(api: _Api, job: str) -> dict[str, Any] | None:
    """Return the first generation of a job, None if there is none."""
    newest = api.request("GET", f"{job}/generations?limit={_PAGE_ENTRIES}")["generations"]
    if len(newest) == _PAGE_ENTRIES:
        raise ShadowpriceError(f"{job} has {_PAGE_ENTRIES} or more generations in its list")
    first: dict[str, Any] | None = newest[-1] if newest else None
    return first


def run_live(
    folder: Path,
    cluster: Mapping[str, Any],
    jobs: Sequence[tuple[float, Mapping[str, Any]]],
    choice: PolicyChoice,
    limit: float,
    target: ExecutorTarget = LOCAL_TARGET,
    *,
    ahead: float | None = None,
) -> dict[str, LiveJobResult]:
    """Run jobs for real under a policy, and return their results by name.

    ``folder`` is an empty directory for the service, and ``cluster`` the record of a cluster file.
    Each job has a submission time in seconds, ascending, and a record as in a job file. Jobs that
    are open after ``limit`` seconds are cancelled. With ``ahead``, times count from the beginning
    of a slot, and jobs are submitted ``ahead`` seconds earlier. Without it, times count from the
    service's start.
    """
    slot = float(str(cluster["slot"]).removesuffix("s"))
    with _service(folder, cluster, choice, target) as api:
        origin = _moment(api.request("GET", "/v1/timeline")["origin"])
        began = time.time()
        if ahead is not None:
            # The first slot that leaves enough time to submit before it.
            began = origin + slot * math.ceil((began + ahead + _SUBMISSION_SECONDS - origin) / slot)
        waiting = [(began + after - (ahead or 0.0), job) for after, job in jobs]
        while waiting or time.time() - began < limit:
            while waiting and waiting[0][0] <= time.time():
                api.request("POST", "/v1/jobs", dict(waiting.pop(0)[1]))
            states = {entry["state"] for entry in api.list_all("/v1/jobs", "jobs")}
            if not waiting and states <= CLOSED_STATES:
                break
            time.sleep(0.5)
        results = {}
        for _, job in jobs:
            path = f"/v1/jobs/{job['name']}"
            points = api.request("GET", f"{path}/progress?limit=5000")["points"]
            record = api.request("GET", path)
            curve = [
                (_moment(entry["at"]) - origin, float(entry["minibatches"])) for entry in points
            ]
            first = _first_generation(api, path)
            events = api.list_all(f"{path}/events", "events")
            restarts = (
                float(entry["data"]["restart"])
                for entry in events
                if entry["kind"] == "remeasured" and "restart" in entry["data"]
            )
            results[str(job["name"])] = LiveJobResult(
                record,
                _moment(record["submitted"]) - origin,
                curve,
                None if first is None else first["slot"] * slot,
                0 if first is None else first["workers"],
                round((began - origin) / slot) if ahead is not None else 0,
                _changes(points, events),
                next(restarts, None),
            )
        return results


def run_live_in_temp_dir(
    cluster: Mapping[str, Any],
    jobs: Sequence[tuple[float, Mapping[str, Any]]],
    choice: PolicyChoice,
    limit: float,
    target: ExecutorTarget,
    *,
    ahead: float | None = None,
) -> dict[str, LiveJobResult]:
    """Run jobs for real in a temporary service, and return their results by name.

    The arguments are as in `run_live`. Jobs have unique names if the executor remembers names.
    """
    suffix = target.name_suffix()
    renamed = [(after, {**job, "name": f"{job['name']}{suffix}"}) for after, job in jobs]
    with tempfile.TemporaryDirectory(prefix="shadowprice-live-") as folder:
        results = run_live(Path(folder), cluster, renamed, choice, limit, target, ahead=ahead)
    return {name.removesuffix(suffix): result for name, result in results.items()}


def _changes(
    points: Sequence[Mapping[str, Any]], events: Sequence[Mapping[str, Any]]
) -> list[float]:
    """Return the seconds of each change that a job reported, counted as in the service."""
    moved = {event["data"]["generation"] for event in events if event["kind"] == "resized"}
    seconds: dict[int, float] = {}
    for point in points:
        generation, metrics = point["generation"], point["metrics"]
        parts = [metrics.get(part) for part in CHANGE_METRICS]
        if None not in parts and generation not in seconds:
            away = metrics.get(DOWNTIME_METRIC, 0.0) if generation in moved else 0.0
            seconds[generation] = sum(parts) + away
    return [seconds[generation] for generation in sorted(seconds)]


def _moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


# ------------------------------------------------------------------ comparison


def check_live_jobs(*, training: bool = False) -> None:
    """Raise an error if jobs can't really run on this machine, or its extras are missing."""
    if not sys.platform.startswith("linux"):
        raise UnavailableError("jobs really run in this experiment, which needs Linux")
    if find_spec("uvicorn") is None:
        raise MissingExtraError("uvicorn", "service", "running the live service")
    if training and find_spec("torch") is None:
        raise MissingExtraError("torch", "train", "training the jobs")


def live_key(job: Mapping[str, Any], live_result: LiveJobResult) -> str:
    """Return a job's key in the service's policy; `fifo` draws worker counts by the key."""
    return qualified_name(job.get("tenant"), live_result.record["name"])


@dataclass(frozen=True)
class Prediction:
    """Simulation of jobs as they were really submitted."""

    run: RunData
    progress: Mapping[str, Mapping[int, float]]
    """Share of each job's work at the end of the slots in which it ran."""


class _ProgressObserver(Observer):
    """Records the progress units of each job at the end of every slot in which it ran."""

    def __init__(self) -> None:
        self.units: dict[str, dict[int, int]] = {}

    def on_event(self, event: DriverEvent, commands: Sequence[Command]) -> None:
        """Record the progress of a slot."""
        del commands
        if isinstance(event, SlotEnded):
            for job, gained in event.progress.items():
                slots = self.units.setdefault(job, {})
                slots[event.slot] = gained + max(slots.values(), default=0)


def simulate_submissions(
    cluster: Mapping[str, Any],
    jobs: Iterable[tuple[float, Mapping[str, Any]]],
    choice: PolicyChoice,
    *,
    knows_jobs: bool = False,
    until: int | None = None,
    observers: Sequence[Observer] = (),
) -> RunData:
    """Simulate jobs by their submission times in seconds, each decided on when submitted.

    ``knows_jobs`` is whether the policy knows all jobs in advance, as simulations allow.
    """
    documents = [
        # A job submitted before slot 0 arrives with slot 0.
        {key: value for key, value in job.items() if key != "run"}
        | {"arrival": f"{max(0.0, submitted):.6f}s"}
        for submitted, job in jobs
    ]
    scenario, _ = ScenarioSource(cluster=dict(cluster), jobs=documents).scenario()
    scenario = replace(scenario, until=until)
    context = scenario.context() if knows_jobs else PolicyContext(scenario.cluster, until=until)
    policy = choice.build(context)
    return record_run(scenario, choice.label, policy, observers=observers, at_once=True)


def predict(
    cluster: Mapping[str, Any],
    jobs: Sequence[Mapping[str, Any]],
    live_results: Mapping[str, LiveJobResult],
    choice: PolicyChoice,
    *,
    knows_jobs: bool = True,
) -> Prediction:
    """Simulate the jobs as they were really submitted, under their real names.

    ``knows_jobs`` is as in `simulate_submissions`.
    """
    submitted = []
    for job in jobs:
        result = live_results[str(job["name"])]
        submitted.append((result.submitted, {**job, "name": live_key(job, result)}))
    observer = _ProgressObserver()
    run = simulate_submissions(
        cluster, submitted, choice, knows_jobs=knows_jobs, observers=[observer]
    )
    required = dict(run.jobs.select("job", "required").iter_rows())
    progress = {
        name: {slot: min(1.0, units / required[name]) for slot, units in slots.items()}
        for name, slots in observer.units.items()
    }
    return Prediction(run, progress)


_COMPLETIONS: Final = ("completion", "predicted_completion")


def compare_job(
    policy: str,
    job: Mapping[str, Any],
    result: LiveJobResult,
    prediction: Prediction,
    speeds: Mapping[int, float],
    slots: int | None = None,
) -> dict[str, Any]:
    """Return a row with the real and the predicted result of a job.

    Slots count from the base of ``result``. With ``slots``, later completions don't count.
    """
    record = result.record
    key = live_key(job, result)
    forecast = prediction.run.jobs.row(by_predicate=pl.col("job") == key, named=True)
    end = math.inf if slots is None else result.base + slots
    done, expected = (
        slot - result.base if slot is not None and slot < end else None
        for slot in (result.completion, forecast["completion"])
    )
    return {
        "policy": policy,
        "job": job["name"],
        "state": record["state"],
        "predicted_state": forecast["outcome"],
        "completion": done,
        "predicted_completion": expected,
        "utility": 0.0 if done is None else float(record["utility"] or 0.0),
        "predicted_utility": 0.0 if expected is None else float(forecast["utility"] or 0.0),
        "generations": record["generation"],
        "failures": record["failures"],
        "start": result.start(speeds),
        "reason": result.reason,
    }


def compare_runs(
    jobs: Sequence[Mapping[str, Any]],
    runs: Mapping[str, tuple[Mapping[str, LiveJobResult], Prediction]],
    speeds: Callable[[Mapping[str, Any]], Mapping[int, float]],
    seconds: float,
    slots: int | None,
    more: Callable[[Mapping[str, Any], LiveJobResult, Mapping[str, Any]], Mapping[str, Any]],
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return a row per policy and job, and the progress of each job by the end of each slot.

    ``runs`` are by policy. ``speeds`` returns a job's mini-batches per second by number of workers.
    ``seconds`` is the length of a slot. ``slots`` is the number of slots that count; with None they
    end with the last completion. ``more`` returns further columns of a job's row.
    """
    rows: list[dict[str, Any]] = []
    curves: list[dict[str, Any]] = []
    for policy, (results, prediction) in runs.items():
        of_policy = []
        for job in jobs:
            result = results[str(job["name"])]
            row = compare_job(policy, job, result, prediction, speeds(job), slots)
            of_policy.append({**row, **more(job, result, row)})
        ends = (row[name] or 0 for row in of_policy for name in _COMPLETIONS)
        count = max(ends, default=0) + 1 if slots is None else slots
        for job, row in zip(jobs, of_policy, strict=True):
            result = results[str(job["name"])]
            curves += progress_rows(
                policy, job, result, prediction, row["completion"], count, seconds
            )
        rows += of_policy
    # Polars can't infer the type of a column that only has null values.
    integers = dict.fromkeys(_COMPLETIONS, pl.Int64)
    table = pl.DataFrame(rows, schema_overrides=integers, infer_schema_length=None)
    return table.with_columns(pl.col(pl.Null).cast(pl.Float64)), pl.DataFrame(curves)


def measured_progress(
    result: LiveJobResult, slots: range, seconds: float, finished: int | None, work: float
) -> list[float]:
    """Return the reported share of the work at the end of each slot.

    ``seconds`` is the length of a slot, and ``work`` all mini-batches of the job. ``finished`` is
    the slot of completion; from then on all work counts as done.
    """
    done = []
    for slot in slots:
        if finished is not None and slot >= finished:
            done.append(1.0)
        else:
            end = (slot + 1) * seconds
            reported = max((done for at, done in result.curve if at <= end), default=0.0)
            done.append(min(1.0, reported / work))
    return done


def progress_rows(
    policy: str,
    job: Mapping[str, Any],
    result: LiveJobResult,
    prediction: Prediction,
    completion: int | None,
    slots: int,
    seconds: float,
) -> list[dict[str, Any]]:
    """Return a row per slot from the base on: shares of a job's work, predicted and measured."""
    work = float(job.get("epochs", 1) * job["chunks"] * job["minibatches"])
    counted = range(result.base, result.base + slots)
    finished = None if completion is None else result.base + completion
    shares = prediction.progress.get(live_key(job, result), {})
    return [
        {
            "policy": policy,
            "job": job["name"],
            "slot": slot - result.base,
            "predicted": max((share for at, share in shares.items() if at <= slot), default=0.0),
            "measured": measured,
        }
        for slot, measured in zip(
            counted, measured_progress(result, counted, seconds, finished, work), strict=True
        )
    ]


def summarize_runs(jobs: pl.DataFrame, progress: pl.DataFrame, **more: pl.Expr) -> pl.DataFrame:
    """Return a row per policy: utilities, errors of predictions, and the ``more`` aggregations.

    ``slots_off`` and ``progress_off`` are the mean errors of predicted slots of completion, and of
    progress over jobs and slots.
    """
    off = progress.group_by("policy").agg(
        progress_off=(pl.col("measured") - pl.col("predicted")).abs().mean()
    )
    summary = jobs.group_by("policy", maintain_order=True).agg(
        pl.col("utility", "predicted_utility").sum(),
        slots_off=(pl.col("completion") - pl.col("predicted_completion")).abs().mean(),
        start=pl.col("start").mean(),
        generations=pl.col("generations").sum(),
        **more,
    )
    return summary.join(off, on="policy", how="left", maintain_order="left")

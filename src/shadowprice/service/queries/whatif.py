"""What-if runs: simulations of the recent jobs on other servers, or under another policy.

A run works in the background. It simulates the submitted jobs on the present cluster (*as is*) and
on the changed cluster, each in a process with low priority. The next run about the same jobs
repeats only the second simulation.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import logging
import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Final

import yaml
from pydantic import BeforeValidator, Field
from sqlalchemy import Connection, select

from shadowprice import rest
from shadowprice.core import bounds
from shadowprice.core.amounts import UNLIMITED, format_amount, parse_duration
from shadowprice.core.budget import parse_timestamp
from shadowprice.core.cluster import BANDWIDTH, Cluster
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.length_history import DEFAULT_SECONDS
from shadowprice.core.moments import parse_moment_ahead
from shadowprice.core.specs.fields import Name, Positive, StrictSpec, as_validator
from shadowprice.core.submit_options import states_no_length
from shadowprice.core.wording import hint_for_unknown, quote_for_display
from shadowprice.policies.choice import PolicyChoice
from shadowprice.service.clock import SECOND, to_datetime
from shadowprice.service.problems import ProblemError
from shadowprice.service.state.job_views import JobView
from shadowprice.service.state.prices import build_server_classes
from shadowprice.service.store import tables

log = logging.getLogger("shadowprice.service")

MAX_JOBS: Final = 20_000  # maximum number of simulated jobs, newest first
MAX_DAYS: Final = 366  # maximum number of days to look back
MAX_SERVERS: Final = 10_000  # maximum number of servers of a kind to add or remove
NICENESS: Final = 5  # beside a busy process, it leaves a quarter of a core; 10 would leave a tenth
MAX_KEPT_RUNS: Final = 50  # runs in memory, with their results
MAX_QUEUED_RUNS: Final = 10  # runs that wait or execute

REPORTED_METRICS: Final = (
    "total_utility",
    "value",
    "arrived",
    "admitted",
    "finished",
    "refused",
    "mean_jct",
)
"""Summary values that are reported of each simulation, if it has them."""

JOBS: Final = "jobs.jsonl"  # name of the job file of simulations
RUN: Final = "run"  # name of the run directory of a simulation
_RUN_CLI: Final = "from shadowprice.cli.main import run; run()"


@dataclass(frozen=True, slots=True)
class WhatIfRequest:
    """A validated request for a what-if run."""

    question: rest.WhatIfQuestion
    choice: PolicyChoice  # policy on the changed cluster
    at: int  # end of the simulated days, in nanoseconds since 1970


@dataclass(slots=True)
class WhatIfRun:
    """A what-if run: its request, its REST resource with the results so far, and its task."""

    request: WhatIfRequest
    resource: rest.WhatIf
    task: asyncio.Task[None] | None = None

    def update(self, **changes: Any) -> None:
        """Change fields of the resource."""
        self.resource = self.resource.model_copy(update=changes)


@dataclass(frozen=True, slots=True)
class AsIsRun:
    """Simulation of some jobs on the present cluster, kept for the next question about them."""

    digest: bytes  # of the jobs and the cluster
    summary: dict[str, Any]
    directory: tempfile.TemporaryDirectory[str]
    files: frozenset[Path]  # checked before they are used again, because someone may delete them

    @property
    def folder(self) -> Path:
        """Path of the directory."""
        return Path(self.directory.name)


class WhatIfParameters(StrictSpec):
    """A what-if run to start: servers to add or remove by kind, or another policy."""

    days: Annotated[Positive, Field(le=MAX_DAYS)] = 7.0
    at: Annotated[datetime, BeforeValidator(as_validator(parse_timestamp))] | None = None
    servers: dict[Name, Annotated[int, Field(ge=-MAX_SERVERS, le=MAX_SERVERS)]] = Field(
        default_factory=dict
    )
    policy: Name | None = None
    set: dict[str, Any] | None = None


def parse_request(
    parameters: WhatIfParameters, cluster: Cluster, current: PolicyChoice, now: int
) -> WhatIfRequest:
    """Validate the parameters of a request; ``current`` is the service's policy."""
    faults = []
    servers = parameters.servers
    kinds = build_server_classes(cluster)
    counts = {name: len(rows) for name, rows in kinds.items()}
    for name, number in servers.items():
        if name not in counts:
            hint = hint_for_unknown(name, counts)
            faults.append(
                Fault("body.servers", f"unknown kind of server {quote_for_display(name)}", hint)
            )
        elif counts[name] + number < 0:
            message = f"can't remove {-number} of {counts[name]} servers"
            faults.append(Fault(f"body.servers.{name}", message))
    if not faults and sum(counts.values()) + sum(servers.values()) < 1:
        faults.append(Fault("body.servers", "no server remains"))
    if faults:
        raise InputError(faults)
    policy, settings = parameters.policy or current.name, parameters.set
    if settings is None:
        settings = dict(current.settings) if parameters.policy is None else {}
    # Only the service's policy or a registered one, because a name can also be a file to execute.
    choice = current if policy == current.name else PolicyChoice(policy)
    choice = replace(choice, settings=settings)
    choice.parameters()
    end = to_datetime(now) if parameters.at is None else min(to_datetime(now), parameters.at)
    at = max(0, (end - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1_000)
    previous = current.settings if choice.name == current.name else {}
    changed = {key: value for key, value in settings.items() if previous.get(key) != value}
    question = rest.WhatIfQuestion(
        days=parameters.days, at=to_datetime(at), servers=servers, policy=choice.name, set=changed
    )
    return WhatIfRequest(question, choice, at)


def modified_cluster_document(cluster: Cluster, servers: Mapping[str, int]) -> dict[str, Any]:
    """Return a cluster as a cluster file, with ``servers`` added or removed (negative) by kind."""
    kinds = build_server_classes(cluster)
    servers_after: list[dict[str, Any]] = []
    for kind, rows in kinds.items():
        change, members = servers.get(kind, 0), rows.tolist()
        first = members[0]
        named = [(cluster.names[row], row) for row in members[: len(members) + min(change, 0)]]
        named += [(name, first) for name in _added_names(cluster, kind, change)]
        amounts = zip(
            cluster.resources, cluster.capacity[first].tolist(), cluster.dimensions, strict=True
        )
        capacity = {
            name: format_amount(amount, dimension)
            for name, amount, dimension in amounts
            # A bandwidth of 0 is written, because a missing bandwidth is unlimited.
            if 0 < amount < UNLIMITED or (name == BANDWIDTH and not amount)
        }
        role = cluster.roles[first].value
        for name, row in named:
            server: dict[str, Any] = {"name": name, "role": role, "capacity": capacity}
            if cluster.costs is not None:
                server["cost"] = float(cluster.costs[row])
            servers_after.append(server)
    record: dict[str, Any] = {
        "slot": _format_seconds(cluster.slot_seconds),
        "horizon": cluster.horizon,
        "servers": servers_after,
        "tenants": [
            {
                "name": tenant.name,
                "share": {
                    name: format_amount(amount, cluster.dimensions[cluster.column[name]])
                    for name, amount in tenant.share.items()
                },
            }
            for tenant in cluster.tenants
        ],
    }
    if cluster.restart_seconds:
        record["restart"] = _format_seconds(cluster.restart_seconds)
    if cluster.restart_first:
        record["restart_first"] = True
    return record


def _added_names(cluster: Cluster, kind: str, count: int) -> list[str]:
    """Return valid names that no server has, for added servers of a kind."""
    names: Iterable[str] = (
        f"{kind[: int(bounds.NAME.maximum) - len(suffix)]}{suffix}"
        for suffix in (f" (added {number})" for number in itertools.count(1))
    )
    taken = {*cluster.names}
    return list(itertools.islice((name for name in names if name not in taken), max(0, count)))


def _format_seconds(span: Fraction) -> str:
    return f"{float(span):.9f}".rstrip("0").rstrip(".") + "s"


def workload(connection: Connection, since: int, until: int) -> list[dict[str, Any]]:
    """Return the jobs submitted between two moments, as records of a job file."""
    table = tables.jobs
    rows = connection.execute(
        select(table.c.id, table.c.key, table.c.spec, table.c.submitted, table.c.view)
        .where(table.c.submitted >= since, table.c.submitted <= until)
        .order_by(table.c.id.desc())
        .limit(MAX_JOBS)
    ).all()
    if not rows:
        return []
    first = rows[-1].submitted
    jobs = []
    for row in reversed(rows):
        record = json.loads(row.spec)
        # Jobs of several tenants may have the same name, and a key can be too long for a name.
        record["name"] = row.key if len(row.key) <= bounds.NAME.maximum else f"id:{row.id}"
        record.pop("run", None)  # it may hold secrets, and nothing runs here
        record["arrival"] = _format_seconds(Fraction(max(0, row.submitted - first), SECOND))
        if isinstance(record.get("by"), str):
            record["by"] = _to_duration(record["by"], row.submitted)
        if states_no_length(record):
            record["minibatch_time"] = _time_of_step(record, JobView.from_json(row.view))
        jobs.append(record)
    return jobs


def _time_of_step(record: Mapping[str, Any], view: JobView) -> str:
    """Return the measured or predicted time of a mini-batch, for a job that states none."""
    seconds = float(DEFAULT_SECONDS)  # of the whole job with its maximum number of workers
    if view.length is not None:
        seconds = view.length[0]
    elif view.predicted is not None:
        seconds = view.predicted.length
    workers = (record.get("workers") or {}).get("max") or 1
    return _format_seconds(Fraction(seconds) * workers / (record.get("steps") or 1))


def _to_duration(by: str, submitted: int) -> str:
    """Return a deadline as a duration from the submission, because a simulation has no calendar."""
    try:
        parse_duration(by)
    except InputError:
        moment = parse_moment_ahead(by, submitted, Fraction(1), "by")
        return _format_seconds(Fraction(moment - submitted, SECOND))
    return by


class WhatIfRunner:
    """Executes what-if runs, one at a time, with temporary files in the directory ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runs: dict[int, WhatIfRun] = {}
        self._run_lock = asyncio.Lock()
        self._as_is: AsIsRun | None = None

    def clear(self) -> None:
        """Delete the files of a killed process; called before the first run."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def all(self) -> list[WhatIfRun]:
        """Return the runs in memory, newest first."""
        return list(reversed(self._runs.values()))

    def get(self, number: int) -> WhatIfRun:
        """Return a run; raise `ProblemError` if it is unknown."""
        if number not in self._runs:
            raise ProblemError("not-found", f"unknown what-if {number}")
        return self._runs[number]

    def start(
        self,
        request: WhatIfRequest,
        cluster: Cluster,
        jobs: Sequence[Mapping[str, Any]],
        current: PolicyChoice,
        now: int,
    ) -> WhatIfRun:
        """Start a run in the background; raise `ProblemError` without jobs or if too many wait."""
        if not jobs:
            days = request.question.days
            span = "day" if days == 1 else f"{days:g} days"
            raise ProblemError("conflict", f"no job was submitted in the last {span}")
        states = [run.resource.state for run in self._runs.values()]
        if states.count("waiting") + states.count("running") >= MAX_QUEUED_RUNS:
            raise ProblemError("overloaded", f"{MAX_QUEUED_RUNS} what-if runs are already waiting")
        resource = rest.WhatIf(
            id=max(self._runs, default=0) + 1,  # from 1 at each start of the service
            requested_at=to_datetime(now),
            state="waiting",
            progress=rest.WhatIfProgress(done=0, of=2),
            jobs=len(jobs),
            question=request.question,
            as_is=None,
            changed=None,
            gain=None,
            times=None,
            reason=None,
        )
        run = self._runs[resource.id] = WhatIfRun(request, resource)
        while len(self._runs) > MAX_KEPT_RUNS:
            del self._runs[next(iter(self._runs))]
        run.task = asyncio.create_task(self._run(run, cluster, jobs, current))
        return run

    async def cancel(self, run: WhatIfRun) -> None:
        """Cancel a run, unless it has ended."""
        if run.task is not None and not run.task.done():
            run.task.cancel()
            with suppress(asyncio.CancelledError):
                await run.task
            run.update(state="cancelled")

    async def close(self) -> None:
        """Cancel all runs, and delete their files, but not the files of another instance."""
        for run in self._runs.values():
            await self.cancel(run)
        self._forget()
        with suppress(OSError):  # another instance uses the directory, or it was never made
            self._folder.rmdir()

    async def _run(
        self,
        run: WhatIfRun,
        cluster: Cluster,
        jobs: Sequence[Mapping[str, Any]],
        current: PolicyChoice,
    ) -> None:
        async with self._run_lock:
            run.update(state="running")
            try:
                as_is = await self._simulate_as_is(cluster, jobs, current)
                run.update(as_is=as_is.summary, progress=rest.WhatIfProgress(done=1, of=2))
                with tempfile.TemporaryDirectory(prefix="changed-", dir=as_is.folder) as name:
                    changed, choice = Path(name), run.request.choice
                    document = modified_cluster_document(cluster, run.request.question.servers)
                    summary = await _simulate(as_is.folder / JOBS, document, choice, changed)
                    difference = await _shadowprice(
                        "diff", str(as_is.folder / RUN), str(changed / RUN), "-o", "json"
                    )
                times = {key: difference["times"][key] for key in rest.WhatIfTimes.model_fields}
                run.update(
                    state="done",
                    progress=rest.WhatIfProgress(done=2, of=2),
                    changed=summary,
                    gain=summary["total_utility"] - as_is.summary["total_utility"],
                    times=rest.WhatIfTimes(**times),
                )
            except Exception as error:  # any error becomes the result of the run
                is_expected = isinstance(error, OSError | ValueError | KeyError | ProblemError)
                log.warning(
                    "what-if %d failed: %s", run.resource.id, error, exc_info=not is_expected
                )
                run.update(state="failed", reason=str(error) or None)

    async def _simulate_as_is(
        self, cluster: Cluster, jobs: Sequence[Mapping[str, Any]], current: PolicyChoice
    ) -> AsIsRun:
        """Return the simulation on the present cluster; questions about equal jobs share it."""
        lines = "".join(json.dumps(record) + "\n" for record in jobs)
        document = modified_cluster_document(cluster, {})
        digest = hashlib.sha256(json.dumps([lines, document]).encode()).digest()
        as_is = self._as_is
        if as_is is not None and as_is.digest == digest and all(map(Path.is_file, as_is.files)):
            return as_is
        self._forget()
        # Not in the system's temporary directory, whose old files the system deletes.
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory = tempfile.TemporaryDirectory(prefix="as-is-", dir=self._folder)
        folder = Path(directory.name)
        try:
            (folder / JOBS).write_text(lines)
            summary = await _simulate(folder / JOBS, document, current, folder)
        except BaseException:
            directory.cleanup()
            raise
        files = frozenset(file for file in folder.rglob("*") if file.is_file())
        self._as_is = AsIsRun(digest, summary, directory, files)
        return self._as_is

    def _forget(self) -> None:
        if self._as_is is not None:
            self._as_is.directory.cleanup()
            self._as_is = None


async def _simulate(
    jobs: Path, cluster: Mapping[str, Any], choice: PolicyChoice, folder: Path
) -> dict[str, Any]:
    """Run a simulation, write its run directory into the folder, and return its summary."""
    path = folder / "cluster.yaml"
    path.write_text(yaml.safe_dump(cluster))
    # A copy of the policy's file, because it may have changed since the service read it.
    fixed = choice.with_file_in(folder)
    argv = ["-c", str(path), "-j", str(jobs), *fixed.argv(), "--skip-invalid"]
    argv += ["--out", str(folder / RUN), "-q", "-o", "json"]
    record = await _shadowprice("simulate", *argv)
    summary = record["summary"]
    summary["mean_jct"] = summary["jct"]["mean"]
    return {"policy": choice.name} | {key: summary[key] for key in REPORTED_METRICS}


async def _shadowprice(*argv: str) -> dict[str, Any]:
    """Run a command in a process with low priority, and return the record that it prints."""
    process = await asyncio.create_subprocess_exec(
        "nice",
        "-n",  # POSIX has no long option
        str(NICENESS),
        sys.executable,
        "-c",
        _RUN_CLI,
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        output, errors = await process.communicate()
    except asyncio.CancelledError:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        raise
    if process.returncode:
        lines = errors.decode(errors="replace").strip().splitlines()
        raise ProblemError("conflict", lines[-1] if lines else "the simulation failed")
    record: dict[str, Any] = json.loads(output)
    return record

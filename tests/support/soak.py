"""A soak of the service: many jobs, clients that come and go, and a SIGKILL every minute.

``shadowprice serve`` is a process of its own, and its jobs run in a `VirtualExecutor` in this one,
where hours of training last seconds. In each of its lives the service is started on the same data,
works on an equal share of the jobs, drains, is measured, and is killed under load again.

Sizes are compared between the second and the last third of the lives, because the first third fills
caches and the retention period. A size grew if its median is more than 5 % larger, and a rank test
says that chance explains it in less than 5 % of cases.

Other programs on the machine don't count. All lives have as many jobs. The time to start counts in
processor seconds, relative to those of a process that only imports the service, just before: both
are slowed alike. The wall time is only printed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import random
import resource
import signal
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

import httpx
import yaml
from scipy.stats import mannwhitneyu

from shadowprice.cli.program import TERMINATED
from shadowprice.client import AsyncClient, ServiceError, ServiceUnreachableError
from shadowprice.client.endpoints import Endpoint
from shadowprice.core.job_keys import qualified_name
from shadowprice.executors.contract import Ending
from shadowprice.executors.virtual import VirtualExecutor, VirtualJob
from shadowprice.service.clock import SystemClock
from shadowprice.service.store import Store
from tests.support import remote_executor
from tests.support.ledger_checks import check_ledger
from tests.support.remote_executor import ExecutorHost
from tests.support.waiting import wait_until_async

MAX_GROWTH: Final = 0.05
"""Maximum growth of a median between the second and the last third."""

MAX_CHANCE: Final = 0.05
"""Probability of the same ranks without growth, above which a difference is noise."""

SERVERS: Final = 40
MINIBATCH_SECONDS: Final = 0.1
BATCH_JOBS: Final = 25
KILL_SECONDS: Final = 4.0
"""Seconds of load before a kill."""

CLOSING_EVENTS: Final = {"finished", "failed", "given-up", "cancelled", "refused"}
LATE_EXIT: Final = ["given-up", "finished"]
"""Events of a job whose exit is reported after it was abandoned for the price of the next slot.

The job ended once: the second event corrects the first.
"""

LIMIT_CODES: Final = {"tenant-limit", "overloaded"}


def jobs_ended_twice(closed: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Return the jobs that ended more than once, with all their closing events."""
    return {
        name: list(kinds)
        for name, kinds in closed.items()
        if len(kinds) != 1 and list(kinds) != LATE_EXIT
    }


@dataclass(frozen=True)
class SoakOptions:
    """Size of a soak.

    Parameters
    ----------
    jobs : int
        Number of jobs.
    minutes : float
        Minutes of load over which they are submitted, if the service can follow.
    kills : int
        Minimum number of kills; each life of the service takes an equal share of the jobs.
    keep_seconds : float
        Retention period of closed jobs.
    max_open_jobs : int
        Limit of a tenant's open jobs.
    """

    jobs: int = 100_000
    minutes: float = 20.0
    kills: int = 30
    keep_seconds: float = 240.0
    max_open_jobs: int = 200
    policy: str = "rolling"
    slot: str = "1s"
    seed: int = 0


@dataclass
class Life:
    """Sizes of the service's process in one of its lives."""

    start_seconds: float
    """From the start of the process until `/readyz` answers 200."""
    start_cpu: float
    """Processor seconds until then."""
    import_cpu: float
    """Processor seconds of a process that only imports the service, just before."""
    memory: float = 0.0
    """Resident MiB after it drained."""
    descriptors: int = 0
    processes: int = 0
    """Number of child processes."""

    @property
    def start_ratio(self) -> float:
        """Processor time of the start, relative to that of the imports alone."""
        return self.start_cpu / self.import_cpu


JUDGED_SIZES: Final = ("start_ratio", "memory", "descriptors", "processes")


@dataclass
class TenantLoad:
    """Jobs that one tenant submits.

    Parameters
    ----------
    burst_seconds : float
        Interval between its bursts; 0 for an even pace.
    """

    name: str
    total: int
    rate: float
    burst_seconds: float = 0.0
    made: int = 0
    unanswered: list[dict[str, Any]] = field(default_factory=list)

    def due(self, loaded: float) -> int:
        """Return the number of jobs to submit after some seconds of load."""
        if self.burst_seconds:
            loaded = (loaded // self.burst_seconds + 1) * self.burst_seconds
        return min(self.total, int(loaded * self.rate) + 1)


class Soak:
    """A soak in a directory; `run` returns its violations."""

    def __init__(
        self, folder: Path, options: SoakOptions, report: Callable[[str], None] = print
    ) -> None:
        self.options = options
        self.folder, self.data = folder, folder / "data"
        self.report = report
        self.executor = VirtualExecutor(SystemClock(), {})  # type: ignore[arg-type]  # real time
        self.random = random.Random(options.seed)
        self.acknowledged: set[str] = set()
        self.open: set[str] = set()
        self.cancelled: set[str] = set()
        self.closed: dict[str, list[str]] = {}
        self.counts: Counter[str] = Counter()
        self.lives: list[Life] = []
        self.wrong: list[str] = []
        self.scrape_seconds: list[float] = []
        self._tokens: dict[str, str] = {}
        self._last_event = 0
        self._loaded = 0.0
        self._port = free_port()
        quarter = options.jobs // 4
        rate = quarter / (60 * options.minutes)
        self.tenants = [
            TenantLoad("vision", options.jobs - 3 * quarter, rate),
            TenantLoad("speech", quarter, rate),
            TenantLoad("small", quarter, rate),
            TenantLoad("bursts", quarter, rate, 2 * options.max_open_jobs / rate),
        ]
        cluster = {
            "slot": options.slot,
            "horizon": 60,
            "servers": [{"name": "g", "count": SERVERS, "capacity": {"gpu": 8, "cpu": 64}}],
            "tenants": [
                {"name": "vision"},
                {"name": "bursts"},
                {"name": "speech", "budget": {"points": 1_000_000, "period": "1h", "carry": 0}},
                {"name": "small", "budget": {"points": 5, "period": "1h", "carry": 0}},
            ],
        }
        (folder / "cluster.yaml").write_text(yaml.safe_dump(cluster))

    # ---------------------------------------------------------------- the whole

    async def run(self) -> list[str]:
        """Run the service until every job was submitted and is closed, then check it."""
        began = time.monotonic()
        before = len(descriptors("self"))
        self.report(HEADER)
        async with ExecutorHost(self.executor, self.folder / "executor"):
            while True:
                last = self._submitted() and len(self.lives) >= self.options.kills
                await self._live(last)
                self._print(time.monotonic() - began)
                if last:
                    break
        await asyncio.sleep(0.1)  # closed transports release their sockets in the next turns
        leaked = len(descriptors("self")) - before
        self._expect(leaked <= 0, f"{leaked} file descriptors of the clients are left")
        self._check_jobs()
        self._check_growth()
        return self.wrong

    def _expect(self, condition: bool, violation: str) -> None:
        if not condition:
            self.wrong.append(violation)
            self.report(f"  {violation}")

    def _submitted(self) -> bool:
        return all(load.made == load.total and not load.unanswered for load in self.tenants)

    def _has_submitted_share(self) -> bool:
        """Return whether as many jobs were submitted as should be in this life, at most."""
        share = min(1.0, len(self.lives) / self.options.kills)
        if share == 1.0:
            return self._submitted()
        return len(self.acknowledged) >= share * self.options.jobs

    def _is_drained(self, follower: asyncio.Task[None]) -> bool:
        if follower.done():
            if (error := follower.exception()) is not None:
                raise error
            raise AssertionError(f"the event stream ended; {self._log_end()}")
        return not self.open

    # ---------------------------------------------------------------- a life of the service

    async def _live(self, last: bool) -> None:
        imports = await asyncio.to_thread(import_cpu_seconds)
        began = time.monotonic()
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                self._command(), stdout=subprocess.DEVNULL, stderr=log, start_new_session=True
            )
        try:
            await self._use(process, began, imports, last)
        except BaseException:
            process.kill()
            raise
        finally:
            status = await asyncio.to_thread(process.wait)
        self._expect(
            status == (TERMINATED if last else -signal.SIGKILL),
            f"the service ended with status {status}",
        )
        await wait_until_async(  # those of a killed service may need a moment to notice
            lambda: not session_members(process.pid),
            lambda: f"processes left: {session_members(process.pid)}",
        )

    def _command(self) -> list[str]:
        options = self.options
        file = Path(remote_executor.__file__)
        return [
            *(sys.executable, "-m", "shadowprice", "serve"),
            *("--cluster", str(self.folder / "cluster.yaml"), "--data", str(self.data)),
            *("--listen", f"127.0.0.1:{self._port}", "--policy", options.policy, "--quiet"),
            *("--executor", f"{file}:RemoteExecutor"),
            *("--executor-set", f"socket={self.folder / 'executor'}"),
            *("--keep", f"{options.keep_seconds}s"),
            *("--max-open-jobs", str(options.max_open_jobs)),
        ]

    async def _use(
        self, process: subprocess.Popen[bytes], began: float, imports: float, last: bool
    ) -> None:
        async with httpx.AsyncClient(verify=False) as client:  # plain HTTP
            await wait_until_async(
                lambda: self._is_ready(process, client), self._log_end, poll_seconds=0.02
            )
        self.lives.append(Life(time.monotonic() - began, cpu_seconds(process.pid), imports))
        if not self._tokens:
            await self._create_tokens()
        idle = sockets(process.pid)
        follower = asyncio.create_task(self._follow())
        try:
            await self._load(until=self._has_submitted_share)
            await wait_until_async(
                lambda: self._is_drained(follower),
                lambda: sorted(self.open)[:5],
            )
            with suppress(AssertionError):  # what is left is a violation below
                await wait_until_async(lambda: sockets(process.pid) <= idle + 1)  # the follower's
            life = self.lives[-1]
            life.memory = memory_mib(process.pid)
            life.descriptors = len(descriptors(process.pid))
            life.processes = len(session_members(process.pid)) - 1
            leaked = sockets(process.pid) - idle - 1
            self._expect(leaked <= 0, f"{leaked} connections are left after all clients left")
            self._expect(life.processes == 0, f"{life.processes} child processes are left")
            if last:
                process.terminate()
            else:
                await self._load(KILL_SECONDS, then=process.kill)
        finally:
            follower.cancel()
            with suppress(asyncio.CancelledError):
                await follower

    async def _is_ready(self, process: subprocess.Popen[bytes], client: httpx.AsyncClient) -> bool:
        assert process.poll() is None, self._log_end()
        try:
            return (await client.get(f"{self._url}/readyz")).status_code == 200
        except httpx.HTTPError:
            return False

    def _log_end(self) -> str:
        return (self.folder / "log").read_text()[-4_000:]

    @property
    def _url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def _client(self, tenant: str = "") -> AsyncClient:
        return AsyncClient(Endpoint(self._url, self._tokens[tenant]))

    async def _create_tokens(self) -> None:
        self._tokens[""] = (self.data / "operator.token").read_text().strip()
        async with self._client() as client:
            for load in self.tenants:
                self._tokens[load.name] = (await client.create_token(load.name)).token

    # ---------------------------------------------------------------- clients

    async def _load(
        self,
        seconds: float = math.inf,
        *,
        until: Callable[[], bool] = lambda: False,
        then: Callable[[], None] = lambda: None,
    ) -> None:
        """Put the service under load; call `then` before the clients leave."""
        stop = asyncio.Event()
        clients: list[Awaitable[None]] = [self._scrape(stop), self._cancel(stop)]
        clients += [self._submit(load, stop) for load in self.tenants]
        clients += [self._view(load.name, stop) for load in self.tenants for _ in range(2)]
        tasks = [asyncio.ensure_future(client) for client in clients]
        before, loaded = time.monotonic(), self._loaded
        while (elapsed := time.monotonic() - before) < seconds and not until():
            self._loaded = loaded + elapsed
            for task in tasks:
                if task.done() and (error := task.exception()) is not None:
                    raise error
            await asyncio.sleep(0.05)
        then()
        stop.set()
        for task in tasks:
            await task

    async def _submit(self, load: TenantLoad, stop: asyncio.Event) -> None:
        # Bursts begin with more than the limit allows.
        largest = self.options.max_open_jobs + 1 if load.burst_seconds else BATCH_JOBS
        size = largest
        async with self._client(load.name) as client:
            while not stop.is_set():
                jobs = load.unanswered
                while len(jobs) < size and load.made < load.due(self._loaded):
                    jobs.append(self._job(load))
                if not jobs:
                    await asyncio.sleep(0.05)
                    continue
                try:
                    result = await client.submit_many(jobs[:size])
                except ServiceUnreachableError:  # killed; the same jobs are submitted again
                    self.counts["unreachable"] += 1
                    await asyncio.sleep(0.05)
                    continue
                except ServiceError as error:
                    if error.code not in LIMIT_CODES and error.status != 503:
                        raise
                    self.counts[f"{load.name} {error.code}"] += 1
                    size = max(1, size // 2)
                    await asyncio.sleep(0.2)
                    continue
                self._expect(not result.problems, f"refused to store: {result.problems}")
                names = {job.name for job in result.jobs}
                self.acknowledged |= names
                self.open |= names - self.closed.keys()
                del jobs[:size]
                size = largest

    def _job(self, load: TenantLoad) -> dict[str, Any]:
        draw = self.random
        name = f"{load.name}-{load.made}"
        load.made += 1
        chunks, minibatches = draw.choice([1, 1, 2, 4]), draw.randint(4, 20)
        self.executor.jobs[qualified_name(load.name, name)] = VirtualJob(
            work=chunks * minibatches * draw.choice([0.8, 1.0, 1.0, 1.1]),
            rate=lambda placement: sum(share.workers for share in placement) / MINIBATCH_SECONDS,
            save_seconds=0.0,
            report_every=1.0,
            fails_after={1: 0.2} if draw.random() < 0.03 else {},
        )
        return {
            "name": name,
            "chunks": chunks,
            "minibatches": minibatches,
            "minibatch_time": f"{MINIBATCH_SECONDS}s",
            "worker": {"gpu": 1, "cpu": 2},
            "utility": {"kind": "sigmoid", "value": 20, "decay": 0.1, "target": "20 slots"},
            "run": {"command": ["train"], "retries": 1},
        }

    async def _scrape(self, stop: asyncio.Event) -> None:
        """Scrape the metrics every second."""
        headers = {"Authorization": f"Bearer {self._tokens['']}"}
        async with httpx.AsyncClient(verify=False, headers=headers, timeout=60) as client:
            while not stop.is_set():
                began = time.monotonic()
                with suppress(httpx.HTTPError):
                    answer = await client.get(f"{self._url}/metrics")
                    self._expect(
                        answer.status_code in {200, 503}, f"/metrics: {answer.status_code}"
                    )
                    self.scrape_seconds.append(time.monotonic() - began)
                await _sleep(stop, 1.0 - (time.monotonic() - began))

    async def _view(self, tenant: str, stop: asyncio.Event) -> None:
        """Follow the event stream for a moment, leave without a word, and come back."""
        while not stop.is_set():
            async with self._client(tenant) as client:
                with suppress(ServiceError, ServiceUnreachableError, TimeoutError):
                    async with asyncio.timeout(self.random.uniform(0.1, 2.0)):
                        await client.page_of_jobs(limit=20)
                        async for event in client.events(reconnect=False):
                            self._expect(
                                event.job is None or event.job.startswith(tenant),
                                f"{tenant} received an event of {event.job}",
                            )
            self.counts["viewers"] += 1
            await _sleep(stop, self.random.uniform(0.0, 0.5))

    async def _cancel(self, stop: asyncio.Event) -> None:
        async with self._client() as client:
            while not stop.is_set():
                await _sleep(stop, 0.3)
                if not self.open:
                    continue
                name = self.random.choice(sorted(self.open))
                with suppress(ServiceUnreachableError, ServiceError):
                    if (await client.cancel(name)).state == "cancelled":
                        self.cancelled.add(name)

    async def _follow(self) -> None:
        """Count the events that close jobs, without gaps from life to life."""
        async with self._client() as client:
            with suppress(ServiceUnreachableError):
                async for event in client.events(after=self._last_event, reconnect=False):
                    if event.id is None:
                        continue
                    self._last_event = event.id
                    if event.kind in CLOSING_EVENTS and event.job is not None:
                        self._close(event.job, event.kind)

    def _close(self, job: str, kind: str) -> None:
        """Count a closing event; the correction of an earlier one replaces it."""
        kinds = self.closed.setdefault(job, [])
        kinds.append(kind)
        self.open.discard(job)
        self.counts[kind] += 1
        if kinds == LATE_EXIT:
            self.counts[LATE_EXIT[0]] -= 1
            self.counts["late exits"] += 1

    # ---------------------------------------------------------------- results

    def _print(self, elapsed: float) -> None:
        life, kept = self.lives[-1], self._kept_jobs()
        scrapes, self.scrape_seconds = sorted(self.scrape_seconds), []
        worst = scrapes[int(0.99 * len(scrapes))] if scrapes else 0.0
        self.report(
            f"{elapsed / 60:6.1f} {len(self.lives):5} {len(self.closed):7,} {kept:7,} "
            f"{self._store_mib():7.1f} {life.start_seconds:7.2f} {life.start_cpu:7.2f} "
            f"{life.import_cpu:7.2f} {life.memory:7.1f} {life.descriptors:4} "
            f"{life.processes:5} {1e3 * worst:9.0f}"
        )

    def _kept_jobs(self) -> int:
        database = self.data / "shadowprice.db"
        with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
            return int(connection.execute("SELECT count(*) FROM jobs").fetchone()[0])

    def _store_mib(self) -> float:
        files = (file for file in self.data.rglob("*") if file.is_file())
        return sum(file.stat().st_size for file in files) / 2**20

    def _check_jobs(self) -> None:
        lost = self.acknowledged - self.closed.keys()
        self._expect(not lost, f"{len(lost)} acknowledged jobs are lost: {sorted(lost)[:5]}")
        again = jobs_ended_twice(self.closed)
        self._expect(not again, f"jobs ended twice: {list(again.items())[:5]}")
        wrong = [name for name in self.cancelled if "cancelled" not in self.closed.get(name, [])]
        self._expect(not wrong, f"cancelled, but ended otherwise: {wrong[:5]}")
        generations = self.executor.generations
        done = Counter(entry.spec.job for entry in generations if entry.ending is Ending.DONE)
        twice = [name for name, count in done.items() if count > 1]
        self._expect(not twice, f"jobs were completed twice by the executor: {twice[:5]}")
        alive = [entry.key for entry in generations if entry.alive]
        self._expect(not alive, f"generations still run: {alive[:5]}")
        store = Store(str(self.data))
        try:
            check_ledger(store, purged=True)
        except AssertionError as error:
            self._expect(False, f"balances don't add up: {error}")
        finally:
            store.close()

    def _check_growth(self) -> None:
        self.report(f"\n{'':24} second third   last third   growth   by chance")
        for size in JUDGED_SIZES:
            values = [float(getattr(life, size)) for life in self.lives]
            result = Growth.of(values)
            if result is None:
                continue
            self.report(
                f"{size:24} {result.before:12.2f} {result.after:12.2f} "
                f"{100 * result.share:7.1f} % {result.chance:9.3f}"
            )
            self._expect(not result.is_real, f"{size} grew by {100 * result.share:.1f} %")
        self.report(f"counted: {dict(sorted(self.counts.items()))}")
        service, clients = (
            sum(resource.getrusage(who)[:2])
            for who in (resource.RUSAGE_CHILDREN, resource.RUSAGE_SELF)
        )
        self.report(f"processor seconds: service {service:.0f}, clients {clients:.0f}")


@dataclass(frozen=True)
class Growth:
    """Medians of the second and the last third of a series.

    ``chance`` is the one-sided probability of these ranks if nothing grew.
    """

    before: float
    after: float
    chance: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Growth | None:
        """Compare the thirds of a series; return None if it is too short."""
        third = len(values) // 3
        if third < 3:
            return None
        second, last = values[-2 * third : -third], values[-third:]
        chance = float(mannwhitneyu(last, second, alternative="greater").pvalue)
        return cls(statistics.median(second), statistics.median(last), chance)

    @property
    def share(self) -> float:
        """Growth of the median as a share of the earlier one."""
        if not self.before:
            return float("inf") if self.after else 0.0
        return self.after / self.before - 1

    @property
    def is_real(self) -> bool:
        """Whether it is more than is allowed, and than chance explains."""
        return self.share > MAX_GROWTH and self.chance < MAX_CHANCE


HEADER: Final = (
    "minute lives  closed    kept   store   start start's imports  memory open child    scrape\n"
    "                jobs    jobs     MiB       s   CPU s   CPU s     MiB  fds procs    p99 ms"
)


async def _sleep(stop: asyncio.Event, seconds: float) -> None:
    """Sleep, but not longer than the load lasts."""
    with suppress(TimeoutError):
        async with asyncio.timeout(max(0.0, seconds)):
            await stop.wait()


# ---------------------------------------------------------------- processes


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return int(opened.getsockname()[1])


def cpu_seconds(pid: int) -> float:
    """Return the processor time of a process."""
    values = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(values[11]) + int(values[12])) / os.sysconf("SC_CLK_TCK")


def import_cpu_seconds() -> float:
    """Return the processor time of a process that only imports the service."""
    process = subprocess.Popen([sys.executable, "-c", "import shadowprice.service.server"])
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_utime + usage.ru_stime


def memory_mib(pid: int) -> float:
    """Return the resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def descriptors(pid: int | str) -> list[str]:
    """Return what the open file descriptors of a process refer to."""
    targets = []
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            targets.append(str(file.readlink()))
    return targets


def sockets(pid: int) -> int:
    """Return the number of a process's open sockets."""
    return sum(target.startswith("socket:") for target in descriptors(pid))


def session_members(session: int) -> list[int]:
    """Return the processes of a session, except for dead ones."""
    members = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        with suppress(FileNotFoundError, ProcessLookupError):
            values = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(values[3]) == session and values[0] != "Z":
                members.append(int(folder.name))
    return members


def main(words: Iterable[str] | None = None) -> int:
    """Run a soak; return 1 if it found something."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for option in fields(SoakOptions):
        kind = type(option.default)
        flag = "--" + option.name.replace("_", "-")
        parser.add_argument(flag, type=kind, default=option.default, metavar=kind.__name__)
    options = SoakOptions(**vars(parser.parse_args(None if words is None else list(words))))
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the service must not stay behind
    print(json.dumps(vars(options)))
    with tempfile.TemporaryDirectory() as folder:
        soak = Soak(Path(folder), options, lambda line: print(line, flush=True))
        wrong = asyncio.run(soak.run())
    print("violations:", *(wrong or ["none"]), sep="\n  ")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())

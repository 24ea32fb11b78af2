"""Small random worlds for the live service in virtual time, and what a policy did in one.

Jobs take longer or shorter than stated, start late, and run on servers of unlike speed that vanish
and return. `play` runs the service to the end, and `violations` says which promises of
`docs/reliability.md` it broke; both see what jobs really did, not what the service believes.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from shadowprice.core.errors import ShadowpriceError
from shadowprice.core.job_keys import name_of_key, qualified_name
from shadowprice.executors.contract import Ending, StartRefused
from shadowprice.executors.virtual import (
    VirtualClock,
    VirtualExecutor,
    VirtualGeneration,
    VirtualJob,
    run_virtual,
)
from shadowprice.policies.choice import PolicyChoice
from shadowprice.policies.registry import policies
from shadowprice.service.state.job_views import JobView, State
from shadowprice.service.state.operations import Availability, cancel_job, change_server
from shadowprice.service.state.store_queries import job_history
from shadowprice.service.store import Store
from shadowprice.service.store.files import FILE
from shadowprice.service.virtual import VirtualService

Entry = TypeVar("Entry")

LIVE: Final = tuple(name for name, info in policies().items() if not info.knows_all_jobs)
"""Policies that can run live."""

TENANTS: Final = ("a", "b")

STEPS: Final = 100
"""Mini-batches of a slot on one worker."""

HORIZON: Final = 60

MAX_UNSAVED_STOPS: Final = 3
"""Times that a policy may stop a job whose generation has saved nothing.

Only a job that writes checkpoints now and then, and none on SIGTERM, is ever stopped so: each stop
needs more progress than the one before, until a checkpoint exists or the service learns better.
"""


@dataclass(frozen=True)
class LiveJob:
    """A job as it is stated and as it is; spans are in slots.

    Parameters
    ----------
    submitted : float
        When, after the start of the service.
    stated : int
        Slots on one worker.
    max_workers : int
        Most workers.
    ps : bool
        Whether it has a parameter server.
    utility : mapping
        As in a job file.
    restart : float or None
        What it says of a restart; None if it says nothing.
    error : float
        True work over stated work, less 1.
    slower : bool
        Whether the error is one of speed; otherwise of the number of mini-batches.
    launch, start : float
        From the order until its processes run, and from then until its first step.
    save : float or None
        Time to save on SIGTERM; None if it doesn't.
    save_every : float or None
        Between two checkpoints; None if there are none.
    report_every : float or None
        Between two reports; None if it never reports.
    tenant : int
        Which tenant's it is.
    walltime : int or None
        The limit that it states.
    hangs : float or None
        After how much of its work it hangs, and never ends.
    """

    submitted: float = 0.0
    stated: int = 4
    max_workers: int = 1
    ps: bool = False
    utility: Mapping[str, Any] = field(default_factory=lambda: {"kind": "constant", "value": 10})
    restart: float | None = None
    error: float = 0.0
    slower: bool = True
    launch: float = 0.0
    start: float = 0.0
    save: float | None = None
    save_every: float | None = None
    report_every: float | None = None
    tenant: int = 0
    walltime: int | None = None
    hangs: float | None = None


@dataclass(frozen=True)
class LiveIncident:
    """Something that happens to a server, a job or the service, and for how many slots."""

    at: float
    kind: str
    """``lost``, ``drained``, ``cordoned``, ``cancelled``, ``stopped`` or ``killed``."""
    subject: int = 0
    slots: float = 2.0


@dataclass(frozen=True)
class LiveWorld:
    """Servers, jobs and incidents."""

    slot: int = 60
    places: tuple[int, ...] = (1, 1)
    """Workers that each server has room for."""
    speeds: tuple[float, ...] = (1.0, 1.0)
    jobs: tuple[LiveJob, ...] = ()
    incidents: tuple[LiveIncident, ...] = ()
    max_overrun: float | None = None

    def cluster(self, policy: str) -> dict[str, Any]:
        """Return the cluster file."""
        shared = policies()[policy].counts_places
        servers = [
            {
                "name": f"s{row}",
                "capacity": {"worker": n, "ps": n} if shared else {"cpu": 2 * n + 1},
            }
            for row, n in enumerate(self.places)
        ]
        made: dict[str, Any] = {"slot": f"{self.slot}s", "horizon": HORIZON, "servers": servers}
        if shared:
            total = sum(self.places)
            shares = [total - total // 2, total // 2]
            made["tenants"] = [
                {"name": name, "share": {"worker": share, "ps": share}}
                for name, share in zip(TENANTS, shares, strict=True)
                if share
            ]
        return made

    def key(self, policy: str, number: int) -> str:
        """Return the key of a job."""
        record = self.record(policy, number)
        return qualified_name(record["tenant"], record["name"])

    def record(self, policy: str, number: int) -> dict[str, Any]:
        """Return what is submitted of a job."""
        shared, one = policies()[policy].counts_places, self.jobs[number]
        tenants = TENANTS[: min(2, sum(self.places))]
        record: dict[str, Any] = {
            "name": f"job-{number}",
            "tenant": tenants[one.tenant % len(tenants)],
            "epochs": one.stated,
            "chunks": one.max_workers,
            "minibatches": max(1, STEPS // one.max_workers),
            "minibatch_time": f"{self.slot / STEPS}s",
            "worker": {"worker": 1} if shared else {"cpu": 2},
            "utility": dict(one.utility),
            "run": {"command": ["train"], "grace": f"{self.slot}s"},
        }
        if one.ps:
            record["ps"] = {"ps": 1} if shared else {"cpu": 1}
        if one.restart is not None:
            record["restart"] = f"{one.restart * self.slot}s"
        if one.walltime is not None:
            record["walltime"] = f"{one.walltime * self.slot}s"
        return record

    def virtual_job(self, number: int) -> VirtualJob:
        """Return how a job really runs."""
        one, slot = self.jobs[number], self.slot
        work = one.stated * one.max_workers * max(1, STEPS // one.max_workers)
        factor = 1.0 + one.error
        speed = STEPS / slot / (factor if one.slower else 1.0)
        return VirtualJob(
            work * (1.0 if one.slower else factor),
            lambda shares: speed * sum(share.workers for share in shares),
            one.launch * slot,
            (one.start * slot,),
            None if one.save is None else one.save * slot,
            None if one.save_every is None else one.save_every * slot,
            None if one.report_every is None else one.report_every * slot,
            hangs_at=None if one.hangs is None else one.hangs * work,
        )

    @property
    def bound_slots(self) -> float:
        """Slots after the last incident or submission in which every job has to be over.

        All jobs one after the other on one worker of the slowest server, each from its beginning
        again for every stop that lost its work and for one lost server, and twice that for policies
        that let jobs take turns.
        """
        slowest = min(self.speeds)
        alone = sum(
            self._max_run(job) / slowest + job.launch + job.start + 2.0 for job in self.jobs
        )
        return 2.0 * (2 + MAX_UNSAVED_STOPS) * alone + HORIZON

    def _max_run(self, one: LiveJob) -> float:
        """Return the slots that a run of a job takes at most on one worker of speed 1."""
        if one.hangs is None:
            return (1.0 + max(0.0, one.error)) * one.stated
        if one.walltime is not None:
            return one.walltime
        assert self.max_overrun is not None
        # Its measured speed can be below the stated one.
        return self.max_overrun * (1.0 + max(0.0, one.error)) * one.stated

    @property
    def last_slots(self) -> float:
        """Slots until nothing happens from outside any more."""
        submitted = [job.submitted for job in self.jobs]
        return max(
            [*submitted, *(incident.at + incident.slots for incident in self.incidents)],
            default=0.0,
        )


@dataclass
class Played:
    """The outcome of a world."""

    world: LiveWorld
    policy: str
    views: dict[str, JobView]
    generations: Sequence[VirtualGeneration]
    histories: dict[str, Sequence[Mapping[str, Any]]]
    seconds: float
    over: bool
    began: float
    excused: list[tuple[float, float, str]]
    """From when to when a cause outside may stop generations: of a job, on a server, or any."""
    overbooked: list[str]


def play(world: LiveWorld, policy: str, *, limit_slots: float | None = None) -> Played:
    """Run the service in a world until every job is over, or the bound has passed."""

    async def main(clock: VirtualClock) -> Played:
        with tempfile.TemporaryDirectory(prefix="virtual-", dir=_FOLDER) as name:
            return await _play(world, policy, clock, Path(name), limit_slots)

    return run_virtual(main)


_FOLDER: Final = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""What is in memory needs no disk's answer."""

_template: list[bytes] = []


def _prepare(folder: Path) -> None:
    """Put a store with its tables into a folder, so that no test has to make them again."""
    data = folder / "data"
    if not _template:
        store = Store(str(data))
        assert store.open()
        store.close()
        _template.append((data / FILE).read_bytes())
    data.mkdir(mode=0o700, exist_ok=True)
    (data / FILE).write_bytes(_template[0])


async def _play(
    world: LiveWorld, policy: str, clock: VirtualClock, folder: Path, limit_slots: float | None
) -> Played:
    loop = asyncio.get_running_loop()
    _prepare(folder)
    speeds = {f"s{row}": speed for row, speed in enumerate(world.speeds)}
    jobs = {world.key(policy, index): world.virtual_job(index) for index in range(len(world.jobs))}
    executor = VirtualExecutor(clock, jobs, speeds)
    service = VirtualService(
        folder,
        world.cluster(policy),
        PolicyChoice(policy),
        clock,
        executor,
        {"max_overrun": world.max_overrun},
    )
    await service.start()
    began, slot = loop.time(), world.slot
    excused: list[tuple[float, float, str]] = []
    script: list[tuple[float, int, Any]] = []
    for number, job in enumerate(world.jobs):
        script.append((job.submitted, number, job))
    for number, incident in enumerate(world.incidents):
        script.append((incident.at, len(world.jobs) + number, incident))
        if incident.kind in {"lost", "drained", "cordoned"}:
            script.append((incident.at + incident.slots, 10_000 + number, incident))
    for at, number, what in sorted(script, key=lambda entry: entry[:2]):
        await asyncio.sleep(max(0.0, began + at * slot - loop.time()))
        if isinstance(what, LiveJob):
            await service.submit(world.record(policy, number))
            continue
        now = loop.time()
        server = f"s{what.subject % len(world.places)}"
        if what.kind == "lost":
            # The start of what it was to run may still be under way when it is back.
            back = began + (what.at + what.slots) * slot
            excused.append((now, max(now, back) + slot, server))
            (executor.lose_server if number < 10_000 else executor.return_server)(server)
        elif what.kind == "drained":
            # What runs there goes on to the end of its slot, and the next one is planned without.
            excused.append((now, now + 2.0 * slot + 60.0, ""))
            state: Availability = "drained" if number < 10_000 else "up"
            await service.writer.do(change_server(server, state))
        elif what.kind == "cordoned":
            state = "cordoned" if number < 10_000 else "up"
            await service.writer.do(change_server(server, state))
        elif what.kind == "cancelled":
            name = world.key(policy, what.subject % len(world.jobs))
            excused.append((now, float("inf"), name))
            with suppress(ShadowpriceError):  # it may be closed
                await service.writer.do(cancel_job(name))
        else:
            await (service.stop() if what.kind == "stopped" else service.kill())
            await asyncio.sleep(what.slots * slot)
            await service.start()
    limit = world.bound_slots if limit_slots is None else limit_slots
    over = await service.run_until_over(limit * slot + 600.0, max(1.0, slot / 4))
    seconds = loop.time() - began
    await asyncio.sleep(2.0 * slot + 60.0)  # what was cancelled ends
    views = {name: await service.view(name) for name in jobs}
    histories = {name: (await service.read(partial(job_history, key=name)))[0] for name in jobs}
    if over:
        service.check()
    overbooked = [
        f"{generation.spec.job} generation {generation.spec.generation}: {generation.end.reason}"
        for generation in executor.generations
        if isinstance(generation.end, StartRefused) and "in use" in generation.end.reason
    ]
    await service.stop()
    return Played(
        world, policy, views, executor.generations, histories, seconds, over, began, excused,
        overbooked,
    )  # fmt: skip


def unsaved_stops(played: Played) -> dict[str, list[VirtualGeneration]]:
    """Return by job the generations that were stopped before they saved, with no cause outside."""
    found: dict[str, list[VirtualGeneration]] = {}
    for generation in played.generations:
        if generation.ending is not Ending.STOPPED or generation.saved > generation.base:
            continue
        assert generation.stop_ordered is not None
        subjects = {"", generation.spec.job, *(share.server for share in generation.spec.placement)}
        if any(
            start <= generation.stop_ordered <= end and name in subjects
            for start, end, name in played.excused
        ):
            continue
        found.setdefault(generation.spec.job, []).append(generation)
    return found


def swaps(played: Played) -> int:
    """Return how often two jobs took a place from each other and back again."""
    stopped_for: Counter[tuple[str, str]] = Counter()
    ordered = [generation for generation in played.generations if generation.started_at is not None]
    for one in ordered:
        if one.ending is not Ending.STOPPED or one.ended_at is None:
            continue
        servers = {share.server for share in one.spec.placement}
        for other in ordered:
            follows = other.spec.job != one.spec.job and 0.0 <= other.accepted - one.ended_at < 1.0
            if follows and servers & {share.server for share in other.spec.placement}:
                stopped_for[one.spec.job, other.spec.job] += 1
    return sum(
        min(count, stopped_for[second, first])
        for (first, second), count in stopped_for.items()
        if first < second
    )


def violations(played: Played) -> list[str]:
    """Return what went wrong in a world."""
    results = [f"overbooked: {one}" for one in played.overbooked]
    if not played.over:
        names = sorted(name for name, view in played.views.items() if view.state.open)
        results.append(f"not over after {played.seconds / played.world.slot:.0f} slots: {names}")
    for name, view in played.views.items():
        if view.state is State.FAILED and view.reason is None:
            results.append(f"{name} failed without a reason")
        if view.state is State.FINISHED:
            if played.world.jobs[int(name_of_key(name).removeprefix("job-"))].hangs is not None:
                results.append(f"{name} is finished, although it hangs")
            mine = [generation for generation in played.generations if generation.spec.job == name]
            if not any(one.ending is Ending.DONE for one in mine):
                results.append(f"{name} is finished, and no generation of it exited 0")
    for name, stops in unsaved_stops(played).items():
        job = played.world.jobs[int(name.rpartition("-")[2])]
        allowed = MAX_UNSAVED_STOPS if job.save_every is not None else 0
        reason = played.views[name].reason or {}
        allowed += reason.get("code") == "time-limit"  # its last generation is stopped
        if len(stops) > allowed:
            results.append(f"{name} was stopped {len(stops)} times before it had saved anything")
    live: dict[str, float] = {}
    for generation in sorted(played.generations, key=lambda entry: entry.accepted):
        if isinstance(generation.end, StartRefused):
            continue
        if generation.accepted < live.get(generation.spec.job, 0.0):
            results.append(f"{generation.spec.job} runs twice")
        end = generation.ended_at
        live[generation.spec.job] = float("inf") if end is None else end
    return results


def smallest(world: LiveWorld, policy: str) -> LiveWorld:
    """Return a world with as few jobs and incidents as still break a promise."""
    shrinks = True
    while shrinks:
        shrinks = False
        fewer_incidents = (
            replace(world, incidents=_without(world.incidents, index))
            for index in range(len(world.incidents))
        )
        fewer_jobs = (
            replace(world, jobs=_without(world.jobs, index))
            for index in range(len(world.jobs))
            if len(world.jobs) > 1
        )
        for smaller in (*fewer_incidents, *fewer_jobs):
            if violations(play(smaller, policy)):
                world, shrinks = smaller, True
                break
    return world


def _without(entries: tuple[Entry, ...], at: int) -> tuple[Entry, ...]:
    return (*entries[:at], *entries[at + 1 :])


# -------------------------------------------------------------------- draws


def draw_world(seed: int) -> LiveWorld:
    """Return the world of a seed."""
    draw = random.Random(seed)
    slot = draw.choice([1, 2, 5, 20, 60, 300, 1200])
    servers = draw.randint(1, 4)
    jobs = tuple(_draw_job(draw) for _ in range(draw.randint(1, 7)))
    incidents = tuple(
        LiveIncident(
            round(draw.uniform(0.0, 15.0), 2),
            draw.choice(["lost", "lost", "drained", "cordoned", "cancelled", "stopped", "killed"]),
            draw.randrange(8),
            round(draw.uniform(0.2, 4.0), 2),
        )
        for _ in range(draw.choice([0, 0, 0, 1, 2]))
    )
    return LiveWorld(
        slot,
        tuple(draw.randint(1, 3) for _ in range(servers)),
        tuple(draw.choice([1.0, 1.0, 1.0, 0.8, 1.25]) for _ in range(servers)),
        jobs,
        incidents,
    )


def draw_hanging_world(seed: int) -> LiveWorld:
    """Return the world of a seed with jobs that hang and are worth something forever."""
    draw, world = random.Random(f"hangs {seed}"), draw_world(seed)
    by_operator = draw.random() < 0.5
    jobs = list(world.jobs)
    for index in draw.sample(range(len(jobs)), draw.randint(1, len(jobs))):
        jobs[index] = replace(
            jobs[index],
            utility={"kind": "constant", "value": 10},
            walltime=None if by_operator else jobs[index].stated + draw.randint(0, 10),
            hangs=round(draw.choice([0.0, draw.random()]), 3),
        )
    overrun = round(draw.uniform(1.0, 4.0), 1) if by_operator else None
    return replace(world, jobs=tuple(jobs), max_overrun=overrun)


def _draw_job(draw: random.Random) -> LiveJob:
    saves = draw.choice(["never", "never", "on SIGTERM", "on SIGTERM", "every"])
    error = draw.uniform(0.01, 0.5) * draw.choice([1, 1, -1])
    stated = draw.randint(1, 10)
    by = draw.randint(stated, 60)
    utility: Mapping[str, Any] = draw.choice(
        [
            {"kind": "constant", "value": 10},
            {"kind": "sigmoid", "value": 10, "decay": 0.1, "target": f"{by} slots"},
            {"kind": "deadline", "value": 10, "by": f"{by} slots"},
            {"kind": "linear", "value": 10, "slope": -0.1},
        ]
    )
    return LiveJob(
        round(draw.uniform(0.0, 12.0), 2),
        stated,
        draw.choice([1, 1, 2, 3]),
        draw.random() < 0.2,
        utility,
        draw.choice([None, 0.0, 0.1, 0.3]),
        round(error, 3),
        draw.random() < 0.5,
        round(draw.choice([0.0, draw.uniform(0.0, 0.3)]), 3),
        round(draw.choice([0.0, draw.uniform(0.0, 0.5)]), 3),
        round(draw.uniform(0.0, 0.2), 3) if saves == "on SIGTERM" else None,
        round(draw.uniform(0.3, 2.0), 3) if saves == "every" else None,
        draw.choice([None, 0.2, 0.5]),
        draw.randrange(2),
    )

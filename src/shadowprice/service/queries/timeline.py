"""Timeline of placements by server and slot, past and future.

The past comes from stored generations, and the future from the current plans. A bar is a job on a
server between two moments, in slots. Hundreds of servers have too many bars to display, so each
server also has a level per slot: the used share of its scarcest resource.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, or_, select

from shadowprice import rest
from shadowprice.core.amounts import UNLIMITED, parse_amount
from shadowprice.core.cluster import Cluster
from shadowprice.core.devices import without_total
from shadowprice.core.errors import ShadowpriceError
from shadowprice.core.job_keys import name_of_key
from shadowprice.core.schedule import Placement
from shadowprice.engine.job_record import JobRecord
from shadowprice.service.clock import SlotCalendar, to_datetime
from shadowprice.service.execution.observer import last_observation_time
from shadowprice.service.read_model import ReadModel
from shadowprice.service.state.durable_state import DurableState
from shadowprice.service.store import tables
from shadowprice.service.store.lookups import rows_among

MAX_SLOTS: Final = 1_000  # maximum number of past slots, and of future slots
MAX_BARS: Final = 4_000  # maximum number of bars and promises; above it, only levels are returned
MAX_GENERATION_ROWS: Final = 20_000  # maximum number that is read, newest first
FULL_LEVEL: Final = 255  # level of a server whose scarcest resource is fully used

# Kinds of bars:
BAR_PAST: Final = 0  # the job ran
BAR_PLANNED: Final = 1  # reserved by the current plan, or for the rest of the running slot
BAR_EXPECTED: Final = 2  # the running job stays, because the policy plans no coming slots


@dataclass(frozen=True, slots=True)
class TimelineBar:
    """A job on a server for some time; times are in slots since the start of slot 0."""

    job: str
    server: str
    begins: float
    ends: float
    workers: int
    ps: int
    kind: int  # `BAR_PAST`, `BAR_PLANNED` or `BAR_EXPECTED`


@dataclass(frozen=True, slots=True)
class JobDemand:
    """Demands of a job's worker and parameter server, by resource column of the cluster."""

    worker: NDArray[np.int64]
    ps: NDArray[np.int64]


@dataclass(slots=True)
class JobInfo:
    """Data of the jobs that bars show, by key; unmanaged jobs are absent."""

    jobs: dict[str, tuple[int, str | None, rest.JobState]] = field(default_factory=dict)
    """Id, tenant and state."""
    demands: dict[str, JobDemand] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlannedBars:
    """Planned and expected bars of the coming slots."""

    bars: tuple[TimelineBar, ...]
    promises: Mapping[str, int]  # promised slots of jobs without a plan or placement
    demands: Mapping[str, JobDemand]  # of all open jobs


def planned_bars(state: DurableState, slots: int) -> PlannedBars:
    """Return the bars of the first ``slots`` slots that can still be decided."""
    engine = state.engine
    names, next_slot = engine.cluster.names, state.next_slot
    last = next_slot + slots
    bars: list[TimelineBar] = []
    promises: dict[str, int] = {}
    demands: dict[str, JobDemand] = {}
    nothing = np.zeros(len(engine.cluster.resources), dtype=np.int64)
    for name, record in engine.open_jobs.items():
        ps = record.job.ps
        demands[name] = JobDemand(record.job.worker, nothing if ps is None else ps)
        if len(record.plan):
            bars += _bars_of_plan(name, names, record.plan.from_slot(next_slot).rows(), last)
        elif name in engine.running:
            bars += _bars_in_place(name, record, engine.running[name], names, next_slot, last)
        elif record.promise is not None:
            promises[name] = record.promise
    return PlannedBars(tuple(bars), promises, demands)


def _bars_in_place(
    name: str,
    record: JobRecord,
    placement: Placement,
    names: tuple[str, ...],
    next_slot: int,
    last: int,
) -> Iterable[TimelineBar]:
    """Yield the expected bars of a job that runs in its present placement until it completes."""
    gain = record.job.gain(placement.total_workers, colocated=placement.colocated)
    if gain <= 0:
        return
    end = min(next_slot + max(0, -(-record.remaining // gain) - 1), last)
    if end > next_slot:
        for server, workers, ps in zip(
            placement.servers, placement.workers, placement.ps, strict=True
        ):
            yield TimelineBar(name, names[server], next_slot, end, workers, ps, BAR_EXPECTED)


def _bars_of_plan(
    job: str, names: tuple[str, ...], rows: Iterable[list[int]], last: int
) -> Iterable[TimelineBar]:
    """Yield the bars of a plan; equal entries of consecutive slots are merged into one bar."""
    # The last bar of each server so far: first slot, slot after its end, workers and PS.
    open_bars: dict[int, list[int]] = {}
    for slot, server, workers, ps in rows:
        if slot >= last:
            break
        bar = open_bars.get(server)
        if bar is not None and bar[1:] == [slot, workers, ps]:
            bar[1] = slot + 1
            continue
        if bar is not None:
            yield TimelineBar(job, names[server], bar[0], bar[1], bar[2], bar[3], BAR_PLANNED)
        open_bars[server] = [slot, slot + 1, workers, ps]
    for server, bar in open_bars.items():
        yield TimelineBar(job, names[server], bar[0], bar[1], bar[2], bar[3], BAR_PLANNED)


def past_bars(
    connection: Connection,
    calendar: SlotCalendar,
    first: int,
    now: int,
    job: str | None = None,
    *,
    observed: bool = False,
) -> tuple[list[TimelineBar], bool]:
    """Return the past bars from slot ``first`` on, and whether some were omitted.

    If ``observed``, they are the executions that were polled from another scheduler. Bars of
    running jobs end at ``now``, in nanoseconds since 1970, or at the last poll if ``observed``.
    ``job`` limits the bars to one job.
    """
    if observed:
        columns = tables.observed.c
        started, order = columns.since, columns.id
        last_poll = last_observation_time(connection)
        now = now if last_poll is None else min(now, last_poll)
    else:
        columns = tables.generations.c
        started, order = columns.started, columns.ordered
    query = select(columns.job, started, columns.ended, columns.placement).where(
        started.is_not(None), or_(columns.ended.is_(None), columns.ended > calendar.begins(first))
    )
    if job is not None:
        query = query.where(columns.job == job)
    rows = connection.execute(query.order_by(order.desc()).limit(MAX_GENERATION_ROWS + 1)).all()
    bars = []
    for name, begins, ended, placement in rows[:MAX_GENERATION_ROWS]:
        start = max(float(calendar.in_slots(begins)), float(first))
        end = float(calendar.in_slots(now if ended is None else min(ended, now)))
        if end > start:
            bars += [
                TimelineBar(name, server, start, end, workers, ps, BAR_PAST)
                for server, workers, ps in json.loads(placement)
            ]
    return bars, len(rows) > MAX_GENERATION_ROWS


def load_job_info(
    connection: Connection,
    names: Iterable[str],
    cluster: Cluster,
    published: ReadModel,
    demands: Mapping[str, JobDemand],
) -> JobInfo:
    """Return data of jobs, from the published state if possible, else from the store."""
    result = JobInfo()
    missing: list[str] = []
    for name in names:
        view = published.jobs.get(name)
        if view is not None and name in demands:
            result.jobs[name] = (view.id, view.tenant, view.state.value)
            result.demands[name] = demands[name]
        else:
            missing.append(name)
    table = tables.jobs
    query = select(table.c.id, table.c.key, table.c.tenant, table.c.state, table.c.spec)
    for row in rows_among(connection, query, table.c.key, missing):
        result.jobs[row.key] = (row.id, row.tenant, row.state)
        spec = json.loads(row.spec)
        result.demands[row.key] = JobDemand(
            _demand(cluster, json.dumps(spec.get("worker") or {})),
            _demand(cluster, json.dumps(spec.get("ps") or {})),
        )
    return result


@lru_cache(maxsize=1_000)
def _demand(cluster: Cluster, amounts: str) -> NDArray[np.int64]:
    """Return a demand by resource column; skip resources that the cluster lacks.

    ``amounts`` is JSON, as in a job file, because cached arguments must be hashable.
    """
    counted: dict[str, int] = {}
    for name, text in json.loads(amounts).items():
        if cluster.find_resource(name) is None:
            continue
        try:
            counted[name] = min(parse_amount(text).value, UNLIMITED)
        except ShadowpriceError:
            continue
    return cluster.demand(without_total(counted))


def bar_shares(bars: list[TimelineBar], job_info: JobInfo, cluster: Cluster) -> list[float]:
    """Return the share of its server that each bar takes, of the resource that it uses most."""
    capacity = np.where(
        (cluster.capacity > 0) & (cluster.capacity < UNLIMITED), cluster.capacity, 0
    ).astype(np.float64)
    result = []
    for bar in bars:
        row, demand = cluster.index.get(bar.server), job_info.demands.get(bar.job)
        if row is None or demand is None:
            result.append(0.0)
            continue
        taken = bar.workers * demand.worker + bar.ps * demand.ps
        limited = capacity[row] > 0
        maximum = (taken[limited] / capacity[row][limited]).max(initial=0.0)
        result.append(min(1.0, round(float(maximum), 4)))
    return result


def utilization_levels(
    bars: list[TimelineBar], job_info: JobInfo, cluster: Cluster, first: int, last: int
) -> NDArray[np.uint8]:
    """Return the used share of each server's scarcest resource per slot, up to `FULL_LEVEL`.

    The shape is (servers, slots from ``first`` to before ``last``). A bar that covers a part of a
    slot counts for that part.
    """
    slots = last - first
    levels = np.zeros((len(cluster.names), slots), dtype=np.uint8)
    bars_by_row: dict[int, list[TimelineBar]] = {}
    for bar in bars:
        row = cluster.index.get(bar.server)
        if row is not None and bar.job in job_info.demands:
            bars_by_row.setdefault(row, []).append(bar)
    # One server at a time: all servers, slots and resources at once would take gigabytes.
    for row, own_bars in bars_by_row.items():
        used = np.zeros((len(cluster.resources), slots))
        for bar in own_bars:
            demand = job_info.demands[bar.job]
            start, end = bar.begins - first, min(bar.ends - first, slots)
            indices = np.arange(max(0, int(start)), min(slots, int(np.ceil(end))))
            duration = np.minimum(indices + 1, end) - np.maximum(indices, start)
            taken = bar.workers * demand.worker + bar.ps * demand.ps
            used[:, indices] += taken[:, None] * np.maximum(duration, 0.0)
        capacity = cluster.capacity[row]
        limited = (capacity > 0) & (capacity < UNLIMITED)
        share = (used[limited] / capacity[limited, None]).max(axis=0, initial=0.0)
        # Rounded up, so that any use is visible, except for floating-point errors.
        levels[row] = np.ceil(np.minimum(share, 1.0) * FULL_LEVEL - 1e-6)
    return levels


def timeline(
    connection: Connection,
    published: ReadModel,
    plans: PlannedBars,
    *,
    now: int,
    back: int,
    slots: int,
    server: str | None = None,
    job: str | None = None,
    scope: str | None = None,
    observed: bool = False,
) -> rest.Timeline:
    """Return past, running and planned placements as a REST resource.

    ``back`` and ``slots`` are the numbers of past and of future slots, and ``now`` is in
    nanoseconds since 1970. ``server`` and ``job`` limit the result to one of them. If ``scope``
    names a tenant, jobs of other tenants are anonymous. If ``observed``, the result has only the
    executions that were polled from another scheduler.
    """
    servers = published.servers
    cluster, calendar = servers.cluster, servers.calendar
    current = calendar.slot_at(now)
    first, last = max(0, current - back), max(current + 1, servers.next_slot) + slots
    bars, incomplete = past_bars(connection, calendar, first, now, job, observed=observed)
    if not observed:
        # `plans` may cover more slots, and slots that began since it was computed.
        start = servers.next_slot
        planned = [
            replace(bar, begins=max(bar.begins, start), ends=min(bar.ends, last))
            for bar in plans.bars
            if bar.begins < last and bar.ends > start
        ]
        bars = [*bars, *_running_bars(published, calendar, now), *planned]
    bars = [
        bar
        for bar in bars
        if (server is None or bar.server == server) and (job is None or bar.job == job)
    ]
    promises = {
        name: slot
        for name, slot in ({} if observed else plans.promises).items()
        if server is None and (job is None or name == job)
    }
    job_info = load_job_info(
        connection, {*(bar.job for bar in bars), *promises}, cluster, published, plans.demands
    )
    encoded_levels = None
    if job is None:
        levels = utilization_levels(bars, job_info, cluster, first, last)
        if server is not None and server in cluster.index:
            levels = levels[[cluster.index[server]]]
        encoded_levels = base64.b64encode(levels.tobytes()).decode()
    jobs, columns, open_promises = None, None, None
    if len(bars) + len(promises) <= MAX_BARS:
        order = dict.fromkeys([*(bar.job for bar in bars), *promises])
        numbers = {name: index for index, name in enumerate(order)}
        jobs = [_timeline_job(name, job_info, scope) for name in order]
        columns = rest.TimelineBars(
            job=[numbers[bar.job] for bar in bars],
            server=[bar.server for bar in bars],
            start=[round(bar.begins, 4) for bar in bars],
            end=[round(bar.ends, 4) for bar in bars],
            workers=[bar.workers for bar in bars],
            ps=[bar.ps for bar in bars],
            kind=[bar.kind for bar in bars],
            share=bar_shares(bars, job_info, cluster),
        )
        open_promises = [(numbers[name], slot) for name, slot in promises.items()]
    return rest.Timeline(
        slot_seconds=float(cluster.slot_seconds),
        origin=to_datetime(calendar.origin),
        now=round(float(calendar.in_slots(now)), 4),
        first=first,
        last=last,
        running=servers.slot_running,
        next_slot=servers.next_slot_at(now),
        servers=[name for name in cluster.names if server is None or name == server],
        incomplete=incomplete,
        levels=encoded_levels,
        jobs=jobs,
        bars=columns,
        promises=open_promises,
    )


def _timeline_job(key: str, job_info: JobInfo, scope: str | None) -> rest.TimelineJob:
    number, tenant, state = job_info.jobs.get(key, (None, None, None))
    if scope is not None and tenant != scope:
        return rest.TimelineJob(job=None, job_id=None, tenant=None, state=None)
    return rest.TimelineJob(job=name_of_key(key), job_id=number, tenant=tenant, state=state)


def _running_bars(published: ReadModel, calendar: SlotCalendar, now: int) -> list[TimelineBar]:
    """Return the bars for the rest of the running slot."""
    running = published.servers.slot_running
    if running is None:
        return []
    start, end = float(calendar.in_slots(now)), float(running + 1)
    return [
        TimelineBar(name, server, max(start, float(running)), end, workers, ps, BAR_PLANNED)
        for name, command in published.desired.items()
        if command.slot <= running and start < end
        for server, workers, ps in zip(
            command.servers, command.placement.workers, command.placement.ps, strict=True
        )
    ]

"""What runs and is promised where: servers and slots, past and future.

The past is what the store has of generations, the future the plans in force. Both are told as bars
(a job on a server, from one moment to another, in slots) and, since hundreds of servers are too
many bars to look at, as a level for every server and slot: the used share of its scarcest resource.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, or_, select

from shadowprice.core.amounts import UNLIMITED, parse_amount
from shadowprice.core.cluster import Cluster
from shadowprice.core.errors import ShadowpriceError
from shadowprice.core.schedule import Placement
from shadowprice.engine.state import JobRecord
from shadowprice.rest.jobs import JobState
from shadowprice.rest.monitoring import Timeline, TimelineBars, TimelineJob
from shadowprice.service.clock import Calendar, to_datetime
from shadowprice.service.published import Published
from shadowprice.service.store import tables
from shadowprice.service.truth.truth import Truth

MOST: Final = 1_000
"""Slots of past, and of future, at most."""

BARS: Final = 4_000
"""Bars told, at most; levels are told of all."""

ROWS: Final = 20_000
"""Generations read from the store, at most; the newest."""


RAN: Final = 0
"""It ran."""

PLANNED: Final = 1
"""It is reserved: the plan in force, or the rest of the slot that runs."""

EXPECTED: Final = 2
"""The policy decides slot by slot; so long would it run where it runs now."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A job on a server for some time.

    Parameters
    ----------
    job, server : str
        Which, and where.
    begins, ends : float
        In slots after the beginning of slot 0.
    workers, ps : int
        What of it stands there.
    what : int
        `RAN`, `PLANNED` or `EXPECTED`.
    """

    job: str
    server: str
    begins: float
    ends: float
    workers: int
    ps: int
    what: int


@dataclass(frozen=True, slots=True)
class Demand:
    """What one worker, and one parameter server, of a job takes, by column of the cluster."""

    worker: NDArray[np.int64]
    ps: NDArray[np.int64]


Past = Callable[[Connection, Calendar, int, int, str | None], tuple[list[Bar], bool]]
"""Returns bars of what ran from a slot on up to a moment, and whether some were left out."""


@dataclass(slots=True)
class Known:
    """What is known of the jobs that bars speak of.

    Parameters
    ----------
    tenants, states : dict of str to str
        By job.
    demands : dict of str to Demand
        By job; one whose demand cannot be told is left out, and counts for nothing.
    """

    tenants: dict[str, str | None] = field(default_factory=dict)
    states: dict[str, JobState] = field(default_factory=dict)
    demands: dict[str, Demand] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Planned:
    """What is to come.

    Parameters
    ----------
    bars : tuple of Bar
        What is planned or expected.
    promises : mapping of str to int
        Promised slots of jobs that have no place yet.
    demands : mapping of str to Demand
        Of every open job.
    """

    bars: tuple[Bar, ...]
    promises: Mapping[str, int]
    demands: Mapping[str, Demand]


def planned(truth: Truth, last: int) -> Planned:
    """Return what is reserved, from the first slot that can still be decided on.

    Parameters
    ----------
    truth : Truth
        Between two batches.
    last : int
        Slot to end before.
    """
    engine = truth.engine
    names, coming = engine.cluster.names, truth.coming
    bars: list[Bar] = []
    promises: dict[str, int] = {}
    demands: dict[str, Demand] = {}
    nothing = np.zeros(len(engine.cluster.resources), dtype=np.int64)
    for name, record in engine.open_jobs.items():
        ps = record.job.ps
        demands[name] = Demand(record.job.worker, nothing if ps is None else ps)
        if len(record.plan):
            bars += _runs(name, names, record.plan.from_slot(coming).rows(), last)
        elif name in engine.running:
            bars += _staying(name, record, engine.running[name], names, coming, last)
        elif record.promise is not None:
            promises[name] = record.promise
    return Planned(tuple(bars), promises, demands)


def _staying(
    name: str,
    record: JobRecord,
    placement: Placement,
    names: tuple[str, ...],
    coming: int,
    last: int,
) -> Iterable[Bar]:
    """Yield how long a job would stay where it is, at the rate that it has there."""
    gain = record.job.gain(placement.total_workers, colocated=placement.colocated)
    if gain <= 0:
        return
    ends = min(coming + max(0, -(-record.remaining // gain) - 1), last)
    if ends > coming:
        for server, workers, ps in zip(
            placement.servers, placement.workers, placement.ps, strict=True
        ):
            yield Bar(name, names[server], coming, ends, workers, ps, EXPECTED)


def _runs(job: str, names: tuple[str, ...], rows: Iterable[list[int]], last: int) -> Iterable[Bar]:
    """Yield a plan's entries, those of one server that follow on each other as one bar."""
    going: dict[int, list[int]] = {}
    for slot, server, workers, ps in rows:
        if slot >= last:
            break
        run = going.get(server)
        if run is not None and run[1] == slot and run[2] == workers and run[3] == ps:
            run[1] = slot + 1
            continue
        if run is not None:
            yield Bar(job, names[server], run[0], run[1], run[2], run[3], PLANNED)
        going[server] = [slot, slot + 1, workers, ps]
    for server, run in going.items():
        yield Bar(job, names[server], run[0], run[1], run[2], run[3], PLANNED)


def ran(
    connection: Connection, calendar: Calendar, first: int, now: int, job: str | None = None
) -> tuple[list[Bar], bool]:
    """Return what ran from a slot on, and whether some of it was left out.

    Parameters
    ----------
    connection : Connection
        To read by.
    calendar : Calendar
        When slots are.
    first : int
        The slot.
    now : int
        The moment up to which what has not ended has run.
    job : str, optional
        Only of this job.
    """
    table = tables.generations
    since = calendar.begins(first)
    query = select(table).where(
        table.c.started.is_not(None), or_(table.c.ended.is_(None), table.c.ended > since)
    )
    if job is not None:
        query = query.where(table.c.job == job)
    query = query.order_by(table.c.ordered.desc()).limit(ROWS + 1)
    bars = []
    rows = connection.execute(query).all()
    for row in rows[:ROWS]:
        ended = now if row.ended is None else row.ended
        begins = max(float(calendar.in_slots(row.started)), float(first))
        ends = float(calendar.in_slots(min(ended, now)))
        if ends <= begins:
            continue
        for server, workers, ps in json.loads(row.placement):
            bars.append(Bar(row.job, server, begins, ends, workers, ps, RAN))
    return bars, len(rows) > ROWS


def know(
    connection: Connection,
    names: Iterable[str],
    cluster: Cluster,
    published: Published,
    demands: Mapping[str, Demand],
) -> Known:
    """Return what is known of jobs, open ones from memory and others from the store."""
    known = Known()
    missing: list[str] = []
    for name in names:
        view = published.jobs.get(name)
        if view is not None and name in demands:
            known.tenants[name] = view.tenant
            known.states[name] = view.state.value
            known.demands[name] = demands[name]
        else:
            missing.append(name)
    table = tables.jobs
    for at in range(0, len(missing), 500):
        query = select(table.c.name, table.c.tenant, table.c.state, table.c.spec)
        for row in connection.execute(query.where(table.c.name.in_(missing[at : at + 500]))):
            known.tenants[row.name] = row.tenant
            known.states[row.name] = row.state
            spec = json.loads(row.spec)
            known.demands[row.name] = Demand(
                _demand(cluster, json.dumps(spec.get("worker") or {})),
                _demand(cluster, json.dumps(spec.get("ps") or {})),
            )
    return known


@lru_cache(maxsize=1_000)
def _demand(cluster: Cluster, amounts: str) -> NDArray[np.int64]:
    """Return amounts of a job file by column; what the cluster has not (any more) is left out."""
    found = np.zeros(len(cluster.resources), dtype=np.int64)
    for name, text in json.loads(amounts).items():
        column = cluster.column.get(name)
        if column is None:
            continue
        try:
            found[column] = min(parse_amount(text).value, UNLIMITED)
        except ShadowpriceError:
            continue
    return found


def shares(bars: list[Bar], known: Known, cluster: Cluster) -> list[float]:
    """Return of every bar the share that it takes of the scarcest resource of its server."""
    capacity = np.where(
        (cluster.capacity > 0) & (cluster.capacity < UNLIMITED), cluster.capacity, 0
    ).astype(np.float64)
    found = []
    for bar in bars:
        row, demand = cluster.index.get(bar.server), known.demands.get(bar.job)
        if row is None or demand is None:
            found.append(0.0)
            continue
        taken = bar.workers * demand.worker + bar.ps * demand.ps
        limited = capacity[row] > 0
        most = (taken[limited] / capacity[row][limited]).max(initial=0.0)
        found.append(min(1.0, round(float(most), 4)))
    return found


def levels(
    bars: list[Bar], known: Known, cluster: Cluster, first: int, last: int
) -> NDArray[np.uint8]:
    """Return the used share of every server's scarcest resource, slot by slot, 255 for all of it.

    Returns
    -------
    ndarray of uint8, shape (servers, slots)
        A slot in which something ran for a part of the time counts that part.
    """
    count, slots = len(cluster.names), last - first
    used = np.zeros((len(cluster.resources), count, slots))
    for bar in bars:
        row, demand = cluster.index.get(bar.server), known.demands.get(bar.job)
        if row is None or demand is None:
            continue
        begins, ends = bar.begins - first, min(bar.ends - first, slots)
        at = np.arange(max(0, int(begins)), min(slots, int(np.ceil(ends))))
        part = np.minimum(at + 1, ends) - np.maximum(at, begins)
        taken = bar.workers * demand.worker + bar.ps * demand.ps
        used[:, row, at] += taken[:, None] * np.maximum(part, 0.0)
    limited = (cluster.capacity > 0) & (cluster.capacity < UNLIMITED)
    capacity = np.where(limited, cluster.capacity, 1).T[:, :, None]
    share = np.where(limited.T[:, :, None], used / capacity, 0.0).max(axis=0, initial=0.0)
    # What is used at all can be seen.
    told: NDArray[np.uint8] = np.ceil(np.minimum(share, 1.0) * 255 - 1e-6).astype(np.uint8)
    return told


def timeline(
    connection: Connection,
    published: Published,
    plans: Planned,
    *,
    now: int,
    back: int,
    slots: int,
    server: str | None = None,
    job: str | None = None,
    scope: str | None = None,
    past: Past = ran,
    real: bool = False,
) -> Timeline:
    """Return past, running and planned placements as clients get them.

    Parameters
    ----------
    connection : Connection
        To read by.
    published : Published
        What is so now.
    plans : Planned
        What is to come.
    now : int
        The moment, in nanoseconds since 1970.
    back, slots : int
        Slots of past, and of future.
    server, job : str, optional
        Only there, or only this.
    scope : str, optional
        The tenant who asks: the names of others' jobs are left out.
    past : callable
        Returns what ran.
    real : bool
        Whether that is all: what is planned is left out.
    """
    servers = published.servers
    cluster, calendar = servers.cluster, servers.calendar
    current = calendar.slot_at(now)
    first, last = max(0, current - back), max(current + 1, servers.coming) + slots
    bars, cut = past(connection, calendar, first, now, job)
    if not real:
        bars = [*bars, *_running(published, calendar, now), *plans.bars]
    bars = [
        bar
        for bar in bars
        if (server is None or bar.server == server) and (job is None or bar.job == job)
    ]
    promises = {
        name: slot
        for name, slot in ({} if real else plans.promises).items()
        if server is None and (job is None or name == job)
    }
    known = know(
        connection,
        {*(bar.job for bar in bars), *promises},
        cluster,
        published,
        plans.demands,
    )
    encoded_levels = None
    if job is None:
        level = levels(bars, known, cluster, first, last)
        if server is not None and server in cluster.index:
            level = level[[cluster.index[server]]]
        encoded_levels = base64.b64encode(level.tobytes()).decode()
    jobs, columns, open_promises = None, None, None
    if len(bars) + len(promises) <= BARS:
        order = dict.fromkeys([*(bar.job for bar in bars), *promises])
        numbers = {name: index for index, name in enumerate(order)}
        jobs = [_timeline_job(name, known, scope) for name in order]
        columns = TimelineBars(
            job=[numbers[bar.job] for bar in bars],
            server=[bar.server for bar in bars],
            start=[round(bar.begins, 4) for bar in bars],
            end=[round(bar.ends, 4) for bar in bars],
            workers=[bar.workers for bar in bars],
            ps=[bar.ps for bar in bars],
            kind=[bar.what for bar in bars],
            share=shares(bars, known, cluster),
        )
        open_promises = [(numbers[name], slot) for name, slot in promises.items()]
    return Timeline(
        slot_seconds=float(cluster.slot_seconds),
        origin=to_datetime(calendar.origin),
        now=round(float(calendar.in_slots(now)), 4),
        first=first,
        last=last,
        running=servers.slot_running,
        coming=servers.coming,
        servers=[name for name in cluster.names if server is None or name == server],
        incomplete=cut,
        levels=encoded_levels,
        jobs=jobs,
        bars=columns,
        promises=open_promises,
    )


def _timeline_job(name: str, known: Known, scope: str | None) -> TimelineJob:
    if scope is not None and known.tenants.get(name) != scope:
        return TimelineJob(job=None, tenant=None, state=None)
    tenant, state = known.tenants.get(name), known.states.get(name)
    return TimelineJob(job=name, tenant=tenant, state=state)


def _running(published: Published, calendar: Calendar, now: int) -> list[Bar]:
    """Return what the rest of the running slot holds."""
    running = published.servers.slot_running
    if running is None:
        return []
    begins, ends = float(calendar.in_slots(now)), float(running + 1)
    bars = []
    for name, order in published.running.items():
        if order.slot > running or ends <= begins:
            continue
        placement = order.placement
        bars += [
            Bar(name, server, max(begins, float(running)), ends, workers, ps, PLANNED)
            for server, workers, ps in zip(
                order.servers, placement.workers, placement.ps, strict=True
            )
        ]
    return bars


__all__ = ["MOST", "Bar", "Known", "Planned", "know", "levels", "planned", "ran", "timeline"]

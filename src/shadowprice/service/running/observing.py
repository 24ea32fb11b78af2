"""What really runs where another scheduler commands: looked at again and again, and written down.

A service that observes decides as ever, and runs what it decides on paper. Beside that it keeps
what an executor sees: where a job really was, from when to when. Nothing here can order anything.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from sqlalchemy import Connection, Row, bindparam, select

from shadowprice.core import bounds
from shadowprice.core.cluster import Cluster
from shadowprice.core.errors import InputError, ShadowpriceError
from shadowprice.core.specs import JobSpec
from shadowprice.core.utility import utility_value
from shadowprice.executors.background import Background, all_of
from shadowprice.executors.contract import ExecutorError, Observed, ServerSlice, Share
from shadowprice.service.clock import SECOND
from shadowprice.service.driver import Driver
from shadowprice.service.problems import ProblemError
from shadowprice.service.running.servers import slices
from shadowprice.service.store import tables
from shadowprice.service.truth.batch import Batch
from shadowprice.service.truth.submission import resolved

log = logging.getLogger("shadowprice.service")

LOOK: Final = 5.0
"""Seconds between two looks, at most; half a slot where that is less."""

LEAST: Final = 1.0
"""Seconds between two looks, at least."""

MOST: Final = 10_000
"""Jobs taken in of one look, at most."""

JITTER: Final = 2 * SECOND
"""What two looks may differ by in when a job began, and mean the same beginning."""

LAST_LOOK: Final = "observed_at"
"""Key under which the moment of the last look is kept."""


class Observing(Protocol):
    """The part of an executor that a service may use which only looks on."""

    async def open(self) -> None:
        """Begin."""

    async def close(self) -> None:
        """Let go."""

    async def configure(self, servers: Sequence[ServerSlice]) -> None:
        """Tell the servers' names."""

    async def observe(self) -> tuple[Observed, ...]:
        """Return what really runs."""


# ------------------------------------------------------------------ one look


@dataclass(slots=True)
class _Rows:
    """What a look changes."""

    began: list[dict[str, Any]] = field(default_factory=list)
    ended: list[dict[str, Any]] = field(default_factory=list)
    again: list[dict[str, Any]] = field(default_factory=list)

    def end(self, row: Row[Any], at: int) -> None:
        """Note that what a row tells of ended."""
        self.ended.append({"key": row.id, "at": max(at, row.since)})


@dataclass(frozen=True, slots=True)
class TakeLook:
    """What an executor saw to run, all of it.

    A job that is not there any more ended when it was last seen: what really happened is never made
    to look slower than it was. What moved did so now.

    Parameters
    ----------
    seen : sequence of Observed
        What runs, and what is known to have ended.
    """

    seen: Sequence[Observed]

    def perform(self, batch: Batch) -> None:
        """Write down what is other than at the last look."""
        connection, now = batch.connection, batch.now
        before = last_look(connection)
        going = {row.job: row for row in _open(connection)}
        seen = {one.job: one for one in self.seen[:MOST] if 0 < len(one.job) <= bounds.NAME.most}
        rows = _Rows()
        changed: dict[str, Observed | None] = {}
        fresh = [one for one in seen.values() if one.job not in going]
        earlier = _newest(connection, [one.job for one in fresh])
        for one in fresh:
            if self._came(one, earlier.get(one.job), now, rows):
                changed[one.job] = one
        for name, row in going.items():
            told = seen.get(name)
            if told is None:
                at = now if before is None else min(before, now)
                rows.end(row, at)
            elif told.ended is not None:
                rows.end(row, min(int(told.ended * SECOND), now))
            elif self._began_anew(row, told, before):
                rows.end(row, now if before is None else min(before, now))
                rows.began.append(_row(told, min(int(told.since * SECOND), now)))
            elif row.placement != _placed(told.placement):
                rows.end(row, now)
                rows.began.append(_row(told, now))
            else:
                continue
            changed[name] = told
        self._write(batch, rows)
        _settle(batch, changed, rows, going)
        batch.put(LAST_LOOK, str(now))

    @staticmethod
    def _came(one: Observed, last: Row[Any] | None, now: int, rows: _Rows) -> bool:
        """Note a job that did not run at the last look; return whether that is new."""
        since = min(int(one.since * SECOND), now)
        if one.ended is not None:
            if last is not None and since <= max(last.since + JITTER, last.ended):
                return False  # that is known
            row = _row(one, since)
            rows.began.append(row | {"ended": max(since, min(int(one.ended * SECOND), now))})
        elif last is None:
            rows.began.append(_row(one, since))
        elif since > last.ended or last.placement != _placed(one.placement):
            rows.began.append(_row(one, max(since, last.ended)))
        else:  # it was overlooked once
            rows.again.append({"key": last.id})
        return True

    @staticmethod
    def _began_anew(row: Row[Any], told: Observed, before: int | None) -> bool:
        """Whether a job ended and began again between two looks."""
        since = int(told.since * SECOND)
        return before is not None and since > max(before, row.since + JITTER)

    @staticmethod
    def _write(batch: Batch, rows: _Rows) -> None:
        table = tables.observed
        one = table.update().where(table.c.id == bindparam("key"))
        if rows.ended:
            batch.also(one.values(ended=bindparam("at")), rows.ended)
        if rows.again:
            batch.also(one.values(ended=None), rows.again)
        if rows.began:
            batch.also(table.insert(), rows.began)


def _placed(placement: Iterable[Share]) -> str:
    return json.dumps([[one.server, one.workers, one.ps] for one in placement])


def _row(one: Observed, since: int) -> dict[str, Any]:
    return {"job": one.job, "since": since, "ended": None, "placement": _placed(one.placement)}


def _open(connection: Connection) -> Sequence[Row[Any]]:
    table = tables.observed
    return connection.execute(select(table).where(table.c.ended.is_(None))).all()


def _newest(connection: Connection, names: Sequence[str]) -> dict[str, Row[Any]]:
    """Return the last time that each job was seen to run."""
    table = tables.observed
    found: dict[str, Row[Any]] = {}
    for at in range(0, len(names), 500):
        mine = table.c.job.in_(names[at : at + 500])
        for row in connection.execute(select(table).where(mine).order_by(table.c.id)):
            found[row.job] = row
    return found


def last_look(connection: Connection) -> int | None:
    """Return when it was looked last, None where it never was."""
    table = tables.meta
    found = connection.execute(select(table.c.value).where(table.c.key == LAST_LOOK)).scalar()
    return None if found is None else int(found)


# ------------------------------------------------------------------ what came of it


def _settle(
    batch: Batch,
    changed: Mapping[str, Observed | None],
    rows: _Rows,
    going: Mapping[str, Row[Any]],
) -> None:
    """Bring what is told of whole jobs to where they are now."""
    if not changed:
        return
    names = list(changed)
    known = _outcomes(batch.connection, names)
    jobs = _jobs(batch, names)
    began = {row["job"]: row for row in rows.began}
    ended = {row["key"]: row["at"] for row in rows.ended}
    fresh, old, now = [], [], batch.now
    for name, told in changed.items():
        tenant, submitted = jobs.get(name, (told.tenant if told else None, None))[:2]
        before = known.get(name)
        first, runs = (None, 0) if before is None else (before.started, before.runs)
        if name in began and before is not None and (before.ended or now) < (submitted or 0):
            first, runs = None, 0  # what was over before it was submitted was another one
        record: dict[str, Any] = {
            "started": began[name]["since"] if first is None else first,
            "runs": runs + (name in began),
            "ended": None,
            "slot": None,
            "done": None,
            "utility": None,
        }
        over = told is None or told.ended is not None
        if over:
            at = ended[going[name].id] if name in going else began[name]["ended"]
            record |= {"ended": at, "slot": batch.calendar.slot_at(at)}
            record["done"] = None if told is None or told.done is None else int(told.done)
            if submitted is not None and at >= submitted:
                record["utility"] = 0.0 if record["done"] == 0 else _worth(batch, jobs[name], at)
        if before is None:
            fresh.append(record | {"job": name, "tenant": tenant})
        else:
            old.append(record | {"key": name})
        kind = "real-ended" if over else "real-moved" if name in going else "real-started"
        owner = tenant[:200] if tenant else None
        data: dict[str, Any] = {"utility": record["utility"]} if over else {}
        if name in batch.truth.views:
            batch.tell(kind, name, **data)
        else:
            batch.tell(kind, name, tenant=owner, **data)
    table = tables.outcomes
    if fresh:
        batch.also(table.insert(), fresh)
    if old:
        values: dict[str, Any] = {key: bindparam(key) for key in old[0] if key != "key"}
        batch.also(table.update().where(table.c.job == bindparam("key")).values(**values), old)


def _outcomes(connection: Connection, names: Sequence[str]) -> dict[str, Row[Any]]:
    table = tables.outcomes
    found: dict[str, Row[Any]] = {}
    for at in range(0, len(names), 500):
        mine = table.c.job.in_(names[at : at + 500])
        found |= {row.job: row for row in connection.execute(select(table).where(mine))}
    return found


_Job = tuple[str | None, int, Mapping[str, Any], int]
"""A job's owner, when it was submitted, what was, and the moment that its utility counts from."""


def _jobs(batch: Batch, names: Sequence[str]) -> dict[str, _Job]:
    table = tables.jobs
    specs: dict[str, Mapping[str, Any]] = {}
    for at in range(0, len(names), 500):
        mine = table.c.name.in_(names[at : at + 500])
        for row in batch.connection.execute(select(table.c.name, table.c.spec).where(mine)):
            specs[row.name] = json.loads(row.spec)
    return {
        name: (
            view.tenant,
            view.submitted,
            batch.truth.specs.get(name) or specs[name],
            view.arrived,
        )
        for name, (view, _) in batch.stored(names).items()
        if name in specs or name in batch.truth.specs
    }


def _worth(batch: Batch, job: _Job, ended: int) -> float | None:
    """Return what a submitted job earned by having ended at a moment."""
    _, _, spec, arrived = job
    cluster: Cluster = batch.engine.cluster
    try:
        found = resolved(JobSpec.model_validate(spec), cluster, batch.calendar, arrived)
    except (InputError, ValueError):  # the servers are others than when it was submitted
        return None
    return utility_value(found.utility, max(0, batch.calendar.slot_at(ended) - found.arrival))


# ------------------------------------------------------------------ looking on and on


class Follower:
    """Looks at what really runs, as long as the service does.

    Parameters
    ----------
    driver : Driver
        Who writes it down.
    executor : Observing
        Who sees it.
    """

    def __init__(self, driver: Driver, executor: Observing) -> None:
        self._health_error: str | None = None
        self._executor = executor
        self._driver = driver
        self._cluster: Cluster | None = None
        self._background = Background(log, driver.metrics.failed)
        seconds = float(driver.published.servers.cluster.slot_seconds)
        self._pause = max(LEAST, min(LOOK, seconds / 2))

    @property
    def health_error(self) -> str | None:
        """Why what runs is not seen, or not written down, just now; None where it is."""
        return self._health_error or self._background.health_error

    async def open(self) -> None:
        """Begin.

        Raises
        ------
        ExecutorError
            If what runs cannot be seen.
        """
        await self._executor.open()

    def begin(self) -> None:
        """Start looking."""
        self._background.again("observer", self._step, "looking at what runs")

    async def close(self) -> None:
        """Let go."""
        await all_of(self._background.end, self._executor.close)

    async def look(self) -> None:
        """Look once, and write down what is new.

        Raises
        ------
        ExecutorError
            If what runs cannot be seen.
        ProblemError
            If it cannot be written.
        """
        cluster = self._driver.published.servers.cluster
        if cluster is not self._cluster:
            await self._executor.configure(slices(cluster))
            self._cluster = cluster
        seen = await self._executor.observe()
        await self._driver.do(TakeLook(seen))

    async def _step(self) -> None:
        try:
            await self.look()
            self._health_error = None
        except ExecutorError as error:
            self._driver.metrics.executor_errors.inc()
            self._health_error = f"what runs cannot be seen: {error}"
            log.warning("%s", self._health_error)
        except ProblemError as error:
            log.info("what runs is looked at later: %s", error)
        except ShadowpriceError as error:
            self._health_error = f"what runs cannot be written down: {error}"
            log.error("%s", self._health_error)
        await asyncio.sleep(self._pause)


__all__ = ["Follower", "Observing", "TakeLook", "last_look"]

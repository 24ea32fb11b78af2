"""What time does to the truth: slots end and begin, and clocks are set."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from shadowprice.core.errors import EventError, PolicyError, ShadowpriceError
from shadowprice.core.events import (
    JobEnded,
    JobRevised,
    SlotBegan,
    SlotEnded,
)
from shadowprice.engine.state import JobRecord
from shadowprice.service.clock import SECOND
from shadowprice.service.truth.batch import Batch
from shadowprice.service.truth.reports import Lasting, TakeReports
from shadowprice.service.truth.timespan import follow_clock
from shadowprice.service.truth.views import changes_of

log = logging.getLogger("shadowprice.service")

CATCH_UP: Final = 1_000
"""Slots that are caught up one by one; what is missed beyond is taken out of the count."""

EDGES: Final = 50
"""Slots begun in one batch, at most."""

EDGE_SECONDS: Final = 0.5
"""Seconds after which the slots that are left wait for the next batch."""


@dataclass(frozen=True, slots=True)
class Passed:
    """How far the truth went along with time.

    Parameters
    ----------
    caught_up : bool
        Whether it came to the slot that it is; only then were all reports taken in.
    left : tuple of Started, Refused, Ended or Misreported
        Those that could not be; see `TakeReports.perform`.
    """

    caught_up: bool
    left: tuple[Lasting, ...] = ()


@dataclass(frozen=True, slots=True)
class Edge:
    """Time went on: slots that are over end, and those that are due begin.

    Parameters
    ----------
    virtual : bool
        Whether nothing really runs: jobs progress as declared, and are done when their work is.
    unheard : frozenset of str
        Jobs of which it is not known how far they are: they may have done more than is counted.
    reports : sequence of Started, Refused, Ended or Misreported
        What the executor told that was not taken in yet: each belongs to the slot in which it
        happened, however many have passed since.
    since : int
        Since when somebody listens, in nanoseconds since 1970: of slots that began before, what
        jobs said may be lost.
    heard : mapping of str to int
        When jobs last said how far they are, likewise.
    """

    virtual: bool = False
    unheard: frozenset[str] = frozenset()
    reports: Sequence[Lasting] = ()
    since: int = 0
    heard: Mapping[str, int] = field(default_factory=dict)

    def perform(self, batch: Batch) -> Passed | ShadowpriceError:
        """Return how far it came, or what went wrong.

        Each slot's end and beginning is whole by itself: those before what went wrong stand.
        """
        reports = deque(sorted(self.reports, key=lambda report: report.at))
        left: list[Lasting] = []
        try:
            caught_up = self._go_on(batch, reports, left)
            if caught_up:
                left += TakeReports(tuple(reports)).perform(batch)
        except ShadowpriceError as error:
            if error.code == "storage":
                raise
            return error
        return Passed(caught_up, tuple(left))

    def _go_on(self, batch: Batch, reports: deque[Lasting], left: list[Lasting]) -> bool:
        """Let slots end and begin; whether it came to the one that it is."""
        engine = batch.engine
        began = time.monotonic()
        target = self._within_reach(batch)
        for _ in range(EDGES):
            running = engine.slot_running
            if running is not None:
                if running >= target:
                    return True
                left += self._happened(batch, reports, batch.calendar.ends(running))
                self._end(batch, running)
            following = engine.slot
            if following > target:
                return True
            if following < target and self._idle(batch, target):
                following = target
            if not engine.open_jobs and engine.idle:
                return True  # nobody asks for anything: no slot is begun
            self._begin(batch, following)
            if not self.virtual:
                self._finish(batch)
            if time.monotonic() - began > EDGE_SECONDS:
                break
        return engine.slot_running is not None and engine.slot_running >= target

    @staticmethod
    def _happened(batch: Batch, reports: deque[Lasting], until: int) -> Sequence[Lasting]:
        """Take in what happened by the end of a slot, before it is counted; return what is left."""
        happened = []
        while reports and int(reports[0].at * SECOND) <= until:
            happened.append(reports.popleft())
        return TakeReports(happened).perform(batch)

    def _within_reach(self, batch: Batch) -> int:
        """Return the slot that it is, after taking out of the count what cannot be caught up."""
        calendar, engine = batch.calendar, batch.engine
        target = calendar.slot_at(batch.now)
        missed = target - engine.slot
        if missed <= CATCH_UP or (engine.slot_running is None and self._idle(batch, target)):
            return target
        by = int((missed - CATCH_UP) * calendar.slot)
        MoveOrigin(by, "the service was not there for many slots").perform(batch)
        return batch.calendar.slot_at(batch.now)

    @staticmethod
    def _idle(batch: Batch, slot: int) -> bool:
        try:
            batch.engine.check_skip(slot)
        except EventError:
            return False
        return True

    def _begin(self, batch: Batch, slot: int) -> None:
        try:
            batch.take(SlotBegan(slot))
        except PolicyError as error:
            # The state is as before. A policy that stumbles over what it remembers begins anew on
            # what it sees; if it fails again, the slot waits, and the service says so.
            log.error("slot %d could not begin (%s); the policy begins anew", slot, error)
            batch.begin_policy_anew()
            batch.take(SlotBegan(slot))

    @staticmethod
    def _finish(batch: Batch) -> None:
        """Let jobs be over that exited 0 while they were being stopped."""
        engine, views = batch.engine, batch.truth.views
        for name in [name for name in engine.running if name in views and views[name].done]:
            try:
                batch.take(JobEnded(batch.truth.coming, name, engine.jobs[name].generation))
            except ShadowpriceError as error:  # it starts, and is over with the next slot
                log.error("job %r is done, and could not be closed: %s", name, error)

    def _end(self, batch: Batch, slot: int) -> None:
        engine = batch.engine
        progress: dict[str, int] = {}
        begins = batch.calendar.begins(slot)
        missed = not self.virtual and begins < self.since
        for name in engine.running:
            record = engine.jobs[name]
            says = not self.virtual and (record.measured or batch.truth.views[name].reports)
            if says and not (missed and self.heard.get(name, 0) < begins):
                continue  # as far as it says, be it nowhere
            progress[name] = self._gain(batch, record, slot)
        batch.take(SlotEnded(slot, progress), counted=list(engine.running))
        if not self.virtual:
            if missed:  # what is said next is of several slots
                for name in engine.running:
                    batch.truth.speeds.unknown(name)
            else:
                self._remeasure(batch, slot)
            self._recharge(batch)

    @staticmethod
    def _recharge(batch: Batch) -> None:
        """Let jobs that measured what it costs to move them be planned by that."""
        slot_seconds = float(batch.calendar.slot / SECOND)
        for name in list(batch.engine.running):
            revised = batch.truth.restarts.revised(batch.engine.jobs[name].job, slot_seconds)
            if revised is None:
                continue
            try:
                batch.take(JobRevised(batch.engine.slot, revised))
            except ShadowpriceError as error:
                batch.truth.restarts.forget(name)
                log.info("the restart of job %r stays as stated: %s", name, error)
                continue
            batch.tell("remeasured", name, restart=float(revised.restart) * slot_seconds)

    def _remeasure(self, batch: Batch, slot: int) -> None:
        """Let jobs that run faster or slower than they stated be planned by what they do."""
        engine, begins = batch.engine, batch.calendar.begins(slot)
        for name in list(engine.running):
            record, view = engine.jobs[name], batch.truth.views.get(name)
            if view is None or not record.measured or view.started != record.generation:
                continue
            if view.running_since is None or view.running_since > begins:
                continue
            if name in self.unheard:
                batch.truth.speeds.unknown(name)
                continue
            revised = batch.truth.speeds.revised(engine, record)
            measured = tuple(sorted({*view.measured, *batch.truth.speeds.measured(name)}))
            if measured != view.measured:
                batch.change(name, measured=measured)
            if revised is None:
                continue
            try:
                batch.take(JobRevised(engine.slot, revised.job))
            except ShadowpriceError as error:
                batch.truth.speeds.forget(name)
                log.info("the speed of job %r stays as stated: %s", name, error)
                continue
            batch.tell("remeasured", name, workers=revised.workers, factor=revised.factor)

    def _gain(self, batch: Batch, record: JobRecord, slot: int) -> int:
        """Return what a slot yielded at the declared rate, for the share that the job ran."""
        engine, job = batch.engine, record.job
        placement = engine.running[job.name]
        order = batch.truth.orders.get(job.name)
        begun = record.generation > 1 or engine.cluster.restart_first
        moved = begun and order is not None and order.slot == slot
        gain = job.gain(placement.total_workers, colocated=placement.colocated, moved=moved)
        if self.virtual:
            return min(gain, record.remaining)
        view = batch.truth.views[job.name]
        if view.started != record.generation or view.running_since is None:
            return 0
        begins, ends = batch.calendar.begins(slot), batch.calendar.ends(slot)
        ran = ends - max(begins, min(view.running_since, ends))
        # Only a process that exits 0 is done: what is counted stops one short.
        return max(0, min(gain * ran // (ends - begins), record.remaining - 1))


@dataclass(frozen=True, slots=True)
class MoveOrigin:
    """Slots are at other times than was thought.

    Parameters
    ----------
    by : int
        By how many nanoseconds they are later.
    why : str
        For people.
    """

    by: int
    why: str

    def perform(self, batch: Batch) -> None:
        """Move them, and tell whose promise is at another time now."""
        truth = batch.truth
        truth.calendar = truth.calendar.moved(self.by)
        batch.put("origin", str(truth.calendar.origin))
        follow_clock(batch)
        moved = []
        for name, view in list(truth.views.items()):
            record = batch.engine.open_jobs.get(name)
            if record is None:
                continue
            changes = changes_of(batch.engine, record, view, truth.calendar, batch.now)
            if changes["promise"] is not None:
                moved.append(name)
            if view.running_since is not None:
                changes["running_since"] = view.running_since + self.by
            batch.change(name, **changes)
        batch.tell("clock", seconds=self.by / SECOND, why=self.why, promises=len(moved))
        for name in moved:
            batch.tell("rescheduled", name, seconds=self.by / SECOND, why=self.why)

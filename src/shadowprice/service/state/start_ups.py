"""Start-up times of jobs, compared with the length of a slot.

A start-up lasts from the start of a generation's slot until the job works: until its process runs
and, if its reports show it, until its first mini-batches. If slots are short in comparison, jobs
occupy servers without working, and promises break.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import select

from shadowprice.core.amounts import format_seconds
from shadowprice.core.events import Start
from shadowprice.core.job import MICRO, Job
from shadowprice.core.schedule import Placement
from shadowprice.executors.contract import Progressed, Started
from shadowprice.service.clock import SECOND
from shadowprice.service.store import Store, tables

if TYPE_CHECKING:
    from shadowprice.engine.job_record import JobRecord
    from shadowprice.service.state.batch import Batch

KEY: Final = "start-ups"
"""Key of the start-ups in the store."""

NEWEST: Final = 20
"""Number of start-ups that the median covers."""

ENOUGH: Final = 3
"""Minimum number of start-ups for a median."""

MAX_SHARE: Final = 0.1
"""Share of a slot above which a start-up is too long."""

CLEARED_SHARE: Final = 0.08
"""Share of a slot at which the warning ends; lower, so that the warning doesn't flap."""

SLOWER: Final = 1.25
"""Factor by which work may exceed its estimated time before the excess counts as start-up."""

CODE: Final = "slot-too-short"
"""Code of the warning."""


@dataclass(frozen=True, slots=True)
class StartUp:
    """Start-up of one generation: seconds until its process ran, and until the job worked."""

    job: str
    generation: int
    process: float
    seconds: float


@dataclass(frozen=True, slots=True)
class StartUps:
    """The newest start-ups, oldest first, and whether slots are too short for them."""

    newest: tuple[StartUp, ...] = ()
    too_long: bool = False

    @property
    def median(self) -> float | None:
        """The median in seconds; None if there are too few start-ups."""
        seconds = [start_up.seconds for start_up in self.newest]
        return median(seconds) if len(seconds) >= ENOUGH else None

    def warning(self, slot_seconds: float) -> dict[str, Any] | None:
        """Return the warning with its numbers; None if slots are long enough."""
        seconds = self.median
        if not self.too_long or seconds is None:
            return None
        needed = math.ceil(10 * seconds)
        message = (
            f"starting a job takes {format_seconds(seconds)} (median of the newest "
            f"{len(self.newest)}), {seconds / slot_seconds:.0%} of a slot of {slot_seconds:g} s; "
            f"make jobs start faster, or begin with new data and slots of {needed} s or more"
        )
        numbers = {"start_up_seconds": seconds, "slot_seconds": slot_seconds}
        return {"code": CODE, "message": message, **numbers, "needed_seconds": needed}

    def stored(self) -> str:
        """Serialize the start-ups for the store."""
        rows = [
            [start_up.job, start_up.generation, start_up.process, start_up.seconds]
            for start_up in self.newest
        ]
        return json.dumps({"newest": rows, "too_long": self.too_long})


def read_start_ups(store: Store) -> StartUps:
    """Read the start-ups from the store."""
    text = store.get(KEY)
    if text is None:
        return StartUps()
    record = json.loads(text)
    return StartUps(tuple(StartUp(*row) for row in record["newest"]), record["too_long"])


def note_process(batch: Batch, report: Started) -> None:
    """Record the time from the start of a generation's slot until its process ran."""
    order = batch.truth.orders.get(report.job)
    if order is None or order.generation != report.generation:
        return
    start, end = batch.calendar.begins(order.slot), batch.calendar.ends(order.slot)
    if report.at * SECOND > end:  # a service that was down issues the command late
        ordered = ordered_at(batch, report.job, report.generation)
        start = ordered if ordered > end else start
    seconds = max(0.0, report.at - start / SECOND)
    _record(batch, StartUp(report.job, report.generation, seconds, seconds))


def ordered_at(batch: Batch, job: str, generation: int) -> int:
    """Return when a generation was commanded, in nanoseconds since 1970; 0 if that isn't stored."""
    generations = tables.generations
    ordered = batch.connection.execute(
        select(generations.c.ordered).where(
            generations.c.job == job, generations.c.generation == generation
        )
    ).scalar()
    return 0 if ordered is None else int(ordered)


def note_work(batch: Batch, record: JobRecord, report: Progressed) -> None:
    """Extend the start-up of a generation if a progress report shows that it took longer."""
    recorded = next(
        (
            start_up
            for start_up in batch.truth.start_ups.newest
            if (start_up.job, start_up.generation) == (report.job, report.generation)
        ),
        None,
    )
    if recorded is None or record.job.bag is not None:
        return
    seconds = max(recorded.seconds, _until_work(batch, record, report, recorded))
    if seconds > recorded.seconds:
        _record(batch, replace(recorded, seconds=seconds))


def _until_work(batch: Batch, record: JobRecord, report: Progressed, known: StartUp) -> float:
    metrics: Mapping[str, float] = report.metrics
    loading, first = metrics.get("change_start", -1.0), metrics.get("change_first_step", -1.0)
    if report.generation > 1:  # its first report includes the work of earlier generations
        return known.process + loading + first if min(loading, first) >= 0.0 else 0.0
    order = batch.truth.orders.get(report.job)
    if record.measured or report.progress <= 0 or not isinstance(order, Start):
        return 0.0
    slot_seconds = float(batch.calendar.slot / SECOND)
    worked = stated_seconds(record.job, order.placement, report.progress, slot_seconds)
    since = report.at - batch.calendar.begins(order.slot) / SECOND
    return since - SLOWER * worked if worked <= slot_seconds else 0.0


def stated_seconds(job: Job, placement: Placement, micro: float, slot_seconds: float) -> float:
    """Return the estimated seconds for millionths of a mini-batch in a placement."""
    workers = placement.total_workers
    if job.required != job.work * MICRO:  # a progress unit is a worker-slot of many mini-batches
        return micro / MICRO * job.step_seconds / workers
    return micro / job.gain(workers, colocated=placement.colocated) * slot_seconds


def _record(batch: Batch, start_up: StartUp) -> None:
    before = batch.truth.start_ups
    key = (start_up.job, start_up.generation)
    others = [other for other in before.newest if (other.job, other.generation) != key]
    after = StartUps((*others, start_up)[-NEWEST:], before.too_long)
    slot_seconds = float(batch.calendar.slot / SECOND)
    limit = (CLEARED_SHARE if before.too_long else MAX_SHARE) * slot_seconds
    after = replace(after, too_long=after.median is not None and after.median > limit)
    batch.undo.assign(batch.truth, "start_ups", after)
    batch.put(KEY, after.stored())
    if after.too_long != before.too_long:
        warning = after.warning(slot_seconds)
        message = "starting jobs takes little of a slot again" if warning is None else None
        data = {"code": CODE, "message": message} if warning is None else warning
        batch.emit("warning", **data, active=after.too_long)

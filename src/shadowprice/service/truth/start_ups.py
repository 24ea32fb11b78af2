"""How long jobs take to start, against the length of a slot.

A start-up is the time from the beginning of a generation's slot until the job works: until its
process runs, and, as far as its reports tell, until its first mini-batches come. In slots that are
short beside it, jobs hold servers without working, and promises break.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import select

from shadowprice.core.events import Start
from shadowprice.core.job import MICRO, Job
from shadowprice.core.schedule import Placement
from shadowprice.executors.contract import Progressed, Started
from shadowprice.service.clock import SECOND
from shadowprice.service.store import Store, tables

if TYPE_CHECKING:
    from shadowprice.engine.state import JobRecord
    from shadowprice.service.truth.batch import Batch

KEY: Final = "start-ups"
"""Key of the start-ups in the store."""

NEWEST: Final = 20
"""Start-ups that the median is taken of."""

ENOUGH: Final = 3
"""Start-ups from which on there is a median."""

MAX_SHARE: Final = 0.1
"""Share of a slot above which a start-up is too long."""

CLEARED_SHARE: Final = 0.08
"""Share of a slot at which it no longer is; lower, so that the warning doesn't come and go."""

SLOWER: Final = 1.25
"""Factor by which work may take longer than believed before that counts as a start-up."""

CODE: Final = "slot-too-short"
"""Code of the warning."""


@dataclass(frozen=True, slots=True)
class StartUp:
    """One start-up.

    Parameters
    ----------
    job : str
        The job.
    generation : int
        Its generation.
    process : float
        Seconds until its process ran.
    seconds : float
        Seconds until it worked, as far as it is known.
    """

    job: str
    generation: int
    process: float
    seconds: float


@dataclass(frozen=True, slots=True)
class StartUps:
    """The newest start-ups of all jobs, and whether they are too long.

    Parameters
    ----------
    newest : tuple of StartUp
        In the order in which they were seen.
    too_long : bool
        Whether slots are too short for them.
    """

    newest: tuple[StartUp, ...] = ()
    too_long: bool = False

    @property
    def median(self) -> float | None:
        """The median in seconds, None while too few were seen."""
        known = [one.seconds for one in self.newest]
        return median(known) if len(known) >= ENOUGH else None

    def warning(self, slot_seconds: float) -> dict[str, Any] | None:
        """Return the warning with its numbers, None if slots are long enough."""
        seconds = self.median
        if not self.too_long or seconds is None:
            return None
        needed = math.ceil(10 * seconds)
        message = (
            f"starting a job takes {seconds:.2g} s (median of the newest {len(self.newest)}), "
            f"{seconds / slot_seconds:.0%} of a slot of {slot_seconds:g} s; make jobs start "
            f"faster, or begin with new data and slots of {needed} s or more"
        )
        numbers = {"start_up_seconds": seconds, "slot_seconds": slot_seconds}
        return {"code": CODE, "message": message, **numbers, "needed_seconds": needed}

    def stored(self) -> str:
        """Return the start-ups as the store keeps them."""
        rows = [[one.job, one.generation, one.process, one.seconds] for one in self.newest]
        return json.dumps({"newest": rows, "too_long": self.too_long})


def read_start_ups(store: Store) -> StartUps:
    """Return the start-ups that the store keeps."""
    text = store.get(KEY)
    if text is None:
        return StartUps()
    record = json.loads(text)
    return StartUps(tuple(StartUp(*row) for row in record["newest"]), record["too_long"])


def note_process(batch: Batch, report: Started) -> None:
    """Record how long after the beginning of its slot a generation's process ran."""
    order = batch.truth.orders.get(report.job)
    if order is None or order.generation != report.generation:
        return
    begins, ends = batch.calendar.begins(order.slot), batch.calendar.ends(order.slot)
    if report.at * SECOND > ends:  # if the service was away, it issued the command late
        ordered = _ordered_at(batch, report)
        begins = ordered if ordered > ends else begins
    seconds = max(0.0, report.at - begins / SECOND)
    _record(batch, StartUp(report.job, report.generation, seconds, seconds))


def _ordered_at(batch: Batch, report: Started) -> int:
    generations = tables.generations
    found = batch.connection.execute(
        select(generations.c.ordered).where(
            generations.c.job == report.job, generations.c.generation == report.generation
        )
    ).scalar()
    return 0 if found is None else int(found)


def note_work(batch: Batch, record: JobRecord, report: Progressed) -> None:
    """Record what a report tells of the start-up of its generation."""
    known = next(
        (
            one
            for one in batch.truth.start_ups.newest
            if (one.job, one.generation) == (report.job, report.generation)
        ),
        None,
    )
    if known is None or record.job.bag is not None:
        return
    seconds = max(known.seconds, _until_work(batch, record, report, known))
    if seconds > known.seconds:
        _record(batch, replace(known, seconds=seconds))


def _until_work(batch: Batch, record: JobRecord, report: Progressed, known: StartUp) -> float:
    metrics: Mapping[str, float] = report.metrics
    loading, first = metrics.get("change_start", -1.0), metrics.get("change_first_step", -1.0)
    if report.generation > 1:  # its first report also tells what was done before
        return known.process + loading + first if min(loading, first) >= 0.0 else 0.0
    order = batch.truth.orders.get(report.job)
    if record.measured or report.progress <= 0 or not isinstance(order, Start):
        return 0.0
    slot_seconds = float(batch.calendar.slot / SECOND)
    worked = stated_seconds(record.job, order.placement, report.progress, slot_seconds)
    since = report.at - batch.calendar.begins(order.slot) / SECOND
    return since - SLOWER * worked if worked <= slot_seconds else 0.0


def stated_seconds(job: Job, placement: Placement, micro: float, slot_seconds: float) -> float:
    """Return how long millionths of a mini-batch take in a placement at the believed speed."""
    workers = placement.total_workers
    if job.required != job.work * MICRO:  # a unit is a worker-slot, and many mini-batches
        return micro / MICRO * job.step_seconds / workers
    return micro / job.gain(workers, colocated=placement.colocated) * slot_seconds


def _record(batch: Batch, start_up: StartUp) -> None:
    before = batch.truth.start_ups
    key = (start_up.job, start_up.generation)
    others = [one for one in before.newest if (one.job, one.generation) != key]
    after = StartUps((*others, start_up)[-NEWEST:], before.too_long)
    slot_seconds = float(batch.calendar.slot / SECOND)
    limit = (CLEARED_SHARE if before.too_long else MAX_SHARE) * slot_seconds
    after = replace(after, too_long=after.median is not None and after.median > limit)
    batch.undo.assign(batch.truth, "start_ups", after)
    batch.put(KEY, after.stored())
    if after.too_long != before.too_long:
        warning = after.warning(slot_seconds)
        message = "starting jobs takes little of a slot again" if warning is None else None
        told = {"code": CODE, "message": message} if warning is None else warning
        batch.tell("warning", **told, active=after.too_long)

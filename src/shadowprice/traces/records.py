"""Common table of all trace formats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal

import polars as pl

from shadowprice.core import bounds
from shadowprice.core.bounds import InputLimit
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.wording import hint_for_unknown, quote_for_display

SCHEMA: Final[Mapping[str, pl.DataType]] = MappingProxyType(
    {
        "job": pl.String(),  # unique name
        "submit": pl.Float64(),  # seconds since the first kept job's submission
        "duration": pl.Float64(),  # seconds of running, without queueing; null: unknown
        "queue": pl.Float64(),  # seconds of waiting in the traced cluster; null: unknown
        "lost": pl.Float64(),  # seconds that earlier attempts ran; null: none or unknown
        "time_limit": pl.Float64(),  # maximum seconds of running; null: none or unknown
        "gpus": pl.Float64(),  # total GPUs, may be fractional; 0: a CPU job
        "workers": pl.Int64(),  # worker tasks, if the trace has them; else null
        "ps": pl.Int64(),  # parameter-server tasks, if the trace has them; else null
        "gpu_type": pl.String(),  # allowed types, separated by "|"; null: any or unknown
        "cpus": pl.Float64(),  # total cores; null: unknown
        "memory": pl.Int64(),  # total bytes; null: unknown
        "tenant": pl.String(),  # virtual cluster or user; null: unknown
        "user": pl.String(),
        "status": pl.String(),  # passed, failed, cancelled or unfinished; null: unknown
        "model": pl.String(),  # model family, as the trace names it
        "batch_size": pl.Int64(),
        "iterations": pl.Int64(),  # mini-batches of the whole job
        "deadline": pl.Float64(),  # seconds, on the clock of `submit`; null: none
    }
)
"""Columns of `Trace.jobs` with their types; all but job, submit and gpus may be null."""

MAX_VALUES: Final[Mapping[str, InputLimit]] = MappingProxyType(
    {
        "submit": bounds.SECONDS,
        "duration": bounds.SECONDS,
        "queue": bounds.SECONDS,
        "lost": bounds.SECONDS,
        "time_limit": bounds.SECONDS,
        "deadline": bounds.SECONDS,
        "gpus": bounds.GPUS,
        "cpus": bounds.GPUS,
        "workers": bounds.WORKER_COUNTS,
        "ps": bounds.WORKER_COUNTS,
        "batch_size": bounds.NUMBER,
        "iterations": bounds.NUMBER,
        "memory": bounds.MEMORY,
    }
)
"""Maximum of each column; times on the trace's clock count from the first job."""

REQUIRED: Final = ("job", "submit", "gpus")
ABSOLUTE_TIME_COLUMNS: Final = frozenset({"submit", "deadline"})
"""Columns that are points in time; the others are durations and amounts."""

Action = Literal["read", "ignored", "dropped", "repaired", "kept"]
STATUSES: Final = ("passed", "failed", "cancelled", "unfinished")


@dataclass(frozen=True, slots=True)
class ImportNote:
    """Rows that an importer read in an assumed way, dropped, repaired, or kept though unusual."""

    action: Action
    """``ignored`` is for a column that isn't used; ``kept`` for rows that stay unchanged."""
    reason: str
    """Text for the user: why, or what was assumed."""
    count: int
    """Number of rows."""


@dataclass(slots=True)
class ImportTally:
    """Counts of rows by action and reason, in order of first occurrence."""

    _counts: dict[tuple[Action, str], int] = field(default_factory=dict)

    def add(self, action: Action, reason: str, count: int) -> None:
        """Count rows; a count of 0 adds no note."""
        if count:
            key = (action, reason)
            self._counts[key] = self._counts.get(key, 0) + count

    def notes(self) -> tuple[ImportNote, ...]:
        """Return a note for each reason."""
        return tuple(
            ImportNote(action, reason, count) for (action, reason), count in self._counts.items()
        )


@dataclass(frozen=True, eq=False)
class Trace:
    """A trace in the format of the common table."""

    format: str
    """Name of its format."""
    jobs: pl.DataFrame
    """One row for each job with the columns of `SCHEMA`, by submission, then in file order."""
    source: str
    """File or directory of the trace."""
    notes: tuple[ImportNote, ...] = ()
    """Rows that were dropped, repaired, or read in an assumed way, by reason."""
    start: datetime | None = None
    """Absolute time of the first kept submission, if the trace has it."""

    @property
    def dropped(self) -> tuple[tuple[str, int], ...]:
        """Reasons and counts of the dropped rows."""
        return tuple((note.reason, note.count) for note in self.notes if note.action == "dropped")


@dataclass(frozen=True, slots=True)
class TraceSelection:
    """Jobs of a trace to keep."""

    tenants: tuple[str, ...] = ()
    """Tenants (virtual clusters or users) whose jobs are kept; empty for all."""
    begin: float | None = None
    """Jobs submitted from this many seconds after the first one are kept; times restart there."""
    end: float | None = None
    """Jobs submitted before this many seconds after the first one are kept."""
    limit: int | None = None
    """Maximum number of jobs; the earliest ones are kept."""


def build_trace(
    format_name: str, frame: pl.DataFrame, source: Path, tally: ImportTally, *, absolute: bool
) -> Trace:
    """Convert a reader's columns to the common table, sorted, with the first job at time 0.

    ``frame`` has columns of `SCHEMA`, including those of `REQUIRED`, with ``submit`` in seconds on
    the trace's own clock. If ``absolute``, that clock counts seconds since 1970, and `Trace.start`
    is known.

    Raise `InputError` if no job remains, there are too many to plan, a name occurs twice, or a
    value is missing or exceeds its limit.
    """
    if frame.is_empty():
        dropped = "; ".join(
            f"{note.reason}: {note.count}" for note in tally.notes() if note.action == "dropped"
        )
        detail = f" (left out: {dropped})" if dropped else ""
        raise InputError(Fault(str(source), f"contains no job{detail}", "give a trace with jobs"))
    bounds.JOBS.check(frame.height, str(source), "select some of them by limit, from and to")
    _check_columns(frame, str(source))
    columns = [
        (pl.col(name) if name in frame.columns else pl.lit(None)).cast(kind).alias(name)
        for name, kind in SCHEMA.items()
    ]
    jobs = frame.select(columns).sort("submit", maintain_order=True)
    first = float(jobs.item(0, "submit"))
    jobs = jobs.with_columns(pl.col("submit") - first, pl.col("deadline") - first)
    _check_values(jobs, str(source))
    # Without a time zone, because not every trace states the zone of its clock.
    start = datetime.fromtimestamp(first, tz=UTC).replace(tzinfo=None) if absolute else None
    return Trace(format_name, jobs, str(source), tally.notes(), start)


# Importers of this package check rows themselves, because they know the locations of rows. The
# checks below are for importers of extensions.


def _check_columns(frame: pl.DataFrame, source: str) -> None:
    for name in REQUIRED:
        if name not in frame.columns:
            raise InputError(Fault(f"{source}: {name}", "column is missing"))
        if frame[name].has_nulls():
            raise InputError(Fault(f"{source}: {name}", "a value is missing", "leave its row out"))
    for name in frame.columns:
        if name not in SCHEMA:
            raise InputError(
                Fault(f"{source}: {name}", "unknown column", hint_for_unknown(name, [*SCHEMA]))
            )
    names = frame["job"].cast(pl.String)
    if frame.height != names.n_unique():
        name = quote_for_display(names.filter(names.is_duplicated())[0])
        raise InputError(Fault(f"{source}: job", f"two jobs have the name {name}", "rename one"))


def _check_values(jobs: pl.DataFrame, source: str) -> None:
    for name, limit in MAX_VALUES.items():
        minimum = -limit.maximum if name == "deadline" else 0  # it may precede the first job
        # NaN is outside every range.
        invalid = jobs.filter(~pl.col(name).is_between(minimum, limit.maximum))
        if invalid.height:
            job, value = invalid.item(0, "job"), invalid.item(0, name)
            location = f"{source}: {quote_for_display(job)}: {name}"
            limit.check(value, location)
            message = f"expected a number of {minimum:g} or more, got {value:g}"
            raise InputError(Fault(location, message))


def select(trace: Trace, selection: TraceSelection) -> Trace:
    """Keep the selected jobs of a trace; a note counts the others.

    Times restart at the first kept job.

    Raise `InputError` if a tenant is unknown, or no job remains.
    """
    if selection == TraceSelection():
        return trace
    jobs = trace.jobs
    if selection.tenants:
        tenants = set(jobs["tenant"].drop_nulls().unique().to_list())
        for tenant in selection.tenants:
            if tenant not in tenants:
                examples = ", ".join(sorted(tenants)[:12]) or "none"
                raise InputError(
                    Fault(trace.source, f"has no tenant {tenant!r}", f"its tenants are {examples}")
                )
        jobs = jobs.filter(pl.col("tenant").is_in(list(selection.tenants)))
    if selection.begin is not None:
        jobs = jobs.filter(pl.col("submit") >= selection.begin)
    if selection.end is not None:
        jobs = jobs.filter(pl.col("submit") < selection.end)
    if selection.limit is not None:
        jobs = jobs.head(selection.limit)
    if jobs.is_empty():
        raise InputError(Fault(trace.source, "no job is selected", "widen from, to, vc or limit"))
    first = float(jobs.item(0, "submit"))
    omitted = trace.jobs.height - jobs.height
    notes = (*trace.notes, *([ImportNote("dropped", "not selected", omitted)] if omitted else ()))
    return replace(
        trace,
        jobs=jobs.with_columns(pl.col("submit") - first, pl.col("deadline") - first),
        notes=notes,
        start=trace.start + timedelta(seconds=first) if trace.start else None,
    )

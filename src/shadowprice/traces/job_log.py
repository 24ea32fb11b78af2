"""Common steps of importers of cluster logs, from a log's columns to rows of the common table.

Importers add columns to a log's own: ``_submit``, ``_start`` and so on, each with the meaning of
the column of `records.SCHEMA`, or of a helper that these functions describe.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import polars as pl

from shadowprice.traces.log_values import STANDS_FOR_MISSING, TIME_PROBLEMS, Times
from shadowprice.traces.records import ImportTally
from shadowprice.traces.text import Check, CheckedTable

CLOCK_SKEW_SECONDS: Final = 60.0
"""Seconds by which a job may start before its submission, or end before its start.

The times may be those of two machines, whose clocks differ."""

RUNNING: Final = "no end: still running when the log was written"
"""Note for jobs whose run time isn't known yet."""

STEP_OF_A_JOB: Final = "step of a job"
"""Note for rows of Slurm's accounting that are parts of their jobs."""

SHARES_OF_GPUS: Final = (
    "shares of GPUs (shards or MPS), whose size the log doesn't state: a CPU job"
)
SLICES_OF_GPUS: Final = (
    "MIG slices: 1g counts as 1/8 of a GPU, 2g as 1/4, 3g and 4g as 1/2; of an A30, 1/4 for each g"
)


def job_columns() -> dict[str, pl.Expr | str]:
    """Return the columns of `records.SCHEMA` that every importer of logs has, by name.

    ``queue`` is the time until the last attempt, without the run time of earlier attempts.
    """
    names = ("submit", "duration", "lost", "time_limit", "gpus", "gpu_type", "cpus", "memory")
    waited = (pl.col("_queue") - pl.col("_lost").fill_null(0.0)).clip(lower_bound=0.0)
    return {name: f"_{name}" for name in (*names, "status")} | {"queue": waited}


def count_shared_gpus(table: CheckedTable) -> None:
    """Add notes on jobs that have only shares of GPUs, and on jobs with MIG slices."""
    has_shares = pl.col("_has_shares") & (pl.col("_gpus") == 0)
    table.count_repairs(has_shares, SHARES_OF_GPUS, "kept")
    table.count_repairs(pl.col("_has_slices"), SLICES_OF_GPUS, "kept")


def check_problems(
    table: CheckedTable, times: Times, column: str, label: str, zone: str
) -> list[Check]:
    """Return the checks that the times of a column are valid, and note the missing times.

    ``label`` is the column's name in the note. ``zone`` is the zone of times without an offset.
    """
    table.count_repairs(pl.lit(times.missing), f"{label}: {STANDS_FOR_MISSING}")
    return [
        Check(
            pl.lit((times.problem != problem).fill_null(True)),
            column,
            message.format(zone=zone),
            hint,
        )
        for problem, (message, hint) in TIME_PROBLEMS.items()
    ]


def drop_repeated_rows(frame: pl.DataFrame, name: str, tally: ImportTally) -> pl.DataFrame:
    """Drop and count rows that equal an earlier row, as in joined logs that overlap."""
    # Rows without a name or start may be several jobs that were submitted at once.
    identified = frame[name].is_not_null() & frame["_start"].is_not_null()
    is_first = frame.select(pl.struct(pl.exclude("line")).is_first_distinct()).to_series()
    kept = frame.filter(is_first | ~identified)
    tally.add("dropped", "same row as an earlier one", frame.height - kept.height)
    return kept


def merge_attempts(
    frame: pl.DataFrame, name: str, same: Collection[str], tally: ImportTally
) -> pl.DataFrame | None:
    """Merge rows of jobs that were submitted once and ran several times, one after another.

    The row of the last attempt stays, and ``_lost`` is the run time of the earlier attempts. Return
    None if rows of one name aren't attempts of a job: they overlap, were submitted at different
    times, differ in a column of ``same`` (such as the user), or follow a row that passed.
    """
    ran = pl.coalesce("_duration", pl.col("_end") - pl.col("_start"))
    # ``_ran`` and ``_stopped`` are the run time and the end of each row, if they can be computed.
    timed = frame.with_columns(_ran=ran, _stopped=pl.coalesce("_end", pl.col("_start") + ran))
    rows = timed.filter(pl.col(name).is_not_null()).sort("_start", nulls_last=True)
    previous = pl.col("_stopped").shift(1).over(name)
    # An attempt that hasn't started follows all others: the job waits to run again.
    is_waiting = pl.col("_start").is_null() & (pl.col("_ran").fill_null(0.0) == 0.0)
    is_later = (pl.col("_start") >= previous - CLOCK_SKEW_SECONDS) | is_waiting
    is_same = pl.col("_submit") == pl.col("_submit").shift(1).over(name)
    for column in same:
        is_same &= pl.col(column).eq_missing(pl.col(column).shift(1).over(name))
    is_same &= pl.col("_status").shift(1).over(name).ne_missing("passed")
    is_first = pl.int_range(pl.len()).over(name) == 0
    is_attempt = (is_later & is_same).fill_null(False) | is_first
    if not rows.select(is_attempt.all()).item():
        return None
    total = pl.col("_ran").fill_null(0.0)
    attempts = rows.group_by(name, maintain_order=True).agg(
        pl.exclude("_lost", "_ran", "_stopped").last(),
        _lost=pl.when(pl.len() > 1).then(total.sum() - total.last()),
    )
    earlier = len(rows) - len(attempts)
    tally.add("repaired", "earlier attempt of a job: lost time", earlier)
    nameless = timed.filter(pl.col(name).is_null()).drop("_ran", "_stopped")
    return pl.concat([attempts.select(nameless.columns), nameless]).sort("line")


def check_times(table: CheckedTable, names: Mapping[str, str]) -> None:
    """Check the times of a log's jobs, and add the column ``_queue``: seconds of waiting.

    The table has columns ``_submit``, ``_start``, ``_end``, ``_duration``, ``_time_limit``
    (seconds) and ``_status`` (of `records.STATUSES`); all may be null. Jobs that never ran, or
    whose end isn't known, are dropped and counted. ``names`` has the log's own name of each column,
    for errors.
    """
    submit, start, end, duration = map(pl.col, ("_submit", "_start", "_end", "_duration"))
    submitted = names.get("submit") or names["start"]
    table.count_repairs(
        submit.is_null() & start.is_not_null(), "no submission time; the start is used"
    )
    table.frame = table.frame.with_columns(
        _submit=pl.coalesce(submit, start), _has_submit=submit.is_not_null()
    )
    never_ran = start.is_null() & (duration.is_null() | (duration == 0))
    table.drop(never_ran & (pl.col("_status") == "unfinished"), "pending: never started")
    # A job that passed has run, so its missing start is a fault of the log.
    has_passed = (pl.col("_status") == "passed").fill_null(False)
    table.drop(never_ran & (end.is_null() | ~has_passed), "never started")
    table.drop(duration.is_null() & start.is_not_null() & end.is_null(), RUNNING)
    table.check(submit.is_not_null(), submitted, "is missing")
    table.check(
        duration.is_not_null() | (start.is_not_null() & end.is_not_null()),
        names.get("start") or names.get("duration") or submitted,
        "leaves the run time unknown",
        "a job needs a start and an end, or a run time",
    )
    is_early = duration.is_null() & (end < start) & (end >= start - CLOCK_SKEW_SECONDS)
    table.count_repairs(is_early, "ended up to a minute before its start: clocks differ")
    table.frame = table.frame.with_columns(_end=pl.when(is_early).then(start).otherwise(end))
    table.check(
        duration.is_not_null() | (end >= start),
        names.get("end") or submitted,
        "is before the start",
        "if the log has local times, add timezone=Europe/Berlin or the like to the trace",
    )
    table.frame = table.frame.with_columns(_duration=pl.coalesce(duration, end - start))
    limit = pl.col("_time_limit")
    table.count_repairs(limit <= 0, "time limit of 0 or less: read as no limit")
    table.frame = table.frame.with_columns(_time_limit=pl.when(limit > 0).then(limit))
    table.check(duration >= 0, names.get("duration") or submitted, "is negative")
    table.drop(duration == 0, "run time 0: never ran")
    table.frame = table.frame.with_columns(_queue=pl.coalesce(start, end - duration) - submit)
    queue = pl.col("_queue")
    table.check(
        queue.is_null() | (queue >= -CLOCK_SKEW_SECONDS),
        names.get("start") or names.get("end") or submitted,
        "is before the submission",
        "check which columns are the times",
    )
    table.count_repairs(queue < 0, "started up to a minute before its submission: clocks differ")
    # A start used as the submission says nothing about waiting.
    waited = pl.when("_has_submit").then(queue.clip(lower_bound=0.0))
    table.frame = table.frame.with_columns(_queue=waited)

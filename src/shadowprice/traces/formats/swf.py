"""The Standard Workload Format of the Parallel Workloads Archive."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import polars as pl

from shadowprice.traces.records import Trace, build_trace
from shadowprice.traces.registry import ImportContext, trace_format
from shadowprice.traces.text import (
    MAX_INTEGER,
    CheckedTable,
    file_error,
    read_bytes,
    read_head,
    read_lines,
)

_EPOCH: Final = datetime(1970, 1, 1)  # UTC without a zone, as in Trace.start
_FIELDS: Final = (
    *("job", "submit", "wait", "run", "allocated", "cpu_time", "used_memory", "requested"),
    *("requested_time", "requested_memory", "status", "user", "group", "executable"),
    *("queue", "partition", "preceding", "think_time"),
)
_TAB_TO_BLANK: Final = bytes.maketrans(b"\t", b" ")
_NUMBERS: Final = pl.all_horizontal(pl.col(name).is_finite() for name in _FIELDS)
_IN_RANGE: Final = pl.all_horizontal(pl.col(name).abs() <= MAX_INTEGER for name in _FIELDS)
_STATUS: Final = {1: "passed", 0: "failed", 5: "cancelled"}
_START: Final = re.compile(r"^;\s*UnixStartTime:\s*(\d+)", re.MULTILINE)


@trace_format(
    "swf",
    title="Standard Workload Format: 18 fields a line, comments after ;",
    citation="Chapin et al., Benchmarks and Standards for the Evaluation of Parallel Job "
    "Schedulers, JSSPP 1999; Feitelson, Parallel Workloads Archive",
    licence="that of the log",
    files="*.swf[.gz]",
    gotchas=(
        "-1 means unknown in every field",
        (
            "processors are taken as GPUs (processors=cpus: as cores of CPU jobs; cpu_jobs=keep "
            "schedules them)"
        ),
        "allocated processors, or those requested where the former are unknown (counted)",
        "status 2-4 are parts of a job that another line sums up: left out",
        "a run time of 0 never ran: left out; used memory is KB per processor",
        "the requested time is the time limit, apart from the run time",
    ),
    options={"processors": "gpus (default) or cpus: what a processor of the log is"},
)
def read_swf(path: Path, context: ImportContext) -> Trace:
    """Read an SWF log."""
    processors = context.choose("processors", "gpus", "cpus")
    head = read_head(path)
    _check_first(path, head)
    table = _split(path, context)
    table.drop(pl.col("status").is_in([2.0, 3.0, 4.0]), "part of a job that another line sums up")
    table.drop(pl.col("run") == 0, "run time 0: never ran")
    table.check(pl.col("job") >= 0, "job", "is not a job number")
    table.check(pl.col("submit") >= 0, "submit", "is negative")
    processor_count = pl.when(pl.col("allocated") > 0).then("allocated").otherwise("requested")
    table.count_repairs(
        pl.col("allocated") <= 0, "processors allocated unknown; those requested are used"
    )
    table.check(processor_count > 0, "requested", "and allocated processors are unknown")
    table.count_repairs(pl.col("run") < 0, "run time unknown", "kept")
    as_gpus = processors == "gpus"
    memory = pl.when(pl.col("used_memory") > 0).then("used_memory") * processor_count * 1024
    jobs = table.jobs(
        job=pl.format("job-{}", pl.col("job").cast(pl.Int64)),
        submit="submit",
        duration=pl.when(pl.col("run") > 0).then("run"),
        queue=pl.when(pl.col("wait") >= 0).then("wait"),
        time_limit=pl.when(pl.col("requested_time") > 0).then("requested_time"),
        gpus=processor_count if as_gpus else pl.lit(0.0),
        cpus=pl.lit(None) if as_gpus else processor_count,
        memory=memory.round(),
        tenant=_label("group"),
        user=_label("user"),
        status=pl.col("status").cast(pl.Int64).replace_strict(_STATUS, default=None),
    )
    trace = build_trace("swf", jobs, path, context.tally, absolute=False)
    start = _START.search(head)
    if start is None or int(start[1]) == 0:
        return trace
    first = int(start[1]) + float(jobs.select(pl.col("submit").min()).item())
    return replace(trace, start=_EPOCH + timedelta(seconds=first))


def _check_first(path: Path, head: str) -> None:
    """Raise `InputError` if the first data line is invalid, before all of the file is read."""
    for line, text in enumerate(head.splitlines(), start=1):
        if text.strip() and not text.lstrip().startswith(";"):
            if len(text.split()) != len(_FIELDS):
                raise file_error(path, f"has {len(text.split())} fields", "SWF has 18", line)
            return


def _split(path: Path, context: ImportContext) -> CheckedTable:
    """Split lines at runs of blanks; refuse lines with another number of fields."""
    frame = _parse(read_bytes(path))
    if frame is None:
        return _split_lines(path, context)
    blank = pl.all_horizontal(pl.col(name).is_null() for name in _FIELDS)
    # Short lines, nan and huge numbers are faults, whose lines `_split_lines` reports.
    if not frame.select((blank | _IN_RANGE.fill_null(False)).all()).item():
        return _split_lines(path, context)
    table = CheckedTable(path, frame, context)
    table.drop(blank, "blank line")
    return table


def _parse(data: bytes) -> pl.DataFrame | None:
    """Parse a log in one step; return None if it has comments after its head, or isn't valid."""
    head = 0
    for line in data.split(b"\n", 10_000)[:-1]:
        if not line.startswith(b";"):
            break
        head += len(line) + 1
    comments = data.count(b"\n", 0, head)
    body = data[head:].translate(_TAB_TO_BLANK, b"\r")
    if b";" in body:
        return None
    while b"  " in body:
        body = body.replace(b"  ", b" ")
    body = body.replace(b"\n ", b"\n").replace(b" \n", b"\n").strip(b" ")
    try:
        return pl.read_csv(
            body,
            has_header=False,
            new_columns=list(_FIELDS),
            schema_overrides=[pl.Float64()] * len(_FIELDS),
            separator=" ",
            quote_char=None,
            infer_schema=False,
        ).with_row_index("line", offset=comments + 1)
    except pl.exceptions.PolarsError:
        return None


def _split_lines(path: Path, context: ImportContext) -> CheckedTable:
    """Parse any log line by line, and report all invalid lines."""
    table = read_lines(path, context)
    text = pl.col("text")
    table.frame = table.frame.filter(~text.str.starts_with(";"))
    fields = text.str.replace_all(r"\s+", " ").str.split(" ")
    table.frame = table.frame.with_columns(fields=fields)
    table.check(
        pl.col("fields").list.len() == len(_FIELDS), "text", "does not have 18 fields of numbers"
    )
    numbers = [
        pl.col("fields").list.get(index).cast(pl.Float64, strict=False).alias(name)
        for index, name in enumerate(_FIELDS)
    ]
    table.frame = table.frame.with_columns(numbers)
    table.check(_NUMBERS, "text", "has a field that is not a number")
    table.check(_IN_RANGE, "text", "has a number out of range")
    return table


def _label(column: str) -> pl.Expr:
    value = pl.col(column)
    return pl.when(value >= 0).then(pl.format(column + "-{}", value.cast(pl.Int64)))

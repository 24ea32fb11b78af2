"""Microsoft Philly (2017): the flat CSV of later artifacts, or the original job log."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import polars as pl

from shadowprice.core import bounds
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.wording import quote_for_display
from shadowprice.results.columns import typed_columns
from shadowprice.traces.log_values import parse_state
from shadowprice.traces.records import Trace, build_trace
from shadowprice.traces.registry import ImportContext, trace_format
from shadowprice.traces.text import (
    MAX_FAULTS,
    OUT_OF_RANGE_DATE,
    CheckedTable,
    file_error,
    invalid_rows,
    json_errors,
    load_json,
    read_head,
    read_table,
    valid_text,
)

TIME: Final = "%Y-%m-%d %H:%M:%S"
_FLAT: Final = typed_columns("timestamp duration:f num_gpus:i gpu_time:f cluster")
# On 2017-11-05 US Pacific clocks showed 01:00 to 02:00 twice.
_AMBIGUOUS: Final = tuple(datetime(2017, 11, 5, hour, tzinfo=UTC).timestamp() for hour in (1, 2))


@trace_format(
    "philly",
    title="Microsoft Philly, 2017: flat CSV (timestamp, duration, num_gpus, gpu_time, cluster) "
    "or the original cluster_job_log (JSON), distinguished by content",
    citation="Jeon et al., Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training "
    "Workloads, USENIX ATC 2019; github.com/msr-fiddle/philly-traces",
    licence="CC-BY-4.0",
    files="philly.csv[.gz] or cluster_job_log[.gz]",
    gotchas=(
        (
            "times are naive local time, kept unchanged (presumably US Pacific: rows within "
            "2017-11-05 01:00-02:00, which happened twice, are counted)"
        ),
        "flat: not sorted, no names (a job is called VC-line), duration excludes queueing",
        "flat: virtual clusters such as 6214e9 look like numbers and are read as text",
        "flat: exact duplicate rows are kept and counted; duplicates=drop leaves them out",
        (
            "original: a job's duration is the sum of its attempts' run times; jobs that never ran "
            "or still run, and attempts without a start, are left out and counted"
        ),
        "original: only cluster_job_log is read; the utilisation CSVs (PDT/PST, NA) are not traces",
        "original: where attempts differ in GPUs, the longest counts and GPU-time is conserved",
    ),
    options={"duplicates": "keep (default) or drop: exact duplicate rows of the flat CSV"},
)
def read_philly(path: Path, context: ImportContext) -> Trace:
    """Read the Philly trace in either of its forms."""
    head = read_head(path)
    if head.lstrip().startswith(("[", "{")):
        _check_log_head(path, head.lstrip())
        return _read_log(path, context)
    return _read_flat(path, context)


def read_machine_list(path: Path) -> pl.DataFrame:
    """Read Philly's cluster_machine_list: machine, number of GPUs, memory of each GPU.

    A blank follows each comma in the file, and memory is text such as ``24GB``. The columns of the
    result are machine, gpus, and gpu_memory in bytes.
    """
    columns = ("machineId", "number of GPUs", "single GPU mem")
    table = read_table(path, dict.fromkeys(columns, pl.String()), ImportContext())
    gpus = pl.col("number of GPUs").cast(pl.Int64, strict=False)
    memory = pl.col("single GPU mem").str.extract(r"^(\d+)GB$", 1).cast(pl.Int64)
    table.check(gpus > 0, "number of GPUs", "is not a number above 0")
    table.check(memory > 0, "single GPU mem", "isn't an amount of memory such as 24GB")
    return table.done().select(machine="machineId", gpus=gpus, gpu_memory=memory * 10**9)


def _read_flat(path: Path, context: ImportContext) -> Trace:
    duplicates = context.choose("duplicates", "keep", "drop")
    table = read_table(path, _FLAT, context)
    repeated = ~pl.struct(list(_FLAT)).is_first_distinct()
    if duplicates == "drop":
        table.drop(repeated, "exact duplicate of an earlier row")
    else:
        table.count_repairs(repeated, "exact duplicate of an earlier row", action="kept")
    table.parse_times("timestamp", TIME)
    table.check_positive("duration", "num_gpus")
    expected = pl.col("duration") * pl.col("num_gpus")
    table.count_repairs(
        (pl.col("gpu_time") - expected).abs() > 1e-6 * expected,
        "gpu_time is not duration x num_gpus; the product is used",
    )
    table.count_repairs(
        (pl.col("timestamp") >= _AMBIGUOUS[0]) & (pl.col("timestamp") < _AMBIGUOUS[1]),
        "local time that happened twice (2017-11-05 01:00-02:00)",
        action="kept",
    )
    jobs = table.jobs(
        job=pl.format("{}-{}", pl.col("cluster").fill_null("job"), "line"),
        submit="timestamp",
        duration="duration",
        gpus="num_gpus",
        tenant="cluster",
    )
    return build_trace("philly", jobs, path, context.tally, absolute=True)


def _read_log(path: Path, context: ImportContext) -> Trace:
    entries = load_json(path)
    if not isinstance(entries, list):
        raise file_error(path, "is not a JSON list of jobs", "", 1)
    faults: list[Fault] = []
    rows: list[dict[str, object]] = []
    for index, entry in enumerate(entries):
        try:
            row = _job(entry, context)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            named = isinstance(entry, dict) and "jobid" in entry
            name = f" {quote_for_display(entry['jobid'])}" if named else ""
            missing = isinstance(error, KeyError)
            problem = f"lacks {error}" if missing else f"is not a job of the Philly log ({error})"
            faults.append(Fault(f"{path}: [{index}]{name}", problem))
            continue
        if row is not None:
            rows.append({"line": index} | row)
    if faults and not context.skip_invalid:
        more = len(faults) - MAX_FAULTS
        rest = [Fault(str(path), f"and {more} more jobs are wrong")] if more > 0 else []
        raise invalid_rows([*faults[:MAX_FAULTS], *rest])
    context.tally.add("dropped", "entry that is not a job", len(faults))
    frame = pl.DataFrame(rows, infer_schema_length=None)
    if rows:
        given = {name: pl.col(name) for name in frame.columns if name != "line"}
        frame = CheckedTable(path, frame, context, location="[{}]").jobs(**given)
    return build_trace("philly", frame, path, context.tally, absolute=True)


def _check_log_head(path: Path, head: str) -> None:
    """Raise `InputError` if a file doesn't start like a list of jobs, before all of it is read."""
    first = head[1:].lstrip()
    if head[0] != "[" or not first.startswith(("{", "]")):
        raise file_error(path, "is not a JSON list of jobs", "", 1)
    if first[0] == "]":
        return
    try:
        with json_errors(path):
            entry, _ = json.JSONDecoder().raw_decode(head, len(head) - len(first))
    except InputError as error:
        cause = error.__cause__
        # An error at the end of the head may only mean that the first job extends beyond it.
        if isinstance(cause, json.JSONDecodeError) and (
            cause.pos >= len(head) - 8 or cause.msg.startswith("Unterminated")
        ):
            return
        raise
    if "jobid" not in entry or "attempts" not in entry:
        raise file_error(path, "begins with no Philly job", "a job has jobid and attempts", 1)


def _job(entry: Mapping[str, Any], context: ImportContext) -> dict[str, object] | None:
    tally = context.tally
    submit = _seconds(entry["submitted_time"])
    attempts: Sequence[Mapping[str, Any]] = entry["attempts"]
    if submit is None:
        raise ValueError("submitted_time is missing")
    if not attempts:
        tally.add("dropped", "job with no attempt: it never ran", 1)
        return None
    if _seconds(attempts[-1]["end_time"]) is None:
        tally.add("dropped", "last attempt has no end: the job was still running", 1)
        return None
    runs: list[tuple[float, float, int]] = []
    for attempt in attempts:
        begin, end = _seconds(attempt["start_time"]), _seconds(attempt["end_time"])
        gpus = sum(len(machine["gpus"]) for machine in attempt["detail"])
        if begin is None or end is None or end <= begin or not gpus:
            tally.add("repaired", "attempt without start, end, run time or GPUs is not counted", 1)
        else:
            runs.append((begin, end - begin, gpus))
    if not runs:
        tally.add("dropped", "no attempt ran on a GPU", 1)
        return None
    _, _, gpus = max(runs, key=lambda run: run[1])  # those of the longest attempt
    if any(run[2] != gpus for run in runs):
        tally.add(
            "repaired", "attempts differ in GPUs; GPU-time is kept at those of the longest", 1
        )
    return {
        "job": valid_text(entry["jobid"]),
        "submit": submit,
        "duration": sum(seconds * gpu_count for _, seconds, gpu_count in runs) / gpus,
        "queue": max(0.0, runs[0][0] - submit),
        "gpus": float(gpus),
        "tenant": entry["vc"] and valid_text(entry["vc"]),
        "user": entry["user"] and valid_text(entry["user"]),
        "status": parse_state(valid_text(entry["status"])),
    }


def _seconds(text: str | None) -> float | None:
    if text is None or text == "None":
        return None
    seconds = datetime.strptime(text, TIME).replace(tzinfo=UTC).timestamp()
    if not 0 <= seconds <= bounds.SECONDS.maximum:
        raise ValueError(f"{text} {OUT_OF_RANGE_DATE}")
    return seconds

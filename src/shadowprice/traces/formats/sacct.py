"""Slurm's accounting: ``sacct --parsable2`` or ``--parsable``, and ``sacct --json``."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import polars as pl

from shadowprice.core import bounds
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.wording import quote_for_display
from shadowprice.traces import job_log, log_values
from shadowprice.traces.records import Trace, build_trace
from shadowprice.traces.registry import ImportContext, trace_format
from shadowprice.traces.text import (
    Check,
    CheckedTable,
    RowRules,
    column_names,
    file_error,
    json_errors,
    read_bytes,
    read_head,
    read_table,
    valid_text,
)

_FIELDS: Final = (
    *("Cluster", "JobID", "JobIDRaw", "User", "Account", "Group", "Partition", "QOS", "State"),
    *("Submit", "Eligible", "Start", "End", "Elapsed", "ElapsedRaw", "Timelimit", "TimelimitRaw"),
    *("AllocTRES", "ReqTRES", "AllocGRES", "ReqGRES", "AllocCPUS", "NCPUS", "ReqCPUS", "ReqMem"),
    *("NNodes", "AllocNodes"),
)
_NEEDED: Final = ("JobID", "Submit", "Start", "End", "State")
_FLAGS: Final = frozenset(
    (
        *("COMPLETING", "CONFIGURING", "EXPEDITING", "LAUNCH_FAILED", "POWER_UP_NODE"),
        *("RECONFIG_FAIL", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESIZING", "RESV_DEL_HOLD"),
        *("REVOKED", "SIGNALING", "SPECIAL_EXIT", "STAGE_OUT", "STOPPED", "UPDATE_DB"),
    )
)
"""Flags that Slurm adds to a job's state."""
_TENANTS: Final = {name.lower(): name for name in ("Account", "User", "Group", "Partition", "QOS")}
_TRES: Final = ("AllocTRES", "ReqTRES", "AllocGRES", "ReqGRES")
_FIRST_GRES: Final = 2  # index of the first column in `_TRES` with GRES
_UNKNOWN_TOTALS: Final = frozenset({"task", "socket", "several"})
"""Scopes of GPUs (`Tres.gpus_per`) from which a job's total doesn't follow."""
_NO_SPANS: Final = ("invalid", "unlimited", "partition_limit", "infinite")
"""Words for unknown durations; sacct writes INVALID if the times contradict each other."""
_SPANS: Final[Mapping[str, Callable[[str], float | None]]] = {
    **dict.fromkeys(("Elapsed", "ElapsedRaw", "Timelimit"), log_values.parse_seconds),
    "TimelimitRaw": lambda text: log_values.parse_seconds(text, 60.0),
}
_CORES: Final = ("AllocCPUS", "NCPUS", "ReqCPUS")
_COUNTS: Final = ("NNodes", "AllocNodes", *_CORES)
_FIRST_NO_NUMBER: Final = 2**32 - 2  # Slurm's NO_VAL; INFINITE is the next one
_MAX_BYTES: Final = 2.0**62  # fits into 64 bits, and is above the limit of a job's memory
_NO_TRES: Final = log_values.Tres()
_MAX_DIGITS: Final = 9  # maximum digits of the index of an array's element
_MAX_SECONDS_TO_REQUEUE: Final = 86400.0
"""Maximum time from the end of an attempt to the submission of the next one.

A job can only be requeued until Slurm forgets it: after MinJobAge, five minutes by default."""
_ARRAY: Final = re.compile(r"\[([^\]]*)\]")
_DUMP: Final = (
    "sacct --allusers --duplicates --parsable2 --starttime=2024-01-01 --format="
    "JobID,User,Account,Partition,QOS,State,Submit,Eligible,Start,End,Elapsed,Timelimit,"
    "AllocTRES,ReqTRES"
)


@trace_format(
    "sacct",
    title="Slurm's accounting: sacct --parsable2, or sacct --json",
    citation="Your own cluster; SchedMD, sacct(1)",
    licence="that of the log",
    files="the output of " + _DUMP,
    gotchas=(
        "steps (9000.batch, 9000.0) are parts of their jobs: left out",
        "a job arrives when it becomes eligible, after its dependencies; arrival=submit: at once",
        (
            "dumps may be joined, have other separators (--delimiter=';'), and be CSV that pandas "
            "or a spreadsheet wrote"
        ),
        (
            "attempts of a requeued job (--duplicates) are one job: the last attempt's run time; "
            "the earlier ones are its lost time"
        ),
        "parts of a resized job (RESIZING) are one run, with the GPUs of the longest part",
        "components of a heterogeneous job (9000+0, 9000+1) are jobs of their own",
        "elements of an array are jobs; pending ones (9000_[2-5%2]) never started: left out",
        "bars in a job's name belong to it if no other column explains them; --json has none",
        "GPUs are those allocated, or requested if none is known; types as in gres/gpu:a100=2",
        "MIG slices (gres/gpu:a100_1g.5gb) count as shares of a GPU: 1g as 1/8, 3g as 1/2",
        "a number that Slurm used again, for another user or a day later, is another job: 9000-2",
        "the time limit is kept apart from the run time; TIMEOUT, OUT_OF_MEMORY and the like fail",
        "times are local to the cluster: add timezone=Europe/Berlin; --json has seconds since 1970",
    ),
    options={
        "arrival": "eligible (default) or submit: when a job arrives",
        "tenant": "account (default), user, group, partition or qos: who a job belongs to",
        "timezone": "zone of the cluster's clock (default UTC)",
    },
)
def read_sacct(path: Path, context: ImportContext) -> Trace:
    """Read the output of ``sacct``."""
    tenant = context.choose("tenant", *_TENANTS)
    arrival = context.choose("arrival", "eligible", "submit")
    zone = log_values.time_zone(context.options.get("timezone", "UTC"))
    head = read_head(path)
    is_json = head.lstrip().startswith(("{", "["))
    table = _from_json(path, context) if is_json else _from_text(path, head, context)
    with table.collect():
        return _read_jobs(path, table, context, tenant, arrival, zone)


def _read_jobs(
    path: Path, table: CheckedTable, context: ImportContext, tenant: str, arrival: str, zone: str
) -> Trace:
    job = pl.col("JobID")
    table.check(job.is_not_null(), "JobID", "is missing")
    table.drop(job.str.contains(".", literal=True), job_log.STEP_OF_A_JOB)
    _count_pending_arrays(table, context)
    if table.frame.is_empty():
        table.done()
        return build_trace("sacct", table.frame, path, context.tally, absolute=True)
    column = _TENANTS[tenant]
    if "tenant" in context.options and table.frame[column].null_count() == table.frame.height:
        hint = f"add {column} to the columns of sacct"
        raise file_error(path, f"has no {column}, which tenant={tenant} reads", hint)
    if table.frame["Cluster"].drop_nulls().n_unique() > 1:
        # Each cluster numbers its own jobs.
        table.frame = table.frame.with_columns(
            JobID=pl.concat_str("JobID", "Cluster", separator="@")
        )
    table.check_all([*_read_times(table, zone), *_read_resources(table)])
    unknown = pl.col("_status").is_null() & pl.col("State").is_not_null()
    table.count_repairs(unknown, "unknown state", "kept")
    table.frame = _name_reused_numbers(table.frame, context)
    job_log.count_shared_gpus(table)
    if arrival == "eligible":
        # A requeue changes the eligible time of a job, and some versions keep the older start.
        submit, start = pl.col("_submit"), pl.col("_start")
        is_later = (pl.col("_eligible") > start) & (submit <= start)
        table.count_repairs(is_later, "eligible after its start: it arrives when submitted")
        eligible = pl.when(~is_later.fill_null(False)).then("_eligible")
        table.frame = table.frame.with_columns(_submit=pl.max_horizontal("_submit", eligible))
    table.frame = _merge_attempts(table.frame, context)
    job_log.check_times(
        table, {"submit": "Submit", "start": "Start", "end": "End", "duration": "Elapsed"}
    )
    jobs = table.jobs(job="JobID", **job_log.job_columns(), tenant=column, user="User")
    return build_trace("sacct", jobs, path, context.tally, absolute=True)


def _from_text(path: Path, head: str, context: ImportContext) -> CheckedTable:
    preamble = _lines_before_header(head)
    location = f"{path}: line {preamble + 1}"
    line = head.split("\n")[preamble].strip()
    separator = _find_separator(location, line)
    is_csv = separator == ","
    header = column_names(head, separator, preamble)
    lacking = [name for name in _NEEDED if name not in header]
    if lacking:
        message = f"the header lacks {', '.join(lacking)}"
        raise InputError(Fault(location, message, f"write it with {_DUMP}"))
    if not {*_TRES, *_CORES}.intersection(header):
        message = "the header lacks AllocTRES, which has the GPUs"
        raise InputError(Fault(location, message, f"write it with {_DUMP}"))
    kinds = {name: pl.String() for name in header if name in _FIELDS}
    optional = [name for name in _FIELDS if name not in kinds]
    columns = {**kinds, **dict.fromkeys(optional, pl.String())}
    table = read_table(
        path,
        columns,
        context,
        separator=separator,
        optional=optional,
        preamble=preamble,
        # sacct quotes nothing, but a spreadsheet or pandas that rewrote its output does.
        quoted=is_csv or line.startswith('"'),
        rules=RowRules(
            rejoin=None if is_csv else partial(_rejoin_fields, header),
            surplus_hint="write sacct's columns with bars: leave out --delimiter=,"
            if is_csv
            else "use sacct --json if a name or comment contains a bar",
            shortage_hint="copy the file again if it was cut off, "
            "or use sacct --json if a name or comment contains a line break",
        ),
    )
    context.tally.add("dropped", "line before the header", preamble)
    if not {*_TRES}.intersection(header):
        reason = "no column of GPUs, such as AllocTRES: all jobs are CPU jobs"
        context.tally.add("read", reason, table.frame.height)
    present = [
        pl.when(~log_values.is_nothing(pl.col(name))).then(name).alias(name) for name in _FIELDS
    ]
    table.frame = table.frame.select("line", *present)
    return table


def _lines_before_header(head: str) -> int:
    """Return the number of lines before the header, such as the banner of a login node."""
    for number, line in enumerate(head.split("\n", _MAX_LINES_BEFORE_HEADER)):
        if _ROW.match(line):  # a dump without a header: a later header isn't that of the file
            break
        if {"JobID", "State"} <= {*re.findall(r"[A-Za-z]+", line)}:
            return number
    return 0


def _find_separator(location: str, line: str) -> str:
    """Return the character between the columns of a header, or raise `InputError`."""
    names = [name for name in re.findall(r"[A-Za-z]+", line) if name in _FIELDS]
    hint = f"write it with {_DUMP}"
    if not names and _ROW.match(line):
        raise InputError(Fault(location, "is not a header", f"leave out --noheader: {_DUMP}"))
    # The text between two names; in a header of fixed width, it is mostly one blank.
    between = Counter(re.findall(r"(?<=[A-Za-z])[^A-Za-z]+(?=[A-Za-z])", line.replace('"', "")))
    separator = between.most_common(1)[0][0] if names and between else "|"
    if separator.isspace() and separator != "\t":
        message = "has columns of a fixed width, which cut long values"
        raise InputError(Fault(location, message, hint))
    if separator not in _SEPARATORS:
        shown = quote_for_display(separator)
        message = f"has {shown} between columns, of which values consist too"
        if len(separator) > 1 or not separator.isascii():
            message = f"has {shown} between columns, not a single ASCII character"
        raise InputError(Fault(location, message, hint))
    return separator


_MAX_LINES_BEFORE_HEADER: Final = 100
_SEPARATORS: Final = frozenset("|;\t^~#@!&$?*,")
"""Separators that values don't contain, and commas, which are valid if values are quoted."""
_ROW: Final = re.compile(r"\d+(?:[_+.][^\s|]*)?[|;\t^~#@!&$?*,]|\d+(?:[_+.]\S*)? +\S")
"""Beginning of a row, with a job's number."""
# Patterns of valid values, which show whether the fields of a row are in their columns.
_PLAUSIBLE: Final[Mapping[str, re.Pattern[str]]] = {
    "JobID": re.compile(r"\d+(?:[_+.]\S*)?"),
    "State": re.compile(r"[A-Z_]+(?: by \S+)?\+?"),
    **dict.fromkeys(
        ("Submit", "Eligible", "Start", "End"), re.compile(r"(?i)\d[\dT: +Z.-]*|unknown|none|n/a|")
    ),
}


def _rejoin_fields(header: Sequence[str], fields: Sequence[str]) -> list[str] | None:
    """Return the fields of a row that has bars within a text, such as a job's name.

    sacct doesn't quote bars. The surplus fields are joined to a column that isn't read, so that the
    columns that are read have plausible values. Return None if there is no such column, or several
    such columns give different values.
    """
    surplus = len(fields) - len(header)
    readings: dict[tuple[str, ...], list[str]] = {}
    for index, name in enumerate(header):
        if name in _FIELDS:
            continue
        joined = "|".join(fields[index : index + surplus + 1])
        row = [*fields[:index], joined, *fields[index + surplus + 1 :]]
        by_name = dict(zip(header, row, strict=True))
        if all(
            pattern.fullmatch(by_name.get(name, "").strip()) or name not in by_name
            for name, pattern in _PLAUSIBLE.items()
        ):
            readings[tuple(by_name[name] for name in header if name in _FIELDS)] = row
    return next(iter(readings.values())) if len(readings) == 1 else None


def _from_json(path: Path, context: ImportContext) -> CheckedTable:
    """Read the jobs of ``sacct --json``; ``line`` is a job's number in the list."""
    jobs, errors = _json_jobs(path)
    if errors and not jobs:
        message = f"sacct reported errors: {quote_for_display(errors[0])}"
        raise file_error(path, message, "write it again")
    if not jobs:
        hint = "choose another --starttime; without --allusers, sacct lists only your own jobs"
        raise file_error(path, "has no jobs", hint)
    if errors:
        message = f"error of sacct beside its jobs, such as {quote_for_display(errors[0])}"
        context.tally.add("ignored", message, len(errors))
    rows: list[dict[str, str | None]] = []
    faults: list[tuple[int, Fault]] = []
    for number, job in enumerate(jobs, start=1):
        try:
            rows.append(_json_row(job))
        except (TypeError, ValueError, LookupError, AttributeError, OverflowError) as error:
            message = f"is not a job of sacct --json ({error})"
            faults.append((number, Fault(f"{path}: job {number}", message)))
            rows.append(dict.fromkeys(_FIELDS))
    frame = pl.DataFrame(rows, schema=dict.fromkeys(_FIELDS, pl.String())).with_row_index(
        "line", offset=1
    )
    table = CheckedTable(path, frame, context, "job {}")
    is_unreadable = pl.all_horizontal(pl.col(_FIELDS).is_null())
    if context.skip_invalid:
        table.drop(is_unreadable, "job that can't be read")
    else:
        table.add_faults(faults)
        table.frame = frame.filter(~is_unreadable)
        if table.frame.is_empty():
            table.done()
    return table


def _json_jobs(path: Path) -> tuple[list[Any], list[str]]:
    """Return the jobs and the errors in one or several outputs of ``sacct --json``."""
    decoder, jobs, errors = json.JSONDecoder(), list[Any](), list[str]()
    with json_errors(path):
        text = read_bytes(path).decode("utf-8-sig").rstrip()
        position = 0
        while position < len(text):
            # Decode within the whole text, so that an error has the line number in the file.
            start = next(i for i in range(position, len(text)) if not text[i].isspace())
            document, position = decoder.raw_decode(text, start)
            listed = document.get("jobs") if isinstance(document, dict) else None
            if not isinstance(listed, list):
                hint = "write it with sacct --json"
                raise file_error(path, "has no list of jobs", hint)
            jobs += listed
            reported = document.get("errors")
            errors += map(_error_text, reported if isinstance(reported, list) else ())
    return jobs, errors


def _error_text(error: object) -> str:
    described = error.get("description") or error.get("error") if isinstance(error, dict) else None
    return str(described or error)


def _json_row(job: Mapping[str, Any]) -> dict[str, str | None]:
    """Return a job's fields as ``sacct`` prints them."""
    time, array = job["time"], job.get("array") or {}
    het = job.get("het") or {}
    tres = job.get("tres") or {}
    element = _number(array.get("task_id"))
    # An element of an array, pending elements, or a component of a heterogeneous job has another
    # name than its number.
    name = str(job["job_id"])
    if array.get("job_id") and element is not None:
        name = f"{array['job_id']}_{element}"
    elif array.get("job_id") and array.get("task"):
        name = f"{array['job_id']}_[{array['task']}]"
    offset = _number(het.get("job_offset"))
    if het.get("job_id") and offset is not None:
        name = f"{het['job_id']}+{offset}"
    limit = time.get("limit")
    minutes = None if isinstance(limit, dict) and limit.get("infinite") else _number(limit)
    if minutes is not None and not 0 <= minutes < _FIRST_NO_NUMBER:
        minutes = None
    values: dict[str, object] = {
        "JobID": name,
        "Cluster": job.get("cluster"),
        "User": job.get("user") or (job.get("association") or {}).get("user"),
        "Account": job.get("account"),
        "Group": job.get("group"),
        "Partition": job.get("partition"),
        "QOS": job.get("qos"),
        "State": _json_state(job["state"]["current"]),
        "Submit": _number(time["submission"]) or None,
        "Eligible": _number(time.get("eligible")) or None,
        "Start": _number(time.get("start")) or None,
        "End": _number(time.get("end")) or None,
        "ElapsedRaw": _number(time.get("elapsed")),
        "TimelimitRaw": minutes,
        "AllocTRES": _tres_text(tres.get("allocated") or ()),
        "ReqTRES": _tres_text(tres.get("requested") or ()),
    }
    return {
        name: None if values.get(name) in {None, ""} else valid_text(values[name])
        for name in _FIELDS
    }


def _json_state(current: Any) -> str | None:
    """Return a job's state: Slurm 23.11 lists it with flags such as COMPLETING, in any order."""
    states = current if isinstance(current, list) else [current]
    base = [state for state in states if state not in _FLAGS]
    return str((base or states)[0]) if states else None


def _number(value: Any) -> int | None:
    """Return a number of Slurm's JSON: plain, or ``{set, infinite, number}``."""
    if isinstance(value, dict):
        return int(value["number"]) if value.get("set", True) else None
    return None if value is None else int(value)


def _tres_text(items: Iterable[Mapping[str, Any]]) -> str | None:
    parts = []
    for item in items:
        name = f"{item['type']}/{item['name']}" if item.get("name") else item["type"]
        unit = "M" if item["type"] == "mem" else ""  # JSON has megabytes
        parts.append(f"{name}={item['count']}{unit}")
    return ",".join(parts) or None


def _count_pending_arrays(table: CheckedTable, context: ImportContext) -> None:
    """Drop the rows of array elements that haven't started; count the elements."""
    is_pending = table.frame["JobID"].str.contains(r"\[")
    count = sum(_elements(name) for name in table.frame["JobID"].filter(is_pending))
    context.tally.add("dropped", "element of an array that never started", count)
    table.frame = table.frame.filter(~is_pending)


def _elements(name: str) -> int:
    """Return how many elements ``9000_[2-5,8-10:2%2]`` names."""
    match = _ARRAY.search(name)
    count = 0
    for part in (match[1] if match else "").partition("%")[0].split(","):
        first, _, rest = part.partition("-")
        last, _, step = rest.partition(":")
        numbers = (first, last, step or "1")
        if all(text.isdecimal() and len(text) <= _MAX_DIGITS for text in numbers):
            start, end, stride = map(int, numbers)
            count += max(0, (end - start) // max(stride, 1) + 1)
        else:
            count += 1  # a single element, or a list that sacct cut short
    return count


def _read_times(table: CheckedTable, zone: str) -> list[Check]:
    """Add columns of times and durations in seconds; return the checks of their texts."""
    names = ("Submit", "Eligible", "Start", "End")
    frame = table.frame
    times = log_values.on_one_clock(
        {
            name.lower(): log_values.read_times(
                *(frame[name], zone, "", f"{table.path}: column {name}"), may_miss=name != "Submit"
            )
            for name in names
        }
    )
    spans = {
        name: log_values.map_texts(frame[name], parse, pl.Float64())
        for name, parse in _SPANS.items()
    }
    status = log_values.map_texts(frame["State"], log_values.parse_state, pl.String())
    ran = pl.select(pl.coalesce(spans["ElapsedRaw"], spans["Elapsed"])).to_series()
    readings = log_values.choose_readings(times, ran, job_log.CLOCK_SKEW_SECONDS)
    # The elapsed time of a job that runs isn't its run time.
    is_over = readings["end"].is_not_null() | (status != "unfinished")
    table.frame = frame.with_columns(
        *(seconds.alias(f"_{name}") for name, seconds in readings.items()),
        _duration=pl.when(pl.lit(is_over)).then(pl.lit(ran)),
        _time_limit=pl.coalesce(spans["TimelimitRaw"], spans["Timelimit"]),
        _status=status,
    )
    checks = []
    for name in names:
        column = times[name.lower()]
        # A missing end isn't a fault: the job was still running.
        is_read = (
            column.seconds.is_not_null() | frame[name].is_null() | column.problem.is_not_null()
        ) | column.missing
        hint = "unset SLURM_TIME_FORMAT: sacct then writes 2024-03-05T06:07:08"
        checks.append(Check(pl.lit(is_read), name, "is not a time", hint))
        checks += job_log.check_problems(table, column, name, name, zone)
    for name, values in spans.items():
        is_read = frame[name].is_null() | values.is_not_null()
        is_none = frame[name].str.to_lowercase().is_in(_NO_SPANS).fill_null(False)
        hint = "sacct writes 1-02:03:04"
        checks.append(Check(pl.lit(is_read | is_none), name, "is not a duration", hint))
        is_possible = values.is_null() | (values <= bounds.SECONDS.maximum)
        checks.append(Check(pl.lit(is_possible), name, bounds.SECONDS.broken))
    return checks


def _read_resources(table: CheckedTable) -> list[Check]:
    """Add columns of GPUs, cores and memory, allocated or else requested; return their checks."""
    frame, checks = table.frame, []
    shown = {
        name: log_values.map_texts(frame[name], log_values.invalid_item, pl.String())
        for name in _TRES
    }
    for index, name in enumerate(_TRES):
        is_readable = shown[name].is_null()
        for earlier in _TRES[:index]:  # report an item once: requests often equal allocations
            is_readable |= (shown[name] == shown[earlier]).fill_null(False)
        hint = "sacct writes cpu=4,mem=16G,node=1,gres/gpu:a100=2,license/x=1"
        message = "is not a valid resource"
        checks.append(Check(pl.lit(is_readable), name, message, hint, shown=f"_shown_{name}"))
    counts = {
        name: log_values.map_texts(frame[name], log_values.parse_count, pl.Float64())
        for name in _COUNTS
    }
    for name, values in counts.items():
        is_count = frame[name].is_null() | values.is_not_null()
        checks.append(Check(pl.lit(is_count), name, "is not a number", "sacct writes 4"))
    stated = frame["ReqMem"]
    megabytes = partial(log_values.parse_bytes, unit=1024.0**2)
    requested = log_values.map_texts(stated, megabytes, pl.Float64())
    is_memory = stated.is_null() | requested.is_not_null()
    message = "is not an amount of memory"
    checks.append(Check(pl.lit(is_memory), "ReqMem", message, "sacct writes 16G"))
    tres = [log_values.map_texts(frame[name], log_values.parse_tres, pl.Object()) for name in _TRES]
    rows = [[held or _NO_TRES for held in row] for row in zip(*tres, strict=True)]
    nodes = pl.select(pl.coalesce(counts["NNodes"], counts["AllocNodes"], 1.0)).to_series()
    held = [_held_resources(row, count) for row, count in zip(rows, nodes, strict=True)]
    for index, name in enumerate(_TRES):
        is_by_other = pl.Series(
            [
                tres.gpus is None and row[index].gpus_per in _UNKNOWN_TOTALS
                for tres, row in zip(held, rows, strict=True)
            ]
        )
        message, hint = (
            "doesn't state the GPUs of all tasks",
            "add AllocTRES to the columns of sacct",
        )
        is_known = ~pl.lit(is_by_other) | pl.col("_start").is_null()
        checks.append(Check(is_known, name, message, hint))
    cores = pl.select(pl.coalesce(*(counts[name] for name in _CORES))).to_series()
    scope = pl.lit(log_values.map_texts(stated, log_values.memory_scope, pl.String()))
    times = pl.when(scope == "n").then(nodes).when(scope == "c").then(cores).otherwise(1)
    in_all = (pl.lit(requested) * times).round().clip(upper_bound=_MAX_BYTES).cast(pl.Int64)
    table.frame = frame.with_columns(
        *log_values.tres_columns(held),
        *(values.alias(f"_shown_{name}") for name, values in shown.items()),
    ).with_columns(
        _cpus=pl.coalesce("_cpus", pl.lit(cores)), _memory=pl.coalesce("_memory", in_all)
    )
    return checks


def _held_resources(row: Sequence[log_values.Tres], nodes: float) -> log_values.Tres:
    """Return a row's resources; each kind is taken from the first list that has it."""
    return log_values.Tres(
        _gpus(row, nodes),
        _first(tres.gpu_type for tres in row),
        _first(tres.cpus for tres in row),
        _first(tres.memory for tres in row),
        has_shares=any(tres.has_shares for tres in row),
        has_slices=any(tres.has_slices for tres in row),
    )


def _gpus(row: Sequence[log_values.Tres], nodes: float) -> float | None:
    """Return a job's total GPUs from its lists; None if they only state GPUs per task or socket.

    GRES are per node and TRES are totals, unless they state another scope.
    """
    is_unknown = False
    for index, tres in enumerate(row):
        if tres.gpus_per in _UNKNOWN_TOTALS:
            is_unknown |= tres.gpus != 0
        elif tres.gpus is not None:
            is_by_node = tres.gpus_per == "node" or (not tres.gpus_per and index >= _FIRST_GRES)
            return tres.gpus * (nodes if is_by_node else 1.0)
    return None if is_unknown else 0.0


def _first(values: Iterable[Any]) -> Any:
    return next((value for value in values if value is not None), None)


def _name_reused_numbers(frame: pl.DataFrame, context: ImportContext) -> pl.DataFrame:
    """Give distinct names (9000, 9000-2) to the jobs of a number that Slurm used again.

    A database whose numbers began again lists both jobs. A requeued job isn't another job: it has
    the same user, and is submitted when its earlier attempt ends.
    """
    rows = frame.sort("_submit", nulls_last=True, maintain_order=True)
    previous_end = pl.col("_end").cum_max().forward_fill().shift(1).over("JobID")
    is_other = pl.col("User") != pl.col("User").shift(1).over("JobID")
    is_other = is_other.fill_null(False) | (
        pl.col("_submit") > previous_end + _MAX_SECONDS_TO_REQUEUE
    ).fill_null(False)
    number = is_other.cast(pl.Int64).cum_sum().over("JobID")
    rows = rows.with_columns(_use=number)
    reused = int((rows.group_by("JobID").agg(pl.col("_use").max()))["_use"].sum())
    context.tally.add("read", "number of a job that Slurm used again: 9000-2 and so on", reused)
    name = (
        pl.when(pl.col("_use") > 0)
        .then(pl.format("{}-{}", "JobID", pl.col("_use") + 1))
        .otherwise("JobID")
    )
    return rows.with_columns(JobID=name).drop("_use").sort("line", maintain_order=True)


def _merge_attempts(frame: pl.DataFrame, context: ImportContext) -> pl.DataFrame:
    """Merge the attempts of a requeued job into the last one; earlier ones become lost time."""
    # Dumps of two months both list a job that ran in both; the row with an end stays.
    distinct = frame.sort("_end", nulls_last=True, maintain_order=True).unique(
        ["JobID", "Submit", "Start"], keep="first", maintain_order=True
    )
    context.tally.add("dropped", "same attempt as an earlier row", len(frame) - len(distinct))
    by_start = distinct.sort("_start", nulls_last=True, maintain_order=True)
    resized = pl.col("State").str.starts_with("RESIZING").fill_null(False)
    # A part that ends because the job is resized continues in the next row: both are one run.
    is_next = resized.shift(1).over("JobID").fill_null(False)
    part = pl.int_range(pl.len()).over("JobID") - is_next.cast(pl.Int64).cum_sum().over("JobID")
    ran = pl.col("_duration").fill_null(0.0)
    longest = ran.arg_max()
    held = ("_gpus", "_gpu_type", "_cpus", "_memory")
    runs = (
        by_start.with_columns(_run=part)
        .group_by("JobID", "_run", maintain_order=True)
        .agg(
            pl.exclude("_submit", "_start", "_duration", *held).last(),
            pl.col("_submit").min(),
            pl.col("_start").first(),
            pl.when(pl.col("_duration").is_not_null().any()).then(ran.sum()).alias("_duration"),
            pl.col(held).get(longest),
        )
        .select(by_start.columns)
    )
    parts = by_start.height - runs.height
    context.tally.add("repaired", "part of a resized job: with the GPUs of its longest one", parts)
    attempts = runs.group_by("JobID", maintain_order=True).agg(
        pl.exclude("_submit", "_lost").last(),
        pl.col("_submit").min(),
        _lost=ran.sum() - ran.last(),
        _attempts=pl.len(),
    )
    earlier = int(attempts["_attempts"].sum()) - attempts.height
    context.tally.add("repaired", "earlier attempt of a requeued job: lost time", earlier)
    lost = pl.when(pl.col("_lost") > 0).then("_lost").alias("_lost")
    return attempts.with_columns(lost).sort("line")

"""A cluster's own job log as a table, with a mapping of its columns."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from pathlib import Path
from typing import Final, Literal, cast

import polars as pl

from shadowprice.core.errors import Fault, InputError
from shadowprice.core.wording import hint_for_unknown, quote_for_display
from shadowprice.traces.job_log import CLOCK_SKEW, check_times, merge_attempts, waiting_time
from shadowprice.traces.log_values import (
    Times,
    Tres,
    choose_readings,
    each,
    is_nothing,
    is_zero_time,
    parse_bytes,
    parse_gpus,
    parse_number,
    parse_seconds,
    parse_state,
    read_times,
    time_zone,
)
from shadowprice.traces.records import Trace, build_trace
from shadowprice.traces.registry import ImportContext, trace_format
from shadowprice.traces.text import CheckedTable, column_names, read_head, read_table

_COLUMNS: Final[Mapping[str, str]] = {
    "job": "jobid id jobnumber jobidentifier identifier uuid uid jobname name job",
    "submit": "submit submittime submitted submittedtime submittedat submission submissiontime "
    "submitdate submissiondate datesubmitted timesubmitted "
    "created createdat createtime creation creationtime creationtimestamp queuedtime enqueued "
    "queuedat arrival arrivaltime arrived qtime timestamp",
    "start": "start starttime started startedat startdate begin begintime began beganat "
    "scheduledtime datestarted timestarted",
    "end": "end endtime ended endedat enddate finish finishtime finished finishedat completed "
    "completedat completiontime stop stoptime stoppedat "
    "completion datefinished timefinished dateended timeended",
    "duration": "duration runtime elapsed elapsedtime elapsedraw wallclock wallclocktime "
    "runseconds executiontime usedwalltime wallduration resourcesusedwalltime",
    "wait": "wait waittime waited waiting waitingtime queuetime queueingtime queuingtime "
    "queuedelay queueduration pendingtime pendtime",
    "time_limit": "timelimit timelimitraw limit walltimelimit requestedtime requestedwalltime "
    "reqwalltime maxruntime resourcelistwalltime walltime",
    "deadline": "deadline deadlinetime due duedate dueat dueby ddl",
    "gpus": "gpus gpu numgpus numgpu ngpus gpunum gpucount requestedgpus reqgpus gpusrequested "
    "allocgpus gpusallocated allocatedgpus gpualloc gpureq totalgpus numberofgpus "
    "nvidiacomgpu nvidiagpu "
    "alloctres reqtres tres allocgres reqgres gres",
    "gpus_per_node": "gpuspernode gpupernode",
    "nodes": "nodes numnodes nnodes nodecount allocnodes reqnodes",
    "gpu_type": "gputype gpumodel gpuname accelerator acceleratortype",
    "cpus": "cpus cpu cores numcpus ncpus cpunum cpucount alloccpus reqcpus numcores ncores",
    "memory": "memory mem reqmem reqmemory requestedmemory allocmemory",
    "tenant": "tenant account group groupname project projectname team vc virtualcluster "
    "department organization organisation namespace queue queuename partition partitionname",
    "user": "user username userid owner submitter submittedby",
    "status": "status state stat jobstate finalstate result outcome exitstatus exitcode",
    "model": "model modelname architecture network",
}
"""Headers by meaning, in lower case without separators and units; the best first."""

_SECONDS: Final[Mapping[str, float]] = {
    **dict.fromkeys(("ms", "millis", "milliseconds"), 1e-3),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
}
_BYTES: Final[Mapping[str, float]] = {
    **dict.fromkeys(("b", "bytes"), 1.0),
    **{f"{letter}b": 1000.0**power for power, letter in enumerate("kmgt", start=1)},
    **{f"{letter}ib": 1024.0**power for power, letter in enumerate("kmgt", start=1)},
}
_UTC: Final = frozenset({"utc", "gmt"})
_CLOCK_WORDS: Final = _UTC | {"local", "ts", "epoch", "unix"}
"""Last words of a header that say how a time is written."""
_TIMES: Final = frozenset({"submit", "start", "end", "deadline"})  # meanings of columns with times
_SEPARATORS: Final = (",", ";", "\t", "|")
_EXAMPLE: Final = "--map submit=COLUMN,duration=COLUMN,gpus=COLUMN"


@trace_format(
    "csv",
    title="Your own log: a table with one job a row and a header, columns guessed or mapped",
    citation="Your own cluster",
    licence="that of the log",
    files="*.csv[.gz], with commas, semicolons, tabs or bars between columns",
    gotchas=(
        (
            "a job needs a submission (or start), and a run time or a start and an end; a wait "
            "after the submission gives the start; guessed columns are listed, and "
            "--map submit=COLUMN,gpus=COLUMN,... replaces them"
        ),
        (
            "times may be ISO 8601, seconds or milliseconds since 1970 or since the first job, or "
            "3/4/2024 5:06 PM; local ones need timezone=Europe/Berlin, UTC is assumed"
        ),
        "durations may be seconds, h:mm:ss, d-hh:mm:ss, 2h30m, or in the unit of the header",
        "GPUs may be counts or TRES strings (gres/gpu:a100=2), or gpus_per_node times nodes",
        "time limits are kept apart from run times",
        "deadlines are times, written as the submissions are",
        (
            "rows of one job, submitted once and run one after another, are its attempts: the last "
            "one's run time counts, and the earlier ones are its lost time"
        ),
        "jobs that never started, and those still running at the end of the log, are left out",
    ),
    options={
        "map": "columns by meaning, submit=COLUMN,...; an empty one isn't used. Meanings: "
        + ", ".join(_COLUMNS),
        "timezone": "zone of times without an offset (default UTC)",
        "dates": "dmy or mdy: whether 3/4/2024 is in April or in March, if the log doesn't show it",
    },
)
def read_csv_log(path: Path, reading: ImportContext) -> Trace:
    """Read a table of jobs."""
    head = read_head(path)
    preamble, separator = _preamble(head)
    header = column_names(head, separator, preamble)
    place = f"{path}: line {preamble + 1}"
    if "line" in header:
        message = "the header names a column 'line', which this reader uses itself"
        raise InputError(Fault(place, message, "rename it"))
    mapping = _pairs(reading.options.get("map", ""))
    zone = time_zone(reading.options.get("timezone", "UTC"))
    order = reading.options.get("dates", "")
    if order not in {"", "dmy", "mdy"}:
        raise InputError(f"dates={quote_for_display(order)}: write dates=dmy or dates=mdy")
    table = read_table(
        path, dict.fromkeys(header, pl.String()), reading, separator=separator, preamble=preamble
    )
    reading.tally.add("dropped", "line before the header", preamble)
    filled = [name for name in header if table.frame.select(~is_nothing(pl.col(name)).all()).item()]
    names = _map_columns(place, header, filled, mapping)
    used = {
        meaning: int(table.frame.select((~is_nothing(pl.col(column))).sum()).item())
        for meaning, column in names.items()
    }
    log = _Log(table, names)
    absolute = log.times(zone, cast(Literal["", "dmy", "mdy"], order))
    log.durations()
    log.resources()
    log.states(reading)
    table.frame = table.frame.with_columns(_lost=pl.lit(None, dtype=pl.Float64()))
    named = names.get("job")
    if named and table.frame[named].drop_nulls().is_duplicated().any():
        same = [names[meaning] for meaning in ("tenant", "user") if meaning in names]
        merged = merge_attempts(table.frame, named, [*same, "_gpus"], reading.tally)
        if merged is not None:
            table.frame = merged
        elif "job" not in mapping:
            # A column of names rather than of ids.
            repeated = int(table.frame[named].is_duplicated().sum())
            column = quote_for_display(named)
            reading.tally.add("read", f"column {column} repeats; jobs are named by line", repeated)
            del names["job"]
    for meaning, column in names.items():
        text = f"{meaning}: column {quote_for_display(column)}"
        reading.tally.add("read", text, used[meaning])
    check_times(table, names)
    own = names.get("job")
    job = pl.col(own) if own else pl.format("job-{}", pl.col("line"))
    jobs = table.jobs(
        job=job,
        submit="_submit",
        duration="_duration",
        queue=waiting_time(),
        lost="_lost",
        time_limit="_time_limit",
        deadline="_deadline",
        gpus="_gpus",
        gpu_type="_gpu_type",
        cpus="_cpus",
        memory="_memory",
        tenant=log.text("tenant", "user"),
        user=log.text("user"),
        status="_status",
        model=log.text("model"),
    )
    return build_trace("csv", jobs, path, reading.tally, absolute=absolute)


def _preamble(head: str) -> tuple[int, str]:
    """Return the number of lines before the header, and the separator of columns.

    Such lines are blank, comments after ``#``, or Excel's ``sep=;``. A header may begin with ``#``
    too: it has as many separators as the first row.
    """
    lines = head.splitlines()
    stated = re.fullmatch(r"sep=([,;\t|])", lines[0].strip(" ") if lines else "", re.IGNORECASE)
    count = 1 if stated else 0
    first_row = next((line for line in lines[count:] if line.strip()[:1] not in {"", "#"}), "")
    separator = stated[1] if stated else max(_SEPARATORS, key=first_row.count)
    for line in lines[count:]:
        is_comment = line.startswith("#") and line.count(separator) < first_row.count(separator)
        if line.strip() and not is_comment:
            break
        count += 1
    return min(count, len(lines) - 1), separator


def _map_columns(
    location: str, header: Sequence[str], filled: Sequence[str], mapping: Mapping[str, str]
) -> dict[str, str]:
    """Return the column of each meaning: as mapped, else as the header of a filled column says."""
    times, others = dict[str, str](), dict[str, str]()
    for name in reversed(filled):
        # `queue_ts` is no queue, so that only times may end with words for their form.
        for by_key, key in ((times, _key(name)), (others, _key(name, _UTC))):
            by_key[key] = name
            by_key[key.removeprefix("job") or key] = name
    names: dict[str, str] = {}
    for meaning, words in _COLUMNS.items():
        by_key = times if meaning in _TIMES else others
        found = next((by_key[word] for word in words.split() if word in by_key), None)
        if found is not None and found not in names.values():
            names[meaning] = found
    for meaning, column in mapping.items():
        if column and column not in header:
            hint = hint_for_unknown(column, header, f"it has {_list_names(header)}")
            raise InputError(
                Fault(location, f"the header has no column {quote_for_display(column)}", hint)
            )
        names = {other: name for other, name in names.items() if name != column}
        names.pop(meaning, None)
        if column:
            names[meaning] = column
    lacking = []
    if not {"submit", "start"} & names.keys():
        lacking.append("the submission")
    if "duration" not in names and not {"start", "end"} <= names.keys():
        lacking.append("the run time")
    if not {"gpus", "gpus_per_node", "cpus"} & names.keys():
        lacking.append("GPUs")
    if lacking:
        message = f"no column looks like {' or '.join(lacking)}"
        hint = f"its columns are {_list_names(header)}; name them: {_EXAMPLE}"
        raise InputError(Fault(location, message, hint))
    return names


def _pairs(mapping: str) -> dict[str, str]:
    """Parse ``submit=COLUMN,...``; a column with a comma is quoted with its name."""
    pairs: dict[str, str] = {}
    for part in next(csv.reader([mapping], skipinitialspace=True), []):
        meaning, equals, column = part.partition("=")
        meaning = meaning.strip()
        if not equals:
            raise InputError(
                Fault("map", f"expected MEANING=COLUMN, got {quote_for_display(part)}", _EXAMPLE)
            )
        if meaning not in _COLUMNS:
            message = f"unknown meaning {quote_for_display(meaning)}"
            raise InputError(Fault("map", message, hint_for_unknown(meaning, _COLUMNS)))
        if meaning in pairs:
            raise InputError(Fault("map", f"{meaning} is repeated", _EXAMPLE))
        pairs[meaning] = column.strip()
    return pairs


def _list_names(header: Sequence[str]) -> str:
    more = f" and {len(header) - 30} more" if len(header) > 30 else ""
    return ", ".join(quote_for_display(name) for name in header[:30]) + more


def _words(name: str) -> list[str]:
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).lower()
    return re.findall(r"[a-z0-9]+", parted)


def _key(name: str, clock_words: Set[str] = _CLOCK_WORDS) -> str:
    """Return a header in lower case, without separators, unit and form of a time."""
    words = _words(name)
    endings = _SECONDS.keys() | _BYTES.keys() | clock_words
    while len(words) > 1 and words[-1] in endings:
        words = words[:-1]
    return "".join(words)


def _unit(name: str, units: Mapping[str, float]) -> float:
    """Return the unit that a header ends with, such as ``runtime_min``, else 1."""
    words = _words(name)
    return units.get(words[-1], 1.0) if len(words) > 1 else 1.0


def _without_zero_times(texts: pl.Series) -> pl.Series:
    """Replace times that stand for a missing one by null."""
    text = pl.col("text")
    year = text.str.strip_chars().str.slice(0, 4)
    # Seconds since the beginning of a log, written as times, begin in 1970 too.
    counts_from_zero = (year == "1970").all() & ~is_zero_time(text).all()
    is_missing = is_zero_time(text) & ~((year == "1970") & counts_from_zero)
    return texts.to_frame("text").select(pl.when(~is_missing).then(text))["text"]


class _Log:
    """Adds columns with the meaning of `records.SCHEMA` to a table of text, named ``_meaning``."""

    def __init__(self, table: CheckedTable, names: Mapping[str, str]) -> None:
        self._table = table
        self._names = names

    def text(self, *meanings: str) -> pl.Expr:
        """Return the text of the first of some meanings that a row has."""
        columns = [self._names[meaning] for meaning in meanings if meaning in self._names]
        present = [pl.when(~is_nothing(pl.col(column))).then(pl.col(column)) for column in columns]
        return pl.coalesce([*present, pl.lit(None, dtype=pl.String())])

    def times(self, zone: str, order: Literal["", "dmy", "mdy"]) -> bool:
        """Add submit, start and end; return whether they count from 1970."""
        absolute = False
        hint = "write it as 2024-03-05 06:07:08, or as seconds since 1970"
        times: dict[str, Times] = {}
        for meaning in ("submit", "start", "end"):
            texts = _without_zero_times(self._texts(meaning))
            if texts.null_count() == len(texts):
                self._add(meaning, [None] * len(texts), pl.Float64())
                continue
            column = self._names[meaning]
            location = f"{self._table.path}: column {quote_for_display(column)}"
            zone_here = "UTC" if _UTC.intersection(_words(column)[-1:]) else zone
            times[meaning] = read_times(texts, zone_here, order, location, _unit(column, _SECONDS))
            absolute |= times[meaning].absolute
        self._add_start_after_wait(times)
        unit = _unit(self._names.get("duration", ""), _SECONDS)
        span = each(self._texts("duration"), partial(parse_seconds, unit=unit), pl.Float64())
        for meaning, seconds in choose_readings(times, span, CLOCK_SKEW).items():
            self._add(meaning, seconds, pl.Float64())
        for meaning in times:
            self._check(meaning, "is not a time", hint)
        if "_wait" in self._table.frame.columns:
            self._check(
                "wait",
                "is not a duration",
                "write seconds, h:mm:ss, or 2h30m, or leave the column out: --map wait=",
            )
        self._deadlines(zone, order, absolute=absolute)
        return absolute

    def _add_start_after_wait(self, times: dict[str, Times]) -> None:
        """Add the starts of jobs of which the log has the submission and the wait."""
        if "wait" not in self._names or "start" in times or "submit" not in times:
            return
        unit = _unit(self._names["wait"], _SECONDS)
        waits = each(self._texts("wait"), partial(parse_seconds, unit=unit), pl.Float64())
        submit = times["submit"]
        starts = Times(submit.seconds + waits, submit.later + waits, submit.absolute)
        del times["submit"]  # in the order in which they happen
        later = {"submit": submit, "start": starts, **times}
        times.clear()
        times.update(later)
        self._add("wait", waits, pl.Float64())

    def _deadlines(self, zone: str, order: Literal["", "dmy", "mdy"], *, absolute: bool) -> None:
        """Add deadlines, which are times as the submissions are.

        Raises `InputError` if they count from another beginning.
        """
        texts = self._texts("deadline")
        if texts.null_count() == len(texts):
            self._add("deadline", [None] * len(texts), pl.Float64())
            return
        column = self._names["deadline"]
        location = f"{self._table.path}: column {quote_for_display(column)}"
        times = read_times(texts, zone, order, location, _unit(column, _SECONDS))
        hint = "write times as the submissions do, or leave the column out: --map deadline="
        if times.absolute is not absolute and times.seconds.drop_nulls().len():
            raise InputError(Fault(location, "counts from another beginning", hint))
        self._add("deadline", times.seconds, pl.Float64())
        self._check("deadline", "is not a time", hint)
        submitted = pl.coalesce("_submit", "_start")
        valid = (pl.col("_deadline") >= submitted).fill_null(value=True)
        self._table.check(valid, column, "is before the submission", hint)

    def durations(self) -> None:
        """Add duration and time_limit, in seconds; limits such as UNLIMITED are unknown."""
        for meaning in ("duration", "time_limit"):
            unit = _unit(self._names.get(meaning, ""), _SECONDS)
            self._read(meaning, partial(parse_seconds, unit=unit), pl.Float64())
        self._check("duration", "is not a duration", "write seconds, h:mm:ss, or 2h30m")

    def resources(self) -> None:
        """Add gpus, gpu_type, cpus and memory, in all."""
        per_node = "gpus" not in self._names and "gpus_per_node" in self._names
        source = "gpus_per_node" if per_node else "gpus"
        texts = self._texts(source)
        found = {text: parse_gpus(text) for text in texts.drop_nulls().unique()}
        tres = [Tres(gpus=0.0) if text is None else found[text] for text in texts]
        self._add("gpus", [held and (held.gpus or 0.0) for held in tres], pl.Float64())
        self._add("gpu_type", [held and held.gpu_type for held in tres], pl.String())
        self._add("tres_cpus", [held and held.cpus for held in tres], pl.Float64())
        self._add("tres_memory", [held and held.memory for held in tres], pl.Int64())
        self._read("nodes", parse_number, pl.Float64())
        self._read("cpus", parse_number, pl.Float64())
        unit = _unit(self._names.get("memory", ""), _BYTES)
        self._read("memory", partial(parse_bytes, unit=unit), pl.Int64())
        nodes = pl.col("_nodes").fill_null(1.0) if per_node else 1.0
        self._table.frame = self._table.frame.with_columns(
            _gpus=pl.col("_gpus") * nodes,
            _gpu_type=pl.coalesce(self.text("gpu_type"), "_gpu_type"),
            _cpus=pl.coalesce("_cpus", "_tres_cpus"),
            _memory=pl.coalesce("_memory", "_tres_memory"),
        )
        if source in self._names:
            name = self._names[source]
            valid = pl.col("_gpus") >= 0
            message = "is no number of GPUs"
            self._table.check(valid, name, message, "write 2, gpu:2 or gres/gpu:a100=2")
        self._check("nodes", "is not a number", "write a number")
        self._check("cpus", "is not a number", "write a number")
        without = pl.col("_gpus") == 0 if source in self._names else pl.lit(False)
        self._table.count_repairs(without, "no number of GPUs: a CPU job", "kept")
        self._check("memory", "is no amount of memory", "write 64G, or a number of bytes")

    def states(self, reading: ImportContext) -> None:
        """Add status; states that aren't known are counted."""
        self._read("status", parse_state, pl.String())
        column = self._names.get("status")
        if column is not None:
            unknown = pl.col("_status").is_null() & ~is_nothing(pl.col(column))
            count = int(self._table.frame.select(unknown.sum()).item())
            reading.tally.add("kept", "state is none that is known", count)

    def _texts(self, meaning: str) -> pl.Series:
        return self._table.frame.with_columns(self.text(meaning).alias("_text"))["_text"]

    def _add(self, meaning: str, values: Sequence[object] | pl.Series, kind: pl.DataType) -> None:
        column = pl.Series(f"_{meaning}", values, dtype=kind)
        self._table.frame = self._table.frame.with_columns(column)

    def _read(self, meaning: str, read: Callable[[str], object | None], kind: pl.DataType) -> None:
        """Add what a function reads from each text of a column; null if it can't."""
        self._add(meaning, each(self._texts(meaning), read, kind), kind)

    def _check(self, meaning: str, message: str, hint: str) -> None:
        """Refuse rows whose text couldn't be read."""
        column = self._names.get(meaning)
        if column is not None:
            nothing = is_nothing(pl.col(column)) | is_zero_time(pl.col(column))
            read = pl.col(f"_{meaning}").is_not_null() | nothing
            self._table.check(read, column, message, hint)

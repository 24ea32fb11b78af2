"""A cluster's own job log as a table, with a mapping of its columns."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, cast

import polars as pl

from shadowprice.core import bounds
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.wording import quote_for_display
from shadowprice.traces import job_log, log_columns, log_values
from shadowprice.traces.records import Trace, build_trace
from shadowprice.traces.registry import ImportContext, trace_format
from shadowprice.traces.text import Check, CheckedTable, RowRules, file_error, read_head, read_table

_UNITS_TO_FIND: Final = (
    *(("minutes", 60.0), ("hours", 3600.0), ("milliseconds", 0.001), ("days", 86400.0)),
)
_EQUAL: Final = (0.95, 1.05)  # ratios at which two run times count as equal: one may be rounded
_MIN_SHARE: Final = 0.9  # minimum share of run times that must show the same unit
_MIN_EQUAL: Final = 3  # minimum run times that must show it: a suspended job may agree by chance
_MAX_EARLY_SHARE: Final = 0.5  # of deadlines before the submission; above it, they aren't deadlines
_IDS: Final = r"^\s*(?:[1-9]\d*, ?(?:0*[1-9]\d?|\d{4,})|\d+(?:, ?\d{1,2}){2,})\s*$"
"""Ids of GPUs such as 4,5, which aren't 4.5 GPUs. 0,5 and 2,0 are numbers with decimal commas."""
_QUOTED_IDS: Final = r"^\s*(?:\d+(?:, ?\d{1,2})+|\d+, ?\d{4,})\s*$"
"""Ids of GPUs in a table with commas between columns, which has no decimal commas."""
_STEP: Final = r"^(\d+(?:[_+]\d+)?)\.(?:batch|extern|interactive|\d+)$"
"""Name of a step in Slurm's accounting; its group is the job."""
_MAX_SECONDS: Final = 1e18  # finite, and far above the limit of a duration
_UNLIMITED: Final = frozenset({"unlimited", "infinite", "partition_limit", "invalid"})
_HTCONDOR_STATES: Final = {"3": "cancelled", "4": "passed"} | dict.fromkeys(
    ("1", "2", "5", "6", "7"), "unfinished"
)
"""HTCondor's JobStatus: idle, running, removed, completed, held, transferring and suspended."""
_NAMES: Final = ("job", "tenant", "user")  # meanings of columns with names
_TIME_HINT: Final = "write it as 2024-03-05 06:07:08, or as seconds since 1970"
_SERIAL_HINT: Final = (
    "format the cells as yyyy-mm-dd hh:mm:ss before you save them; "
    "if they are seconds, end the header with _s"
)
_SPAN_HINT: Final = "write seconds, h:mm:ss, or 2h30m"
_DEADLINE_HINT: Final = (
    "write times as the submissions do, or leave the column out: --map deadline="
)


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
            "a guessed column whose values don't fit isn't used, which is listed too; a mapped one "
            "that doesn't fit is an error"
        ),
        (
            "times may be ISO 8601, seconds or milliseconds since 1970 or since the first job, or "
            "3/4/2024 5:06 PM; local ones need timezone=Europe/Berlin, UTC is assumed; offsets, "
            "UTC, Europe/Berlin, WET, CET, EET, EST, MST and HST at the end of a time are read, "
            "and other abbreviations (EDT, JST) if they are those of timezone="
        ),
        (
            "durations may be seconds, h:mm:ss, d-hh:mm:ss, 2h30m, PT2H30M, or in the unit of the "
            "header; "
            "1:30 is minutes and seconds, unless the header says h:mm"
        ),
        (
            "run times in a unit that the header doesn't state are found if nearly all, and at "
            "least three, agree with the starts and ends"
        ),
        (
            "1,000 is a thousand, unless another number of its column has a decimal comma (1,5 or "
            "1.000,5)"
        ),
        (
            "GPUs may be counts, TRES strings (gres/gpu:a100=2) or 2 x A100, or gpus_per_node "
            "times nodes; MIG slices (1g.5gb) count as shares of a GPU: 1g as 1/8, 3g as 1/2"
        ),
        "a column named queue is the wait in seconds if it has numbers only, else the tenant",
        "headers may begin with a group: params.num_gpus, metadata.name, Resource_List.ngpus",
        "time limits are kept apart from run times",
        "deadlines are times, written as the submissions are",
        "steps of Slurm's jobs (9000.batch, 9000.0) are left out, if the names are in JobID",
        (
            "rows of one job, submitted once and run one after another, are its attempts: the last "
            "one's run time counts, and the earlier ones are its lost time"
        ),
        "jobs that never started, and those still running at the end of the log, are left out",
        "comments after #, blank lines, and headers and rows that joined files repeat are left out",
    ),
    options={
        "map": "columns by meaning, submit=COLUMN,...; an empty one isn't used. Meanings: "
        + ", ".join(log_columns.HEADERS),
        "timezone": "zone of times without an offset (default UTC)",
        "dates": "dmy or mdy: whether 3/4/2024 is in April or in March, if the log doesn't show it",
    },
)
def read_csv_log(path: Path, context: ImportContext) -> Trace:
    """Read a table of jobs."""
    mapping = log_columns.parse_mapping(context.options.get("map", ""))
    zone = log_values.time_zone(context.options.get("timezone", "UTC"))
    order = context.choose("dates", "dmy", "mdy") if "dates" in context.options else ""
    head = read_head(path)
    if re.match(r"\s*[{\[]\s*(?:[{\[\]}]|\"[^\"]*\"\s*:)", head):
        hint = "write the jobs as a table, or read sacct --json as sacct:FILE"
        raise file_error(path, "is JSON, not a table", hint)
    header = log_columns.read_header(path, head, mapping)
    table = read_table(
        path,
        dict.fromkeys(header.names, pl.String()),
        context,
        separator=header.separator,
        preamble=header.preamble,
        names=header.names,
        rules=RowRules(
            comment="#",
            rejoin=partial(_without_empty_surplus, len(header.names)),
            rejoined="empty field after the last column",
        ),
    )
    context.tally.add("dropped", "line before the header", header.preamble)
    if table.frame.is_empty():
        message = "no valid row follows the header"
        raise InputError(Fault(header.location, message, "give a file with rows"))
    with table.collect():
        filled = [
            name
            for name in header.names
            if table.frame.select(~log_values.is_nothing(pl.col(name)).all()).item()
        ]
        times = log_columns.time_columns(header, filled, mapping)
        log = _Log(table, zone, cast(log_values.Order, order), times, header.separator)
        columns = log_columns.choose_columns(header, filled, mapping, log.misfit)
        return _read_jobs(path, log, columns, context)


def _without_empty_surplus(width: int, fields: Sequence[str]) -> Sequence[str] | None:
    """Return a row without its surplus fields if all of them are empty, else None."""
    return None if any(field.strip() for field in fields[width:]) else fields[:width]


def _read_jobs(
    path: Path, log: _Log, columns: log_columns.LogColumns, context: ImportContext
) -> Trace:
    table, names = log.table, columns.names
    counts = {
        column: int(table.frame.select((~log_values.is_nothing(pl.col(column))).sum()).item())
        for column in {*names.values(), *(column for column, _ in columns.ignored.values())}
    }
    absolute = log.read(columns)
    log.check()
    table.frame = table.frame.with_columns(_lost=pl.lit(None, dtype=pl.Float64()))
    name_column = names.get("job")
    if name_column == "JobID" and "State" in table.frame.columns:
        name = pl.col(name_column)
        is_of_job = name.str.extract(_STEP, 1).is_in(
            table.frame[name_column].drop_nulls().implode()
        )
        table.drop(is_of_job, job_log.STEP_OF_A_JOB)
    if name_column:
        table.frame = job_log.drop_repeated_rows(table.frame, name_column, context.tally)
    if name_column and table.frame[name_column].drop_nulls().is_duplicated().any():
        same = [names[meaning] for meaning in ("tenant", "user") if meaning in names]
        merged = job_log.merge_attempts(table.frame, name_column, [*same, "_gpus"], context.tally)
        if merged is not None:
            table.frame = merged
        elif "job" in columns.guessed:
            # The names aren't unique: a column of names, not of ids.
            repeated = int(table.frame[name_column].is_duplicated().sum())
            column = quote_for_display(name_column)
            context.tally.add("read", f"column {column} repeats; jobs are named by line", repeated)
            del names["job"]
    for meaning in log_columns.HEADERS:
        if meaning in names:
            column = names[meaning]
            text = f"{meaning}: column {quote_for_display(column)}"
            context.tally.add("read", text, counts[column])
            if column in log.order_notes:
                context.tally.add("read", log.order_notes[column], counts[column])
        if meaning in columns.ignored:
            column, reason = columns.ignored[meaning]
            text = f"{meaning}: column {quote_for_display(column)} isn't used: {reason}"
            context.tally.add("ignored", text, counts[column])
    # The run time of a running job isn't final.
    is_running = (pl.col("_status") == "unfinished") & pl.col("_end").is_null()
    table.drop(is_running & (pl.col("_duration") > 0), job_log.RUNNING)
    job_log.check_times(table, names)
    unique_name = names.get("job")  # None if the names repeat
    job = pl.col(unique_name) if unique_name else pl.format("job-{}", pl.col("line"))
    jobs = table.jobs(
        job=job,
        **job_log.job_columns(),
        deadline="_deadline",
        tenant=log.text("tenant", "user"),
        user=log.text("user"),
        model=log.text("model"),
    )
    return build_trace("csv", jobs, path, context.tally, absolute=absolute)


def _without_zero_times(texts: pl.Series) -> pl.Series:
    """Replace zero values of clocks, which stand for missing times, by null."""
    text = pl.col("text")
    year = text.str.strip_chars().str.slice(0, 4)
    # In a log that counts from 0 but writes dates, all times are of 1970, and 0 is a time.
    counts_from_zero = (year == "1970").all() & ~log_values.is_zero_time(text).all()
    is_missing = log_values.is_zero_time(text) & ~((year == "1970") & counts_from_zero)
    return texts.to_frame("text").select(pl.when(~is_missing).then(text))["text"]


class _Log:
    """Adds columns with the meaning of `records.SCHEMA` to a table of text, named ``_meaning``."""

    def __init__(
        self,
        table: CheckedTable,
        zone: str,
        order: log_values.Order,
        time_columns: Sequence[str],
        separator: str,
    ) -> None:
        self.table = table
        self.order_notes: dict[str, str] = {}
        """Notes by column of times whose order of days and months another column showed."""
        self._zone = zone
        self._order = order
        self._time_columns = time_columns
        self._separator = separator
        self._columns = log_columns.LogColumns({}, frozenset(), {})
        self._names = self._columns.names
        # Caches of columns as read before the checks, because a guess is read to see if it fits.
        self._times_cache: dict[tuple[str, bool], log_values.Times] = {}
        self._values_cache: dict[tuple[str, str], pl.Series] = {}
        self._checks: list[Check] = []
        self._faults: list[Fault] = []  # of whole columns

    def misfit(self, meaning: str, column: str) -> str | None:
        """Return why a column's values can't have a meaning, or None if they can.

        A column that jobs need (times, run time, GPUs) fits if any value is readable; the other
        values are faults. Other columns only fit if all of their values are readable.
        """
        self._names = {meaning: column}
        texts = self._texts(meaning)
        if meaning in {"submit", "start", "end", "deadline"}:
            texts = _without_zero_times(texts)
            try:
                times = self._times(texts, column, may_miss=meaning != "submit")
            except InputError as error:  # unclear days and months: an error of a needed column
                fault = error.faults[0]
                hint = f"; {fault.hint}" if fault.hint else ""
                return f"{fault.message}{hint}" if meaning == "deadline" else None
            if meaning == "submit" and log_columns.may_be_span(column) and not times.absolute:
                return "has no dates, and may be a run time"
            readable = times.seconds.is_not_null() | times.problem.is_not_null() | times.missing
            kind = "a time"
        elif meaning == "wait" and log_columns.may_be_names(column):
            readable = log_values.map_texts(
                texts, log_values.parse_number, pl.Float64()
            ).is_not_null()
            kind = "a number of seconds"
        elif meaning in _READERS:
            readable, kind = self._values(meaning).is_not_null(), _READERS[meaning][1]
        elif meaning in _NAMES:
            readable = texts.str.len_chars() <= bounds.NAME.maximum
            kind = f"a name of at most {bounds.NAME.maximum} characters"
        else:
            return None
        is_stated = texts.is_not_null()
        unreadable = (is_stated & ~readable).arg_true()
        needs_all = meaning in {"deadline", "wait", "cpus", "memory", *_NAMES}
        if unreadable.is_empty() or (not needs_all and (is_stated & readable).any()):
            return None
        row = unreadable[0]
        line, text = self.table.frame["line"][row], quote_for_display(texts[row])
        return f"line {line}: {text} is not {kind}"

    def text(self, *meanings: str) -> pl.Expr:
        """Return the text of the first of some meanings that a row has."""
        columns = [self._names[meaning] for meaning in meanings if meaning in self._names]
        present = [
            pl.when(~log_values.is_nothing(pl.col(column))).then(pl.col(column))
            for column in columns
        ]
        return pl.coalesce([*present, pl.lit(None, dtype=pl.String())])

    def read(self, columns: log_columns.LogColumns) -> bool:
        """Add the columns of all meanings, unchecked; return whether times count from 1970."""
        self._columns, self._names = columns, columns.names
        absolute = self._read_times()
        self._read("duration")
        limit = self._values("time_limit")
        self._add("time_limit", limit.replace(float("inf"), None), pl.Float64())
        self._expect("duration", "is not a duration", _SPAN_HINT)
        for meaning in ("duration", "wait", "time_limit"):
            if meaning in self._names:
                # UNLIMITED is read as infinity.
                span = pl.col(f"_{meaning}")
                valid = span.is_null() | span.is_infinite() | (span <= bounds.SECONDS.maximum)
                self._checks.append(Check(valid, self._names[meaning], bounds.SECONDS.broken))
        self._read_resources()
        self._read("status")
        return absolute

    def check(self) -> None:
        """Refuse rows, or a whole column, with values that couldn't be read."""
        self.table.check_all(self._checks)
        if self._faults:
            raise InputError(self._faults)
        self._compare_durations()
        if "gpus" in self._names or "gpus_per_node" in self._names:
            is_none = (pl.col("_gpus") == 0) & ~pl.col("_has_shares")
            job_log.count_shared_gpus(self.table)
            self.table.count_repairs(is_none, "no number of GPUs: a CPU job", "kept")
        if "status" in self._names:
            is_unknown = pl.col("_status").is_null() & self.text("status").is_not_null()
            self.table.count_repairs(is_unknown, "unknown state", "kept")

    def _compare_durations(self) -> None:
        """Compare run times with starts and ends, and find the unit of plain numbers by them."""
        span, duration = pl.col("_end") - pl.col("_start"), pl.col("_duration")
        texts = log_values.with_points(self._texts("duration"))
        numbers = log_values.map_texts(texts, log_values.parse_number, pl.Float64())
        is_plain = pl.lit(numbers.is_not_null()) & (duration > 0)
        ratio = self.table.frame.select(
            pl.when(is_plain & (span > 0)).then(span / duration)
        ).to_series()
        column = self._names.get("duration", "")
        is_stated = log_columns.states_seconds_unit(column) or ratio.is_between(*_EQUAL).any()
        for unit, seconds in () if is_stated else _UNITS_TO_FIND:
            equal = int((ratio / seconds).is_between(*_EQUAL).sum())
            if equal >= max(_MIN_EQUAL, _MIN_SHARE * ratio.count()):
                in_seconds = pl.when(is_plain).then(duration * seconds).otherwise(duration)
                reason = f"run time of column {quote_for_display(column)} is in {unit}"
                self.table.count_repairs(is_plain, f"{reason}, as start and end show")
                self.table.frame = self.table.frame.with_columns(_duration=in_seconds)
                break
        differs = (span - duration).abs() > job_log.CLOCK_SKEW_SECONDS
        self.table.count_repairs(differs, "run time differs from the end minus the start", "kept")

    def _times(self, texts: pl.Series, column: str, *, may_miss: bool) -> log_values.Times:
        if (column, may_miss) not in self._times_cache:
            location = f"{self.table.path}: column {quote_for_display(column)}"
            zone = "UTC" if log_columns.is_utc(column) else self._zone
            read = partial(
                log_values.read_times,
                texts,
                zone,
                location=location,
                unit=log_columns.seconds_unit(column),
                may_miss=may_miss,
            )
            try:
                times = read(self._order)
            except InputError:
                # All dates of a log have one order, which another column may show.
                order, shown_by = log_values.date_order(
                    self.table.frame[name] for name in self._time_columns
                )
                if not order:
                    raise
                times = read(order)
                first = "days" if order == "dmy" else "months"
                self.order_notes[column] = (
                    f"dates of column {quote_for_display(column)}: {first} come first, "
                    f"as column {quote_for_display(shown_by)} shows"
                )
            self._times_cache[column, may_miss] = times
        return self._times_cache[column, may_miss]

    def _read_times(self) -> bool:
        """Add submit, start, end, wait and deadline; return whether times count from 1970."""
        times: dict[str, log_values.Times] = {}
        for meaning in ("submit", "start", "end"):
            texts = _without_zero_times(self._texts(meaning))
            self._add(meaning, [None] * len(texts), pl.Float64())
            if texts.null_count() == len(texts):
                continue
            try:
                may_miss = meaning != "submit"
                times[meaning] = self._times(texts, self._names[meaning], may_miss=may_miss)
            except InputError as error:
                self._faults.extend(error.faults)
        absolute = any(column.absolute for column in times.values())
        serial = {
            meaning: column
            for meaning, column in times.items()
            if not log_columns.states_seconds_unit(self._names[meaning])
        }
        if log_values.are_serial_dates(serial.values()):
            listed = ", ".join(quote_for_display(self._names[meaning]) for meaning in serial)
            message = f"column {listed}: looks like days since 1900, as spreadsheets count them"
            self._faults.append(Fault(str(self.table.path), message, _SERIAL_HINT))
        times = log_values.on_one_clock(times)
        for meaning, column in times.items():
            self._expect_valid(meaning, column)
        self._add_start_after_wait(times)
        span = self._values("duration")
        for meaning, seconds in log_values.choose_readings(
            times, span, job_log.CLOCK_SKEW_SECONDS
        ).items():
            self._add(meaning, seconds, pl.Float64())
        for meaning, column in times.items():
            has_other_check = column.problem.is_not_null() | column.missing
            self._expect(meaning, "is not a time", _TIME_HINT, has_other_check)
        if "wait" in self._names:
            hint = f"{_SPAN_HINT}, or leave the column out: --map wait="
            self._expect("wait", "is not a duration", hint)
        self._read_deadlines(absolute=absolute)
        return absolute

    def _expect_valid(self, meaning: str, times: log_values.Times) -> None:
        """Refuse times that aren't valid, such as local times that the clock skipped."""
        column = self._names[meaning]
        label = quote_for_display(column)
        self._checks += job_log.check_problems(self.table, times, column, label, self._zone)

    def _add_start_after_wait(self, times: dict[str, log_values.Times]) -> None:
        """Add starts, each the submission plus the wait, if the log has waits."""
        if "wait" not in self._names:
            return
        self._read("wait")
        is_unlimited = pl.col("_wait").is_infinite()
        self.table.count_repairs(is_unlimited, "unlimited wait: it isn't known", "kept")
        waits = self._values("wait").replace(float("inf"), None)
        if "submit" not in times:
            return
        submit = times["submit"]
        later = submit.later + waits
        starts = replace(submit, seconds=submit.seconds + waits, later=later)
        del times["submit"]
        in_order = {"submit": submit, "start": starts, **times}  # as `choose_readings` expects
        times.clear()
        times.update(in_order)

    def _read_deadlines(self, *, absolute: bool) -> None:
        """Add deadlines: times on the clock of the submissions, and not before them."""
        texts = _without_zero_times(self._texts("deadline"))
        self._add("deadline", [None] * len(texts), pl.Float64())
        if texts.null_count() == len(texts):
            return
        column = self._names["deadline"]
        try:
            times = self._times(texts, column, may_miss=True)
        except InputError as error:
            self._faults.extend(error.faults)
            return
        seconds = times.seconds
        submitted = self.table.frame.select(pl.coalesce("_submit", "_start")).to_series()
        is_early = (seconds < submitted).fill_null(False)
        other_clock = times.absolute is not absolute and seconds.drop_nulls().len()
        is_other = is_early.sum() > _MAX_EARLY_SHARE * seconds.count()
        if "deadline" in self._columns.guessed and (other_clock or is_other):
            line = self.table.frame["line"].filter(is_early).head(1)
            early = f"line {line[0]}: it is before the submission" if len(line) else ""
            self._columns.ignore(
                "deadline", "counts from another beginning" if other_clock else early
            )
            return
        if other_clock:
            location = f"{self.table.path}: column {quote_for_display(column)}"
            self._faults.append(Fault(location, "counts from another beginning", _DEADLINE_HINT))
            return
        self._add("deadline", seconds, pl.Float64())
        self._expect_valid("deadline", times)
        has_other_check = times.problem.is_not_null() | times.missing
        self._expect("deadline", "is not a time", _DEADLINE_HINT, has_other_check)
        message = "is before the submission"
        self._checks.append(Check(pl.lit(~is_early), column, message, _DEADLINE_HINT))

    def _read_resources(self) -> None:
        """Add the job's total gpus, cpus and memory, and gpu_type."""
        per_node = "gpus_per_node" in self._names
        source = "gpus_per_node" if per_node else "gpus"
        nothing = log_values.Tres(gpus=0.0)
        texts = self._texts(source)
        # Other scopes, such as PER_TASK:gpu:1, don't show how many GPUs a job has.
        scopes = {"", "node" if per_node else "job"}
        tres = [
            nothing if text is None else held if held and held.gpus_per in scopes else None
            for text, held in zip(texts, self._values(source), strict=True)
        ]
        shown = [
            None if text is None or held else _shown(text)
            for text, held in zip(texts, tres, strict=True)
        ]
        stated = self._texts("gpu_type")
        types = log_values.map_texts(
            stated, lambda text: log_values.split_slice(text)[0], pl.String()
        )
        slices = log_values.map_texts(
            stated, lambda text: log_values.split_slice(text)[1], pl.Float64()
        )
        frame = self.table.frame.with_columns(log_values.tres_columns(tres))
        nodes = pl.lit(self._values("nodes")).fill_null(1.0) if per_node else 1.0
        # If the type is a MIG profile, the GPUs are slices, unless their list already said so.
        share = pl.when(~pl.col("_has_slices")).then(pl.lit(slices)).fill_null(1.0)
        self.table.frame = frame.with_columns(
            _gpus=pl.col("_gpus") * nodes * share,
            _gpus_shown=pl.Series(shown, dtype=pl.String()),
            _gpu_type=pl.coalesce(pl.lit(types), "_gpu_type"),
            _has_slices=pl.col("_has_slices") | pl.lit(slices).is_not_null(),
            _nodes=self._values("nodes"),
            _cpus=pl.coalesce(pl.lit(self._values("cpus")), "_cpus"),
            _memory=pl.coalesce(pl.lit(self._values("memory")), "_memory"),
        )
        if source in self._names:
            name, valid = self._names[source], pl.col("_gpus") >= 0
            hint = "write how many: 2, gpu:2 or gres/gpu:a100=2"
            message = "is not a number of GPUs"
            self._checks.append(Check(valid, name, message, hint, shown="_gpus_shown"))
        self._expect("nodes", "is not a number", "write a number")
        self._expect("cpus", "is not a number", "write a number")
        self._expect("memory", "is not an amount of memory", "write 64G, or a number of bytes")

    def _texts(self, meaning: str) -> pl.Series:
        return self.table.frame.with_columns(self.text(meaning).alias("_text"))["_text"]

    def _add(self, meaning: str, values: Sequence[object] | pl.Series, kind: pl.DataType) -> None:
        column = pl.Series(f"_{meaning}", values, dtype=kind)
        self.table.frame = self.table.frame.with_columns(column)

    def _values(self, meaning: str) -> pl.Series:
        """Return the values of a column; null if a text can't be read."""
        column = self._names.get(meaning, "")
        if (meaning, column) not in self._values_cache:
            read, _, kind = _READERS[meaning]
            texts = self._texts(meaning)
            if meaning != "status":
                texts = log_values.with_points(texts)
            values = log_values.map_texts(texts, partial(read, column), kind)
            if meaning in {"gpus", "gpus_per_node"}:
                ids = _QUOTED_IDS if self._separator == "," else _IDS
                is_ids = self._texts(meaning).str.contains(ids).fill_null(False)
                read_values = [None if a else b for a, b in zip(is_ids, values, strict=True)]
                values = pl.Series(values.name, read_values, dtype=kind)
            self._values_cache[meaning, column] = values
        return self._values_cache[meaning, column]

    def _read(self, meaning: str) -> None:
        self._add(meaning, self._values(meaning), _READERS[meaning][2])

    def _expect(
        self, meaning: str, message: str, hint: str, has_other_check: pl.Series | None = None
    ) -> None:
        """Refuse rows whose text can't be read, unless another check refuses them."""
        column = self._names.get(meaning)
        if column is not None:
            nothing = log_values.is_nothing(pl.col(column)) | log_values.is_zero_time(
                pl.col(column)
            )
            read = pl.col(f"_{meaning}").is_not_null() | nothing
            if has_other_check is not None:
                read |= pl.lit(has_other_check)
            self._checks.append(Check(read, column, message, hint))


def _seconds(column: str, text: str) -> float | None:
    if log_columns.is_hours_and_minutes(column) and re.fullmatch(r"\d+:\d\d", text.strip()):
        text = f"{text.strip()}:00"
    seconds = log_values.parse_seconds(text, log_columns.seconds_unit(column))
    return None if seconds is None else min(seconds, _MAX_SECONDS)


def _wait(column: str, text: str) -> float | None:
    """Return a wait in seconds; infinity for UNLIMITED, below 0 if clocks differ."""
    seconds = _limit(column, text)
    return None if seconds is None or seconds < -job_log.CLOCK_SKEW_SECONDS else seconds


def _limit(column: str, text: str) -> float | None:
    """Return a time limit in seconds; infinity for limits such as UNLIMITED."""
    return float("inf") if text.strip().lower() in _UNLIMITED else _seconds(column, text)


def _bytes(column: str, text: str) -> int | None:
    number = log_values.parse_number(text)  # `parse_bytes` reads no separators of thousands
    return log_values.parse_bytes(
        text if number is None else f"{number:f}", log_columns.bytes_unit(column)
    )


def _cores(_: str, text: str) -> float | None:
    """Return a number of cores, which may be in thousandths as in Kubernetes: ``500m``."""
    thousandths = re.fullmatch(r"(\d+)m", text.strip())
    return float(thousandths[1]) / 1000 if thousandths else log_values.parse_number(text)


def _status(column: str, text: str) -> str | None:
    if log_columns.is_htcondor_status(column) and text.strip() in _HTCONDOR_STATES:
        return _HTCONDOR_STATES[text.strip()]
    return log_values.parse_state(text)


def _gpus(column: str, text: str) -> log_values.Tres | None:
    return log_values.parse_gpus(text, is_list=log_columns.lists_resources(column))


def _shown(text: str) -> str:
    """Return the invalid item of a list of resources, or the whole text if it isn't a list."""
    return (log_values.invalid_item(text) if "=" in text or ":" in text else None) or text


_Reader = tuple[Callable[[str, str], object | None], str, pl.DataType]

_READERS: Final[dict[str, _Reader]] = {
    "duration": (_seconds, "a duration", pl.Float64()),
    "wait": (_wait, "a duration", pl.Float64()),
    "time_limit": (_limit, "a duration", pl.Float64()),
    "gpus": (_gpus, "a number of GPUs", pl.Object()),
    "gpus_per_node": (_gpus, "a number of GPUs", pl.Object()),
    "nodes": (lambda _, text: log_values.parse_number(text), "a number", pl.Float64()),
    "cpus": (_cores, "a number", pl.Float64()),
    "memory": (_bytes, "an amount of memory", pl.Int64()),
    "status": (_status, "a known state", pl.String()),
}
"""By meaning: the parser of a column's text, and the kind of value in words and as a type."""

"""Fast reading of delimited text that refuses other content early.

The head of a file (64 KiB, decompressed if it is gzip) reveals empty files, other encodings, binary
content and missing columns. A gigabyte of other content therefore costs neither time nor memory.

Polars then parses the table with every type declared, because type inference would read the virtual
cluster ``6214e9`` as a number. If that fails, the file is read line by line to find the invalid
line.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, Literal

import polars as pl

from shadowprice.core import bounds
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.wording import (
    is_valid_utf8,
    parse_error_text,
    quote_for_display,
    text_problem,
)
from shadowprice.inputs.text import TAR_MARK, TAR_MARK_OFFSET, is_utf16
from shadowprice.inputs.unpacking import (
    detect_compression,
    read_blocks,
    read_first_bytes,
    split_member,
)
from shadowprice.traces.records import ABSOLUTE_TIME_COLUMNS, MAX_VALUES
from shadowprice.traces.registry import ImportContext

HEAD_BYTES: Final = 1 << 16
MAX_FAULTS: Final = 20
MAX_INVALID_LINES: Final = 1_000
"""Lines with invalid fields after which reading stops: the file is of another kind."""
MAX_LINES_PER_ROW: Final = 10_000
"""Maximum lines of a row with quoted line breaks; a longer quote counts as never closed."""
MAX_INTEGER: Final = 10**15
"""Maximum number in a table, above any time in microseconds and any memory in bytes."""
DUPLICATE_NAME_HINT: Final = "job names must be unique within a trace"
OUT_OF_RANGE_DATE: Final = "is not of the years 1970 to 2128"
"""Message for a time below 0 or above the limit, in seconds since 1970."""

_JSON_HINT: Final = "write or download it again"
_SKIP_NOTE: Final = "--skip-invalid leaves invalid rows out, and counts them"

_OTHER_KINDS: Final = (
    (b"PAR1", "a Parquet file"),
    (b"ARROW1", "an Arrow file"),
    (b"SQLite format 3\0", "a SQLite database"),
    (b"\xd0\xcf\x11\xe0", "an Office document"),
    (b"%PDF-", "a PDF file"),
    (b"<!doctype html", "a web page"),
    (b"<html", "a web page"),
)
"""First bytes of files that may hold a table, but not as delimited text."""
_TEXT_CONTROLS: Final = frozenset(b"\t\n\r\f\b\x1b")
_NUMBER_WORDS: Final[Mapping[object, str]] = {
    pl.Int64(): "a whole number",
    pl.Float64(): "a number",
}


def file_error(path: Path, message: str, hint: str = "", line: int | None = None) -> InputError:
    """Return the error of a file, or of one of its lines."""
    location = str(path) if line is None else f"{path}: line {line}"
    return InputError(Fault(location, message, hint))


def read_head(path: Path) -> str:
    """Return the first 64 KiB of a text file, decompressed; raise `InputError` for others."""
    file, _ = split_member(path)
    if not file.exists():
        hint = "check the path (SHADOWPRICE_TRACES may name its folder)"
        raise file_error(path, "no such file", hint)
    if file.is_dir():
        raise file_error(path, "is a directory", "give the file inside it")
    if not file.is_file():
        raise file_error(path, "is not a regular file", "write the data to a file first")
    bounds.TABLE_BYTES.check(file.stat().st_size, str(path), "split it")
    head = read_first_bytes(path, HEAD_BYTES)
    if not head.strip():
        raise file_error(path, "is empty", "give a file with rows")
    if head.startswith(b"version https://git-lfs.github.com/spec/"):
        raise file_error(path, "is a pointer of Git LFS", "fetch its file: git lfs pull")
    if head[TAR_MARK_OFFSET:].startswith(TAR_MARK):
        raise file_error(path, "is a tar archive", "extract the file inside it")
    start = head.lstrip()[:16].lower()
    for magic, kind in _OTHER_KINDS:
        if start.startswith(magic.lower()):
            raise file_error(path, f"is {kind}", "save the table as CSV")
    if is_utf16(head):
        raise file_error(path, "is UTF-16", "save it as UTF-8", 1)
    controls = sum(byte < 32 and byte not in _TEXT_CONTROLS for byte in head)
    if b"\0" in head or controls > len(head) // 100:
        raise file_error(path, "is binary, not text", "give the trace's text file")
    try:
        text = head.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # The end of the head may cut a character, which has at most four bytes.
        if error.start < len(head) - 4:
            line = head[: error.start].count(b"\n") + 1
            raise file_error(path, "is not UTF-8", "save the file as UTF-8", line) from error
        text = head[: error.start].decode("utf-8-sig")
    _check_first_line(path, text, cut=len(head) >= HEAD_BYTES)
    return text


def _check_first_line(path: Path, text: str, *, cut: bool) -> None:
    """Raise `InputError` if a head has no line end, unless it may be JSON.

    ``cut`` says that the file is longer than the head.
    """
    if "\n" not in text and not text.lstrip().startswith(("[", "{")):
        if "\r" in text.strip():
            raise file_error(
                path, "ends in a carriage return alone", "end lines with a line feed", 1
            )
        if cut:
            raise file_error(path, "has no end within 64 KiB", "give a file with one job a line", 1)


def column_names(head: str, separator: str = ",", preamble: int = 0) -> list[str]:
    """Return the names in the header of a table, after a number of other lines."""
    return _header(head, separator, preamble)[0]


def _header(head: str, separator: str, preamble: int, quoted: bool = True) -> tuple[list[str], int]:
    """Return the names in a header, and its number of lines; line breaks in names become blanks."""
    lines = list(enumerate(head.split("\n")[preamble:], start=1))
    rows = _rows(((line, text.rstrip("\r")) for line, text in lines), separator, quoted)
    header = next(rows, _Row(1, []))
    names = [" ".join(name.split()) for name in header.fields]
    return names, header.height


def read_bytes(path: Path) -> bytes:
    """Return a file's bytes, decompressed if it is packed."""
    return b"".join(read_blocks(path, bounds.TABLE_BYTES, 1 << 24))


@contextmanager
def json_errors(path: Path) -> Iterator[None]:
    """Raise `InputError` for the text of a file that isn't JSON."""
    try:
        yield
    except json.JSONDecodeError as error:
        raise file_error(path, f"is not JSON ({error.msg})", _JSON_HINT, error.lineno) from error
    except UnicodeDecodeError as error:
        raise file_error(path, "is not UTF-8", "save the file as UTF-8") from error
    except (ValueError, RecursionError) as error:
        is_deep = isinstance(error, RecursionError)
        reason = "it is nested too deeply" if is_deep else parse_error_text(error)
        raise file_error(path, f"is not JSON ({reason})", _JSON_HINT) from error


def valid_text(value: object) -> str:
    """Return a value of JSON as text; raise ValueError if it can't be stored."""
    text = str(value)
    problem = text_problem(text)
    if problem is not None:
        raise ValueError(problem[0])
    return text


def load_json(path: Path) -> Any:
    """Return the content of a JSON file; raise `InputError` for other files."""
    with json_errors(path):
        return json.loads(read_bytes(path))


@dataclass(frozen=True, slots=True)
class Check:
    """A condition of valid rows, and the fault of invalid rows."""

    valid: pl.Expr  # whether a row is valid; null counts as false
    column: str  # column whose value the error shows
    message: str
    hint: str = ""
    shown: str = ""  # column with the part of the value that the error shows; empty for all of it


class CheckedTable:
    """Rows of a file with their line numbers, and methods that drop or refuse some of them.

    ``frame`` contains the rows that are valid so far, with an integer column ``line``. `done`
    raises the faults of all refused rows. ``location`` is the format of a row's location in errors,
    with ``{}`` for the line.
    """

    def __init__(
        self, path: Path, frame: pl.DataFrame, context: ImportContext, location: str = "line {}"
    ) -> None:
        self.path = path
        self.frame = frame
        self._context = context
        self._location = location
        self._faults: list[tuple[int, Fault]] = []
        self._invalid_rows = 0
        self._is_partial = False  # whether reading stopped before the end of the file

    def drop(self, condition: pl.Expr, reason: str) -> None:
        """Drop and count rows that aren't jobs to be read, such as jobs that never ran."""
        remaining = self.frame.filter(~condition.fill_null(False))
        self._context.tally.add("dropped", reason, self.frame.height - remaining.height)
        self.frame = remaining

    def count_repairs(
        self, condition: pl.Expr, reason: str, action: Literal["repaired", "kept"] = "repaired"
    ) -> None:
        """Count rows that the caller repairs, or keeps although they are unusual."""
        count = int(self.frame.select(condition.fill_null(False).sum()).item())
        self._context.tally.add(action, reason, count)

    def check(self, valid: pl.Expr, column: str, message: str, hint: str = "") -> None:
        """Refuse rows for which an expression isn't true, or drop and count them if skipped."""
        self.check_all([Check(valid, column, message, hint)])

    def check_all(self, checks: Sequence[Check]) -> None:
        """Refuse rows as `check` does; all faults of a row are reported, not only its first."""
        passed = pl.Series([True] * self.frame.height, dtype=pl.Boolean())
        for check in checks:
            is_valid = self.frame.select(check.valid.fill_null(False)).to_series()
            if len(is_valid) != self.frame.height:  # a constant expression gives one value
                is_valid = is_valid.new_from_index(0, self.frame.height)
            newly_invalid = int((passed & ~is_valid).sum())  # count a row for its first fault
            passed &= is_valid
            if self._context.skip_invalid:
                reason = f"{check.column} {check.message}"
                self._context.tally.add("dropped", reason, newly_invalid)
            elif not is_valid.all():
                self._invalid_rows += newly_invalid
                self._add_faults(check, self.frame.filter(~is_valid))
        self.frame = self.frame.filter(passed)

    def _add_faults(self, check: Check, invalid: pl.DataFrame) -> None:
        # No more faults per check, because only the first ones in the file are shown.
        for line, value in (
            invalid.select("line", check.shown or check.column).head(MAX_FAULTS).iter_rows()
        ):
            shown = quote_for_display(value) if isinstance(value, str) else f"{value!r}"
            value_text = "" if value is None else f" {shown}"
            location = f"{self.path}: {self._location.format(line)}"
            message = f"{check.column}{value_text} {check.message}"
            self._faults.append((line, Fault(location, message, check.hint)))

    def add_faults(self, faults: Sequence[tuple[int, Fault]], *, partial: bool = False) -> None:
        """Add faults of rows that aren't in the frame; ``partial`` if later rows weren't read."""
        self._faults.extend(faults)
        self._invalid_rows += len(faults)
        self._is_partial |= partial

    @contextmanager
    def collect(self) -> Iterator[None]:
        """Run a block; add the faults of the rows to an `InputError` that it raises."""
        try:
            yield
        except InputError as error:
            if not self._faults or any(fault in error.faults for _, fault in self._faults):
                raise
            raise invalid_rows([*error.faults, *self._shown_faults()]) from error

    def check_positive(self, *columns: str) -> None:
        """Refuse rows in which any of the columns isn't above 0, or is missing."""
        for column in columns:
            self.check(pl.col(column) > 0, column, "is not above 0")

    def check_run(self, pattern: str) -> pl.Expr:
        """Parse submit, start and end times; return run times. Drop jobs that never ran."""
        start, end = pl.col("start_time"), pl.col("end_time")
        self.drop(start.is_null() | end.is_null(), "no start or end: never ran")
        for column in ("submit_time", "start_time", "end_time"):
            self.parse_times(column, pattern)
        self.check(start >= pl.col("submit_time"), "start_time", "is before submission")
        self.check(end >= start, "end_time", "is before start_time")
        self.drop(start == end, "run time 0: never ran")
        return end - start

    def parse_times(self, column: str, pattern: str) -> None:
        """Convert times from text, in a pattern of ``strptime``, to seconds; UTC without ``%z``."""
        text = pl.col(column)
        kind = pl.Datetime("us", "UTC") if "%z" in pattern else pl.Datetime("us")
        parsed = text.str.strptime(kind, pattern, strict=False)
        self.check(parsed.is_not_null(), column, "is not a time", f"write it as {pattern}")
        # Check now: times later restart at the first job, which must not be an invalid row.
        seconds = parsed.dt.epoch("us") / 1e6
        self.check(seconds.is_between(0, bounds.SECONDS.maximum), column, OUT_OF_RANGE_DATE)
        self.frame = self.frame.with_columns(seconds.alias(column))

    def jobs(self, **columns: pl.Expr | str) -> pl.DataFrame:
        """Return columns of `records.SCHEMA`, given as expressions or names, after common checks.

        Names must be unique, and numbers within `records.MAX_VALUES`. Raises as `done` does.
        """
        self.frame = self.frame.select("line", **columns)
        self.check(pl.col("job").is_not_null(), "job", "has no name")
        for name in ("job", "tenant"):
            if name in self.frame.columns:  # a job file with a longer name couldn't be read
                is_valid = pl.col(name).is_null() | (
                    pl.col(name).cast(pl.String).str.len_chars() <= bounds.NAME.maximum
                )
                self.check(is_valid, name, bounds.NAME.broken)
        self.check(
            pl.col("job").is_first_distinct(),
            "job",
            "is the name of an earlier row",
            DUPLICATE_NAME_HINT,
        )
        # Times are checked last, because their limits count from the first remaining job.
        limited_columns = [name for name in MAX_VALUES if name in columns]
        for name in sorted(limited_columns, key=ABSOLUTE_TIME_COLUMNS.__contains__):
            bound = MAX_VALUES[name]
            value = pl.col(name)
            limited = value - pl.col("submit").min() if name in ABSOLUTE_TIME_COLUMNS else value
            self.check(value.is_null() | (limited <= bound.maximum), name, bound.broken)
        return self.done().drop("line")

    def done(self) -> pl.DataFrame:
        """Return the valid rows, or raise the first 20 diagnostics and the number of others."""
        if self._faults:
            raise invalid_rows(self._shown_faults())
        return self.frame

    def _shown_faults(self) -> list[Fault]:
        shown = sorted(self._faults, key=lambda item: item[0])[:MAX_FAULTS]
        faults = [fault for _, fault in shown]
        more = self._invalid_rows - len({line for line, _ in shown})
        if more:
            at_least = "at least " if self._is_partial else ""
            faults.append(Fault(str(self.path), f"and {at_least}{more} more rows are wrong"))
        return faults


def invalid_rows(faults: Sequence[Fault]) -> InputError:
    """Return the error of invalid rows, with a note on how to leave them out."""
    error = InputError(faults)
    error.add_note(_SKIP_NOTE)
    return error


@dataclass(frozen=True, slots=True)
class RowRules:
    """Treatment of rows whose number of fields isn't the table's number of columns."""

    comment: str = ""  # beginning of lines that are dropped and counted; empty if there are none
    rejoin: Callable[[Sequence[str]], Sequence[str] | None] | None = None
    """Joins the surplus fields of a row to others, or returns None if it can't."""
    rejoined: str = "separator within a field that isn't used"  # note on rejoined rows
    surplus_hint: str = "quote fields that contain the separator"  # if `rejoin` returns None
    shortage_hint: str = "copy the file again if it was cut off"


def read_table(
    path: Path,
    columns: Mapping[str, pl.DataType],
    context: ImportContext,
    *,
    separator: str = ",",
    header: bool = True,
    optional: Sequence[str] = (),
    quoted: bool = True,
    preamble: int = 0,
    names: Sequence[str] = (),
    rules: RowRules = RowRules(),
) -> CheckedTable:
    """Read a delimited file, plain or packed, with every type declared.

    ``columns`` are the columns to read, with their types; without a header, all columns of the
    file in order. ``optional`` columns may be missing, and are then null. If ``quoted``, double
    quotes enclose fields, else they are ordinary characters. ``preamble`` is the number of lines
    before the header. ``names`` replace the names in the header. ``rules`` apply to rows with
    another number of fields. Blank lines and repeated headers are dropped and counted. The table
    has faults of invalid rows, which its methods `jobs` and `done` raise.

    Raises `InputError` if the file isn't such a table, or if no row is valid.
    """
    head = read_head(path)
    first_line = preamble + 1  # of the rows
    if header:
        header_names, height = _header(head, separator, preamble, quoted)
        names = list(names or header_names)
        first_line += height
        missing = [name for name in columns if name not in names and name not in optional]
        if missing:
            hint = f"the columns must be {', '.join(c for c in columns if c not in optional)}"
            message = f"the header lacks {', '.join(missing)}"
            raise file_error(path, message, hint, preamble + 1)
        repeated = [name for name, count in Counter(names).items() if count > 1]
        if repeated:
            message = f"the header names {quote_for_display(repeated[0])} more than once"
            raise file_error(path, message, "give each column once", preamble + 1)
    else:
        names = list(columns)
        _check_width(path, head, len(names), separator)
    schema = {name: columns.get(name, pl.String()) for name in names}
    source: Path | bytes = read_bytes(path) if detect_compression(path) else path
    frame: pl.DataFrame | None = None
    with suppress(pl.exceptions.PolarsError, UnicodeDecodeError):
        frame = _parse(source, schema, separator, header, quoted, preamble)
    faults: list[tuple[int, Fault]] = []
    if frame is None or _has_short_rows(path, source, frame, first_line, separator, quoted):
        with _open(path, source) as file:
            lines = itertools.islice(_lines(path, file), first_line - 1, None)
            rows = _rows(lines, separator, quoted)
            frame, faults = _parse_leniently(path, rows, schema, context, rules)
        if faults and frame.is_empty():  # further checks need at least one row
            table = CheckedTable(path, frame, context)
            table.add_faults(faults, partial=len(faults) >= MAX_INVALID_LINES)
            table.done()
    if "line" not in frame.columns:
        frame = _with_line_numbers(frame, first_line)
    present = [name for name in columns if name in names]
    absent = [
        pl.lit(None, dtype=columns[name]).alias(name) for name in columns if name not in names
    ]
    # "nan" is a missing number; as a float it would pass every check.
    floats = [name for name in present if columns[name].is_float()]
    frame = frame.with_columns(pl.col(floats).fill_nan(None))
    # Strip blanks after a comma: " vgg16" would be an unknown model.
    texts = [name for name in present if columns[name] == pl.String()]
    # Remove byte order marks, which joined files have in their middle.
    stripped = pl.col(texts).str.replace('^\ufeff"?([^"]*)"?$', "${1}").str.strip_chars()
    frame = frame.with_columns(pl.when(stripped != "").then(stripped).name.keep())
    table = CheckedTable(path, frame.select("line", *present, *absent), context)
    table.add_faults(faults, partial=len(faults) >= MAX_INVALID_LINES)
    for name, kind in columns.items():
        if kind.is_numeric():
            number = pl.col(name)
            is_in_range = number.is_null() | (number.abs() <= MAX_INTEGER)
            table.check(is_in_range, name, "is out of range", f"write at most {MAX_INTEGER:g}")
    table.drop(pl.all_horizontal(pl.col(name).is_null() for name in present), "blank line")
    if header and len(texts) == len(present) > 1:
        text_in_header = dict(zip(names, header_names, strict=True))
        is_repeated = pl.all_horizontal(pl.col(name) == text_in_header[name] for name in texts)
        table.drop(is_repeated, "header again, of joined files")
    return table


def read_lines(path: Path, context: ImportContext) -> CheckedTable:
    """Read a file as stripped lines in a column ``text``; blank ones are counted."""
    read_head(path)
    source: Path | bytes = read_bytes(path) if detect_compression(path) else path
    try:
        # A separator that no line contains, so that a line is one field.
        frame = _parse(source, {"text": pl.String()}, "\x1f", False, False)
    except pl.exceptions.PolarsError as error:
        with _open(path, source) as file:
            for _ in _lines(path, file):
                pass  # raises at the line that is not UTF-8
        raise file_error(path, f"cannot be read as lines ({error})") from error
    lines = frame.with_row_index("line", offset=1)
    table = CheckedTable(path, lines.with_columns(pl.col("text").str.strip_chars()), context)
    table.drop(pl.col("text").is_null() | (pl.col("text") == ""), "blank line")
    return table


def _check_width(path: Path, head: str, width: int, separator: str) -> None:
    count = len(_header(head, separator, 0)[0])
    if count != width:
        found = "1 field" if count == 1 else f"{count} fields"
        raise file_error(path, f"has {found}", f"{width} are expected", 1)


def _parse(
    source: Path | bytes,
    schema: Mapping[str, pl.DataType],
    separator: str,
    header: bool,
    quoted: bool,
    preamble: int = 0,
) -> pl.DataFrame:
    if isinstance(source, Path) and not is_valid_utf8(str(source)):
        source = source.read_bytes()  # polars accepts only paths that are valid text
    return pl.read_csv(
        source,
        has_header=header,
        skip_lines=preamble,
        new_columns=list(schema),
        schema_overrides=list(schema.values()),
        separator=separator,
        quote_char='"' if quoted else None,
        infer_schema=False,
    )


def _has_short_rows(
    path: Path,
    source: Path | bytes,
    frame: pl.DataFrame,
    first_line: int,
    separator: str,
    quoted: bool,
) -> bool:
    """Return whether a row that isn't blank has too few fields, as the last row of a cut file.

    Polars fills short rows with nulls. So only a table with nulls in its last column is read again,
    from ``first_line`` on.
    """
    if not frame[frame.columns[-1]].has_nulls():
        return False
    expected = len(frame.columns)
    with _open(path, source) as file:
        for line in itertools.islice(file, first_line - 1, None):
            if quoted and b'"' in line:  # counting separators isn't enough
                break
            if line.count(separator.encode()) < expected - 1 and line.strip():
                return True
        else:
            return False
        file.seek(0)
        rows = _rows(itertools.islice(_lines(path, file), first_line - 1, None), separator, quoted)
        return any(len(row.fields) < expected and not row.is_blank for row in rows)


def _with_line_numbers(frame: pl.DataFrame, first_line: int) -> pl.DataFrame:
    """Add the column ``line``: the first line of each row; fields may have several lines."""
    frame = frame.with_row_index("line", offset=first_line)
    texts = [name for name, kind in frame.schema.items() if kind == pl.String()]
    if not texts:
        return frame
    # By type, because polars expands names such as ``*``.
    strings = pl.selectors.string()
    breaks = pl.sum_horizontal(strings.str.count_matches("\n", literal=True).fill_null(0))
    before = breaks.cum_sum().shift(1, fill_value=0)
    return frame.with_columns((pl.col("line") + before).cast(pl.UInt32()))


def _parse_leniently(
    path: Path,
    rows: Iterator[_Row],
    schema: Mapping[str, pl.DataType],
    context: ImportContext,
    rules: RowRules,
) -> tuple[pl.DataFrame, list[tuple[int, Fault]]]:
    """Read a file that polars can't parse: the valid rows, and the faults of the others."""
    faults: list[tuple[int, Fault]] = []
    rejoined = blank = comments = skipped = 0
    valid_rows: list[list[object]] = []
    for row in rows:
        if row.is_blank:
            blank += 1
            continue
        fields: Sequence[str] = row.fields
        is_comment = rules.comment and fields[0].lstrip().startswith(rules.comment)
        if is_comment and len(fields) != len(schema):
            comments += 1
            continue
        if rules.rejoin is not None and len(fields) > len(schema):
            joined = rules.rejoin(fields)
            rejoined += joined is not None
            fields = joined or fields
        values = _row_values(f"{path}: line {row.line}", row, fields, schema, rules)
        if not isinstance(values, Fault):
            valid_rows.append([row.line, *values])
        elif context.skip_invalid:
            skipped += 1
        else:
            faults.append((row.line, values))
            if len(faults) >= MAX_INVALID_LINES:
                break
    frame = pl.DataFrame(valid_rows, schema={"line": pl.UInt32(), **schema}, orient="row")
    context.tally.add("dropped", "blank line", blank)
    context.tally.add("dropped", "comment", comments)
    context.tally.add("repaired", rules.rejoined, rejoined)
    context.tally.add("dropped", "row that cannot be parsed", skipped)
    return frame, faults


@dataclass(frozen=True, slots=True)
class _Row:
    line: int  # first line of the row, from 1
    fields: list[str]
    height: int = 1  # number of its lines: a quoted field may contain line breaks
    closed: bool = True  # whether every field that begins with a quote also ends with one

    @property
    def is_blank(self) -> bool:
        return len(self.fields) < 2 and not "".join(self.fields).strip()


def _rows(lines: Iterator[tuple[int, str]], separator: str, quoted: bool) -> Iterator[_Row]:
    """Yield the rows of numbered lines; a quote that is never closed ends with its line."""
    pending = deque[tuple[int, str]]()

    def next_line() -> tuple[int, str] | None:
        return pending.popleft() if pending else next(lines, None)

    while (first := next_line()) is not None:
        line, text = first
        if not quoted or '"' not in text:
            yield _Row(line, text.split(separator) if text else [])
            continue
        taken = [first]

        def texts(taken: list[tuple[int, str]] = taken) -> Iterator[str]:
            yield f"{taken[0][1]}\n"
            while len(taken) < MAX_LINES_PER_ROW and (following := next_line()) is not None:
                taken.append(following)
                yield f"{following[1]}\n"

        try:
            fields = next(csv.reader(texts(), delimiter=separator, strict=True))
        except csv.Error:  # an open quote, text after a quote, or a carriage return
            pending.extendleft(reversed(taken[1:]))
            yield _Row(line, _cells(text, separator), closed=not _is_open(text, separator))
        else:
            yield _Row(line, fields, height=len(taken))


def _is_open(row: str, separator: str) -> bool:
    """Return whether the last field of a line begins with a quote that isn't closed."""
    try:
        next(csv.reader([row], delimiter=separator, strict=True), None)
    except csv.Error as error:
        return str(error).startswith("unexpected end of data")
    return False


def _lines(path: Path, file: IO[bytes]) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines of an open file; the caller closes it, and may stop early."""
    # A longer line comes in pieces, so that a file without line ends doesn't fill the memory.
    for line, data in enumerate(iter(lambda: file.readline(HEAD_BYTES), b""), start=1):
        try:
            text = data.decode("utf-8-sig" if line == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise file_error(path, "is not UTF-8", "save the file as UTF-8", line) from error
        yield line, text.rstrip("\r\n")


def _open(path: Path, source: Path | bytes) -> IO[bytes]:
    return io.BytesIO(source) if isinstance(source, bytes) else path.open("rb")


def _cells(row: str, separator: str) -> list[str]:
    """Return the fields of a line; split invalid CSV at each separator."""
    try:
        return next(csv.reader([row], delimiter=separator), [])
    except csv.Error:  # for example, a carriage return inside the line
        return row.split(separator)


def _row_values(
    location: str,
    row: _Row,
    fields: Sequence[str],
    schema: Mapping[str, pl.DataType],
    rules: RowRules,
) -> list[object] | Fault:
    """Return the values of a row, or why it can't be read."""
    if not row.closed:
        return Fault(location, "a quote isn't closed", "close it, or copy the file again")
    if len(fields) != len(schema):
        is_short = len(fields) < len(schema)
        hint = rules.shortage_hint if is_short else rules.surplus_hint
        count = "1 field" if len(fields) == 1 else f"{len(fields)} fields"
        return Fault(location, f"has {count}, not {len(schema)}", hint)
    values = []
    for (name, kind), text in zip(schema.items(), fields, strict=True):
        try:
            values.append(_value(text, kind))
        except OverflowError:
            message = f"{name} {text!r} is out of range"
            return Fault(location, message, f"write at most {MAX_INTEGER:g}")
        except ValueError:
            expected = _NUMBER_WORDS.get(kind, "a value")
            return Fault(location, f"{name} {text!r} is not {expected}", f"write {expected}")
    return values


def _value(text: str, kind: pl.DataType) -> object:
    if text == "":
        return None
    # Python also accepts 1_000 and digits of other scripts, which no trace contains.
    if kind.is_numeric() and ("_" in text or not text.isascii()):
        raise ValueError(text)
    if kind == pl.Int64():
        # pandas writes integers as 8.0 if a value of the column is missing.
        number = int(text.removesuffix(".0"))
        if abs(number) > MAX_INTEGER:
            raise OverflowError
        return number
    if kind == pl.Float64():
        return float(text)
    return text

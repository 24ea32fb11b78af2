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
import lzma
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Final, Literal

import polars as pl

from shadowprice.core import bounds
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.wording import is_valid_utf8, quote_for_display
from shadowprice.inputs.unpacking import detect_compression, read_blocks, read_first_bytes
from shadowprice.traces.records import ABSOLUTE_TIME_COLUMNS, MAX_VALUES
from shadowprice.traces.registry import ImportContext

HEAD_BYTES: Final = 1 << 16
MAX_FAULTS: Final = 20
MAX_INTEGER: Final = 10**15
"""Maximum number in a table, above any time in microseconds and any memory in bytes."""
DUPLICATE_NAME_HINT: Final = "job names must be unique within a trace"
OUT_OF_RANGE_DATE: Final = "is not of the years 1970 to 2128"
"""Message for a time below 0 or above the limit, in seconds since 1970."""

_SKIP_NOTE: Final = "--skip-invalid leaves invalid rows out, and counts them"

_TEXT_CONTROLS: Final = frozenset(b"\t\n\r\f\b\x1b")
_NUMBER_WORDS: Final[Mapping[object, str]] = {
    pl.Int64(): "a whole number",
    pl.Float64(): "a number",
}


def read_head(path: Path) -> str:
    """Return the first 64 KiB of a text file, decompressed.

    Raises `InputError` if the file is missing, empty, binary, not UTF-8, or damaged at its
    beginning.
    """
    if not path.exists():
        raise InputError(
            Fault(
                str(path),
                "no such file",
                "check the path (SHADOWPRICE_TRACES may name its folder)",
            )
        )
    if path.is_dir():
        raise InputError(Fault(str(path), "is a directory", "give the file inside it"))
    if not path.is_file():
        raise InputError(
            Fault(str(path), "is not a regular file", "write the data to a file first")
        )
    try:
        bounds.TABLE_BYTES.check(path.stat().st_size, str(path), "split it")
        packed = detect_compression(path)
        head = read_first_bytes(path, HEAD_BYTES)
    except EOFError as error:
        message = f"truncated {packed} stream"
        raise InputError(Fault(str(path), message, "fetch it again")) from error
    except (zlib.error, lzma.LZMAError) as error:
        raise InputError(Fault(str(path), f"is damaged {packed}", "fetch it again")) from error
    except OSError as error:
        if error.errno is None:  # gzip and bzip2 raise it for a damaged stream
            raise InputError(Fault(str(path), f"is damaged {packed}", "fetch it again")) from error
        raise InputError(Fault(str(path), f"cannot be read ({error.strerror})")) from error
    if not head.strip():
        raise InputError(Fault(str(path), "is empty", "give a file with rows"))
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InputError(Fault(f"{path}: line 1", "is UTF-16", "save it as UTF-8"))
    controls = sum(byte < 32 and byte not in _TEXT_CONTROLS for byte in head)
    if b"\0" in head or controls > len(head) // 100:
        raise InputError(Fault(str(path), "is binary, not text", "give the trace's text file"))
    try:
        text = head.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if error.start < len(head) - 4:
            raise _encoding_fault(path, head[: error.start].count(b"\n") + 1) from error
        text = head[: error.start].decode("utf-8-sig")
    _check_first_line(path, text, cut=len(head) >= HEAD_BYTES)
    return text


def _check_first_line(path: Path, text: str, *, cut: bool) -> None:
    """Refuse a head without a line end, unless it may be JSON; ``cut``: the file is longer."""
    if "\n" not in text and not text.lstrip().startswith(("[", "{")):
        if "\r" in text.strip():
            message = "ends in a carriage return alone"
            raise InputError(Fault(f"{path}: line 1", message, "end lines with a line feed"))
        if cut:
            message = "has no end within 64 KiB"
            raise InputError(Fault(f"{path}: line 1", message, "give a file with one job a line"))


def column_names(head: str, separator: str = ",", preamble: int = 0) -> list[str]:
    """Return the names in the first line of a table, after a number of other lines."""
    return [name.strip() for name in _cells(head.splitlines()[preamble], separator)]


def read_bytes(path: Path) -> bytes:
    """Return a file's bytes, decompressed if it is packed.

    Raises `InputError` as `inputs.unpacking.read_blocks` does.
    """
    return b"".join(read_blocks(path, bounds.TABLE_BYTES, 1 << 24))


class CheckedTable:
    """Rows of a file with their line numbers, with validation.

    ``frame`` contains the rows that are valid so far, with an integer column ``line``. ``place`` is
    the format of a row's location in errors, with ``{}`` for the line.
    """

    def __init__(
        self, path: Path, frame: pl.DataFrame, reading: ImportContext, place: str = "line {}"
    ) -> None:
        self.path = path
        self.frame = frame
        self._reading = reading
        self._place = place
        self._faults: list[tuple[int, Fault]] = []
        self._wrong = 0

    def drop(self, condition: pl.Expr, reason: str) -> None:
        """Drop and count rows that meet a known condition of the format."""
        remaining = self.frame.filter(~condition.fill_null(False))
        self._reading.tally.add("dropped", reason, self.frame.height - remaining.height)
        self.frame = remaining

    def count_repairs(
        self, condition: pl.Expr, reason: str, action: Literal["repaired", "kept"] = "repaired"
    ) -> None:
        """Count rows that the caller repairs, or keeps although they are unusual."""
        count = int(self.frame.select(condition.fill_null(False).sum()).item())
        self._reading.tally.add(action, reason, count)

    def check(self, valid: pl.Expr, column: str, message: str, hint: str = "") -> None:
        """Refuse rows for which an expression isn't true; null counts as false.

        Errors show the value of ``column``, a message and a hint. If invalid rows are skipped, drop
        and count the rows instead.
        """
        is_valid = self.frame.select(valid.fill_null(False)).to_series()
        if is_valid.all():
            return
        invalid = self.frame.filter(~is_valid)
        if self._reading.skip_invalid:
            self._reading.tally.add("dropped", f"{column} {message}", invalid.height)
        else:
            self._wrong += invalid.height
            remaining = MAX_FAULTS - len(self._faults)
            for line, value in invalid.select("line", column).head(max(remaining, 0)).iter_rows():
                value_text = "" if value is None else f" {value!r}"
                location = f"{self.path}: {self._place.format(line)}"
                self._faults.append(
                    (line, Fault(location, f"{column}{value_text} {message}", hint))
                )
        self.frame = self.frame.filter(is_valid)

    def check_positive(self, *columns: str) -> None:
        """Refuse rows in which one of some numbers isn't above 0, or is missing."""
        for column in columns:
            self.check(pl.col(column) > 0, column, "is not above 0")

    def check_run(self, pattern: str) -> pl.Expr:
        """Return the run time from ``start_time`` and ``end_time``, after checks of the times.

        Jobs that never ran are dropped and counted. The times become seconds, as in `parse_times`.
        """
        start, end = pl.col("start_time"), pl.col("end_time")
        self.drop(start.is_null() | end.is_null(), "no start or end: never ran")
        for column in ("submit_time", "start_time", "end_time"):
            self.parse_times(column, pattern)
        self.check(start >= pl.col("submit_time"), "start_time", "is before submission")
        self.check(end >= start, "end_time", "is before start_time")
        self.drop(start == end, "run time 0: never ran")
        return end - start

    def parse_times(self, column: str, pattern: str) -> None:
        """Convert a column from text to seconds since 1970.

        ``pattern`` is that of ``strptime``. Times without ``%z`` are read as UTC, whatever their
        zone.
        """
        text = pl.col(column)
        kind = pl.Datetime("us", "UTC") if "%z" in pattern else pl.Datetime("us")
        parsed = text.str.strptime(kind, pattern, strict=False)
        self.check(parsed.is_not_null(), column, "is not a time", f"write it as {pattern}")
        # Check now: times later restart at the first job, which must not be an invalid row.
        seconds = parsed.dt.epoch("us") / 1e6
        self.check(seconds.is_between(0, bounds.SECONDS.most), column, OUT_OF_RANGE_DATE)
        self.frame = self.frame.with_columns(seconds.alias(column))

    def jobs(self, **columns: pl.Expr | str) -> pl.DataFrame:
        """Return columns of `records.SCHEMA`, given as expressions or names, after common checks.

        Names must be unique, and numbers within `records.MAX_VALUES`. Raises as `done` does.
        """
        self.frame = self.frame.select("line", **columns)
        self.check(pl.col("job").is_not_null(), "job", "has no name")
        self.check(
            pl.col("job").is_first_distinct(),
            "job",
            "is the name of an earlier row",
            DUPLICATE_NAME_HINT,
        )
        # Times are checked last, because they count from the first remaining job.
        for name in sorted(
            MAX_VALUES.keys() & columns.keys(), key=ABSOLUTE_TIME_COLUMNS.__contains__
        ):
            bound = MAX_VALUES[name]
            value = pl.col(name)
            limited = value - pl.col("submit").min() if name in ABSOLUTE_TIME_COLUMNS else value
            self.check(value.is_null() | (limited <= bound.most), name, bound.broken)
        return self.done().drop("line")

    def done(self) -> pl.DataFrame:
        """Return the valid rows, or raise all diagnostics.

        The error has up to 20 diagnostics, and the number of further invalid rows.
        """
        if self._faults:
            faults = [fault for _, fault in sorted(self._faults, key=lambda item: item[0])]
            more = self._wrong - len(faults)
            if more:
                faults.append(Fault(str(self.path), f"and {more} more rows are wrong"))
            raise invalid_rows(faults)
        return self.frame


def invalid_rows(faults: Sequence[Fault]) -> InputError:
    """Return the error of invalid rows, with a note on how to leave them out."""
    error = InputError(faults)
    error.add_note(_SKIP_NOTE)
    return error


def read_table(
    path: Path,
    columns: Mapping[str, pl.DataType],
    reading: ImportContext,
    *,
    separator: str = ",",
    header: bool = True,
    optional: Sequence[str] = (),
    quoted: bool = True,
    preamble: int = 0,
    rejoin: Callable[[Sequence[str]], Sequence[str] | None] | None = None,
    surplus_hint: str = "quote fields that contain the separator",
) -> CheckedTable:
    """Read a delimited file, plain or packed, with every type declared.

    ``columns`` are those to read, with their types; without a header, they are all columns of the
    file in order. ``optional`` ones may be missing and are then null. If ``quoted``, double quotes
    enclose fields, else they are ordinary characters. ``preamble`` lines come before the header and
    are skipped. ``rejoin`` gets the fields of a row that has
    too many, and returns as many as the header has, or None: then the row is invalid, with
    ``surplus_hint``. Blank lines are dropped and counted. Raises `InputError` if the file isn't
    such a table.
    """
    head = read_head(path)
    names = list(columns)
    if header:
        names = column_names(head, separator, preamble)
        missing = [name for name in columns if name not in names and name not in optional]
        if missing:
            raise InputError(
                Fault(
                    f"{path}: line 1",
                    f"the header lacks {', '.join(missing)}",
                    f"the columns must be {', '.join(c for c in columns if c not in optional)}",
                )
            )
        repeated = [name for name, count in Counter(names).items() if count > 1]
        if repeated:
            message = f"the header names {quote_for_display(repeated[0])} more than once"
            raise InputError(Fault(f"{path}: line 1", message, "give each column once"))
    else:
        _check_width(path, head, len(names), separator)
    schema = {name: columns.get(name, pl.String()) for name in names}
    source: Path | bytes = read_bytes(path) if detect_compression(path) else path
    cause: Exception | None = None
    try:
        frame = _parse(source, schema, separator, header, quoted, preamble)
    except (pl.exceptions.PolarsError, UnicodeDecodeError) as error:
        cause = error
    if cause is not None or _has_short_rows(path, source, frame, separator, quoted):
        lines = _lines(path, source, separator, quoted)
        rows = itertools.islice(lines, preamble + header, None)
        frame = _parse_leniently(path, rows, schema, reading, cause, rejoin, surplus_hint)
    if "line" not in frame.columns:
        frame = _with_line_numbers(frame, preamble + header + 1)
    present = [name for name in columns if name in names]
    absent = [
        pl.lit(None, dtype=columns[name]).alias(name) for name in columns if name not in names
    ]
    # "nan" is a missing number; as a float it would pass every check.
    floats = [name for name in present if columns[name].is_float()]
    frame = frame.with_columns(pl.col(floats).fill_nan(None))
    # Strip blanks after a comma: " vgg16" would be an unknown model.
    texts = [name for name in present if columns[name] == pl.String()]
    stripped = pl.col(texts).str.strip_chars()
    frame = frame.with_columns(pl.when(stripped != "").then(stripped).name.keep())
    table = CheckedTable(path, frame.select("line", *present, *absent), reading)
    for name, kind in columns.items():
        if kind.is_numeric():
            number = pl.col(name)
            within = number.is_null() | (number.abs() <= MAX_INTEGER)
            table.check(within, name, "is out of all range", f"write at most {MAX_INTEGER:g}")
    table.drop(pl.all_horizontal(pl.col(name).is_null() for name in present), "blank line")
    return table


def read_lines(path: Path, reading: ImportContext) -> CheckedTable:
    """Read a file as lines, for formats with fields separated by runs of blanks.

    The table has one column ``text``, stripped of blanks. Blank lines are dropped and counted.
    Raises `InputError` if the file isn't text.
    """
    read_head(path)
    source: Path | bytes = read_bytes(path) if detect_compression(path) else path
    try:
        frame = _parse(source, {"text": pl.String()}, "\x1f", False, False)
    except pl.exceptions.PolarsError as error:
        for _ in _lines(path, source, "\x1f", False):
            pass  # raises at the line that is not UTF-8
        raise InputError(Fault(str(path), f"cannot be read as lines ({error})")) from error
    lines = frame.with_row_index("line", offset=1)
    table = CheckedTable(path, lines.with_columns(pl.col("text").str.strip_chars()), reading)
    table.drop(pl.col("text").is_null() | (pl.col("text") == ""), "blank line")
    return table


def _check_width(path: Path, head: str, width: int, separator: str) -> None:
    count = len(_cells(head.splitlines()[0], separator))
    if count != width:
        raise InputError(Fault(f"{path}: line 1", f"has {count} fields", f"{width} are expected"))


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
    path: Path, source: Path | bytes, frame: pl.DataFrame, separator: str, quoted: bool
) -> bool:
    """Return whether a row that isn't blank has too few fields, as the end of a cut file has.

    Polars fills them with nulls, so only a table with nulls in its last column is read again.
    Fields of several lines aren't checked.
    """
    if not frame[frame.columns[-1]].has_nulls():
        return False
    expected = len(frame.columns) - 1
    found = False
    with _open(path, source) as file:
        for line in file:
            if quoted and b'"' in line:
                if line.count(b'"') % 2:
                    return False
                continue
            if line.count(separator.encode()) < expected and line.strip():
                found = True
    return found


def _with_line_numbers(frame: pl.DataFrame, first: int) -> pl.DataFrame:
    """Add the column ``line``: where each row begins, also after fields of several lines."""
    frame = frame.with_row_index("line", offset=first)
    texts = [name for name, kind in frame.schema.items() if kind == pl.String()]
    if not texts:
        return frame
    breaks = pl.sum_horizontal(
        pl.col(name).str.count_matches("\n", literal=True).fill_null(0) for name in texts
    )
    before = breaks.cum_sum().shift(1, fill_value=0)
    return frame.with_columns((pl.col("line") + before).cast(pl.UInt32()))


def _parse_leniently(
    path: Path,
    lines: Iterator[tuple[int, list[str]]],
    schema: Mapping[str, pl.DataType],
    reading: ImportContext,
    cause: Exception | None,
    rejoin: Callable[[Sequence[str]], Sequence[str] | None] | None,
    surplus_hint: str,
) -> pl.DataFrame:
    """Read a file that polars can't parse; report its invalid lines, or drop and count them.

    Text that only polars refuses, such as a blank after a number, is accepted.
    """
    faults: list[Fault] = []
    rejoined = 0
    rows: dict[str, list[object]] = {"line": [], **{name: [] for name in schema}}
    for line, found in lines:
        fields: Sequence[str] = found
        if not fields:
            continue
        if rejoin is not None and len(fields) > len(schema):
            whole = rejoin(found)
            rejoined += whole is not None
            fields = whole or found
        fault = _row_fault(f"{path}: line {line}", fields, schema, surplus_hint)
        if fault is None:
            rows["line"].append(line)
            for (name, kind), text in zip(schema.items(), fields, strict=True):
                rows[name].append(_value(text, kind))
        else:
            faults.append(fault)
            if not reading.skip_invalid and len(faults) >= MAX_FAULTS:
                break
    if faults and not reading.skip_invalid:
        raise invalid_rows(faults) from cause
    reading.tally.add("repaired", "separator within a field that isn't used", rejoined)
    reading.tally.add("dropped", "row that cannot be parsed", len(faults))
    return pl.DataFrame(rows, schema={"line": pl.UInt32(), **schema})


def _lines(
    path: Path, source: Path | bytes, separator: str, quoted: bool
) -> Iterator[tuple[int, list[str]]]:
    with _open(path, source) as file:
        for line, data in enumerate(iter(lambda: file.readline(HEAD_BYTES), b""), start=1):
            try:
                text = data.decode("utf-8-sig" if line == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise _encoding_fault(path, line) from error
            row = text.rstrip("\r\n")
            if quoted:
                yield line, _cells(row, separator)
            else:
                yield line, row.split(separator) if row else []


def _open(path: Path, source: Path | bytes) -> IO[bytes]:
    return io.BytesIO(source) if isinstance(source, bytes) else path.open("rb")


def _cells(row: str, separator: str) -> list[str]:
    """Return the fields of a line; split invalid CSV at its separators."""
    try:
        return next(csv.reader([row], delimiter=separator), [])
    except csv.Error:  # for example, a carriage return inside the line
        return row.split(separator)


def _row_fault(
    place: str, fields: Sequence[str], schema: Mapping[str, pl.DataType], surplus_hint: str
) -> Fault | None:
    if len(fields) != len(schema):
        is_short = len(fields) < len(schema)
        hint = "copy the file again if it was cut off" if is_short else surplus_hint
        return Fault(place, f"has {len(fields)} fields, not {len(schema)}", hint)
    for (name, kind), text in zip(schema.items(), fields, strict=True):
        try:
            _value(text, kind)
        except OverflowError:
            message = f"{name} {text!r} is out of all range"
            return Fault(place, message, f"write at most {MAX_INTEGER:g}")
        except ValueError:
            expected = _NUMBER_WORDS.get(kind, "a value")
            return Fault(place, f"{name} {text!r} is not {expected}", f"write {expected}")
    return None


def _value(text: str, kind: pl.DataType) -> object:
    if text == "":
        return None
    if kind.is_numeric() and ("_" in text or not text.isascii()):
        raise ValueError(
            text
        )  # Python also accepts 1_000 and digits of other scripts, which no trace contains
    if kind == pl.Int64():
        number = int(
            text.removesuffix(".0")
        )  # pandas writes integers so if a value of the column is missing
        if abs(number) > MAX_INTEGER:
            raise OverflowError
        return number
    if kind == pl.Float64():
        return float(text)
    return text


def _encoding_fault(path: Path, line: int) -> InputError:
    return InputError(Fault(f"{path}: line {line}", "is not UTF-8", "save the file as UTF-8"))

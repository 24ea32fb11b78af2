"""Values as cluster logs write them: times, durations, memory, states, and Slurm's TRES.

Columns are polars expressions or series of text. A value that can't be read becomes null, so that
the importer reports its row.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from itertools import pairwise, product
from pathlib import Path
from typing import Final, Literal, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

import polars as pl

from shadowprice.core import bounds
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.wording import quote_for_display
from shadowprice.traces.text import OUT_OF_RANGE_DATE

Value = TypeVar("Value")
Order = Literal["", "dmy", "mdy"]
"""Whether days or months come first in dates such as 3/4/2024; empty if it isn't stated."""

NOTHING: Final = frozenset(
    {"", "-", "n/a", "na", "nan", "nat", "nil", "none", "null", "(null)", "unknown", "never"}
    | {"--", "\u2013", "\u2014", "#n/a", "\\n", "undefined"}
    | {f"<{word}>" for word in ("none", "unknown", "unset", "nil", "na", "null")}
)
"""Texts that mean a missing value, in lower case."""

FIRST_ABSOLUTE: Final = 1e8
"""Minimum number that is read as seconds since 1970 (March 1973); smaller numbers count from an
unknown beginning."""

MAX_OFFSET_HOURS: Final = 15
"""Hours above which an offset from UTC isn't valid; time zones have offsets up to 14 hours."""

STANDS_FOR_MISSING: Final = (
    "0, -1, 1900-01-01, 9999-12-31 or a largest integer stands for a missing time"
)
"""Note on values that logs write in place of a missing time."""
_DISTANT_DATES: Final = (-62_135_596_800.0, -2_208_988_800.0, 253_402_214_400.0)
"""0001-01-01, 1900-01-01 and 9999-12-31 in seconds since 1970."""
_MISSING_NUMBERS: Final = (
    *(-9_223_372_036_854_775_808.0, -6_795_364_578_871_345_152.0),
    *(float(2**31 - 1), float(2**32 - 2), float(2**32 - 1), float(2**63 - 1), float(2**64 - 1)),
)
"""NaT of numpy and the zero time of Go in nanoseconds; largest integers, also those of Slurm."""
_SIZES: Final = ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3))
"""Pairs: numbers above the first are times since 1970 in ns, us or ms, of which a second has as
many as the second says."""
_SERIAL_DATES: Final = (20_000.0, 80_000.0)  # 1954 to 2119 in the days of spreadsheets
_SERIAL_SENTINELS: Final = (-1.0, 0.0, 1.0, 2.0)
"""-1, 0 and 1900-01-01 as Excel and LibreOffice count days."""
_LAST_SERIAL_DAY: Final = (2_958_465.0, 2_958_466.0)
"""The beginning and the end of 9999-12-31 as spreadsheets count days."""
_SAMPLE: Final = 2_000  # distinct values of a column from which the form of its times is found
_ISO_DATES: Final = ("%Y-%m-%d", "%Y/%m/%d", "%Y.%m.%d", "%Y%m%d")
_NAMED_DATES: Final = ("%d-%b-%Y", "%d %b %Y", "%b %d %Y", "%b %d, %Y", "%d/%b/%Y")
_DAY_FIRST: Final = ("%d/%m/%Y", "%d.%m.%Y", "%d-%m-%Y", "%d/%m/%y", "%d.%m.%y")
_MONTH_FIRST: Final = ("%m/%d/%Y", "%m.%d.%Y", "%m-%d-%Y", "%m/%d/%y", "%m.%d.%y")
_NUMERIC_DATE: Final = r"^\s*(\d{1,2})[/.-](\d{1,2})[/.-](?:\d{4}|\d{2})(?:[ ,T]|$)"
_CLOCKS: Final = (" %H:%M:%S%.f", " %H:%M", " %I:%M:%S %p", " %I:%M %p", ":%H:%M:%S", "")
_CTIMES: Final = ("%b %d %H:%M:%S %Y", "%b %d %H:%M %Y")
_WEEKDAY: Final = r"(?i)^(?:mon|tue|wed|thu|fri|sat|sun)[a-z]*,? "
_OFFSET: Final = (
    r"(?i) ?(?:z|utc|gmt|[+-]\d{2}:?\d{2})$| [a-z]{3,5}$| [a-z_]+/[a-z_]+(?:[/+-][a-z_0-9]+)*$"
)
"""Offset from UTC or time zone at the end of a time."""
_REWRITTEN: Final = (
    (r"^(\d{4}-\d{2}-\d{2})[Tt](\d)", "${1} ${2}"),
    (r"^(\d{8})[Tt](\d{2})(\d{2})(\d{2})", "${1} ${2}:${3}:${4}"),
    (r"^(\d{8})[Tt](\d{2})(\d{2})(Z|[+-]|$)", "${1} ${2}:${3}${4}"),
    # 20240305060708: as a number of any unit, it would lie outside 1970 to 2128.
    (r"^((?:19|20)\d{6})(\d{2})(\d{2})(\d{2})$", "${1} ${2}:${3}:${4}"),
    (r" m=[+-][\d.]+$", ""),  # Go's monotonic clock
    (r"(:\d{2}),(\d+)", "${1}.${2}"),
    (r"(:\d{2}(?:\.\d+)?) ?([+-]\d{2})$", "${1}${2}:00"),  # PostgreSQL's 10:00:00+02
    (_WEEKDAY, ""),
    (r"^(\d{1,2}[/.-]\d{1,2}[/.-]\d{2,4}), (\d)", "${1} ${2}"),
    (r"(?i)(\d) ?([ap])\. ?m\.?", "${1} ${2}m"),
    (r"^(-?\d{4,}),(\d+(?:[eE][+-]?\d+)?)$", "${1}.${2}"),  # decimal comma
    (r"^(-?\d),(\d+[eE][+-]?\d+)$", "${1}.${2}"),
    (r"([+-]\d{2}:?\d{2}) ?(?:\([^)]*\)|\[[^\]]*\]|[A-Za-z]{3,5})$", "${1}"),  # +0100 (CET)
    (r"(?i)(\d) ?(?:utc|gmt)([+-])(\d)$", "${1}${2}0${3}:00"),
    (r"(?i)(\d) ?(?:utc|gmt)([+-]\d{2})$", "${1}${2}:00"),
    (r"(?i)(\d) ?(?:utc|gmt)([+-]\d{2}:?\d{2})$", "${1}${2}"),
    (r"(?i)(:\d{2}) ([a-z]{3,5}) (\d{4})$", "${1} ${3} ${2}"),  # date's 06:07:08 UTC 2024
)
"""Patterns that bring times into one of the forms above, and their replacements."""

_EPOCH: Final = pl.Series([datetime(1970, 1, 1)])
_FILES_OF_ZONES: Final = frozenset({"Factory", "localtime", "posixrules"})
"""Names in the folder of time zones that aren't zones."""
_MACHINE_ZONES: Final = frozenset({"localtime", "local", "system", "host", "machine"})
"""Words that people write for the time zone of their machine, in lower case."""

_MIDNIGHT: Final = r"[T ]24:00(:00(?:\.0+)?)?$"
Reading = Literal["earliest", "latest"]
_READINGS: Final[tuple[Reading, Reading]] = ("earliest", "latest")
"""Both meanings of a time that a local clock showed twice, at the end of daylight saving time."""

_ZONES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("wet", "west"), "Europe/Lisbon"),
    **dict.fromkeys(("cet", "cest"), "Europe/Berlin"),
    **dict.fromkeys(("eet", "eest"), "Europe/Athens"),
    "est": "EST",
    "mst": "MST",
    "hst": "HST",
}
"""Zones of the abbreviations that have only one meaning."""

UNIT_SECONDS: Final[Mapping[str, float]] = {
    **dict.fromkeys(("ns", "nanos", "nanoseconds"), 1e-9),
    **dict.fromkeys(("us", "micros", "microseconds"), 1e-6),
    **dict.fromkeys(("ms", "msec", "msecs", "millis", "millisecond", "milliseconds"), 1e-3),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
    **dict.fromkeys(("w", "week", "weeks"), 7 * 86400.0),
}
"""Seconds of each unit of time that durations and headers are written with."""

_DAYS_CLOCK: Final = re.compile(
    r"\+?(?:(?P<days>\d+)(?:-| days?,? |d,? |\.(?=\d{2}:\d{2}:\d{2})))?"  # .NET's 1.02:03:04
    r"(?P<first>\d+):(?P<second>\d{1,2})"
    r"(?::(?P<third>\d{1,2}))?(?P<fraction>[.,]\d+)?"
)
_ISO_SPAN: Final = re.compile(
    r"P(?:(?P<w>\d+)W)?(?:(?P<d>\d+)D)?"
    r"(?:T(?:(?P<h>\d+(?:[.,]\d+)?)H)?(?:(?P<m>\d+(?:[.,]\d+)?)M)?(?:(?P<s>\d+(?:[.,]\d+)?)S)?)?"
)
_UNITS: Final = re.compile(r"(\d+(?:\.\d+)?) ?([a-z]+)")
_NUMBER: Final = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?")
_MEMORY: Final = re.compile(
    r"(\d+(?:\.\d+)?) ?([kmgtpe]?)(?:i?b|(?<=[kmgtpe])i)?([nc]?)", re.IGNORECASE
)
_POWERS: Final[Mapping[str, int]] = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5, "e": 6}
_GPU: Final = re.compile(
    r"(?:gres[/:]|[\w-]+\.com/)?n?gpus?"
    # A type may be of digits only if a count follows: gpu:4090:2.
    r"(?:[:/](?P<type>(?!no_consume)(?=[^:=]*[A-Za-z]|[^:=]+[:=]\d)[\w.+-]+))?"
    r"(?::no_consume)?(?:[:=](?P<count>\d+(?:\.\d+)?))?(?:\(.*\))?",
    re.IGNORECASE,
)
_SCOPE: Final = re.compile(r"PER_(?P<scope>NODE|TASK|JOB|SOCKET):", re.IGNORECASE)
"""Scope of a GRES's number, written before it by Slurm before 20.11."""
_GPU_NUMBER: Final = re.compile(r"7696487(?=[:=]|$)")
"""Slurm's number of the GRES gpu, in place of its name if a server didn't know the name."""
_SHARES: Final = re.compile(r"(?:gres[/:])?(?:shard|mps)\b", re.IGNORECASE)
"""Resources that are parts of GPUs, of a size that their names don't state."""
_SLICE: Final = re.compile(
    r"(?:^|[_. -])(?:mig[_. -])?(?:(?P<compute>[1-7])c\.)?(?P<slices>[12347])g\.(?P<memory>\d+)gb"
    r"(?:[+.-](?:me|gfx)[\w.+-]*)?$",
    re.IGNORECASE,
)
"""Profile of a MIG slice at the end of a type of GPU: ``a100_1g.5gb``."""
_SLICE_RESOURCE: Final = re.compile(
    r"[\w-]+\.com/mig-(?P<profile>[^=:]+)[=:](?P<count>\d+)", re.IGNORECASE
)
"""A number of MIG slices in the notation of Kubernetes, which doesn't count them as GPUs."""
_SLICE_SHARES: Final[Mapping[str, float]] = {"1": 1 / 8, "2": 1 / 4, "3": 1 / 2, "4": 1 / 2, "7": 1}
"""Share of a GPU's memory by number of compute slices; the shares are sizes in `devices.PARTS`."""
_QUARTERED: Final = frozenset({("1", "6"), ("2", "12"), ("4", "24"), ("2", "48"), ("4", "96")})
"""Slices and GB of memory in profiles of GPUs with only four slices: A30 and RTX PRO 6000."""
_OTHER_GRES: Final = re.compile(
    r"(?:shard|mps|craynetwork|licenses?|nic|nvme|ssd|hbm|lustre|scratch|bandwidth|(?:local)?tmp\w*"
    r"|fpga|[nth]pu)s?[:=]",
    re.IGNORECASE,
)
"""Usual GRES that aren't GPUs."""
_COUNT: Final = re.compile(r"(\d{1,9}(?:\.\d+)?)([KMG]?)", re.IGNORECASE)
"""A number of cores or nodes; Slurm writes 2048 as 2K."""
_OTHER: Final = re.compile(
    r"(?:(?:billing|energy|vmem|pages|pods|(?:ephemeral-)?storage|disk|tmp)[=:]"
    r"|(?!(?:gres[/:]|[\w-]+\.com/)?n?gpus?\b)[\w.-]+(?:/[\w./:+@-]+[=:]|:))[\w.:+-]+(?:\(.*\))?",
    re.IGNORECASE,
)
"""A resource that isn't read: with a known name, with a kind (license/x=1), or a GRES (nic:1)."""
_TYPED: Final = (
    # No x after a letter: an rtx3090 isn't 3090 GPUs.
    re.compile(
        r"(?P<type>[A-Za-z][\w.+ -]*?|\d{3,5}(?=[:=]))"
        r"(?: ?[:=*\u00d7] ?|(?:(?<=\d)| )x ?)(?P<count>\d+)(?:\(.*\))?"
    ),
    re.compile(r"(?P<count>\d+) ?[x*\u00d7] ?(?P<type>[A-Za-z][\w.+ -]*)"),
)
_COUNTED: Final = re.compile(r"(?P<count>\d+) ?(?:x ?)?gpus?", re.IGNORECASE)
_GROUPED: Final = re.compile(r"\d{1,3}(?:([ \u00a0\u202f'\u2019])\d{3})(?:\1\d{3})*(?:[.,]\d+)?")
"""A number whose thousands aren't separated by a mark that may be a decimal one."""
_POINT_NUMBERS: Final = (
    r"^\s*(?:\d{1,3}(?:(?:,\d{3})+\.\d+|(?:,\d{3}){2,})|\d+\.(?:\d{1,2}|\d{4,})|0\.\d+)"
    r"(?: ?[A-Za-z]+)?\s*$"
)
_COMMA_NUMBERS: Final = (
    r"^\s*(?:\d{1,3}(?:(?:\.\d{3})+,\d+|(?:\.\d{3}){2,})|\d+,(?:\d{1,2}|\d{4,})|\d{4,},\d+|0,\d+)"
    r"(?: ?[A-Za-z]+)?\s*$"
)
_COMMA_NUMBER: Final = r"^\s*([\d.]+),(\d+)( ?[A-Za-z]*)\s*$"
_POINTS_ONLY: Final = r"^\s*[1-9]\d{0,2}(?:\.\d{3})+( ?[A-Za-z]*)\s*$"

_TRES_NAMES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("cpu", "cpus", "core", "cores"), "cpu"),
    **dict.fromkeys(("mem", "memory"), "mem"),
    **dict.fromkeys(("node", "nodes"), "node"),
}
"""Names of counted resources; ``cpus=4`` and the like are how people write them."""

_NO_TYPES: Final = frozenset(
    {"billing", "core", "cores", "cpu", "cpus", "gpu", "gpus", "mem", "memory", "ngpu", "ngpus"}
    | {"npu", "npus", "tpu", "tpus", "hpu", "hpus", "fpga", "fpgas", "node", "nodes", "task"}
    | {"tasks"}
)
"""Words beside a number that aren't a type of GPU."""

_STATES: Final[Mapping[str, str]] = {
    word: status
    for status, words in {
        "passed": "completed complete completing success successful succeeded done pass passed "
        "finished ok",
        "failed": "failed fail failure error errored exit timeout timed_out oom crashed "
        "out_of_memory node_fail boot_fail launch_failed reconfig_fail deadline",
        "cancelled": "cancelled canceled cancel killed aborted stopped revoked preempted",
        "unfinished": "running pending queued waiting suspended resizing configuring requeued "
        "requeue_hold requeue_fed resv_del_hold special_exit signaling stage_out unfinished "
        "submitted run pend psusp ususp ssusp prov r pd q active in_progress inprogress idle "
        "held hold scheduling scheduled starting initializing preparing provisioning creating "
        "up_for_retry",
    }.items()
    for word in words.split()
}


@dataclass(frozen=True, slots=True)
class Tres:
    """Trackable resources of a job, as Slurm writes them: ``cpu=8,mem=64G,gres/gpu:a100=2``."""

    gpus: float | None = None
    gpu_type: str | None = None  # types of GPU, with ``|`` between them
    cpus: float | None = None
    memory: int | None = None  # bytes
    gpus_per: str = ""  # scope of the GPUs, such as "node" for PER_NODE; "several" if it differs
    has_shares: bool = False  # whether it has parts of GPUs, of unknown size
    has_slices: bool = False  # whether it has MIG slices, which count as shares of a GPU


_NO_TRES: Final = Tres()


def is_nothing(text: pl.Expr) -> pl.Expr:
    """Return whether text means a missing value."""
    return text.is_null() | text.str.strip_chars().str.to_lowercase().is_in(sorted(NOTHING))


def is_zero_time(text: pl.Expr) -> pl.Expr:
    """Return whether text is the zero value of a type of times, which means a missing time."""
    return text.str.contains(r"^\s*(?:0001-01-01|0000-00-00|1970-01-01[T ]00:00:00)").fill_null(
        False
    )


def map_texts(
    column: pl.Series, read: Callable[[str], Value | None], kind: pl.DataType
) -> pl.Series:
    """Apply a function to each text of a column; it is called once for each distinct text."""
    texts = column.drop_nulls().unique().to_list()
    values = {text: read(text) for text in texts}
    return pl.Series(column.name, [values.get(text) for text in column], dtype=kind)


def time_zone(name: str) -> str:
    """Return the name of a time zone; raise `InputError` if there is no such zone."""
    try:
        ZoneInfo(name)
        # polars has a list of its own, without names of files such as localtime.
        _EPOCH.dt.replace_time_zone(name, ambiguous="earliest", non_existent="null")
    except (ZoneInfoNotFoundError, ValueError, OSError, pl.exceptions.ComputeError) as error:
        message = f"{quote_for_display(name)} is not a valid time zone"
        raise InputError(Fault("timezone", message, _zone_hint(name))) from error
    return name


def _zone_hint(name: str) -> str:
    """Return the hint for an unknown zone."""
    if name.lower() in _MACHINE_ZONES:  # a log's zone must not depend on who reads the log
        own = _machine_zone()
        if own:
            return f"write its name: this machine's is {own}"
        return "write its name, such as Europe/Berlin"
    found = _find_zone(name.lower())
    return f"did you mean {found!r}?" if found else "write one such as Europe/Berlin"


def _machine_zone() -> str:
    """Return the name of the zone of this machine, or an empty string if it isn't known."""
    stated = os.environ.get("TZ", "").removeprefix(":")
    linked = str(Path("/etc/localtime").resolve()).partition("zoneinfo/")[2]
    return next((_find_zone(zone.lower()) for zone in (stated, linked) if zone), "")


TIME_PROBLEMS: Final[Mapping[str, tuple[str, str]]] = {
    "skipped": (
        "is a time that the clock of {zone} skipped",
        "if the log has other times, change timezone=ZONE of the trace",
    ),
    "rounded": (
        "has lost its last digits",
        "format the cells as numbers without decimals before you save them",
    ),
    "outside": (OUT_OF_RANGE_DATE, "check which columns are times"),
    "unclear": (
        "has an unknown or ambiguous time zone",
        "write its offset, such as -07:00, or add the zone that has it: timezone=America/Denver",
    ),
    "off_season": (
        "has a time zone that isn't in force at that time",
        "write its offset, such as +01:00; CET is the zone's time in winter, CEST in summer",
    ),
}
"""Message and hint by problem of a time; ``{zone}`` is the zone of times without an offset."""


@dataclass(frozen=True, slots=True)
class Times:
    """Points in time of one column, in seconds since 1970 or since an unknown beginning.

    If a local clock showed a time twice, at the end of daylight saving time, ``seconds`` has the
    earlier meaning and ``later`` the later one; else both are equal.
    """

    seconds: pl.Series
    later: pl.Series
    absolute: bool  # whether the seconds count from 1970
    problem: pl.Series  # a key of `TIME_PROBLEMS` for a time that can be read but isn't valid
    missing: pl.Series  # whether a value stands for a missing time; its seconds are null
    zero: pl.Series  # whether a time is written as the number 0 or -1, in any unit
    may_miss: bool = False  # whether values of the column may stand for missing times


def choose_readings(
    times: Mapping[str, Times], elapsed: pl.Series, skew: float
) -> dict[str, pl.Series]:
    """Return the seconds of a log's columns, with the likeliest readings of repeated local times.

    The likeliest readings of a row are in order, and ``end`` minus ``start`` agrees with the run
    time. Of several, the earliest are chosen. ``times`` has the columns in the order in which they
    happen. ``elapsed`` is the run time in seconds, null if unknown. ``skew`` is the number of
    seconds by which clocks may differ.
    """
    if not times:
        return {}
    columns = {name: column.seconds.to_list() for name, column in times.items()}
    repeated = pl.DataFrame({f"{i}": t.seconds != t.later for i, t in enumerate(times.values())})
    # Only a few rows fall into the repeated hour, so that a loop over them is fast.
    rows = repeated.select(pl.any_horizontal(pl.all().fill_null(False))).to_series().arg_true()
    for row in rows:
        readings = [
            (column.seconds[row], column.later[row])
            if column.seconds[row] != column.later[row]
            else (column.seconds[row],)
            for column in times.values()
        ]

        def contradictions(values: Sequence[float | None], row: int = row) -> tuple[int, bool]:
            stated = [value for value in values if value is not None]
            disorder = sum(later < earlier - skew for earlier, later in pairwise(stated))
            by_name = dict(zip(times, values, strict=True))
            start, end, span = by_name.get("start"), by_name.get("end"), elapsed[row]
            if start is None or end is None or span is None:
                return disorder, False
            return disorder, abs(end - start - span) > skew

        best = min(product(*readings), key=contradictions)
        for name, value in zip(times, best, strict=True):
            columns[name][row] = value
    return {
        name: pl.Series(times[name].seconds.name, values, dtype=pl.Float64())
        for name, values in columns.items()
    }


def read_times(
    column: pl.Series,
    zone: str,
    order: Order,
    location: str,
    unit: float = 1.0,
    *,
    may_miss: bool = False,
) -> Times:
    """Read a column of times in any usual form; local times are those of a zone.

    The size of a number since 1970 shows whether it is in seconds, milliseconds, microseconds or
    nanoseconds. Smaller numbers are multiples of ``unit`` seconds. ``order`` says which number of
    3/4/2024 is the day, if the column itself doesn't show it. If times ``may_miss``, these stand
    for missing times: 0, -1, largest integers, and the dates 0001-01-01, 1900-01-01 and 9999-12-31
    in any of these units.

    Raises `InputError` if days and months can't be distinguished.
    """
    text = column.to_frame("text").select(
        pl.when(~is_nothing(pl.col("text"))).then(
            pl.col("text").str.strip_chars().str.replace_all(r"\s+", " ")
        )
    )["text"]
    for pattern, replacement in _REWRITTEN:
        text = text.str.replace(pattern, replacement)
    numbers = text.cast(pl.Float64, strict=False)
    # 20240305 is a date if all values look so, or if some value isn't a number; else a number.
    looks_like_date = text.str.contains(r"^(?:19|20)\d{2}(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])$")
    are_dates = bool(looks_like_date.drop_nulls().all()) or numbers.null_count() > text.null_count()
    is_number = numbers.is_not_null() & ~(looks_like_date.fill_null(False) & are_dates)
    is_zero = numbers.is_in([0.0, -1.0]).fill_null(False)
    has_texts = is_number.sum() < text.is_not_null().sum()
    naive, suffix = _naive(text, order, location) if has_texts else (text.clear(len(text)), text)
    if not has_texts or (is_number.any() and naive.null_count() == len(naive)):  # only numbers
        seconds = _scale_numbers(numbers, unit).alias(column.name)
        is_distant = _distant_numbers(numbers, unit)
        is_absolute = bool((seconds.filter(~is_distant) >= FIRST_ABSOLUTE).any())
        is_rounded = is_absolute and _are_rounded(text, numbers, seconds)
        rounded = pl.lit("rounded" if is_rounded else None, dtype=pl.String())
        problem = _evaluate(pl.when(text.is_not_null()).then(rounded))
        missing = is_distant | (is_zero & is_absolute) if may_miss else _none_of(text)
        return _within_range(
            Times(seconds, seconds, is_absolute, problem, missing, is_zero, may_miss)
        )
    is_zero &= is_number
    scaled = _scale_numbers(numbers, unit)
    readings = []
    zone_problem = pl.Series([None] * len(text), dtype=pl.String())
    for ambiguous in _READINGS:
        local = naive.dt.replace_time_zone(zone, ambiguous=ambiguous, non_existent="null")
        shift, zone_problem = _offsets(naive, suffix, zone, ambiguous)
        read = (
            pl.when(is_number)
            .then(scaled)
            .when(zone_problem.is_not_null())
            .then(None)
            .when(suffix.is_null())
            .then(local.dt.epoch("us") / 1e6)
            .otherwise(naive.dt.epoch("us") / 1e6 - shift)
        )
        readings.append(_evaluate(read).alias(column.name))
    earlier, later = readings
    skipped = pl.when(naive.is_not_null() & earlier.is_null()).then(pl.lit("skipped"))
    problem = _evaluate(pl.coalesce(zone_problem, skipped))
    missing = _none_of(text)
    if may_miss:
        is_distant = _distant_numbers(_evaluate(pl.when(is_number).then(numbers)), unit)
        missing = is_distant | is_zero | _distant_texts(earlier)
    return _within_range(Times(earlier, later, True, problem, missing, is_zero, may_miss))


def _are_rounded(text: pl.Series, numbers: pl.Series, seconds: pl.Series) -> bool:
    """Return whether all times of a column are rounded to a minute or more, such as 1.7E+12."""
    frame = pl.DataFrame({"text": text, "number": numbers, "seconds": seconds})
    stated = frame.filter(pl.col("number").is_not_null() & ~pl.col("number").is_in([0.0, -1.0]))
    decimals = pl.col("text").str.extract(r"\.(\d*)[eE]").str.len_chars().fill_null(0)
    exponent = pl.col("text").str.extract(r"[eE]\+?(-?\d{1,3})$").cast(pl.Int64)
    step = pl.lit(10.0).pow(exponent - decimals.cast(pl.Int64))
    is_coarse = step * (pl.col("seconds") / pl.col("number")).abs() >= 60.0
    return bool(len(stated)) and bool(stated.select(is_coarse.fill_null(False).all()).item())


def _evaluate(expression: pl.Expr) -> pl.Series:
    """Return the values of an expression of series."""
    return pl.select(expression).to_series()


def _none_of(text: pl.Series) -> pl.Series:
    return pl.repeat(False, len(text), dtype=pl.Boolean(), eager=True)


def _is_distant_date(time: pl.Expr) -> pl.Expr:
    """Return whether seconds since 1970 are of a distant date, in any time zone."""
    zone = 3600.0 * MAX_OFFSET_HOURS
    return pl.any_horizontal(
        time.is_between(day - zone, day + 86400.0 + zone) for day in _DISTANT_DATES
    )


def _distant_numbers(numbers: pl.Series, unit: float) -> pl.Series:
    """Return which numbers are distant dates that stand for missing times, in any unit."""
    # The size of such a number doesn't show its unit: 253402214400 s look like milliseconds.
    number = pl.col("n")
    units = dict.fromkeys((1.0, 1.0 / unit, *(per_second for _, per_second in _SIZES)))
    is_distant = pl.any_horizontal(_is_distant_date(number / per_second) for per_second in units)
    is_distant |= number.is_in(_MISSING_NUMBERS)
    return numbers.to_frame("n").select(is_distant.fill_null(False))["n"]


def _distant_texts(seconds: pl.Series) -> pl.Series:
    """Return which written times stand for missing ones: distant dates, and the zero of a clock."""
    time = pl.col("s")
    # 0 or -1 in 1970 (-1 % 900 is 899), in a time zone: offsets are quarters of hours. If no other
    # time is later than March 1973, the log counts from 0, and 0 is a time.
    is_zero = (time.abs() <= 3600.0 * MAX_OFFSET_HOURS) & (time % 900.0).is_in([0.0, 899.0])
    is_missing = _is_distant_date(time) | (is_zero & (time.abs() >= FIRST_ABSOLUTE).any())
    return seconds.to_frame("s").select(is_missing.fill_null(False))["s"]


def on_one_clock(times: Mapping[str, Times]) -> dict[str, Times]:
    """Return a log's times on one clock.

    If any column counts from 1970, times of the columns that don't get the problem ``outside``.
    """
    if not any(column.absolute for column in times.values()):
        return dict(times)
    clocks = dict(times)
    for name, column in times.items():
        if not column.absolute:
            other = replace(column, missing=column.missing | column.zero)
            clocks[name] = _without_invalid(other, column.seconds.is_null())
    return clocks


def are_serial_dates(times: Iterable[Times]) -> bool:
    """Return whether a log's times look like the serial dates of spreadsheets.

    A serial date such as 45356.25 is a number of days since 1899-12-30. All times must be of 1954
    to 2119, and each column must have fractions. Dates that stand for missing times are ignored.
    """
    columns = [_without_serial_sentinels(column) for column in times if not column.absolute]
    filled = [seconds for seconds in columns if len(seconds)]
    return bool(filled) and all(
        seconds.is_between(*_SERIAL_DATES).all() and (seconds % 1.0 != 0).any()
        for seconds in filled
    )


def _without_serial_sentinels(times: Times) -> pl.Series:
    seconds = times.seconds.drop_nulls()
    if not times.may_miss:
        return seconds
    is_sentinel = seconds.is_in(_SERIAL_SENTINELS) | seconds.is_between(*_LAST_SERIAL_DAY)
    return seconds.filter(~is_sentinel)


def _within_range(times: Times) -> Times:
    """Remove times that are too large, or before 1970; they have the problem ``outside``."""
    least = 0.0 if times.absolute else -bounds.SECONDS.maximum
    is_valid = times.seconds.is_between(least, bounds.SECONDS.maximum).fill_null(True)
    return _without_invalid(times, is_valid & ~times.missing)


def _without_invalid(times: Times, is_valid: pl.Series) -> Times:
    seconds, later = (
        _evaluate(pl.when(is_valid).then(values)).alias(times.seconds.name)
        for values in (times.seconds, times.later)
    )
    is_outside = ~is_valid & ~times.missing
    named = pl.when(is_outside).then(pl.lit("outside")).otherwise(times.problem)
    problem = _evaluate(pl.when(~times.missing).then(named))
    return replace(times, seconds=seconds, later=later, problem=problem)


def _scale_numbers(numbers: pl.Series, unit: float) -> pl.Series:
    """Return numbers as seconds: large ones in the unit of their size, others in ``unit``."""
    size = numbers.abs()
    per_second = pl.when(size < FIRST_ABSOLUTE).then(1.0 / unit).otherwise(1.0)
    for least, parts in reversed(_SIZES):
        per_second = pl.when(size > least).then(parts).otherwise(per_second)
    return _evaluate(numbers / per_second)


def _naive(text: pl.Series, order: Order, location: str) -> tuple[pl.Series, pl.Series]:
    """Return times without time zone, and the offset or zone that each ends with, in lower case."""
    suffix = text.str.extract(f"({_OFFSET})", 1).str.strip_chars().str.to_lowercase()
    bare = text.str.replace(_OFFSET, "")
    # The year of 25-03-2024 isn't an offset.
    is_date = suffix.str.contains(r"^-\d{4}$") & ~bare.str.contains(":", literal=True)
    has_suffix = suffix.is_not_null() & ~is_date.fill_null(False)
    bare = _evaluate(pl.when(has_suffix).then(bare).otherwise(text))
    suffix = _evaluate(pl.when(has_suffix).then(suffix))
    # 24:00 is the end of a day.
    is_midnight = bare.str.contains(_MIDNIGHT).fill_null(False)
    bare = bare.str.replace(_MIDNIGHT, " 00:00${1}")
    # The sample is from all of the log, because its first weeks may not show which number is the
    # day.
    distinct = bare.drop_nulls().unique(maintain_order=True)
    sample = distinct.gather_every(max(1, len(distinct) // _SAMPLE))
    forms = _forms(sample, order, location)
    parsed = pl.Series("t", [None] * len(bare), dtype=pl.Datetime("us"))
    for form in forms:
        if parsed.null_count() == bare.null_count():
            break
        parsed = _evaluate(pl.coalesce(parsed, _parse_times(bare, form)))
    next_day = pl.lit(parsed) + pl.duration(days=1)
    return _evaluate(pl.when(is_midnight).then(next_day).otherwise(parsed)), suffix


def _offsets(
    naive: pl.Series, suffix: pl.Series, zone: str, ambiguous: Reading
) -> tuple[pl.Series, pl.Series]:
    """Return the offsets from UTC, in seconds, of times with a time zone, and problems of zones.

    If an abbreviation is in force in ``zone`` at the time, it is read as ``zone``'s. Otherwise it
    is read if it has only one meaning (`_ZONES`).
    """
    stated = map_texts(suffix, _offset_seconds, pl.Float64())
    rows = pl.DataFrame({"naive": naive, "name": suffix, "offset": stated})
    is_named = pl.col("offset").is_null() & pl.col("name").is_not_null()
    is_named &= pl.col("naive").is_not_null()
    named = rows.select(is_named).to_series()
    rows = rows.with_columns(problem=pl.when(named).then(pl.lit("unclear")))
    if not named.any():
        return rows["offset"], rows["problem"]
    # Each meaning of a repeated hour has its own abbreviation, which decides, as CET and CEST do.
    other = _READINGS[ambiguous == _READINGS[0]]
    for name in rows.filter(named)["name"].unique():
        known_zone = _ZONES.get(name) or (_find_zone(name) if "/" in name else "")
        if known_zone:
            has_name = pl.lit(named) & (pl.col("name") == name)
            if "/" in name:
                offset = pl.lit(_in_zone(naive, known_zone, ambiguous)[1])
            else:
                offset = _offset_of_name(naive, known_zone, (ambiguous, other))
            problem = pl.when(offset.is_null()).then(pl.lit("off_season"))
            rows = rows.with_columns(
                offset=pl.when(has_name).then(offset).otherwise("offset"),
                problem=pl.when(has_name).then(problem).otherwise("problem"),
            )
    in_own = pl.when(pl.lit(named)).then(_offset_of_name(naive, zone, (ambiguous, other)))
    rows = rows.with_columns(
        offset=pl.coalesce(in_own, "offset"), problem=pl.when(in_own.is_null()).then("problem")
    )
    return rows["offset"], rows["problem"]


def _offset_of_name(naive: pl.Series, zone: str, readings: Sequence[Reading]) -> pl.Expr:
    """Return the offset of rows whose ``name`` is in force in a zone at their time, else null."""
    offsets = []
    for reading in readings:
        abbreviation, offset = _in_zone(naive, zone, reading)
        offsets.append(pl.when(pl.col("name") == pl.lit(abbreviation)).then(pl.lit(offset)))
    return pl.coalesce(offsets)


def _in_zone(naive: pl.Series, zone: str, ambiguous: Reading) -> tuple[pl.Series, pl.Series]:
    """Return the abbreviations of a zone at its local times, and its seconds from UTC."""
    local = naive.dt.replace_time_zone(zone, ambiguous=ambiguous, non_existent="null")
    offset = (naive.dt.epoch("ms") - local.dt.epoch("ms")) / 1000.0
    return local.dt.strftime("%Z").str.to_lowercase(), offset


def _find_zone(name: str) -> str:
    """Return the time zone of a name in lower case, or an empty string."""
    return _zones_by_name().get(name, "")


@cache
def _zones_by_name() -> Mapping[str, str]:
    return {zone.lower(): zone for zone in available_timezones() - _FILES_OF_ZONES}


def _forms(sample: pl.Series, order: Order, location: str) -> list[str]:
    """Return the forms in which times of a sample are written, the most frequent first."""
    frame = sample.to_frame("text")

    def counts(dates: Iterable[str], clocks: Sequence[str] = _CLOCKS) -> dict[str, int]:
        forms = [date + clock for date, clock in product(dates, clocks)]
        valid = [(_time_of_form(form).dt.year() >= 1000).sum().alias(form) for form in forms]
        # One query for all forms, because a query costs more than parsing a few dozen texts.
        read = frame.select(valid).row(0)
        return {form: count for form, count in zip(forms, read, strict=True) if count}

    frequencies = counts(_ISO_DATES) | counts(_NAMED_DATES) | counts(_CTIMES, [""])
    if sum(frequencies.values()) < len(sample):
        days, months = counts(_DAY_FIRST), counts(_MONTH_FIRST)
        frequencies |= _day_or_month_first(days, months, order, location)
    return sorted(frequencies, key=frequencies.__getitem__, reverse=True)


def _time_of_form(form: str) -> pl.Expr:
    return pl.col("text").str.strptime(pl.Datetime("us"), form, strict=False)


def _parse_times(texts: pl.Series, form: str) -> pl.Series:
    """Return the times that have a form; the year 24, which %Y accepts, isn't valid."""
    times = texts.to_frame("text").select(t=_time_of_form(form))
    return times.select(pl.when(pl.col("t").dt.year() >= 1000).then("t"))["t"]


def date_order(columns: Iterable[pl.Series]) -> tuple[Order, str]:
    """Return the order of days and months, and a column with a number above 12 that shows it.

    Both are empty if no column shows an order, or columns show different ones.
    """
    shown_by: dict[Order, str] = {}
    for texts in columns:
        first, second = (
            texts.str.extract(_NUMERIC_DATE, group).cast(pl.Int64, strict=False) for group in (1, 2)
        )
        if (first > 12).any():
            shown_by.setdefault("dmy", texts.name)
        if (second > 12).any():
            shown_by.setdefault("mdy", texts.name)
    return next(iter(shown_by.items())) if len(shown_by) == 1 else ("", "")


def _day_or_month_first(
    day_first: dict[str, int], month_first: dict[str, int], order: Order, location: str
) -> dict[str, int]:
    if order:
        return day_first if order == "dmy" else month_first
    days, months = sum(day_first.values()), sum(month_first.values())
    if days == months and days:
        message = "days and months can't be distinguished"
        raise InputError(Fault(location, message, "add dates=dmy or dates=mdy to the trace"))
    return day_first if days > months else month_first


def _offset_seconds(text: str) -> float | None:
    if text in {"z", "utc", "gmt"}:
        return 0.0
    if text[0] not in "+-":
        return None
    hours, minutes = int(text[1:3]), int(text[-2:])
    if hours > MAX_OFFSET_HOURS or minutes >= 60:
        return None
    return (3600.0 * hours + 60.0 * minutes) * (-1 if text[0] == "-" else 1)


def parse_seconds(text: str, unit: float = 1.0) -> float | None:
    """Return a duration in seconds, or None if the text isn't a duration.

    It may be a number (of ``unit`` seconds), ``h:mm:ss``, ``mm:ss``, Slurm's ``d-hh:mm:ss``,
    Python's ``1 day, 2:03:04``, ISO 8601's ``PT1H30M``, or have units, such as ``2h30m``.
    """
    text = text.strip()
    number = parse_number(text)
    if number is not None:
        return number * unit
    if _NUMBER.fullmatch(text):
        return float(text) * unit  # negative: the importer refuses it with its row
    clock = _DAYS_CLOCK.fullmatch(text)
    if clock is not None:
        return _clock_seconds(clock)
    iso = _ISO_SPAN.fullmatch(text.upper())
    if iso is not None and len(text) > 2:
        return sum(
            float((number or "0").replace(",", ".")) * UNIT_SECONDS[unit]
            for unit, number in iso.groupdict().items()
        )
    if re.fullmatch(r"\d+-\d{1,2}", text):  # Slurm's limit of days and hours
        days, hours = text.split("-")
        return float(days) * 86400.0 + float(hours) * 3600.0
    text = text.lower().replace("(s)", "s")  # LSF's 60 second(s)
    parts = _UNITS.findall(text)
    separators = _UNITS.sub("", text).replace("and", "").strip(" ,")
    if not parts or separators or any(unit not in UNIT_SECONDS for _, unit in parts):
        return None
    return sum(float(number) * UNIT_SECONDS[unit] for number, unit in parts)


def _clock_seconds(clock: re.Match[str]) -> float:
    # As floats, because Python refuses to convert thousands of digits to an integer.
    first, second, third = float(clock["first"]), int(clock["second"]), clock["third"]
    days = 86400.0 * float(clock["days"] or 0)
    fraction = float((clock["fraction"] or "0").replace(",", "."))
    if third is not None:
        return days + 3600.0 * first + 60.0 * second + int(third) + fraction
    if clock["days"]:  # d-hh:mm
        return days + 3600.0 * first + 60.0 * second
    return 60.0 * first + second + fraction


def parse_bytes(text: str, unit: float = 1.0) -> int | None:
    """Return memory in bytes; letters are powers of 1024, as in Slurm. None if it isn't memory."""
    match = _MEMORY.fullmatch(text.strip())
    if match is None:
        return None
    number, letter, _ = match.groups()
    size = 1024 ** _POWERS[letter.lower()] if letter else unit
    amount = float(number) * size
    return int(amount) if amount < 2**63 else None  # a column of integers is 64 bits wide


def memory_scope(text: str) -> str | None:
    """Return the scope of memory: ``n`` for ``64Gn`` (per node), ``c`` for ``4000Mc`` (per core).

    It is None for memory without a scope.
    """
    match = _MEMORY.fullmatch(text.strip())
    return None if match is None else match[3].lower() or None


def parse_number(text: str) -> float | None:
    """Return a number of at least 0; commas may separate thousands, or decimals (``1,5``)."""
    text = text.strip()
    if _GROUPED.fullmatch(text):
        text = re.sub(r"[ \u00a0\u202f'\u2019]", "", text).replace(",", ".")
    if re.fullmatch(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?", text):
        text = text.replace(",", "")
    elif re.fullmatch(r"\d+,\d+", text):
        text = text.replace(",", ".")
    return float(text) if _NUMBER.fullmatch(text) and float(text) >= 0 else None


def with_points(texts: pl.Series) -> pl.Series:
    """Write the numbers of a column with decimal points, if any of them has a decimal comma.

    ``1,000`` is a thousand only if no other number of its column shows that commas are decimal. If
    other numbers show that points are decimal, too, ``1,000`` stays as it is.
    """
    text = pl.col("t")
    has_comma = text.str.contains(_COMMA_NUMBERS)
    shown = texts.to_frame("t").select(
        point=text.str.contains(_POINT_NUMBERS).any(), comma=has_comma.any()
    )
    if not shown["comma"].item():
        return texts
    is_rewritten = has_comma if shown["point"].item() else pl.lit(True)
    number = text.str.extract(_COMMA_NUMBER, 1).str.replace_all(".", "", literal=True)
    decimals, unit = text.str.extract(_COMMA_NUMBER, 2), text.str.extract(_COMMA_NUMBER, 3)
    whole = text.str.replace_all(".", "", literal=True)
    return texts.to_frame("t").select(
        pl.when(is_rewritten & number.is_not_null())
        .then(pl.concat_str(number, pl.lit("."), decimals, unit))
        .when(is_rewritten & text.str.contains(_POINTS_ONLY))
        .then(whole)
        .otherwise(text)
        .alias(texts.name)
    )[texts.name]


def parse_gpus(text: str, *, is_list: bool = False) -> Tres | None:
    """Return GPUs from a count, ``gpu:a100:2``, ``2 x a100`` or a TRES list; else None.

    If ``is_list``, the column lists resources of all kinds, and an unknown word isn't a GPU type.
    """
    text = _GPU_NUMBER.sub("gpu", re.sub(r" *([:=]) *", r"\1", text.strip()))
    number = parse_number(text)
    if number is not None:
        return Tres(gpus=number)
    counted = _COUNTED.fullmatch(text)
    if counted is not None:
        return Tres(gpus=float(counted["count"]))
    is_other = _OTHER_GRES.match(text) is not None
    if not is_list and not is_other:
        for pattern in _TYPED:
            typed = pattern.fullmatch(text)
            if typed is not None and typed["type"].lower() not in _NO_TYPES:
                gpu_type, share = split_slice(typed["type"])
                count = float(typed["count"]) * (share or 1.0)
                return Tres(gpus=count, gpu_type=gpu_type, has_slices=share is not None)
    named = re.search(r"gpu|gres", text, re.IGNORECASE)
    is_share = _SHARES.match(text) or _SLICE_RESOURCE.match(text)
    if "=" not in text and not named and not (is_other and is_list) and not is_share:
        return None
    return parse_tres(text)


def split_slice(gpu_type: str) -> tuple[str | None, float | None]:
    """Split a GPU type into the type and its MIG slice's share of a GPU; either may be None."""
    match = _SLICE.search(gpu_type)
    if match is None:
        return gpu_type, None
    slices, memory = match["compute"] or match["slices"], match["memory"]
    if (match["slices"], memory) in _QUARTERED:
        share = int(slices) / 4
    else:
        share = _SLICE_SHARES.get(slices, 1.0)
    return gpu_type[: match.start()].strip("_. -") or None, share


def parse_tres(text: str) -> Tres | None:
    """Return the resources of a TRES or GRES list; None if an item can't be read."""
    tres = _read_tres(text)
    return None if isinstance(tres, str) else tres


def tres_columns(tres: Iterable[Tres | None]) -> list[pl.Series]:
    """Return columns of resources. ``_gpus`` is null for None, and 0 for a list without GPUs."""
    columns: dict[str, pl.DataType] = {
        "gpu_type": pl.String(),
        "cpus": pl.Float64(),
        "memory": pl.Int64(),
        "has_shares": pl.Boolean(),
        "has_slices": pl.Boolean(),
    }
    rows = list(tres)
    gpus = pl.Series("_gpus", [row and (row.gpus or 0.0) for row in rows], dtype=pl.Float64())
    held = [row or _NO_TRES for row in rows]
    return [gpus] + [
        pl.Series(f"_{name}", [getattr(row, name) for row in held], dtype=kind)
        for name, kind in columns.items()
    ]


def invalid_item(text: str) -> str | None:
    """Return the first item of a TRES or GRES list that can't be read, or None."""
    tres = _read_tres(text)
    return tres if isinstance(tres, str) else None


def _read_tres(text: str) -> Tres | str:
    """Return the resources of a list, or its first item that can't be read."""
    total: float | None = None  # GPUs without a type: Slurm lists them beside the types
    typed: dict[str | None, float] = {}
    shares = 0.0  # GPUs in slices that aren't listed as GPUs
    excess = 0.0  # slices that are listed as GPUs, minus their GPUs
    amounts: dict[str, float | int | None] = {}
    scopes: set[str] = set()
    has_shares = has_slices = False
    # Commas within (IDX:0-1,4) don't separate items.
    for part in re.split(r",(?![^(]*\))", text.strip().removesuffix(",")):
        scope = _SCOPE.match(part.strip())
        item = _GPU_NUMBER.sub("gpu", _SCOPE.sub("", part.strip(), count=1))
        name, _, amount = item.partition("=")
        gpu = _GPU.fullmatch(item)
        resource = _SLICE_RESOURCE.fullmatch(item)
        share = split_slice(resource["profile"])[1] if resource else None
        if resource and share is not None:
            shares += share * float(resource["count"])
            has_slices = True
        elif gpu is not None:
            count = float(gpu["count"] or 1)
            scopes.add(scope["scope"].lower() if scope else "")
            if gpu["type"]:
                gpu_type, share = split_slice(gpu["type"])
                has_slices |= share is not None
                share = 1.0 if share is None else share
                typed[gpu_type] = typed.get(gpu_type, 0.0) + count * share
                excess += count * (1.0 - share)
            else:
                total = (total or 0.0) + count
        elif name.lower() in _TRES_NAMES:
            kind = _TRES_NAMES[name.lower()]
            amounts[kind] = parse_bytes(amount, 1024.0**2) if kind == "mem" else parse_count(amount)
            if amounts[kind] is None:
                return part.strip()
        elif not _OTHER.fullmatch(item):
            return part.strip()
        has_shares |= _SHARES.match(item) is not None
    if excess and total is not None:  # Slurm's total counts slices as GPUs
        total = max(total - excess, sum(typed.values()))
    if total is None and typed:
        total = sum(typed.values())
    if shares:
        total = (total or 0.0) + shares
    types = sorted(name for name, count in typed.items() if name and count)
    memory = amounts.get("mem")
    return Tres(
        total,
        "|".join(types) or None,
        amounts.get("cpu"),
        None if memory is None else int(memory),
        gpus_per="several" if len(scopes) > 1 else next(iter(scopes), ""),
        has_shares=has_shares,
        has_slices=has_slices,
    )


def parse_count(text: str) -> float | None:
    """Return a number of cores or nodes; None if it isn't one, or has more than nine digits."""
    match = _COUNT.fullmatch(text.strip())
    if match is None:
        return None
    return float(match[1]) * 1024.0 ** _POWERS[match[2].lower()]


def parse_state(text: str) -> str | None:
    """Return one of `records.STATUSES` for a word or exit code; None if it is unknown."""
    if _NUMBER.fullmatch(text.strip()):
        return "passed" if float(text) == 0 else "failed"
    if re.fullmatch(r"\d{1,3}:\d{1,3}", text.strip()):
        return "passed" if text.strip() == "0:0" else "failed"
    words = re.sub(
        r"^(?:job_)?(?:state|status)_", "", text.strip().lower().replace("-", "_").rstrip("+")
    )
    return _STATES.get(words) or _STATES.get(words.split(" ")[0].rstrip("+"))

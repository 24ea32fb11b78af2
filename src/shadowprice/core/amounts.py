"""Exact quantities with units, stored as integers.

Amounts of resources are int64 everywhere outside this module: counts in thousandths, memory and
storage in bytes, bandwidth in bit/s. No capacity check compares floats. Durations are exact
fractions of a second, and are converted to slots once the slot length is known.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from fractions import Fraction
from typing import Final

from shadowprice.core import bounds
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.wording import quote_for_display

MILLI: Final = 1000
"""Integer amounts per counted unit (a GPU, a core, a task slot)."""

UNLIMITED: Final = 2**62
"""Capacity of a resource that a server doesn't limit, such as undeclared bandwidth."""

MAX_AMOUNT: Final = 2**52
"""Maximum amount accepted from a file, so that sums over a cluster fit into int64."""


MIN_DURATION_SECONDS: Final = Fraction(1, 10**9)
"""Shortest positive duration, in seconds or slots; shorter ones underflow in floating point."""


class Dimension(Enum):
    """The dimension of an amount; amounts of different dimensions can't be compared."""

    COUNT = "count"
    BYTES = "bytes"
    RATE = "rate"


EXAMPLE_AMOUNTS: Final = {Dimension.COUNT: "8", Dimension.BYTES: "8GB", Dimension.RATE: "8Gbps"}
"""What hints of errors show for each dimension."""


@dataclass(frozen=True, slots=True)
class Amount:
    """An exact amount of a resource; ``value`` is in thousandths (counts), bytes, or bit/s."""

    value: int
    dimension: Dimension

    def __str__(self) -> str:
        return format_amount(self.value, self.dimension)


@dataclass(frozen=True, slots=True)
class Duration:
    """A time span: the sum of seconds and of slots of unknown length.

    ``on_clock`` says whether it was written in units of time. If such a span follows a submission,
    it ends with the completion slot's end (see `core.moments`).
    """

    seconds: Fraction = Fraction(0)
    slots: Fraction = Fraction(0)
    on_clock: bool = field(default=False, compare=False)

    def in_seconds(self, slot_seconds: Fraction) -> Fraction:
        """Convert the span to seconds."""
        return self.seconds + self.slots * slot_seconds

    def in_slots(self, slot_seconds: Fraction) -> Fraction:
        """Convert the span to slots of ``slot_seconds`` each."""
        return self.slots + self.seconds / slot_seconds


@dataclass(frozen=True, slots=True)
class Rate:
    """A change per unit of time such as ``h``, or per slot if the unit is empty."""

    number: Fraction
    unit: str = ""

    def per_slot(self, slot_seconds: Fraction) -> float:
        """Convert the rate to slots of ``slot_seconds`` each."""
        if not self.unit:
            return float(self.number)
        return float(self.number * slot_seconds / _TIME_UNITS[self.unit])


_TIME_UNITS: Final[Mapping[str, Fraction]] = {
    "us": Fraction(1, 1_000_000),
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "sec": Fraction(1),
    "m": Fraction(60),
    "min": Fraction(60),
    "h": Fraction(3600),
    "d": Fraction(86_400),
    "w": Fraction(604_800),
}
_BYTE_UNITS: Final[Mapping[str, int]] = {
    "B": 1,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "PB": 10**15,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
    "PiB": 2**50,
}
_RATE_UNITS: Final[Mapping[str, int]] = {
    "bps": 1,
    "kbps": 10**3,
    "Kbps": 10**3,
    "Mbps": 10**6,
    "Gbps": 10**9,
    "Tbps": 10**12,
}
_QUANTITY: Final = re.compile(
    r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?)\s*([A-Za-z]*)\s*"
)
LEADING_ZERO: Final = re.compile(r"\s*[-+]?0[0-9_]+\s*")
"""An integer with a leading zero: octal for YAML 1.1, decimal for YAML 1.2, so ambiguous."""
_RATE_HELP = "write 0.5 for a change per slot, or 0.5/h for one per hour"
_DURATION_HELP = "write it with a unit: 90s, 20min, 6h, 2d, 250ms or '3 slots'"
_AMOUNT_HELP = "write a plain number for a count, bytes as 16GiB or 241MB, a rate as 10Gbps"


def _split(text: str, what: str = "quantity", help_: str = _AMOUNT_HELP) -> tuple[Fraction, str]:
    # Check the length first, because parsing a million digits takes too long.
    match = _QUANTITY.fullmatch(text) if len(text) <= bounds.QUANTITY.maximum else None
    if match is None:
        raise InputError(f"{quote_for_display(text)} is not a {what}; {help_}")
    return Fraction(match[1]), match[2]


def parse_duration(value: object) -> Duration:
    """Parse a duration such as ``90s``, ``20min``, ``250ms`` or ``0.05 slots``, exactly.

    Raises InputError if the value isn't a string, the unit is missing or unknown, or the span is
    negative, too short or too long.
    """
    if not isinstance(value, str):
        raise InputError(
            f"{quote_for_display(value)} is a duration without a unit; {_DURATION_HELP}"
        )
    number, unit = _split(value, "duration", _DURATION_HELP)
    if number < 0:
        raise InputError(f"{value!r} is negative; durations start at 0")
    if unit in ("slot", "slots"):
        if 0 < number < MIN_DURATION_SECONDS:
            raise InputError(f"{value!r} is shorter than a billionth of a slot; write 0 slots")
        if number > bounds.SLOT.maximum:
            raise InputError(f"{value!r}: {bounds.SLOT.message(int(number))}")
        return Duration(slots=number)
    if unit not in _TIME_UNITS:
        problem = f"has the unknown unit {unit!r}" if unit else "is a duration without a unit"
        raise InputError(f"{value!r} {problem}; {_DURATION_HELP}")
    seconds = number * _TIME_UNITS[unit]
    if 0 < seconds < MIN_DURATION_SECONDS:
        raise InputError(f"{value!r} is shorter than a nanosecond; write 0s, or at least 1e-9s")
    if seconds > bounds.SECONDS.maximum:
        raise InputError(f"{value!r}: {bounds.SECONDS.message(int(seconds))}")
    return Duration(seconds=seconds, on_clock=True)


def parse_positive_duration(value: object, location: str, example: str) -> Fraction:
    """Parse a positive duration in units of time; return seconds.

    ``location`` is the location for error messages, such as ``--keep``, and ``example`` a valid
    value for the hint. Raises InputError if the value isn't a duration, is in slots, or is 0.
    """
    try:
        duration = parse_duration(value)
    except InputError as error:
        raise InputError(Fault(location, str(error))) from error
    if duration.slots:
        raise InputError(
            Fault(location, f"{value!r} is in slots, not on the clock", f"write {example}")
        )
    if not duration.seconds:
        raise InputError(Fault(location, f"{value!r} is not a positive time", f"write {example}"))
    return duration.seconds


def parse_rate(value: object) -> Rate:
    """Parse a change per time: ``0.5`` per slot, or ``0.5/h`` per hour.

    Raises InputError if it is neither, is too large, or its unit is unknown.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise InputError(f"{quote_for_display(value)} is not a rate; {_RATE_HELP}")
    text = value if isinstance(value, str) else _number_text(value)
    written, slash, unit = (part.strip() for part in text.partition("/"))
    match = _QUANTITY.fullmatch(written) if len(text) <= bounds.QUANTITY.maximum else None
    if match is None or match[2]:
        raise InputError(f"{quote_for_display(value)} is not a rate; {_RATE_HELP}")
    number = Fraction(match[1])
    if abs(number) > bounds.NUMBER.maximum:
        raise InputError(bounds.NUMBER.message(int(abs(number))))
    if not slash or unit in ("slot", "slots"):
        return Rate(number)
    if unit not in _TIME_UNITS:
        units = ", ".join(("slot", *_TIME_UNITS))
        hint = f"write 0.5/h; units: {units}"
        raise InputError(f"{value!r} has the unknown unit of time {unit!r}; {hint}")
    return Rate(number, unit)


def parse_amount(value: object) -> Amount:
    """Parse an amount of a resource, exactly: ``8``, ``0.5``, ``244GiB`` or ``25Gbps``.

    Raises InputError if it isn't a quantity, is negative, too large, or finer than the stored unit
    (a thousandth of a count, a byte, a bit/s).
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise InputError(f"{quote_for_display(value)} is not an amount; {_AMOUNT_HELP}")
    text = value if isinstance(value, str) else _number_text(value)
    if LEADING_ZERO.fullmatch(text):
        raise InputError(f"{value!r} has a leading zero; {_AMOUNT_HELP}")
    number, unit = _split(text)
    if unit == "":
        scaled, dimension = number * MILLI, Dimension.COUNT
    elif unit in _BYTE_UNITS:
        scaled, dimension = number * _BYTE_UNITS[unit], Dimension.BYTES
    elif unit in _RATE_UNITS:
        scaled, dimension = number * _RATE_UNITS[unit], Dimension.RATE
    else:
        raise InputError(f"{value!r} has the unknown unit {unit!r}; {_AMOUNT_HELP}")
    if scaled < 0:
        raise InputError(f"{quote_for_display(value)} is negative; amounts start at 0")
    if scaled.denominator != 1:
        finest = {"count": "0.001", "bytes": "1B", "rate": "1bps"}[dimension.value]
        raise InputError(f"{value!r} is finer than {finest}, the smallest amount that is kept")
    if scaled > MAX_AMOUNT:
        maximum = {
            Dimension.COUNT: f"{MAX_AMOUNT // MILLI:,}",
            Dimension.BYTES: f"{MAX_AMOUNT >> 40:,}TiB",
            Dimension.RATE: f"{MAX_AMOUNT // 10**12:,}Tbps",
        }[dimension]
        raise InputError(f"{quote_for_display(value)} exceeds the limit of {maximum} for a server")
    return Amount(int(scaled), dimension)


def _number_text(value: float) -> str:
    """Return a number as text; for a huge integer, which Python refuses to format, a huge one."""
    return "1e999" if isinstance(value, int) and value.bit_length() > 256 else repr(value)


def format_amount(value: int, dimension: Dimension) -> str:
    """Format an integer amount in the notation of the input files."""
    if value >= UNLIMITED:
        return "unlimited"
    if dimension is Dimension.COUNT:
        return f"{value / MILLI:g}"
    if dimension is Dimension.RATE:
        return _format_scaled(value, _RATE_UNITS, ("bps", "kbps", "Mbps", "Gbps", "Tbps"))
    decimal = _format_scaled(value, _BYTE_UNITS, ("B", "kB", "MB", "GB", "TB"))
    binary = _format_scaled(value, _BYTE_UNITS, ("B", "KiB", "MiB", "GiB", "TiB"))
    # Binary units only if exact and not longer: 244GiB stays 244GiB, and 15GB isn't 13.9698GiB.
    return binary if _bytes(binary) == value and len(binary) <= len(decimal) else decimal


def _bytes(text: str) -> Fraction:
    number, unit = _split(text)
    return number * _BYTE_UNITS[unit]


def _format_scaled(value: int, units: Mapping[str, int], names: tuple[str, ...]) -> str:
    fitting = [name for name in names if value >= units[name]] or [names[0]]
    return f"{value / units[fitting[-1]]:g}{fitting[-1]}"


def format_seconds(seconds: float) -> str:
    """Format a time span in the largest unit that keeps the number at 1 or above."""
    for unit, length in (("d", 86_400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0)):
        # The rounded number decides: 59.99 s are 1 min, not 60 s.
        if float(f"{seconds / length:.3g}") >= 1:
            return f"{seconds / length:.3g}{unit}"
    return f"{seconds * 1000:.3g}ms"

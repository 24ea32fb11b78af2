"""Text for messages: untrusted text is escaped, so that it can't control a terminal."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Collection, Iterable, Mapping
from decimal import Decimal
from itertools import islice
from typing import Final

# Control and format characters (Cc, Cf), surrogates (Cs) and the two separators that end lines.
_RANGES: Final = (
    "\\x00-\\x1f\\x7f-\\x9f\\xad\\u0600-\\u0605\\u061c\\u06dd\\u070f\\u180e\\u200b-\\u200f"
    "\\u2028-\\u202e\\u2060-\\u206f\\ud800-\\udfff\\ufeff\\ufff9-\\ufffb\\U000e0001-\\U000e007f"
)
_UNSAFE: Final = re.compile(f"[{_RANGES}]")
_UNSAFE_IN_LINES: Final = re.compile(f"(?!\n)[{_RANGES}]")


_PART: Final = 4  # minimum length of a text that matches as a part of a known name

_MAX_MATCHED_CHARS: Final = 200
"""Maximum length of a known name in a hint, because a header of a file may be of any length."""

MAX_DISPLAY_CHARS: Final = 60  # maximum number of characters of a value in a message


def quote_for_display(value: object) -> str:
    """Return a value for a message: quoted, escaped, and truncated if it is long."""
    try:
        text = value if isinstance(value, str) else repr(value)
    except ValueError:  # an integer of more digits than Python writes
        return "a number of thousands of digits"
    truncated = text[:MAX_DISPLAY_CHARS] + "..." if len(text) > MAX_DISPLAY_CHARS else text
    return repr(truncated) if isinstance(value, str) else truncated


def parse_error_text(error: Exception) -> str:
    """Return the message of an error of a JSON or YAML parser, without advice on Python."""
    text = str(error)
    return "a number has too many digits" if "set_int_max_str_digits" in text else text


def pluralize(number: int, noun: str) -> str:
    """Format a number with its noun: ``1 job``, ``1,200 jobs``."""
    return f"{number:,} {plural_noun(number, noun)}"


def plural_noun(number: float, noun: str) -> str:
    """Return a noun in the form that goes with a number."""
    if number == 1:
        return noun
    if noun.endswith("ry"):
        return f"{noun[:-1]}ies"
    return f"{noun}{'es' if noun.endswith('tch') else 's'}"


def join_lines(text: str) -> str:
    """Join the lines of a text, such as a cause followed by lines of a log."""
    return " | ".join(line for raw_line in text.splitlines() if (line := raw_line.strip()))


def first_line(text: str) -> str:
    """Return the first line of a text, such as a cause without the lines of a log."""
    return text.lstrip().partition("\n")[0].rstrip()


def lines_after_first(text: str) -> list[str]:
    """Return the nonempty lines after the first line of a text."""
    return [line.rstrip() for line in text.lstrip().splitlines()[1:] if line.strip()]


def closest_match(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known name that is most similar to ``name``, None if none is.

    If ``name`` is a part of exactly one known name, that name is returned: ``lost`` gives
    ``server_lost`` rather than ``slot``. Only the first 2,000 known names are compared, and names
    over 100 characters match none. ``cutoff`` is the minimum similarity, 0 to 1.
    """
    if len(name) > 100:
        return None
    names = [
        candidate for candidate in islice(known, 2_000) if len(candidate) <= _MAX_MATCHED_CHARS
    ]
    containing = [candidate for candidate in names if name.lower() in candidate.lower()]
    if len(containing) == 1 and len(name) >= _PART:
        return containing[0]
    similar = difflib.get_close_matches(name, names, 1, cutoff=cutoff)
    return similar[0] if similar else None


def hint_for_unknown(
    name: object, known: Collection[str], otherwise: str | None = None, *, cutoff: float = 0.6
) -> str:
    """Return the hint for an unknown name: a similar one, ``otherwise``, or all known names."""
    similar = closest_match(name, known, cutoff) if isinstance(name, str) else None
    if similar is not None:
        return f"did you mean {similar!r}?"
    return f"known: {', '.join(known) or 'none'}" if otherwise is None else otherwise


def escape_controls(text: str, *, lines: bool = False) -> str:
    """Return a text with control characters replaced by escapes; ``lines`` keeps line ends."""
    if text.isascii() and text.isprintable():
        return text
    return (_UNSAFE_IN_LINES if lines else _UNSAFE).sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    named = {9: "\\t", 10: "\\n", 13: "\\r"}.get(code)
    if named:
        return named
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


_TYPE_NAMES: Final = (
    (type(None), "null"),
    (bool, "a boolean"),
    (int | float, "a number"),
    (str, "text"),
    (Mapping, "a mapping"),
    (list | tuple, "a list"),
)
"""Types of values in YAML and JSON files, as messages name them; a boolean is also an int."""


def format_number(value: float, digits: int = 4) -> str:
    """Format a number with significant digits, and all digits before the decimal point.

    Numbers below a millionth or from 10¹⁵ on have an exponent.
    """
    size = abs(value)
    if size != 0.0 and not 1e-6 <= size < 1e15:
        return f"{value:.{digits}g}"
    if size >= 10.0 ** (digits - 1):
        return f"{value:,.0f}"
    return f"{Decimal(f'{value:.{digits}g}'):,f}"


def describe_type(value: object) -> str:
    """Return the type of a value from a YAML or JSON file, as messages name it."""
    names = (name for kind, name in _TYPE_NAMES if isinstance(value, kind))
    return next(names, type(value).__name__)


def text_problem(text: str) -> tuple[str, str] | None:
    """Return why a text can't be stored or passed to a program, and a hint; None if it can."""
    if "\0" in text:
        return "contains a null character", "leave it out"
    if not is_valid_utf8(text):
        return "contains an unpaired surrogate", "use valid Unicode text"
    return None


def is_valid_utf8(text: str) -> bool:
    """Return whether a text can be encoded as UTF-8, without unpaired surrogates.

    JSON and bytes on the command line can contain unpaired surrogates.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def find_unsendable(value: object, location: str = "") -> tuple[str, str] | None:
    """Return the location and problem of the first value that JSON can't hold, or None.

    JSON's numbers are finite, and its keys are text: an encoder would turn ``1.10`` into ``1.1``.
    """
    if isinstance(value, float):
        if math.isfinite(value):
            return None
        return location, f"expected a finite number, got {value}"
    items: list[tuple[str, object]] = []
    if isinstance(value, Mapping):
        for key, item in value.items():
            if isinstance(key, bool) or not isinstance(key, str | int):
                shown = "null" if key is None else str(key).lower()
                return location, f"expected a key of text, got {quote_for_display(shown)}"
            items.append((f"{location}.{key}" if location else str(key), item))
    elif isinstance(value, list | tuple):
        items = [(f"{location}[{index}]", item) for index, item in enumerate(value)]
    elif not (value is None or isinstance(value, str | int)):
        return location, f"JSON can't hold a value of type {type(value).__name__}"
    found = (find_unsendable(item, path) for path, item in items)
    return next(filter(None, found), None)


def escape_json(text: str) -> str:
    """Return equivalent JSON in which control characters are escaped."""

    def escape(match: re.Match[str]) -> str:
        code = ord(match[0])
        if code < 0x10000:
            return f"\\u{code:04x}"
        high, low = divmod(code - 0x10000, 0x400)
        return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"

    return _UNSAFE_IN_LINES.sub(escape, text)

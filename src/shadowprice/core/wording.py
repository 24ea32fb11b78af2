"""Words for people: what a file or a call holds, shown so that no terminal obeys it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from itertools import islice
from typing import Final

# Control and format characters (Cc, Cf), surrogates (Cs) and the two separators that end lines.
_RANGES: Final = (
    "\\x00-\\x1f\\x7f-\\x9f\\xad\\u0600-\\u0605\\u061c\\u06dd\\u070f\\u180e\\u200b-\\u200f"
    "\\u2028-\\u202e\\u2060-\\u206f\\ud800-\\udfff\\ufeff\\ufff9-\\ufffb\\U000e0001-\\U000e007f"
)
_UNSAFE: Final = re.compile(f"[{_RANGES}]")
_UNSAFE_IN_LINES: Final = re.compile(f"(?!\n)[{_RANGES}]")


_PART: Final = 4
"""Letters, at least, of a word that is taken for a part of a known name."""

SHOWN: Final = 60
"""Characters of a value that a message shows."""


def shown(value: object) -> str:
    """Return a value as a message shows it: quoted, escaped, and cut where it is long."""
    try:
        text = value if isinstance(value, str) else repr(value)
    except ValueError:  # an integer of more digits than Python writes
        return "a number of thousands of digits"
    cut = text[:SHOWN] + "..." if len(text) > SHOWN else text
    return repr(cut) if isinstance(value, str) else cut


def one_line(text: str) -> str:
    """Return a text of several lines as one, such as a cause with the last lines of a log."""
    return " | ".join(line for part in text.splitlines() if (line := part.strip()))


def first_line(text: str) -> str:
    """Return the first line of a text: a cause, without the last lines of a log below it."""
    return text.lstrip().partition("\n")[0].rstrip()


def lines_below(text: str) -> list[str]:
    """Return what follows the first line of a text, without lines that are empty."""
    return [line.rstrip() for line in text.lstrip().splitlines()[1:] if line.strip()]


def closest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known name most like a wrong one, None where none is or the search is too long.

    Where the wrong one is a part of a single known name, that is it: ``lost`` is ``server_lost``
    rather than ``slot``.

    Parameters
    ----------
    name : str
        What was written.
    known : iterable of str
        What could have been meant; the first 2,000 are looked at.
    cutoff : float
        Least likeness, 0 to 1.
    """
    if len(name) > 100:
        return None
    names = list(islice(known, 2_000))
    whole = [one for one in names if name.lower() in one.lower()]
    if len(whole) == 1 and len(name) >= _PART:
        return whole[0]
    found = difflib.get_close_matches(name, names, 1, cutoff=cutoff)
    return found[0] if found else None


def escaped(text: str, *, lines: bool = False) -> str:
    """Return a text with every character that a terminal would obey written as its escape.

    Parameters
    ----------
    text : str
        Anything: names, paths, messages.
    lines : bool
        Whether line ends stay as they are.
    """
    if text.isascii() and text.isprintable():
        return text
    return (_UNSAFE_IN_LINES if lines else _UNSAFE).sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    known = {9: "\\t", 10: "\\n", 13: "\\r"}.get(code)
    if known:
        return known
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def no_text(text: str) -> tuple[str, str] | None:
    """Return why a text can be neither stored nor given to a program, and what mends it."""
    if "\0" in text:
        return "holds a null character", "leave it out"
    if not is_text(text):
        return "holds half of a surrogate pair", "write whole characters"
    return None


def is_text(text: str) -> bool:
    """Return whether a text can be written as UTF-8: it holds no half of a surrogate pair.

    JSON and bytes on the command line can give such halves; tables and files take none.
    """
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def json_safe(text: str) -> str:
    """Return JSON in which no character is one that a terminal would obey; it reads the same."""

    def escape(match: re.Match[str]) -> str:
        code = ord(match[0])
        if code < 0x10000:
            return f"\\u{code:04x}"
        high, low = divmod(code - 0x10000, 0x400)
        return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"

    return _UNSAFE_IN_LINES.sub(escape, text)

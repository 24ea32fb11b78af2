"""Embeds text, data, style and scripts in a page safely."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import unicodedata
import zlib
from functools import cache
from html import escape
from importlib import resources
from typing import Final

import numpy as np
from numpy.typing import NDArray

MODULES: Final = (
    "dom.mjs", "format.mjs", "axes.mjs", "tables.mjs", "heat.mjs", "kinds.mjs", "charts.mjs",
    "histories.mjs", "page.mjs",
)  # fmt: skip
"""Modules of the page's script; each comes after the modules that it imports."""

LIBRARY: Final = "echarts.min.js"
MIN_DEFLATE_CHARS: Final = 8192  # minimum characters of JSON that are deflated

_HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories that are invisible or change the order of their neighbours."""


def escape_invisible(text: str) -> str:
    r"""Escape invisible characters of a text, as ``\x1b`` or ``\u202e``.

    Names come from files. A control character, a lone surrogate or a mark that reverses the reading
    direction could make one name look like another.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        character.encode("unicode_escape").decode("ascii")
        if unicodedata.category(character) in _HIDDEN
        else character
        for character in text
    )


def text(value: str) -> str:
    """Escape a text for HTML."""
    return escape(escape_invisible(value))


def escape_invisible_deep(value: object) -> object:
    """Apply `escape_invisible` to every text in a value."""
    if isinstance(value, str):
        return escape_invisible(value)
    if isinstance(value, dict):
        return {key: escape_invisible_deep(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [escape_invisible_deep(inner) for inner in value]
    return value


def to_json(value: object) -> str:
    """Return JSON that is safe in a ``<script>`` element, without invisible characters."""
    plain = json.dumps(
        escape_invisible_deep(value), separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return plain.replace("<", "\\u003c").replace("-->", "--\\u003e")


def data_script(value: object, name: str = "") -> str:
    """Return a data block of JSON or bytes, deflated if shorter; ``name`` is its ``id``."""
    mark = f' id="{name}"' if name else ""
    if isinstance(value, np.ndarray):
        packed = pack(value.astype(np.uint8).tobytes())
        return f'<script type="text/plain"{mark} data-deflated="bytes">{packed}</script>'
    plain = to_json(value)
    if len(plain) >= MIN_DEFLATE_CHARS:
        packed = pack(plain.encode())
        return f'<script type="text/plain"{mark} data-deflated="json">{packed}</script>'
    return f'<script type="application/json"{mark}>{plain}</script>'


def pack(data: bytes) -> str:
    """Deflate bytes (zlib format) and encode them in base64."""
    return base64.b64encode(zlib.compress(data, 9)).decode("ascii")


def scripts() -> str:
    """Return the chart library and the page's own script as two elements."""
    return f"<script>{asset(LIBRARY)}</script><script>{_program()}</script>"


@cache
def content_security_policy() -> str:
    """Return the page's content security policy: its own two scripts and data, no network.

    ECharts sets styles on its elements, so inline styles are allowed. The page can't load, send or
    embed anything. No other script runs, even if a name in the data contains one.
    """
    digests = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()}'"
        for part in (asset(LIBRARY), _program())
    )
    return (
        f"default-src 'none'; script-src {digests}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


@cache
def _program() -> str:
    """Return the modules as one script without imports and exports; all share one scope.

    A page is a single file, whose content security policy doesn't allow modules to be loaded.
    """
    parts = []
    for name in MODULES:
        code = re.sub(r'^import \{[^}]*\} from "\./[a-z]+\.mjs";\n', "", asset(name), flags=re.M)
        parts.append(re.sub(r"^export (?=(async )?(function|class|const) )", "", code, flags=re.M))
    return f'(() => {{\n"use strict";\n{"".join(parts)}}})();\n'


@cache
def asset(name: str) -> str:
    """Return the content of an asset file of the page."""
    folder = resources.files("shadowprice.results.report").joinpath("assets")
    return folder.joinpath(name).read_text("utf-8")


def round_numbers(values: NDArray[np.float64], digits: int = 5) -> list[float | None]:
    """Round numbers; see `round_number`."""
    return [round_number(value, digits) for value in values.tolist()]


def round_number(value: float, digits: int = 6) -> float | None:
    """Round a number to significant digits, or to a whole number if it has more digits.

    Slots and counts therefore stay exact. The result is an int if it is whole, and None if the
    number isn't finite.
    """
    if not math.isfinite(value):
        return None
    if 10**digits <= abs(value) < 1e15:
        return round(value)
    short = float(f"{value:.{digits}g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short

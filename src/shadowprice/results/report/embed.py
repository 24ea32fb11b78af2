"""What a page carries inside itself: text, data, style and script, each made harmless."""

from __future__ import annotations

import base64
import hashlib
import json
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
    "dom.mjs",
    "format.mjs",
    "axes.mjs",
    "tables.mjs",
    "heat.mjs",
    "kinds.mjs",
    "charts.mjs",
    "stories.mjs",
    "page.mjs",
)
"""The page's script, each module after those it imports."""

LIBRARY: Final = "echarts.min.js"

WORTH_PACKING: Final = 8192
"""Characters of JSON from which deflating pays for itself."""

_HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Categories of Unicode that do not show, or turn what stands beside them around."""


def shown(text: str) -> str:
    r"""Return a text with what would not show written out, as ``\x1b`` or ``\u202e``.

    Names come from files; a control character, a half of a surrogate pair or a mark that reverses
    the reading direction would make one name pass for another.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        char.encode("unicode_escape").decode("ascii")
        if unicodedata.category(char) in _HIDDEN
        else char
        for char in text
    )


def text(value: str) -> str:
    """Return a text as HTML that shows it."""
    return escape(shown(value))


def cleaned(value: object) -> object:
    """Return a value with every text in it as `shown`."""
    if isinstance(value, str):
        return shown(value)
    if isinstance(value, dict):
        return {key: cleaned(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [cleaned(inner) for inner in value]
    return value


def to_json(value: object) -> str:
    """Return JSON that may stand in a ``<script>`` element: no ``<`` in it, and nothing unseen."""
    plain = json.dumps(cleaned(value), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return plain.replace("<", "\\u003c").replace("-->", "--\\u003e")


def data_script(value: object, name: str = "") -> str:
    """Return a data block with a value, deflated where that is shorter.

    Parameters
    ----------
    value : object
        What JSON can hold, or an array of bytes.
    name : str
        Its ``id``; none for blocks that are found by where they stand.
    """
    mark = f' id="{name}"' if name else ""
    if isinstance(value, np.ndarray):
        packed = pack(value.astype(np.uint8).tobytes())
        return f'<script type="text/plain"{mark} data-deflated="bytes">{packed}</script>'
    plain = to_json(value)
    if len(plain) >= WORTH_PACKING:
        packed = pack(plain.encode())
        return f'<script type="text/plain"{mark} data-deflated="json">{packed}</script>'
    return f'<script type="application/json"{mark}>{plain}</script>'


def pack(data: bytes) -> str:
    """Return bytes deflated (zlib format) and in base64."""
    return base64.b64encode(zlib.compress(data, 9)).decode("ascii")


def unpack(script: str) -> object:
    """Return the value of one `data_script`, as the page's script reads it."""
    found = re.fullmatch(
        r'<script type="[a-z/]+"(?: id="[^"]*")?(?: data-deflated="(\w+)")?>(.*)</script>',
        script,
        re.DOTALL,
    )
    if found is None:
        raise ValueError("not a block of data")
    how, body = found.groups()
    if how is None:
        return json.loads(body)
    data = zlib.decompress(base64.b64decode(body))
    return np.frombuffer(data, np.uint8) if how == "bytes" else json.loads(data)


def scripts() -> str:
    """Return the chart library and the page's own script, as two elements."""
    return f"<script>{asset(LIBRARY)}</script><script>{_program()}</script>"


@cache
def policy() -> str:
    """Return the page's content security policy: its own two scripts, its own data, no network.

    ECharts sets styles on the elements that it makes, so inline styles are allowed; nothing can be
    loaded, sent or embedded, and no other script runs, whatever a name in the data may hold.
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
    """Return the modules as one script: their imports taken out, since all stand in one scope.

    A service that serves the modules needs none of this; a page is one file, in which modules
    cannot import each other by name without being allowed to load.
    """
    parts = []
    for name in MODULES:
        code = re.sub(r'^import \{[^}]*\} from "\./[a-z]+\.mjs";\n', "", asset(name), flags=re.M)
        parts.append(re.sub(r"^export (?=(async )?(function|class|const) )", "", code, flags=re.M))
    return f'(() => {{\n"use strict";\n{"".join(parts)}}})();\n'


@cache
def asset(name: str) -> str:
    """Return a file of the page's assets."""
    folder = resources.files("shadowprice.results.report").joinpath("assets")
    return folder.joinpath(name).read_text("utf-8")


def rounded(values: NDArray[np.float64], digits: int = 5) -> list[float | None]:
    """Return numbers with so many digits, whole ones as such; None for what is no number."""
    kept: list[float | None] = []
    for value in values.tolist():
        if not np.isfinite(value):
            kept.append(None)
            continue
        short = float(f"{value:.{digits}g}")
        kept.append(int(short) if short.is_integer() and abs(short) < 1e15 else short)
    return kept

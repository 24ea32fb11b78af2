"""Trace locations: parsing ``format:path?option=value&...`` and resolving the path."""

from __future__ import annotations

import os
import shlex
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

import polars as pl

from shadowprice.core import bounds
from shadowprice.core.amounts import parse_duration
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.wording import hint_for_unknown, quote_for_display
from shadowprice.extensions import is_file_reference, split_path
from shadowprice.inputs.unpacking import ZipMemberError, open_unpacked, split_member
from shadowprice.traces.records import Trace, TraceSelection, select
from shadowprice.traces.registry import ImportContext, TraceFormat, format_names, get_format

ENVIRONMENT: Final = "SHADOWPRICE_TRACES"
_JOB_FILES: Final = frozenset({".yaml", ".yml", ".jsonl", ".ndjson"})  # suffixes
DEFAULT_FOLDER: Final = Path("../shared/traces")
SELECTION_OPTIONS: Final[Mapping[str, str]] = {
    "vc": "only jobs of these tenants, separated by commas",
    "from": "only jobs submitted at least this long after the first (2d, 6h)",
    "to": "only jobs submitted less than this long after the first",
    "limit": "maximum number of jobs; the earliest are kept",
    "skip_invalid": "yes: leave out and count invalid rows, instead of refusing the file",
}


@dataclass(frozen=True, slots=True)
class TraceSpec:
    """Parsed trace location, ``format:path?option=value&...``."""

    format: TraceFormat
    """The format."""
    path: Path
    """File or directory."""
    selection: TraceSelection
    """Jobs to keep."""
    skip_invalid: bool
    """Whether invalid rows are dropped and counted, instead of refusing the file."""
    options: Mapping[str, str]
    """Options of the format."""
    synthesis: Mapping[str, str]
    """Options of the synthesis of what the trace lacks."""


def traces_folder() -> Path:
    """Return the folder of trace files: ``SHADOWPRICE_TRACES``, or ``../shared/traces``."""
    return Path(os.environ.get(ENVIRONMENT) or DEFAULT_FOLDER)


def resolve(path: Path) -> Path:
    """Return a path, moved below the folder of traces if it only exists there."""
    if not split_member(path)[0].exists() and not path.is_absolute():
        inside = traces_folder() / path
        if split_member(inside)[0].exists():
            return inside
    return path


def parse_spec(text: str, synthesis_options: Iterable[str] = ()) -> TraceSpec:
    """Parse a trace location such as ``philly:philly/philly.csv.gz?vc=6214e9&limit=1000``.

    The path may contain commas and colons; ``%3F`` stands for a question mark, and ``%25`` for a
    percent sign. The format is a registered name or ``./file.py:NAME``. ``synthesis_options`` are
    accepted in addition to the options of the format and of the selection.

    Raise `InputError` if the format or an option is unknown (with the closest name), or a value is
    invalid.
    """
    name, rest = _split(text)
    trace_format = get_format(name)
    location, _, query = rest.partition("?")
    _check_escapes(name, rest, location)
    pairs = _pairs(text, query)
    _check_names(text, pairs, trace_format, synthesis_options)
    return TraceSpec(
        format=trace_format,
        path=resolve(_expand_home(unquote(location))),
        selection=TraceSelection(
            tenants=tuple(filter(None, pairs.get("vc", "").split(","))),
            begin=_span(pairs, "from"),
            end=_span(pairs, "to"),
            limit=_limit(pairs),
        ),
        skip_invalid=_is_yes(pairs, "skip_invalid"),
        options={key: value for key, value in pairs.items() if key in trace_format.options},
        synthesis={key: pairs[key] for key in synthesis_options if key in pairs},
    )


def with_columns(spec: str, mapping: str | None) -> str:
    """Return a trace location with the mapping of columns that ``--map`` gives, if any."""
    if mapping is None:
        return spec
    return f"{spec}{'&' if '?' in spec else '?'}map={quote(mapping)}"


def read_trace(spec: str | TraceSpec, *, skip_invalid: bool = False) -> Trace:
    """Read a trace and keep the selected jobs; notes list all dropped or repaired rows.

    ``skip_invalid`` drops invalid rows and counts them, as ``?skip_invalid=yes`` does.

    Raise `InputError` if the location or the file is invalid.
    """
    if isinstance(spec, str):
        spec = parse_spec(spec)
    context = ImportContext(skip_invalid=skip_invalid or spec.skip_invalid, options=spec.options)
    try:
        return select(spec.format.read(spec.path, context), spec.selection)
    except ZipMemberError as error:
        if error.member is None:
            raise
        path = escape_path(f"{error.path}:{error.member}")
        hint = error.hint.format(shlex.quote(f"{spec.format.name}:{path}"))
        raise InputError(Fault(str(error.path), error.message, hint)) from error
    except (pl.exceptions.PolarsError, OverflowError) as error:
        if spec.format.extension is not None:  # an extension's bug is reported at its line
            raise
        # A column can't hold a number that was parsed leniently, or a product of numbers.
        reason = quote_for_display(str(error).splitlines()[0])
        message = f"contains numbers out of range ({reason})"
        raise InputError(Fault(str(spec.path), message, "check its columns")) from error


def _split(text: str) -> tuple[str, str]:
    """Split a trace location into the format, a name or ``FILE.py:NAME``, and the rest.

    A registered name takes precedence, so that the path after it may contain ``.py:``.
    """
    name, colon, rest = text.partition(":")
    if name not in format_names() and is_file_reference(text):
        split = split_path(text)
        if split is not None:
            name, rest = split
        elif _exists(text):
            colon = ""  # a path without its format
        else:
            message = f"expected a format and a path, got {quote_for_display(text)}"
            hint = "write FILE.py:NAME:PATH, such as ./lab.py:read_lab:jobs.csv, or format:PATH"
            raise InputError(Fault("trace", message, hint))
    if not colon or not rest:
        example = "philly:philly.csv.gz"
        if text and not colon and _JOB_FILES.intersection(Path(text).suffixes):
            hint = f"give a job file with --jobs {shlex.quote(text)}"
            message = f"expected a trace, got {quote_for_display(text)}"
            raise InputError(Fault("trace", message, hint))
        if text and not colon:
            path = escape_path(text) if _exists(text) else text
            example = shlex.quote(f"csv:{path}")
        hint = f"write format:path, such as {example}"
        raise InputError(Fault("trace", f"expected a trace, got {quote_for_display(text)}", hint))
    return name, rest


def escape_path(path: str) -> str:
    """Escape a path for a trace location, in which a question mark begins the options."""
    return path.replace("%", "%25").replace("?", "%3F")


def _exists(location: str) -> bool:
    try:
        path = resolve(_expand_home(location))
        file, member = split_member(path)
        if member:
            with open_unpacked(path, "zip"):
                pass
        return file.exists()
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, InputError):
        return False


def _check_escapes(name: str, rest: str, location: str) -> None:
    """Raise `InputError` if a path only exists with its question marks and percent signs escaped.

    ``rest`` is the path with the options, and ``location`` the path alone.
    """
    if _exists(unquote(location)):
        return
    for end in [*(index for index, char in enumerate(rest) if char == "?"), len(rest)]:
        path, options = rest[:end], rest[end:]
        if ("?" in path or "%" in path) and _exists(path):
            problem = "? in a path begins the options" if "?" in path else "% begins an escape"
            hint = f"write {shlex.quote(f'{name}:{escape_path(path)}{options}')}"
            raise InputError(Fault("trace", f"{problem}, but {path} is a file", hint))


def _expand_home(location: str) -> Path:
    """Return a path with a leading ``~`` or ``~user`` expanded, if there is such a user."""
    try:
        return Path(location).expanduser()
    except RuntimeError:
        return Path(location)


def _pairs(text: str, query: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for part in filter(None, query.split("&")):
        key, equals, value = part.partition("=")
        if not equals or not value:
            raise InputError(f"{text!r}: option {part!r} has no value; write option=value")
        if key in pairs:
            raise InputError(f"{text!r}: option {key!r} is repeated")
        pairs[key] = unquote(value)
    return pairs


def _check_names(
    text: str, pairs: Iterable[str], known: TraceFormat, synthesis_options: Iterable[str]
) -> None:
    allowed = [*SELECTION_OPTIONS, *known.options, *synthesis_options]
    for key in pairs:
        if key not in allowed:
            raise InputError(f"{text!r}: no option {key!r}; {hint_for_unknown(key, allowed)}")


def _span(pairs: Mapping[str, str], key: str) -> float | None:
    if key not in pairs:
        return None
    try:
        duration = parse_duration(pairs[key])
    except InputError as error:
        raise InputError(f"{key}={pairs[key]}: {error}") from error
    if duration.slots:
        raise InputError(f"{key}={pairs[key]}: a trace has no slots; write seconds, hours or days")
    return float(duration.seconds)


def _limit(pairs: Mapping[str, str]) -> int | None:
    text = pairs.get("limit")
    if text is None:
        return None
    if not (text.isdecimal() and len(text) <= 18 and int(text) > 0):
        raise InputError(f"limit={quote_for_display(text)}: write a whole number above 0")
    bounds.JOBS.check(int(text), "limit")
    return int(text)


def _is_yes(pairs: Mapping[str, str], key: str) -> bool:
    text = pairs.get(key, "no")
    if text not in {"yes", "no", "true", "false"}:
        raise InputError(f"{key}={text}: write yes or no")
    return text in {"yes", "true"}

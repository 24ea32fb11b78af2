"""Readers of text, YAML and JSON Lines files that users name.

They refuse files that are binary, too large, damaged or not UTF-8, with a diagnostic.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from shadowprice.core import bounds
from shadowprice.core.bounds import InputLimit
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.wording import parse_error_text, quote_for_display
from shadowprice.core.yaml_values import parse_yaml
from shadowprice.inputs.unpacking import read_blocks

TAR_MARK: Final = b"ustar"
TAR_MARK_OFFSET: Final = 257  # position of the mark in a tar archive


def read_text(path: Path, limit: InputLimit = bounds.DOCUMENT) -> str:
    """Read a file, possibly packed, as UTF-8 text; refuse an empty file.

    ``limit`` is for the unpacked bytes.
    """
    data = b"".join(_blocks(path, limit))
    if not data.strip():
        raise InputError(Fault(str(path), "the file is empty", "give a file with content"))
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise InputError(_not_utf8(path, line, error)) from error


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield each line of a UTF-8 file with its number, without holding the file in memory."""
    rest = b""  # the unfinished last line of the blocks so far
    number = 0
    for block in _blocks(path, bounds.TABLE_BYTES):
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            number += 1
            yield number, _decode(path, number, line)
        bounds.LINE.check(len(rest), f"{path}: line {number + 1}", "write one record per line")
    if rest:
        yield number + 1, _decode(path, number + 1, rest)


def load_yaml(path: Path) -> Any:
    """Read a YAML document, which may be JSON. `core.yaml_values` reads its scalars."""
    text = read_text(path)
    is_json = text.lstrip()[:1] in {"{", "["}
    if is_json:  # JSON is YAML, except for escaped surrogate pairs
        text = _SURROGATES.sub(_join_surrogates, text)
    try:
        check_yaml_size(path, text)
        return parse_yaml(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        location = f"{path}: line {mark.line + 1}, column {mark.column + 1}" if mark else str(path)
        problem, hint = str(error.problem), ""
        if problem.startswith("but ") and error.context:  # the second half of a sentence
            problem = f"{error.context}, {problem}"
        if is_json and "<document start>" in problem:  # a second document, as in JSON Lines
            hint = "give a file with one job per line a name that ends in .jsonl"
        raise InputError(Fault(location, f"not YAML: {problem}", hint)) from error
    except yaml.reader.ReaderError as error:
        line = text.encode()[: error.position].count(b"\n") + 1
        reason = f"the character #x{error.character:02x} isn't allowed"
        fault = Fault(f"{path}: line {line}", f"not YAML: {reason}", "remove it")
        raise InputError(fault) from error
    except (yaml.YAMLError, ValueError) as error:
        reason = quote_for_display(parse_error_text(error))
        raise InputError(Fault(str(path), f"not YAML: {reason}")) from error


_SURROGATES: Final = re.compile(
    r"(?<!\\)((?:\\\\)*)\\u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})"
)
"""A surrogate pair: a character beyond 16 bits in two JSON escapes, which YAML doesn't have."""


def _join_surrogates(match: re.Match[str]) -> str:
    high, low = (int(match[group], 16) for group in (2, 3))
    return f"{match[1]}\\U{0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00):08x}"


def load_json_line(path: Path, number: int, line: str) -> Any:
    """Parse one line of JSON Lines."""
    try:
        return json.loads(line, object_pairs_hook=_unique_pairs)
    except json.JSONDecodeError as error:
        location = f"{path}: line {number}, column {error.colno}"
        raise InputError(Fault(location, f"not JSON: {error.msg}")) from error
    except (ValueError, RecursionError) as error:
        message = (
            "is nested too deeply" if isinstance(error, RecursionError) else parse_error_text(error)
        )
        raise InputError(Fault(f"{path}: line {number}", message)) from error


def is_json_lines(path: Path) -> bool:
    """Return whether a file is JSON Lines by its name, which may also end in ``.gz``."""
    return not {".jsonl", ".ndjson"}.isdisjoint(suffix.lower() for suffix in path.suffixes)


def read_json_lines(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield each record of a JSON Lines file with its location.

    An invalid line yields its `InputError` as the record. Blank lines are skipped.
    """
    for number, line in read_lines(path):
        if line.strip():
            try:
                yield f"{path}: line {number}", load_json_line(path, number, line)
            except InputError as error:
                yield "", error


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"the key {quote_for_display(name)} is repeated")
            seen.add(name)
    return result


def _blocks(path: Path, limit: InputLimit) -> Iterator[bytes]:
    for number, block in enumerate(read_blocks(path, limit)):
        if number == 0 and is_utf16(block):
            raise InputError(Fault(f"{path}: line 1", "is UTF-16", _ENCODING))
        if number == 0 and block[TAR_MARK_OFFSET:].startswith(TAR_MARK):
            raise InputError(Fault(str(path), "is a tar archive", "extract the file inside it"))
        if b"\0" in block:
            raise InputError(Fault(str(path), "is binary, not text", "check the path"))
        yield block


def is_utf16(head: bytes) -> bool:
    """Return whether text begins with UTF-16's mark, or nearly every other byte is 0."""
    zeros = sorted((head[::2].count(0), head[1::2].count(0)))
    is_alternating = len(head) >= 16 and zeros[0] == 0 and zeros[1] > 0.4 * len(head)
    return head.startswith((b"\xff\xfe", b"\xfe\xff")) or is_alternating


def _decode(path: Path, number: int, line: bytes) -> str:
    try:
        return line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r")
    except UnicodeDecodeError as error:
        raise InputError(_not_utf8(path, number, error)) from error


_ENCODING = "save the file as UTF-8"


def _not_utf8(path: Path, line: int, error: UnicodeDecodeError) -> Fault:
    return Fault(f"{path}: line {line}", f"is not UTF-8 at byte {error.start}", _ENCODING)


_OPENING: Final = (yaml.MappingStartEvent, yaml.SequenceStartEvent)
_CLOSING: Final = (yaml.MappingEndEvent, yaml.SequenceEndEvent)


def check_yaml_size(path: Path, text: str) -> None:
    """Refuse a YAML document with too many values, too deep a nesting, or too long a text.

    An alias counts as its whole content, so that a few lines can't expand to a billion values. An
    alias that contains itself is refused. Errors name the document ``path``. Text that isn't YAML
    raises `yaml.YAMLError`.
    """
    values = depth = 0
    max_values, max_length = bounds.VALUES.maximum, bounds.PATH.maximum
    sizes: dict[str, int] = {}  # number of values by anchor; -1 while its collection is open
    opened: list[tuple[str | None, int]] = []  # anchor, and number of values before
    event: Any
    # A document at the limit has 250,000 events, so only a refused event's location is built.
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        kind = type(event)
        if kind is yaml.ScalarEvent:
            values += 1
            if len(event.value) > max_length:
                problem = (
                    f"{len(event.value):,} exceeds the limit of {bounds.TEXT.maximum:,} characters "
                    f"of a text ({max_length:,} of a path)"
                )
                raise InputError(Fault(_location(path, event), problem, "check its quotes"))
            if event.anchor:
                sizes[event.anchor] = 1
        elif kind in _OPENING:
            depth += 1
            if depth > bounds.NESTING.maximum:
                bounds.NESTING.check(depth, _location(path, event))
            opened.append((event.anchor, values))
            values += 1
            if event.anchor:
                sizes[event.anchor] = -1
        elif kind in _CLOSING:
            depth -= 1
            anchor, values_before = opened.pop()
            if anchor:
                sizes[anchor] = values - values_before
        elif kind is yaml.AliasEvent:
            size = sizes.get(str(event.anchor), 1)
            if size < 0:
                raise InputError(Fault(_location(path, event), f"*{event.anchor} contains itself"))
            values += size
        if values > max_values:
            hint = "write jobs as JSON Lines (.jsonl), and equal servers once, with `count`"
            bounds.VALUES.check(values, _location(path, event), hint)


def check_document_size(path: Path, document: object, hint: str) -> None:
    """Refuse to write a document that `check_yaml_size` would refuse to read."""
    bounds.VALUES.check(_count_values(document), str(path), hint)


def _count_values(value: object) -> int:
    if isinstance(value, Mapping):
        return 1 + len(value) + sum(map(_count_values, value.values()))
    return 1 + sum(map(_count_values, value)) if isinstance(value, list) else 1


def _location(path: Path, event: Any) -> str:
    mark = event.start_mark
    return str(path) if mark is None else f"{path}: line {mark.line + 1}"

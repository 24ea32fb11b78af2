"""Trace formats by name; a format is one module in `shadowprice.traces.formats`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from shadowprice.core.errors import InputError
from shadowprice.core.wording import closest
from shadowprice.traces.records import Tally, Trace


@dataclass(slots=True)
class Reading:
    """How to read a trace, and what happened while reading it.

    Parameters
    ----------
    skip_invalid : bool
        Leave out rows that are wrong, counting them, instead of refusing the file.
    options : mapping of str to str
        The format's own options, by name.
    tally : Tally
        What was dropped and mended.
    """

    skip_invalid: bool = False
    options: Mapping[str, str] = field(default_factory=dict)
    tally: Tally = field(default_factory=Tally)


Importer = Callable[[Path, Reading], Trace]


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """A trace format that can be read.

    Parameters
    ----------
    name : str
        What users write before the colon: ``philly:PATH``.
    title : str
        One line that says what the trace is.
    citation : str
        Where it was published.
    licence : str
        Under what terms the data may be used.
    files : str
        What the path must be.
    gotchas : tuple of str
        Traits of the data that the importer handles or refuses, each in a line.
    options : mapping of str to str
        The format's own options and what they do.
    read : callable
        The importer.
    """

    name: str
    title: str
    citation: str
    licence: str
    files: str
    gotchas: tuple[str, ...]
    options: Mapping[str, str]
    read: Importer


_formats: dict[str, TraceFormat] = {}


def trace_format(
    name: str,
    *,
    title: str,
    citation: str,
    licence: str,
    files: str,
    gotchas: tuple[str, ...],
    options: Mapping[str, str] | None = None,
) -> Callable[[Importer], Importer]:
    """Register a function as the importer of a format; parameters as in `TraceFormat`."""

    def register(read: Importer) -> Importer:
        if name in _formats:
            raise ValueError(f"two modules register the trace format {name!r}")
        _formats[name] = TraceFormat(
            name, title, citation, licence, files, gotchas, dict(options or {}), read
        )
        return read

    return register


@cache
def _load_modules() -> None:
    package = importlib.import_module("shadowprice.traces.formats")
    for module in pkgutil.iter_modules(package.__path__):
        if not module.name.startswith("_"):
            importlib.import_module(f"{package.__name__}.{module.name}")


def formats() -> Mapping[str, TraceFormat]:
    """Return every known format by name, in alphabetical order."""
    _load_modules()
    return dict(sorted(_formats.items()))


def get_format(name: str) -> TraceFormat:
    """Return a format by name.

    Raises
    ------
    InputError
        If there is none, naming the nearest.
    """
    known = formats()
    if name in known:
        return known[name]
    near = closest(name, known)
    hint = f"did you mean {near!r}? " if near else ""
    raise InputError(f"no trace format {name!r}; {hint}known formats: {', '.join(known)}")

"""Trace formats by name: modules of `traces.formats`, entry points, and users' files."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from shadowprice.core.errors import Fault, InputError
from shadowprice.core.wording import hint_for_unknown, quote_for_display
from shadowprice.extensions import (
    TRACES,
    Extension,
    FileExtension,
    InstalledExtension,
    installed_extensions,
    is_file_reference,
    parse_summary,
)
from shadowprice.traces.records import ImportTally, Trace


@dataclass(slots=True)
class ImportContext:
    """Options of an import, and counts of the rows that it dropped or repaired."""

    skip_invalid: bool = False
    """Drop invalid rows and count them, instead of refusing the file."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Options of the format, by name."""
    tally: ImportTally = field(default_factory=ImportTally)
    """Rows dropped and repaired."""

    def choose(self, option: str, *choices: str) -> str:
        """Return the value of an option, by default the first choice.

        Raise `InputError` if it isn't one of the choices.
        """
        value = self.options.get(option, choices[0])
        if value not in choices:
            hint = f"write {option}={' or '.join(choices)}"
            raise InputError(f"{option}={quote_for_display(value)}: {hint}")
        return value


Importer = Callable[[Path, ImportContext], Trace]


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """A trace format that can be read.

    A user's file provides the importer, a function, or a `TraceFormat` if the format has options.
    """

    name: str
    """Name that users write before the colon: ``philly:PATH``."""
    title: str
    """Description of the trace in one line."""
    read: Importer
    citation: str = ""
    """Publication of the trace."""
    licence: str = ""
    """Terms of use of the data."""
    files: str = ""
    """Description of the expected file or directory."""
    gotchas: tuple[str, ...] = ()
    """Pitfalls of the data that the importer handles or refuses, one in each text."""
    options: Mapping[str, str] = field(default_factory=dict)
    """The format's own options, with their meaning."""
    extension: Extension | None = None
    """Origin of the format if it isn't part of this package."""


_formats: dict[str, TraceFormat] = {}


def trace_format(name: str, **description: Any) -> Callable[[Importer], Importer]:
    """Register a function as the importer of a format; ``description`` is as in `TraceFormat`."""

    def register(read: Importer) -> Importer:
        if name in _formats:
            raise ValueError(f"two modules register the trace format {name!r}")
        _formats[name] = TraceFormat(name, read=read, **description)
        return read

    return register


@cache
def builtin_formats() -> Mapping[str, TraceFormat]:
    """Return the formats of this package by name, in alphabetical order."""
    package = importlib.import_module("shadowprice.traces.formats")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return dict(sorted(_formats.items()))


def installed_formats() -> Mapping[str, InstalledExtension]:
    """Return the entry points of formats; a built-in format takes precedence over its name."""
    extensions = installed_extensions(TRACES)
    return {name: point for name, point in extensions.items() if name not in builtin_formats()}


def format_names() -> list[str]:
    """Return the names of all registered formats, in alphabetical order."""
    return sorted({*builtin_formats(), *installed_formats()})


def formats() -> Mapping[str, TraceFormat]:
    """Return every registered format by name, in alphabetical order.

    Entry points that can't be loaded are omitted, so that they don't disable the others.
    """
    by_name = dict(builtin_formats())
    for name in installed_formats():
        with suppress(InputError):
            by_name[name] = get_format(name)
    return dict(sorted(by_name.items()))


def get_format(name: str) -> TraceFormat:
    """Return a format by registered name or ``./file.py:NAME``.

    Raise `InputError` if the name is unknown (with the closest name), or the file or entry point
    can't be loaded.
    """
    if is_file_reference(name):
        return _extension_format(FileExtension.read(name, "trace"))
    if name in builtin_formats():
        return builtin_formats()[name]
    if name in installed_formats():
        return _extension_format(installed_formats()[name])
    known = format_names()
    message = f"unknown trace format {quote_for_display(name)}"
    raise InputError(Fault("trace", message, hint_for_unknown(name, known)))


@cache
def _extension_format(extension: Extension) -> TraceFormat:
    """Load a format that isn't part of this package: an importer or a `TraceFormat`."""
    loaded = extension.load()
    if isinstance(extension, FileExtension):
        name, location = extension.label, extension.reference
    else:
        name, location = extension.name, f"{extension.group}: {extension.name}"
    if isinstance(loaded, TraceFormat):
        return replace(
            loaded, name=name, read=_checking_result(loaded.read, location), extension=extension
        )
    try:
        inspect.signature(loaded).bind(None, None)
    except (TypeError, ValueError) as error:
        message = f"expected an importer (path, context) -> Trace: {error}"
        hint = "name such a function, or a TraceFormat"
        raise InputError(Fault(location, message, hint)) from error
    title, _ = parse_summary(loaded)
    return TraceFormat(name, title, _checking_result(loaded, location), extension=extension)


def _checking_result(read: Importer, location: str) -> Importer:
    """Return the importer with a check that its result is a `Trace`."""

    def checked(path: Path, context: ImportContext) -> Trace:
        trace: object = read(path, context)
        if not isinstance(trace, Trace):
            message = f"expected a Trace, got a {type(trace).__name__}"
            hint = "return what shadowprice.traces.records.build_trace returns"
            raise InputError(Fault(location, message, hint))
        return trace

    return checked

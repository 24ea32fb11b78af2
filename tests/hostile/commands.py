"""Commands and options as the command line declares them."""

from __future__ import annotations

import enum
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Union, get_args, get_origin

import typer

from shadowprice.cli.main import app

QUICK = frozenset({"fifo", "srtf", "las", "backfill", "dorm"})
"""Policies without compiled kernels."""

COUNTED = frozenset({"trials", "seeds", "delay"})
"""Options that set a number of runs, which must stay small or be too large."""

STAYING = frozenset({"serve"})
"""Commands that run until they are stopped; `events` and `top` end if no service responds."""


@dataclass(frozen=True)
class Option:
    """One option or argument of a command.

    Parameters
    ----------
    name : str
        Python name of the parameter.
    flag : str
        ``--name``, or empty for an argument.
    kind : type
        Type of the value.
    choices : tuple of str
        Values of an enumeration.
    required, switch, repeated : bool
        Whether it is required, takes no value, or may be repeated.
    least, most : float or None
        The declared range.
    """

    name: str
    flag: str
    kind: Any
    choices: tuple[str, ...]
    required: bool
    switch: bool
    repeated: bool
    least: float | None
    most: float | None


@dataclass(frozen=True)
class Command:
    """A command with its options and arguments."""

    words: tuple[str, ...]
    options: tuple[Option, ...]


def commands() -> list[Command]:
    """Return every command of the installed command line, extensions included."""
    root = typer.main.get_command(app)
    return list(_walk(root, None, ()))


def _walk(command: Any, parent: Any, words: tuple[str, ...]) -> Iterator[Command]:
    context = root_context(command, parent, words[-1] if words else "shadowprice")
    if hasattr(command, "list_commands"):
        for name in command.list_commands(context):
            result = command.get_command(context, name)
            if result is not None:
                yield from _walk(result, context, (*words, name))
        return
    yield Command(words, tuple(_option(param) for param in command.params if param.name != "help"))


def root_context(command: Any, parent: Any, name: str) -> Any:
    """Return a context that lists the commands of a group."""
    return command.make_context(name, [], parent=parent, resilient_parsing=True)


def _option(parameter: Any) -> Option:
    kind = _bare(parameter.type_descriptor.annotation)
    flags = [flag for flag in parameter.opts if flag.startswith("--")]
    is_argument = not any(flag.startswith("-") for flag in parameter.opts)
    info = parameter.type_descriptor.parameter_info
    choices: tuple[str, ...] = ()
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        choices = tuple(str(one.value) for one in kind)
    return Option(
        name=parameter.name,
        flag="" if is_argument else (flags or list(parameter.opts))[0],
        kind=kind,
        choices=choices,
        required=bool(parameter.required),
        switch=kind is bool,
        repeated=bool(getattr(parameter, "multiple", False)),
        least=getattr(info, "min", None),
        most=getattr(info, "max", None),
    )


def _bare(annotation: Any) -> Any:
    """Return the type inside an optional or a list."""
    if get_origin(annotation) in {Union, types.UnionType, list}:
        inner = [part for part in get_args(annotation) if part is not type(None)]
        return _bare(inner[0])
    return annotation

"""Command group that imports a command only when it is called."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from shadowprice.cli.idle import add_rules
from shadowprice.core import bounds
from shadowprice.core.paths import expand_home
from shadowprice.core.wording import hint_for_unknown


@dataclass(frozen=True, slots=True)
class Part:
    """Command or group that lives in a module of its own."""

    module: str  # has a Typer ``app``, or ``module:function``
    help: str  # summary line for the list of commands
    panel: str  # heading in the list of commands

    @property
    def present(self) -> bool:
        """Whether the module is installed; the check doesn't import it."""
        return _is_there(self.module.partition(":")[0])


@cache
def _is_there(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


class LazyGroup(TyperGroup):
    """Group that lists commands from their `Part` and imports a command only to run it."""

    parts: Mapping[str, Part] = {}
    _listing = False

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the group's own commands and every part that is present."""
        names = super().list_commands(ctx)
        return names + [
            name for name, part in self.parts.items() if part.present and name not in names
        ]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; while help is formatted, only a stub with its name and summary."""
        part = self.parts.get(cmd_name)
        if part is None:
            return super().get_command(ctx, cmd_name)
        if not part.present:
            return None
        if self._listing:
            return TyperCommand(cmd_name, help=part.help, rich_help_panel=part.panel)
        return _load(cmd_name, part)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command of a call; refuse an unknown name with the closest match."""
        name = args[0]
        names = self.list_commands(ctx)
        if name not in names and not name.startswith("-"):
            hint = hint_for_unknown(name, names)
            ctx.fail(f"no command {name!r}; {hint}")
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help without importing any part."""
        self._listing = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._listing = False


def _load(name: str, part: Part) -> Any:
    module, _, function = part.module.partition(":")
    target = getattr(importlib.import_module(module), function or "app")
    app = target
    if not isinstance(target, typer.Typer):
        app = typer.Typer(add_completion=False, rich_markup_mode="rich")
        app.command(name)(target)
    command = typer.main.get_command(app)
    command.name = name
    _prepare(command)
    add_rules(command, name)
    return command


def _prepare(command: Any) -> None:
    """Limit numbers without a range, which also excludes NaN; expand ``~``; reflow the help."""
    if command.help:
        # Rich keeps the line breaks of a docstring, so they would add to those of the terminal.
        # An indented line, such as an example, is a paragraph of its own.
        paragraphs = inspect.cleandoc(command.help).replace("\n    ", "\n\n").split("\n\n")
        command.help = "\n\n".join(paragraph.replace("\n", " ") for paragraph in paragraphs)
    for parameter in command.params:
        descriptor = getattr(parameter, "type_descriptor", None)
        if descriptor is None:
            continue
        if descriptor.annotation in {int, float}:
            info = descriptor.parameter_info
            limit = descriptor.annotation(bounds.NUMBER.maximum)
            info.max = limit if info.max is None else info.max
            info.min = -limit if info.min is None else info.min
        elif descriptor.annotation in (Path, list[Path]):
            parameter.callback = _expand_homes
    for part in getattr(command, "commands", {}).values():
        _prepare(part)


def _expand_homes(context: Any, parameter: Any, value: Any) -> Any:
    """Expand ``~``, as shells don't after ``--out=``, and nothing does in headers of scripts."""
    del context, parameter
    if isinstance(value, Path):
        return expand_home(value)
    return value and [expand_home(path) for path in value]

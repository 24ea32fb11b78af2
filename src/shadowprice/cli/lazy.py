"""A command group whose parts are imported when they are called."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from shadowprice.cli.idle import tell_idle
from shadowprice.core import bounds
from shadowprice.core.wording import closest


@dataclass(frozen=True, slots=True)
class Part:
    """A command that lives in a module of its own.

    Parameters
    ----------
    module : str
        Where: a module with a Typer ``app``, or ``module:function``.
    help : str
        One line for the list of commands.
    panel : str
        Heading under which it is listed.
    """

    module: str
    help: str
    panel: str

    @property
    def present(self) -> bool:
        """Whether the module is there, without importing it."""
        return _is_there(self.module.partition(":")[0])


@cache
def _is_there(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


class LazyGroup(TyperGroup):
    """A group that lists its parts by their own words and imports a part only to run it."""

    parts: Mapping[str, Part] = {}
    _listing = False

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the commands of this module and every part that is present."""
        names = super().list_commands(ctx)
        return names + [n for n, part in self.parts.items() if part.present and n not in names]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; while help is written, only its name and its line."""
        part = self.parts.get(cmd_name)
        if part is None:
            return super().get_command(ctx, cmd_name)
        if not part.present:
            return None
        if self._listing:
            return TyperCommand(cmd_name, help=part.help, rich_help_panel=part.panel)
        return _load(cmd_name, part)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command of a call; an unknown one is answered with the nearest."""
        name = args[0]
        known = self.list_commands(ctx)
        if name not in known and not name.startswith("-"):
            close = closest(name, known)
            hint = f"did you mean {close!r}?" if close else f"known: {', '.join(known)}"
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
    found = getattr(importlib.import_module(module), function or "app")
    app = found
    if not isinstance(found, typer.Typer):
        app = typer.Typer(add_completion=False, rich_markup_mode="rich")
        app.command(name)(found)
    command = typer.main.get_command(app)
    command.name = name
    bound_numbers(command)
    tell_idle(command, name)
    return command


def bound_numbers(command: Any) -> None:
    """Give every number of a command that states no range the general bound, NaN kept out."""
    for parameter in command.params:
        descriptor = getattr(parameter, "type_descriptor", None)
        if descriptor is not None and descriptor.annotation in {int, float}:
            info = descriptor.parameter_info
            most = descriptor.annotation(bounds.NUMBER.most)
            info.max = most if info.max is None else info.max
            info.min = -most if info.min is None else info.min
    for part in getattr(command, "commands", {}).values():
        bound_numbers(part)

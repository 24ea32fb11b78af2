"""Command groups that import a command only when it is called, so that the program starts fast.

They also refuse options without effect (`RULES`).
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from shadowprice.core import bounds
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.paths import expand_home
from shadowprice.core.wording import hint_for_unknown


@dataclass(frozen=True, slots=True)
class Part:
    """Entry of a command, or of a group of commands, in the list of commands."""

    module: str  # ``module:function``, or a module with a Typer ``app``
    help: str  # summary line for the list of commands
    panel: str  # heading in the list of commands


class LazyGroup(TyperGroup):
    """Group that lists commands from their `Part` and imports a command only to run it."""

    parts: Mapping[str, Part] = {}
    _listing = False  # while the help of the group is formatted

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the group's own commands and every part."""
        return [*super().list_commands(ctx), *self.parts]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; while help is formatted, only a stub with its name and summary."""
        part = self.parts.get(cmd_name)
        if part is None:
            return super().get_command(ctx, cmd_name)
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
    """Reflow the help of a command; limit its numbers, which also excludes NaN; expand ``~``."""
    if command.help:
        # Rich keeps the line breaks of a docstring, in addition to its own.
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
    """Expand ``~``: shells don't do so after ``--out=``, nor in headers of scripts."""
    del context, parameter
    if isinstance(value, Path):
        return expand_home(value)
    return value and [expand_home(path) for path in value]


OptionValues = Mapping[str, Any]  # values of a call's parameters by their Python names


@dataclass(frozen=True, slots=True)
class Rule:
    """Condition under which some options of a command have no effect."""

    options: Sequence[str]  # Python names
    applies: Callable[[OptionValues], bool]  # the condition, on all values of the call
    message: str
    hint: str


def _requires_option(name: str, flag: str) -> tuple[Callable[[OptionValues], bool], str, str]:
    """Return the last fields of a `Rule` for options that depend on another option."""
    return (lambda given: not given[name]), f"has no effect without {flag}", f"add {flag}"


def is_run(what: str | None) -> bool:
    """Return whether the argument of `statement` names a path instead of a tenant."""
    return what is not None and ("/" in what or Path(what).exists())


_SIZED = Rule(
    ("slot", "load"),
    lambda given: given.get("trace") is None or given.get("cluster") is not None,
    "applies only to the cluster that is sized to --trace, not to a cluster file",
    "remove it, or change the cluster file",
)
_WORKLOAD = (
    "cluster", "jobs", "trace", "columns", "incidents", "until", "slot", "load", "skip_invalid",
)  # fmt: skip
_ADVICE = Rule(("advice_time",), *_requires_option("advice", "--advice"))
_GRANT = "applies only to issuing a token"

RULES: Final[Mapping[str, Sequence[Rule]]] = {
    "simulate": (_SIZED, _ADVICE),
    "compare": (_SIZED, _ADVICE, Rule(("bound_time",), *_requires_option("bound", "--bound"))),
    "bound": (_SIZED,),
    "whatif": (
        Rule(
            (*_WORKLOAD, "seed", "seeds"),
            lambda given: given["server"] is not None or given["days"] is not None,
            "not valid with a live service, which has its own workload",
            "leave it out, or leave out --server and --days",
        ),
        _SIZED,
    ),
    "audit truthfulness": (_SIZED,),
    "audit sharing": (_SIZED,),
    "generate": (
        Rule(
            ("workers", "parameter_servers"),
            lambda given: given["preset"] == "testbed",
            "has no effect with --preset testbed, which uses the servers of its paper",
            "leave it out",
        ),
        Rule(
            ("parameter_servers",),
            lambda given: given["preset"] == "pdors",
            "has no effect with --preset pdors, whose servers run workers and parameter servers",
            "remove it; --workers sets the number of servers",
        ),
    ),
    "trace convert": (Rule(("load", "horizon"), *_requires_option("cluster", "--cluster")),),
    "explain": (
        Rule(
            ("server",),
            lambda given: given["job"] is not None,
            "applies to the live service only, not to a run",
            "remove it, or name only the job",
        ),
    ),
    "statement": (
        Rule(
            ("since", "until", "limit", "server"),
            lambda given: is_run(given["what"]),
            "applies to the live service only, not to a run",
            "leave it out",
        ),
        Rule(
            ("tenant",),
            lambda given: not is_run(given["what"]),
            "applies to runs only",
            "name only the tenant",
        ),
    ),
    "budget": (
        Rule(
            ("note",), lambda given: given["grant"] is None, "applies to grants only", "add --grant"
        ),
    ),
    "tokens": (
        Rule(
            ("expires", "note"),
            lambda given: given["tenant"] is None and not given["operator"],
            _GRANT,
            "add --tenant or --operator",
        ),
        Rule(
            ("tenant", "operator", "expires", "note"),
            lambda given: given["revoke"] is not None,
            "not valid with --revoke",
            "run the command twice",
        ),
    ),
    "login": (
        Rule(
            ("name", "token_file"),
            lambda given: given["server"] is None or given["remove"],
            "applies only to saving a server",
            "name its address",
        ),
        Rule(
            ("remove",),
            lambda given: given["server"] is None,
            "requires the name of a server",
            "write shadowprice login NAME --remove",
        ),
    ),
    "profile": (
        Rule(("families",), *_requires_option("family", "--family")),
        Rule(("name", "minibatches"), *_requires_option("out", "--out")),
    ),
    "experiment": (
        Rule(
            ("listen",),
            lambda given: not (given["executor"] or given["address"] or given["executor_set"]),
            "has no effect without --executor",
            "add --executor",
        ),
    ),
    "cloning simulate": (
        Rule(
            ("method", "constraint"),
            lambda given: given["copies"] is not None,
            "has no effect with --copies, which skips the solver",
            "remove it",
        ),
    ),
    "cloning waves": (
        Rule(
            ("machine_price",),
            lambda given: "saving" not in given["rule"],
            "has no effect without the rule saving",
            "add it to --rule",
        ),
    ),
}
"""Rules by the full name of the command, such as ``trace convert``."""


def add_rules(command: Any, words: str) -> None:
    """Make a command and its subcommands, named ``words``, refuse options without effect."""
    for name, part in getattr(command, "commands", {}).items():
        add_rules(part, f"{words} {name}")
    rules = RULES.get(words)
    if rules is None:
        return
    invoke = command.invoke

    def checked(context: Any) -> Any:
        reject_unused_options(context, rules)
        return invoke(context)

    command.invoke = checked


def reject_unused_options(context: Any, rules: Sequence[Rule]) -> None:
    """Raise `InputError` for the first option of a call that has no effect."""
    flags = {parameter.name: max(parameter.opts, key=len) for parameter in context.command.params}
    for rule in rules:
        for option in rule.options:
            source = context.get_parameter_source(option)
            given = source is not None and source.name == "COMMANDLINE"
            if given and rule.applies(context.params):
                raise InputError(Fault(flags[option], rule.message, rule.hint))

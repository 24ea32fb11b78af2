"""Workload options, shared by every command that runs a workload."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_type_hints

from shadowprice.cli import options as o
from shadowprice.cli.console import print_note
from shadowprice.core.errors import Fault, InputError

if TYPE_CHECKING:
    from shadowprice.simulator.scenario import Scenario
    from shadowprice.simulator.source import ScenarioSource

Command = TypeVar("Command", bound=Callable[..., None])


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Workload to run, as given by options.

    Each field is an option, in the order of ``--help``; its annotation defines the option.
    """

    cluster: o.ClusterOption = None
    jobs: o.JobsOption = None
    trace: o.TraceOption = None
    columns: o.ColumnsOption = None
    incidents: o.IncidentsOption = None
    until: o.UntilOption = None
    slot: o.SlotOption = "20min"
    load: o.LoadOption = 1.0
    skip_invalid: o.SkipInvalidOption = False

    def source(self, params: Path | None = None) -> ScenarioSource:
        """Return the source that the options name; ``params`` is recorded with it."""
        from shadowprice.simulator.source import ScenarioSource
        from shadowprice.traces.locate import with_columns

        named = {field.name: getattr(self, field.name) for field in fields(self)}
        columns = named.pop("columns")
        if self.trace is not None:
            named["trace"] = with_columns(self.trace, columns)
        elif columns is not None:
            raise InputError(Fault("--map", "maps columns of a trace", "add --trace csv:FILE"))
        return ScenarioSource(**named, params=params)

    def scenario(self, seed: int, params: Path | None = None, *, quiet: bool) -> Scenario:
        """Read all input files, and print notes on omitted or assumed data."""
        return read(self.source(params), seed, quiet=quiet)


def read(source: ScenarioSource, seed: int, *, quiet: bool) -> Scenario:
    """Read the scenario of a source, and print notes on omitted or assumed data."""
    scenario, remarks = source.scenario(seed)
    if not quiet:
        for remark in remarks:
            print_note(f"note: {remark}")
    return scenario


def takes_workload(*without: str) -> Callable[[Command], Command]:
    """Return a decorator that replaces a command's ``workload`` parameter with its options.

    Options named in ``without`` are left out.
    """

    def decorate(command: Command) -> Command:
        annotations = get_type_hints(Workload, include_extras=True)
        names = [field.name for field in fields(Workload) if field.name not in without]
        options = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=Workload.__dataclass_fields__[name].default,
                annotation=annotations[name],
            )
            for name in names
        ]

        @functools.wraps(command)
        def called(**given: Any) -> None:
            workload = Workload(**{name: given.pop(name) for name in names})
            command(workload=workload, **given)

        parameters: list[inspect.Parameter] = []
        hints = get_type_hints(command, {**command.__globals__, "Workload": Workload}, None, True)
        for parameter in inspect.signature(command).parameters.values():
            if parameter.name == "workload":
                parameters += options
                continue
            kind = inspect.Parameter.KEYWORD_ONLY
            parameters.append(parameter.replace(kind=kind, annotation=hints[parameter.name]))
        dynamic = cast(Any, called)
        dynamic.__signature__ = inspect.Signature(parameters, return_annotation=None)
        dynamic.__annotations__ = {item.name: item.annotation for item in parameters}
        return cast(Command, called)

    return decorate

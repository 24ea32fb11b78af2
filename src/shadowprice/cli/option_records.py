"""Commands that take several options as one record.

A record is a frozen dataclass. Each field is an option, in the order of ``--help``; its annotation
defines the option.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, TypeVar, cast, get_type_hints

Command = TypeVar("Command", bound=Callable[..., None])


def expand_options(*without: str) -> Callable[[Command], Command]:
    """Return a decorator that replaces a command's records by their options.

    Options named in ``without`` are left out.
    """

    def decorate(command: Command) -> Command:
        hints = get_type_hints(command, include_extras=True)
        records: dict[str, tuple[Callable[..., object], list[str]]] = {}
        parameters: list[inspect.Parameter] = []
        for parameter in inspect.signature(command).parameters.values():
            record = hints[parameter.name]
            if not (isinstance(record, type) and is_dataclass(record)):
                parameters.append(
                    parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=record)
                )
                continue
            options = get_type_hints(record, include_extras=True)
            chosen = [field for field in fields(record) if field.name not in without]
            records[parameter.name] = record, [field.name for field in chosen]
            parameters += [
                inspect.Parameter(
                    field.name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=inspect.Parameter.empty if field.default is MISSING else field.default,
                    annotation=options[field.name],
                )
                for field in chosen
            ]

        @functools.wraps(command)
        def called(**given: Any) -> None:
            for name, (record, options) in records.items():
                given[name] = record(**{option: given.pop(option) for option in options})
            command(**given)

        dynamic = cast(Any, called)
        dynamic.__signature__ = inspect.Signature(parameters, return_annotation=None)
        dynamic.__annotations__ = {item.name: item.annotation for item in parameters}
        return cast(Command, called)

    return decorate

"""Parser of executor settings that collects all errors."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Final

from shadowprice.core.errors import Fault, InputError
from shadowprice.core.wording import hint_for_unknown, quote_for_display

DEFAULT_LOG_BYTES: Final = 8 << 20  # default maximum size of a process's log

_MIN_LOG_BYTES: Final = 1024
_MAX_LOG_BYTES: Final = 1 << 40
_MAX_SECONDS: Final = 86_400


class OptionsReader:
    """Parser of ``--executor-set NAME=VALUE``, which collects errors until `raise_errors`.

    The names are the fields of the dataclass ``settings``.
    """

    def __init__(self, values: Mapping[str, str], settings: type[Any]) -> None:
        self.values = values
        self.faults: list[Fault] = []
        names = [field.name for field in fields(settings)]
        for name in values:
            if name not in names:
                self.add_error(
                    quote_for_display(name), "unknown setting", hint_for_unknown(name, names)
                )

    def add_error(self, name: str, message: str, hint: str) -> None:
        """Record an error."""
        self.faults.append(Fault(f"--executor-set {name}", message, hint))

    def matching(self, name: str, pattern: str | re.Pattern[str], default: str, hint: str) -> str:
        """Return a text setting, which must match a pattern unless it is the default."""
        value = self.values.get(name, default)
        if value != default and not re.fullmatch(pattern, value):
            self.add_error(name, f"{quote_for_display(value)} is not valid", hint)
        return value

    def choice(self, name: str, choices: Sequence[str]) -> str:
        """Return a setting that is one of the choices; the first is the default."""
        value = self.values.get(name, choices[0])
        if value not in choices:
            self.add_error(
                name, f"{quote_for_display(value)} is not valid", f"one of: {', '.join(choices)}"
            )
        return value

    def path(self, name: str) -> str:
        """Return a setting that is an absolute path; empty if it isn't set."""
        return self.matching(name, r"/[^\0]*", "", "write an absolute path")

    def integer(self, name: str, default: int, minimum: int, maximum: int, what: str) -> int:
        """Return an integer setting from ``minimum`` to ``maximum``."""
        text = self.values.get(name, str(default))
        # `int` raises ValueError for thousands of digits.
        number = int(text) if text.isdecimal() and len(text) < 16 else -1
        if not minimum <= number <= maximum:
            hint = f"write {what} from {minimum:,} to {maximum:,}"
            self.add_error(name, f"{quote_for_display(text)} is not valid", hint)
        return number

    def seconds(self, name: str, default: int) -> float:
        """Return a setting in seconds, from 1 to a day."""
        return float(self.integer(name, default, 1, _MAX_SECONDS, "seconds"))

    def log_bytes(self) -> int:
        """Return the maximum size of a process's log in bytes."""
        return self.integer(
            "log_bytes", DEFAULT_LOG_BYTES, _MIN_LOG_BYTES, _MAX_LOG_BYTES, "a number of bytes"
        )

    def raise_errors(self) -> None:
        """Raise InputError with all recorded errors, if there are any."""
        if self.faults:
            raise InputError(self.faults)

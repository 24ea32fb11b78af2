"""Reads what is set of an executor by name, and says all that is wrong at once."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from shadowprice.core.errors import Fault, InputError
from shadowprice.core.wording import closest, shown

LOG_BYTES: Final = 8 << 20
"""Bytes kept of what one process writes, where nothing else is said."""

_LEAST_LOG_BYTES: Final = 1024
_MOST_LOG_BYTES: Final = 1 << 40
_MOST_SECONDS: Final = 86_400


class Reading:
    """Settings as they were given, ``--executor-set NAME=VALUE``.

    Parameters
    ----------
    values : mapping of str to str
        The values by name.
    names : sequence of str
        The names there are.
    """

    def __init__(self, values: Mapping[str, str], names: Sequence[str]) -> None:
        self.values = values
        self.faults: list[Fault] = []
        for name in values:
            if name not in names:
                self.fault(shown(name), "unknown setting", self.one_of(name, names))

    @staticmethod
    def one_of(name: str, names: Sequence[str]) -> str:
        """Return the mend where a name is none of some."""
        likely = closest(name, names)
        return f"did you mean {likely!r}?" if likely else f"one of: {', '.join(names)}"

    def fault(self, name: str, message: str, mend: str) -> None:
        """Note a fault."""
        self.faults.append(Fault(f"--executor-set {name}", message, mend))

    def matching(self, name: str, pattern: str | re.Pattern[str], usual: str, mend: str) -> str:
        """Return a text that fits a pattern, or is left out."""
        value = self.values.get(name, usual)
        if value != usual and not re.fullmatch(pattern, value):
            self.fault(name, f"{shown(value)} is no such", mend)
        return value

    def choice(self, name: str, choices: Sequence[str]) -> str:
        """Return one of some words, by default the first."""
        value = self.values.get(name, choices[0])
        if value not in choices:
            self.fault(name, f"{shown(value)} is no such", f"one of: {', '.join(choices)}")
        return value

    def path(self, name: str) -> str:
        """Return an absolute path, empty where none is given."""
        return self.matching(name, r"/[^\0]*", "", "write an absolute path")

    def whole(self, name: str, usual: int, least: int, most: int, what: str) -> int:
        """Return a whole number within bounds."""
        written = self.values.get(name, str(usual))
        number = int(written) if written.isdecimal() and len(written) < 16 else -1
        if not least <= number <= most:
            mend = f"write {what} from {least:,} to {most:,}"
            self.fault(name, f"{shown(written)} is no such", mend)
        return number

    def seconds(self, name: str, usual: int) -> float:
        """Return a number of seconds, at least one and at most a day."""
        return float(self.whole(name, usual, 1, _MOST_SECONDS, "seconds"))

    def log_bytes(self) -> int:
        """Return how many bytes are kept of what one process writes."""
        return self.whole(
            "log_bytes", LOG_BYTES, _LEAST_LOG_BYTES, _MOST_LOG_BYTES, "a number of bytes"
        )

    def end(self) -> None:
        """Refuse what is wrong.

        Raises
        ------
        InputError
            If anything is, listing all of it.
        """
        if self.faults:
            raise InputError(self.faults)

"""Errors of this package, and diagnostics with location, message and hint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class ShadowpriceError(Exception):
    """Base class of the errors that this package raises on purpose.

    ``code`` is the machine-readable kind, stable across versions. ``exit_code`` is the exit status
    of the command line: 1 if the run failed, 2 if the arguments or an input are wrong.
    """

    code = "error"
    exit_code = 1


@dataclass(frozen=True, slots=True)
class Fault:
    """A diagnostic of an input, at a location such as ``jobs.yaml: jobs[3].worker.gpu``."""

    location: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        text = f"{self.location}: {self.message}" if self.location else self.message
        return f"{text}; {self.hint}" if self.hint else text


class InputError(ShadowpriceError):
    """A file or an argument is invalid; none of it was used. It has diagnostics in input order."""

    code = "input"
    exit_code = 2

    def __init__(self, faults: str | Fault | Sequence[Fault]) -> None:
        if isinstance(faults, str):
            faults = Fault("", faults)
        self.faults: tuple[Fault, ...] = (faults,) if isinstance(faults, Fault) else tuple(faults)
        super().__init__("\n".join(str(fault) for fault in self.faults))


class OverbookingError(ShadowpriceError):
    """A reservation would exceed a server's capacity; nothing was reserved."""

    code = "overbooking"


class EventError(ShadowpriceError):
    """An event is out of order or names something unknown; the state is unchanged."""

    code = "event"


class PolicyError(ShadowpriceError):
    """A policy's decision breaks a rule: a bug in the policy."""

    code = "policy"


class MissingExtraError(ShadowpriceError):
    """An optional dependency, which an extra of this package installs, isn't installed."""

    code = "missing-extra"

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs {package}, which is not installed; "
            f"run pip install 'shadowprice[{extra}]'"
        )

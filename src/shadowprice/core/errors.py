"""One error root; every error says what is wrong, where, and how to mend it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class ShadowpriceError(Exception):
    """Root of the errors this package raises on purpose.

    Attributes
    ----------
    code : str
        Machine-readable kind of the error, stable across versions.
    exit_code : int
        Exit status of the command line: 1 the run failed, 2 the call or an input is wrong.
    """

    code = "error"
    exit_code = 1


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong in an input.

    Parameters
    ----------
    place : str
        Where: ``jobs.yaml: jobs[3].worker.gpu`` or ``trace.csv: line 17``.
    message : str
        What is wrong.
    mend : str
        What to write instead; empty where the message says it already.
    """

    place: str
    message: str
    mend: str = ""

    def __str__(self) -> str:
        text = f"{self.place}: {self.message}" if self.place else self.message
        return f"{text}; {self.mend}" if self.mend else text


class InputError(ShadowpriceError):
    """A file or an argument is wrong; nothing of it was taken.

    Parameters
    ----------
    faults : str, Fault or sequence of Fault
        Everything found wrong, in the order of the input.
    """

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
    """An event is out of order, or speaks of what is not there; nothing of it was taken in."""

    code = "event"


class PolicyError(ShadowpriceError):
    """A policy returned a decision that breaks a rule: a bug in the policy."""

    code = "policy"


class MissingExtraError(ShadowpriceError):
    """An optional dependency is not installed.

    Parameters
    ----------
    package : str
        What is missing.
    extra : str
        The extra of this package that brings it.
    purpose : str
        What it is needed for.
    """

    code = "missing-extra"

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs {package}, which is not installed; "
            f"pip install 'shadowprice[{extra}]' brings it"
        )

"""How a generation ended, from how its processes did. Standard library only."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final

TERMINATED: Final = 128 + signal.SIGTERM
"""Exit status of a process that ended because it was told to."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a generation ended.

    Parameters
    ----------
    ending : str
        A value of `contract.Ending`.
    process : str
        The process that decided it.
    code : int
        Its exit status.
    reason : str
        What happened, for people.
    """

    ending: str
    process: str
    code: int
    reason: str


def status(returned: int) -> int:
    """Return the exit status that a shell would tell: 128 + n for death by signal n."""
    return 128 - returned if returned < 0 else returned


def verdict(
    exits: Sequence[tuple[str, int]],
    workers: int,
    *,
    stopped: bool,
    from_outside: bool,
    killed: Set[str],
    notes: Mapping[str, str],
) -> Verdict:
    """Return how a generation ended.

    Parameters
    ----------
    exits : sequence of (str, int)
        Every process with its exit status, in the order in which they ended.
    workers : int
        How many of them are workers.
    stopped : bool
        Whether it was ordered to stop before anything decided otherwise.
    from_outside : bool
        Whether something else ended it: the machine going down, an operator.
    killed : set of str
        Processes that were killed after the grace.
    notes : mapping of str to str
        What is known beside a status: why a program could not be begun, that memory ran out.
    """
    codes = dict(exits)
    by_worker = [code for name, code in exits if name.startswith("worker-")]
    if len(by_worker) == workers and not any(by_worker):
        return Verdict("done", "worker-0", 0, "every worker exited 0")
    told = stopped or from_outside
    for name, code in exits:
        if name in killed or code == 0 or (told and code == TERMINATED):
            continue
        return Verdict("failed", name, code, f"{name} {_how(code, told=told)}{_note(notes, name)}")
    name = next((one for one, _ in exits if one in killed), exits[0][0])
    ending = "lost" if from_outside and not stopped else "stopped"
    reason = "it was told to stop" if stopped else "it was told to end, but not by the scheduler"
    if killed & codes.keys():
        reason += f"; {name} was still there after its grace, and was killed"
    return Verdict(ending, name, codes[name], reason)


def _note(notes: Mapping[str, str], name: str) -> str:
    return f": {notes[name]}" if name in notes else ""


def _how(code: int, *, told: bool) -> str:
    after = " after it was told to stop (143 was expected)" if told else ""
    if code > 128:
        try:
            name = signal.Signals(code - 128).name
        except ValueError:
            return f"exited {code}{after}"
        return f"ended by {name}, status {code}{after}"
    return f"exited {code}{after}"

"""How a generation ended, from how its processes did. Standard library only."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final

TERMINATED: Final = 128 + signal.SIGTERM
"""Exit status of a process that ended because it was told to."""

COMPLETE: Final = "every worker exited 0"
"""Why a generation is done, where there is no more to say."""


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


def decided(exits: Sequence[tuple[str, int]], workers: int, *, tolerant: bool) -> bool:
    """Return whether a generation that nobody told to end is over, whatever its rest still does.

    Parameters
    ----------
    exits : sequence of (str, int)
        The processes that ended, each with its exit status, in that order.
    workers : int
        How many workers there were.
    tolerant : bool
        Whether it goes on without a worker that dies.
    """
    return done(exits, workers, tolerant=tolerant) or bool(_failed(exits, workers, tolerant))


def done(exits: Sequence[tuple[str, int]], workers: int, *, tolerant: bool) -> bool:
    """Return whether every worker exited 0; where others are tolerated, all ended and one so."""
    codes = [code for name, code in exits if _is_worker(name)]
    return bool(codes) and len(codes) == workers and (0 in codes if tolerant else not any(codes))


def _failed(exits: Sequence[tuple[str, int]], workers: int, tolerant: bool) -> str:
    """Return the process whose end made a generation fail, empty where it did not.

    A process that exits 0 never does. Of those that exit otherwise the first does; where workers
    are tolerated, the first parameter server, or the last worker if none exited 0.
    """
    ended = [code for name, code in exits if _is_worker(name)]
    for name, code in exits:
        workers -= _is_worker(name)
        if code and (not tolerant or not _is_worker(name) or (not workers and 0 not in ended)):
            return name
    return ""


def _is_worker(name: str) -> bool:
    return name.startswith("worker-")


def verdict(
    exits: Sequence[tuple[str, int]],
    workers: int,
    *,
    tolerant: bool = False,
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
    tolerant : bool
        Whether it went on without workers that died.
    stopped : bool
        Whether it was ordered to stop before anything decided otherwise.
    from_outside : bool
        Whether something else ended it: the machine going down, an operator.
    killed : set of str
        Processes that were killed after the grace.
    notes : mapping of str to str
        What is known beside a status: why a program could not be begun, that memory ran out, what
        it left running.
    """
    codes = dict(exits)
    if done(exits, workers, tolerant=tolerant):
        well = [name for name, code in exits if _is_worker(name) and code == 0]
        name = "worker-0" if "worker-0" in well else well[0]
        return Verdict("done", name, 0, _completion(exits, notes))
    told = stopped or from_outside
    # What ends as it was told to is as good as what exits 0.
    answers = [
        (name, 0 if name in killed or (told and code == TERMINATED) else code)
        for name, code in exits
    ]
    name = _failed(answers, workers, tolerant)
    if name:
        code = codes[name]
        return Verdict("failed", name, code, f"{name} {_how(code, told=told)}{_note(notes, name)}")
    name = next((one for one, _ in exits if one in killed), exits[0][0])
    ending = "lost" if from_outside and not stopped else "stopped"
    reason = "it was told to stop" if stopped else "it was told to end, but not by the scheduler"
    if killed & codes.keys():
        reason += f"; {name} was still there after its grace, and was killed"
    return Verdict(ending, name, codes[name], reason)


def _completion(exits: Sequence[tuple[str, int]], notes: Mapping[str, str]) -> str:
    died = [f"{name} {_how(code, told=False)}" for name, code in exits if code and _is_worker(name)]
    well = COMPLETE
    if died:
        well = f"the workers that lived exited 0; on the way {', '.join(died)}"
    noted = [name for name, code in exits if name in notes and not code and _is_worker(name)]
    return "; ".join((well, *(f"{name}: {notes[name]}" for name in noted)))


def _note(notes: Mapping[str, str], name: str) -> str:
    return f": {notes[name]}" if name in notes else ""


def _how(code: int, *, told: bool) -> str:
    after = " after it was told to stop (143 was expected)" if told else ""
    if code == TERMINATED:
        return f"exited {code}, or was ended by SIGTERM, though nothing here told it to stop"
    if code > 128:
        try:
            name = signal.Signals(code - 128).name
        except ValueError:
            return f"exited {code}{after}"
        return f"ended by {name}, status {code}{after}"
    return f"exited {code}{after}"

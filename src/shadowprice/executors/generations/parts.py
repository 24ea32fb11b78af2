"""How a generation ended, by how its processes did on their nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shadowprice.executors.generations.verdict import Verdict, decided, verdict


@dataclass(frozen=True, slots=True)
class PartEnd:
    """How one process ended.

    Parameters
    ----------
    name : str
        The process, ``worker-0`` or ``ps-1``.
    code : int
        Its exit status; -1 where nobody saw it.
    at : float
        When, seconds since 1970 by its node's clock.
    told : bool
        Whether it had been told to end before.
    killed : bool
        Whether it had to be killed after its grace.
    outside : bool
        Whether something other than the executor told it to end.
    lost : str
        Why it was lost, where it was; empty elsewhere.
    note : str
        What is known beside its status.
    """

    name: str
    code: int
    at: float
    told: bool = False
    killed: bool = False
    outside: bool = False
    lost: str = ""
    note: str = ""

    @classmethod
    def of(cls, name: str, state: Mapping[str, Any], lost: str) -> PartEnd:
        """Return how a process ended by the last state of its supervisor.

        Parameters
        ----------
        name : str
            The process.
        state : mapping
            What `supervision.supervisor` wrote.
        lost : str
            Why it counts as lost where its supervisor did not see it end.
        """
        code = state.get("code")
        if state.get("phase") != "ended" or state.get("cut") or not isinstance(code, int):
            return cls(name, -1, float(state.get("at", 0.0)), lost=lost)
        return cls(
            name,
            code,
            float(state.get("exited") or state["at"]),
            told=bool(state.get("told")),
            killed=bool(state.get("killed")),
            outside=state.get("ending") == "lost",
            note=str(state.get("note", "")),
        )


def _exits(ends: Iterable[PartEnd]) -> list[tuple[str, int]]:
    """Return the exits of those that were seen to end: first what they did of themselves."""
    seen = (end for end in ends if not end.lost)
    return [(end.name, end.code) for end in sorted(seen, key=lambda end: (end.told, end.at))]


def is_decided(ends: Sequence[PartEnd], workers: int, *, tolerant: bool) -> bool:
    """Return whether a generation is over, whatever its other processes still do.

    Parameters
    ----------
    ends : sequence of PartEnd
        How the processes ended that did.
    workers : int
        How many workers there were.
    tolerant : bool
        Whether it goes on without a worker that dies; not without one whose node is lost, for the
        scheduler has to find another place.
    """
    return any(end.lost for end in ends) or decided(_exits(ends), workers, tolerant=tolerant)


def verdict_of(
    ends: Sequence[PartEnd], workers: int, *, stop_ordered: bool, tolerant: bool = False
) -> Verdict:
    """Return how a generation ended.

    A process that was lost makes it lost, whatever others answered: they may have failed of that.
    Otherwise what a process did of itself goes before what it did once it was told to end, for
    nodes' clocks differ.

    Parameters
    ----------
    ends : sequence of PartEnd
        How every process ended, workers first.
    workers : int
        How many of them are workers.
    stop_ordered : bool
        Whether the scheduler told it to stop.
    tolerant : bool
        As of `is_decided`.
    """
    done = [end for end in ends[:workers] if not end.lost and end.code == 0]
    gone = [end for end in ends if end.lost]
    if gone and len(done) < workers:
        return Verdict("lost", gone[0].name, -1, gone[0].lost)
    seen = [end for end in ends if not end.lost]
    of_itself = decided(_exits(end for end in seen if not end.told), workers, tolerant=tolerant)
    return verdict(
        _exits(seen),
        workers,
        tolerant=tolerant,
        stopped=stop_ordered and not of_itself,
        from_outside=any(end.outside for end in seen),
        killed={end.name for end in seen if end.killed},
        notes={end.name: end.note for end in seen if end.note},
    )

"""The result of a generation from the ends of its processes on their nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shadowprice.executors.generations.outcome import (
    GenerationOutcome,
    compute_outcome,
    has_outcome,
)


@dataclass(frozen=True, slots=True)
class ProcessExit:
    """The end of one process."""

    name: str  # `worker-0` or `ps-1`
    code: int  # its exit status; -1 if unknown
    at: float  # seconds since 1970 by its node's clock
    stop_requested: bool = False  # it had been signalled to end
    killed: bool = False  # after its grace period
    outside: bool = False  # something other than the executor asked it to end
    lost: str = ""  # why it counts as lost; empty if it doesn't
    note: str = ""  # explanation besides its exit status

    @classmethod
    def from_state(cls, name: str, state: Mapping[str, Any], lost: str) -> ProcessExit:
        """Build it from the last state that the process's supervisor wrote.

        ``lost`` is the reason used if the supervisor didn't see the process end.
        """
        code = state.get("code")
        if state.get("phase") != "ended" or state.get("cut") or not isinstance(code, int):
            return cls(name, -1, float(state.get("at", 0.0)), lost=lost)
        return cls(
            name,
            code,
            float(state.get("exited") or state["at"]),
            stop_requested=bool(state.get("stop_requested")),
            killed=bool(state.get("killed")),
            outside=bool(state.get("outside")),
            note=str(state.get("note", "")),
        )


def _exits(ends: Iterable[ProcessExit]) -> list[tuple[str, int]]:
    """Return the exits of the processes that aren't lost; unprompted ends come first."""
    observed = (end for end in ends if not end.lost)
    return [
        (end.name, end.code)
        for end in sorted(observed, key=lambda end: (end.stop_requested, end.at))
    ]


def is_outcome_final(ends: Sequence[ProcessExit], workers: int, *, tolerant: bool) -> bool:
    """Return whether the running processes can't change the generation's result.

    ``ends`` are of the processes that have ended. A lost process always decides, as does one that
    was ended from outside: even if workers are tolerated, the scheduler has to find a new
    placement.
    """
    return any(end.lost or end.outside for end in ends) or has_outcome(
        _exits(ends), workers, tolerant=tolerant
    )


def outcome_from_exits(
    ends: Sequence[ProcessExit], workers: int, *, stop_ordered: bool, tolerant: bool = False
) -> GenerationOutcome:
    """Return how a generation ended; ``ends`` has all processes, workers first.

    A lost process makes the generation lost, unless all workers exited 0, because other failures
    may be its consequence. Otherwise an unprompted end takes precedence over an end after a signal,
    because nodes' clocks differ. ``stop_ordered`` is true if the scheduler stopped the
    generation.
    """
    done = [end for end in ends[:workers] if not end.lost and end.code == 0]
    lost = [end for end in ends if end.lost]
    if lost and len(done) < workers:
        return GenerationOutcome("lost", lost[0].name, -1, lost[0].lost)
    observed = [end for end in ends if not end.lost]
    unprompted = has_outcome(
        _exits(end for end in observed if not end.stop_requested), workers, tolerant=tolerant
    )
    return compute_outcome(
        _exits(observed),
        workers,
        tolerant=tolerant,
        stopped=stop_ordered and not unprompted,
        from_outside=not unprompted and any(end.outside for end in observed),
        killed={end.name for end in observed if end.killed},
        notes={end.name: end.note for end in observed if end.note},
    )

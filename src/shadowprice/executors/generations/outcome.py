"""The result of a generation, derived from the ends of its processes.

Exits are pairs of a process's name and its exit status as shells report it. They are ordered by
time. Standard library only.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from typing import Any, Final

EXIT_SIGTERM: Final = 128 + signal.SIGTERM  # status of a process that handled or died of SIGTERM
ALL_WORKERS_SUCCEEDED: Final = "every worker exited 0"  # reason of a normal completion

SIGNAL_FROM_OUTSIDE: Final = "it received a signal that the scheduler did not send"
"""Reason of a generation that an external cause ended, such as a shutdown of its machine."""


@dataclass(frozen=True, slots=True)
class GenerationOutcome:
    """How a generation ended.

    ``ending`` is a value of `contract.Ending`. ``process`` decided the result, with exit status
    ``code``. ``reason`` is for people. ``outside`` says that an external cause ended it, and no
    stop command did. Then only the job's progress shows whether ``done`` is true.
    """

    ending: str
    process: str
    code: int
    reason: str
    outside: bool = False

    def record(self) -> dict[str, Any]:
        """Return its fields for a generation's state; an unknown (negative) code becomes None."""
        return {**asdict(self), "code": self.code if self.code >= 0 else None}


def shell_exit_status(returned: int) -> int:
    """Return a `Popen.returncode` as shells report it: 128 + n for death by signal n."""
    return 128 - returned if returned < 0 else returned


def has_outcome(exits: Sequence[tuple[str, int]], workers: int, *, tolerant: bool) -> bool:
    """Return whether the exits decide the result of a generation that wasn't stopped."""
    return all_succeeded(exits, workers, tolerant=tolerant) or bool(
        _find_failed_process(exits, workers, tolerant)
    )


def all_succeeded(exits: Sequence[tuple[str, int]], workers: int, *, tolerant: bool) -> bool:
    """Return whether every worker exited 0; if tolerant, all ended and at least one exited 0."""
    codes = [code for name, code in exits if _is_worker(name)]
    return bool(codes) and len(codes) == workers and (0 in codes if tolerant else not any(codes))


def _find_failed_process(exits: Sequence[tuple[str, int]], workers: int, tolerant: bool) -> str:
    """Return the process that made the generation fail, or an empty string."""
    worker_codes = [code for name, code in exits if _is_worker(name)]
    for name, code in exits:
        workers -= _is_worker(name)
        # A tolerant generation only fails with a parameter server, or with its last worker.
        if code and (
            not tolerant or not _is_worker(name) or (not workers and 0 not in worker_codes)
        ):
            return name
    return ""


def _is_worker(name: str) -> bool:
    return name.startswith("worker-")


def compute_outcome(
    exits: Sequence[tuple[str, int]],
    workers: int,
    *,
    tolerant: bool = False,
    stopped: bool,
    from_outside: bool,
    killed: Set[str],
    notes: Mapping[str, str],
) -> GenerationOutcome:
    """Return how a generation ended, from the exits of all its processes.

    ``stopped`` says that a stop command preceded any deciding exit. ``from_outside`` says that an
    external cause ended the generation. A failure then counts as its consequence, so the result is
    ``lost``. ``killed`` are processes killed after the grace period. ``notes`` are explanations by
    process.
    """
    codes = dict(exits)
    from_outside = from_outside and not stopped
    if all_succeeded(exits, workers, tolerant=tolerant):
        succeeded = [name for name, code in exits if _is_worker(name) and code == 0]
        name = "worker-0" if "worker-0" in succeeded else succeeded[0]
        return GenerationOutcome("done", name, 0, _completion_reason(exits, notes), from_outside)
    signalled = stopped or from_outside
    # A process that ended as requested counts as one that exited 0.
    effective_exits = [
        (name, 0 if name in killed or (signalled and code == EXIT_SIGTERM) else code)
        for name, code in exits
    ]
    name = _find_failed_process(effective_exits, workers, tolerant)
    if name:
        reason = f"{name} {_describe_exit(codes[name], stop_requested=stopped)}"
        if name in notes:
            reason += f": {notes[name]}"
        if from_outside:
            reason = f"{SIGNAL_FROM_OUTSIDE}; {reason}"
        ending = "lost" if from_outside else "failed"
        return GenerationOutcome(ending, name, codes[name], reason, from_outside)
    name = next((process for process, _ in exits if process in killed), exits[0][0])
    ending = "lost" if from_outside else "stopped"
    reason = SIGNAL_FROM_OUTSIDE if from_outside else "the scheduler stopped it"
    if killed & codes.keys():
        reason += f"; {name} did not exit within its grace period, and was killed"
    return GenerationOutcome(ending, name, codes[name], reason, from_outside)


def _completion_reason(exits: Sequence[tuple[str, int]], notes: Mapping[str, str]) -> str:
    died = [
        f"{name} {_describe_exit(code, stop_requested=False)}"
        for name, code in exits
        if code and _is_worker(name)
    ]
    summary = ALL_WORKERS_SUCCEEDED
    if died:
        summary = f"the remaining workers exited 0; earlier {', '.join(died)}"
    with_note = [name for name, code in exits if name in notes and not code and _is_worker(name)]
    return "; ".join((summary, *(f"{name}: {notes[name]}" for name in with_note)))


def _describe_exit(code: int, *, stop_requested: bool) -> str:
    after = " after the order to stop (143 was expected)" if stop_requested else ""
    if code == EXIT_SIGTERM:
        return f"exited {code}, or was ended by a SIGTERM that the scheduler did not send"
    if code > 128:
        try:
            name = signal.Signals(code - 128).name
        except ValueError:
            return f"exited {code}{after}"
        return f"ended by {name}, status {code}{after}"
    return f"exited {code}{after}"


@dataclass(frozen=True, slots=True)
class ProcessExit:
    """The end of one process."""

    name: str  # `worker-0` or `ps-1`
    code: int  # its exit status; -1 if unknown
    at: float  # seconds since 1970 by its node's clock
    stop_requested: bool = False  # it had received a signal to end
    killed: bool = False  # it was killed after its grace period
    outside: bool = False  # the signal came from something other than the executor
    lost: str = ""  # why it counts as lost; empty if it doesn't
    note: str = ""  # explanation that its exit status doesn't give

    @classmethod
    def from_state(cls, name: str, state: Mapping[str, Any], lost: str) -> ProcessExit:
        """Build it from its supervisor's last state, which may lack the end: ``lost`` says why."""
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
    """Return the exits of the processes that aren't lost; ends without a signal come first."""
    observed = (end for end in ends if not end.lost)
    return [
        (end.name, end.code)
        for end in sorted(observed, key=lambda end: (end.stop_requested, end.at))
    ]


def is_outcome_final(ends: Sequence[ProcessExit], workers: int, *, tolerant: bool) -> bool:
    """Return whether the running processes can't change the generation's result.

    A process that was lost or ended from outside always decides. Even if dead workers are
    tolerated, the scheduler has to find a new placement.
    """
    return any(end.lost or end.outside for end in ends) or has_outcome(
        _exits(ends), workers, tolerant=tolerant
    )


def outcome_from_exits(
    ends: Sequence[ProcessExit], workers: int, *, stop_ordered: bool, tolerant: bool = False
) -> GenerationOutcome:
    """Return how a generation ended; ``ends`` has all processes, workers first.

    A lost process makes the generation lost, because other failures may be its consequence; but if
    all workers exited 0, the generation is done. Otherwise ends without a signal take precedence
    over ends after a signal. Their times can't be compared, because nodes' clocks differ.
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

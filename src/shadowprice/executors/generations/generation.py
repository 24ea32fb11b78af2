"""The directory of one generation, through which executor and supervisor communicate.

``plan.json`` has the commands to run, ``state`` the generation's state, and ``stop`` a stop
command. The supervisor holds the directory's lock while it lives. Every change is durable before it
takes effect:

    (created) -> accepted or refused
    accepted -> launching -> running -> ended
    accepted -> refused
    launching -> ended                         if the supervisor is lost

Only the holder of the lock writes ``state``. A generation is launched only from ``accepted``, and
``launching`` is durable before any process of the job exists. So no generation is launched twice,
whichever process crashes. Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from shadowprice.executors.generations.disk import (
    FileLock,
    StateFile,
    create_file,
    record_size,
    sync_directory,
)

STATE_HALF_BYTES: Final = 8192  # minimum size of each half of ``state``; fits a log tail
STATE_TEXT_CHARACTERS: Final = 500  # texts that don't fit, such as a long path, are cut to this
STOP_BYTES: Final = 256  # of each half of ``stop``
CLAIM_LOCK_SECONDS: Final = 1.0  # maximum wait for the lock; an executor holds it briefly at times
EXECUTION_VARIABLE: Final = "SHADOWPRICE_EXECUTION"  # finds the processes of a killed supervisor


class Phase(StrEnum):
    """State of a generation."""

    ACCEPTED = "accepted"
    LAUNCHING = "launching"
    RUNNING = "running"
    ENDED = "ended"
    REFUSED = "refused"
    DAMAGED = "damaged"  # its stored state can't be read


TERMINAL_PHASES: Final = frozenset({Phase.ENDED, Phase.REFUSED})


class GenerationDirectory:
    """One generation on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._state = StateFile(path / "state")
        self._stop = StateFile(path / "stop")

    @classmethod
    def create(cls, path: Path, plan: dict[str, Any], state: dict[str, Any]) -> GenerationDirectory:
        """Create the directory, which must not exist, durably; ``plan`` is empty if refused."""
        path.mkdir(mode=0o700)
        (path / "logs").mkdir(mode=0o700)
        if plan:
            create_file(path / "plan.json", json.dumps(plan).encode())
        StateFile.create(path / "stop", {"command": 0}, STOP_BYTES)
        # The first state has the placement, which may name thousands of servers. Half of the
        # minimum is for later fields.
        half_bytes = max(STATE_HALF_BYTES, STATE_HALF_BYTES // 2 + record_size(state))
        StateFile.create(path / "state", state, half_bytes)
        sync_directory(path)
        return cls(path)

    @property
    def logs(self) -> Path:
        """Directory of its processes' logs."""
        return self.path / "logs"

    @property
    def progress(self) -> Path:
        """The default file for its progress reports."""
        return self.path / "progress.json"

    def plan(self) -> dict[str, Any]:
        """Return the plan; empty after the generation was forgotten."""
        try:
            plan: dict[str, Any] = json.loads((self.path / "plan.json").read_bytes())
        except FileNotFoundError:
            return {}
        return plan

    def state(self) -> dict[str, Any]:
        """Return its state."""
        return self._state.read()

    def write_state(self, state: dict[str, Any]) -> None:
        """Store its state; the caller holds the lock.

        A state that doesn't fit loses the processes' exit statuses, then their pids. If it still
        doesn't fit, its texts and then its log tail are shortened.
        """
        for optional in ("exits", "processes"):
            if optional in state and not self._state.fits(state):
                state = {key: value for key, value in state.items() if key != optional}
        if not self._state.fits(state):
            for text in ("note", "reason"):
                if len(state.get(text, "")) > STATE_TEXT_CHARACTERS:
                    state = {**state, text: f"{state[text][:STATE_TEXT_CHARACTERS]}..."}
        while state.get("tail") and not self._state.fits(state):
            state = {**state, "tail": state["tail"][1:]}
        self._state.write(state)

    def stop(self) -> dict[str, Any]:
        """Return the stop command: ``command`` (0 if none), with ``grace`` and ``until``."""
        return self._stop.read()

    def request_stop(self, command: int, grace: float, now: float) -> bool:
        """Store a stop command; return whether it is new. It never extends an earlier deadline."""
        try:
            previous = self._stop.read()
        except ValueError:  # damaged: the new command replaces it
            StateFile.create(self._stop.path, {"command": 0}, STOP_BYTES)
            previous = {"command": 0}
        if previous["command"] == command:
            return False
        until = min(now + grace, previous.get("until", now + grace))
        grace = min(grace, previous.get("grace", grace))
        self._stop.write({"command": command, "grace": grace, "until": until})
        return True

    def try_lock(self) -> FileLock | None:
        """Acquire its lock; return None if its supervisor lives."""
        return FileLock.try_acquire(self.path)

    def claim(self, supervisor: dict[str, Any]) -> FileLock | None:
        """Claim it for its only launch; return the lock, or None if it must not be launched."""
        until = time.monotonic() + CLAIM_LOCK_SECONDS
        while (lock := self.try_lock()) is None:
            if self.state()["phase"] != Phase.ACCEPTED or time.monotonic() > until:
                return None
            time.sleep(0.01)
        with contextlib.ExitStack() as stack:
            stack.enter_context(lock)
            state = self.state()
            if state["phase"] != Phase.ACCEPTED:
                return None
            if self.stop()["command"]:
                reason = "it was stopped before it started"
                refused = {"phase": Phase.REFUSED, "at": time.time(), "reason": reason}
                self.write_state({**state, **refused})
                return None
            self.write_state({**state, **supervisor, "phase": Phase.LAUNCHING, "at": time.time()})
            stack.pop_all()
        return lock

    def mark_lost_if_dead(self, reason: str) -> bool:
        """Mark it as lost if its supervisor died; return whether its state is terminal."""
        lock = self.try_lock()
        if lock is None:
            return False
        with lock:
            lost = {"phase": Phase.ENDED, "at": time.time(), "ending": "lost", "reason": reason}
            try:
                state = self.state()
            except ValueError:
                lost |= {"command": 0, "reason": f"its records were damaged; {reason}"}
                StateFile.create(self._state.path, lost, STATE_HALF_BYTES)
                return True
            if state["phase"] in TERMINAL_PHASES:
                return True
            if state["phase"] == Phase.ACCEPTED:  # no supervisor claimed it yet
                return False
            self.write_state({**state, **lost})
            return True


def identities_differ(one: str | None, other: str | None) -> bool:
    """Return whether two commands' identities are both known, and differ."""
    return bool(one and other) and one != other


def start_time(process: int) -> int | None:
    """Return a process's start in clock ticks since boot; None if it ended.

    A pid and its start time identify a process during a boot.
    """
    fields = read_stat(process)
    return int(fields[19]) if fields and fields[0] not in {b"Z", b"X"} else None


def read_stat(process: int | str) -> list[bytes]:
    """Return the fields of a process's ``stat`` from the state (field 3) on; empty if it ended."""
    try:
        content = Path(f"/proc/{process}/stat").read_bytes()
    except OSError:
        return []
    # The name, field 2, may contain any character, so split after its closing parenthesis.
    return content.rpartition(b")")[2].split()


def boot_id() -> str:
    """Return the identifier of the machine's current boot."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return "unknown"


def own_identity() -> dict[str, Any]:
    """Return this supervisor's identification for a state."""
    return {"supervisor": os.getpid(), "began": start_time(os.getpid()), "boot": boot_id()}

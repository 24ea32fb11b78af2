"""The directory of one generation: what an executor and a supervisor tell each other.

``plan.json`` says what to run, ``state`` where it is, ``stop`` whether it is to end; ``lock`` is
held by the supervisor as long as it lives. Every change is on disk before anyone acts on it:

    accepted -> launching -> running -> ended
    accepted -> refused

Whoever changes ``state`` holds the lock. A generation is launched only from ``accepted``, and
``launching`` is on disk before any process exists: so none is ever launched twice, whoever dies
when. Standard library only.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any, Final

from shadowprice.executors.generations.disk import Lock, StateFile, sync_directory, write_new

ACCEPTED: Final = "accepted"
LAUNCHING: Final = "launching"
RUNNING: Final = "running"
ENDED: Final = "ended"
REFUSED: Final = "refused"
OVER: Final = frozenset({ENDED, REFUSED})
DAMAGED: Final = "damaged"
"""What is said of one whose state cannot be read."""

STATE_BYTES: Final = 8192
"""Bytes of a slot of ``state``: enough for the last lines of a log."""
STOP_BYTES: Final = 256
MARK: Final = "SHADOWPRICE_EXECUTION"
"""The variable by which processes are found whose supervisor was killed."""


class Generation:
    """One generation on disk.

    Parameters
    ----------
    path : Path
        Its directory.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._state = StateFile(path / "state")
        self._stop = StateFile(path / "stop")

    @classmethod
    def create(cls, path: Path, plan: dict[str, Any], state: dict[str, Any]) -> Generation:
        """Lay out a directory, on disk in full; ``state`` tells at least its ``phase``.

        Parameters
        ----------
        path : Path
            Where; it must not exist.
        plan : mapping
            What to run; empty for one that is refused.
        state : mapping
            The first state.
        """
        path.mkdir(mode=0o700)
        (path / "logs").mkdir(mode=0o700)
        if plan:
            write_new(path / "plan.json", json.dumps(plan).encode())
        (path / "lock").touch(mode=0o600)
        StateFile.create(path / "stop", {"command": 0}, STOP_BYTES)
        StateFile.create(path / "state", state, STATE_BYTES)
        sync_directory(path)
        return cls(path)

    @property
    def logs(self) -> Path:
        """Where the logs of its processes are."""
        return self.path / "logs"

    @property
    def progress(self) -> Path:
        """The file by which it may report its progress."""
        return self.path / "progress.json"

    def plan(self) -> dict[str, Any]:
        """Return what it runs; empty once it was forgotten."""
        try:
            plan: dict[str, Any] = json.loads((self.path / "plan.json").read_bytes())
        except FileNotFoundError:
            return {}
        return plan

    def state(self) -> dict[str, Any]:
        """Return where it is."""
        return self._state.read()

    def write_state(self, state: dict[str, Any]) -> None:
        """Say where it is; by the holder of the lock. Lines of the log are left out to fit."""
        while state.get("tail") and not self._state.fits(state):
            state = {**state, "tail": state["tail"][1:]}
        self._state.write(state)

    def stop(self) -> dict[str, Any]:
        """Return the order to stop: ``command`` 0 where there is none, else ``until`` as well."""
        return self._stop.read()

    def order_stop(self, command: int, grace: float, now: float) -> bool:
        """Keep an order to stop; whether it is new. What was ordered earlier never gets longer."""
        try:
            before = self._stop.read()
        except ValueError:  # damaged: what is ordered now counts
            StateFile.create(self._stop.path, {"command": 0}, STOP_BYTES)
            before = {"command": 0}
        if before["command"] == command:
            return False
        until = min(now + grace, before.get("until", now + grace))
        grace = min(grace, before.get("grace", grace))
        self._stop.write({"command": command, "grace": grace, "until": until})
        return True

    def take_lock(self) -> Lock | None:
        """Take its lock, None where its supervisor lives."""
        return Lock.take(self.path / "lock")

    def claim(self, who: dict[str, Any]) -> Lock | None:
        """Take it for launching, once and for all; None where it is not to be launched.

        Parameters
        ----------
        who : mapping
            What the state is to tell of the supervisor.
        """
        lock = self.take_lock()
        if lock is None:
            return None
        try:
            state = self.state()
            if state["phase"] != ACCEPTED:
                lock.release()
                return None
            if self.stop()["command"]:
                reason = "it was told to stop before it was started"
                over = {"phase": REFUSED, "at": time.time(), "reason": reason}
                self.write_state({**state, **over})
                lock.release()
                return None
            self.write_state({**state, **who, "phase": LAUNCHING, "at": time.time()})
        except BaseException:
            lock.release()
            raise
        return lock

    def settle(self, reason: str) -> bool:
        """Write that it was lost, where its supervisor died; whether it is over now.

        Its processes must be gone before.
        """
        lock = self.take_lock()
        if lock is None:
            return False
        with lock:
            over = {"phase": ENDED, "at": time.time(), "ending": "lost", "reason": reason}
            try:
                state = self.state()
            except ValueError:
                over |= {"command": 0, "reason": f"its records were damaged; {reason}"}
                StateFile.create(self._state.path, over, STATE_BYTES)
                return True
            if state["phase"] in OVER:
                return True
            if state["phase"] == ACCEPTED:
                return False
            self.write_state({**state, **over})
            return True


def differ(one: str | None, other: str | None) -> bool:
    """Whether two identities are those of different orders; one that is not known says nothing."""
    return bool(one and other) and one != other


def start_time(process: int) -> int | None:
    """Return when a process began, in clock ticks since the machine did; None if it is not there.

    With its number it names a process for good, until the machine restarts.
    """
    try:
        content = Path(f"/proc/{process}/stat").read_bytes()
    except OSError:
        return None
    # The name in parentheses may hold anything; the 22nd field counts from behind it.
    fields = content.rpartition(b")")[2].split()
    return None if fields[0] in {b"Z", b"X"} else int(fields[19])


def boot() -> str:
    """Return what tells one run of this machine from the next."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return "unknown"


def me() -> dict[str, Any]:
    """Return what a state tells of the supervisor that writes it."""
    return {"supervisor": os.getpid(), "began": start_time(os.getpid()), "boot": boot()}

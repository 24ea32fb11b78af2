"""What the executor has in memory of a generation: a view of its directory, and what was told."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import stat
import time
from pathlib import Path
from typing import Any, Final

from shadowprice.core.errors import InputError
from shadowprice.core.program import DEFAULT_GRACE
from shadowprice.core.wording import escaped
from shadowprice.executors.contract import (
    Ended,
    Ending,
    Held,
    Misreported,
    Phase,
    Progressed,
    Refused,
    Report,
    Share,
    Started,
)
from shadowprice.executors.generations.generation import (
    ACCEPTED,
    DAMAGED,
    ENDED,
    LAUNCHING,
    OVER,
    REFUSED,
    Generation,
)
from shadowprice.executors.generations.store import key_of
from shadowprice.executors.progress import read_progress, told_fault

_MOST_PROGRESS: Final = 65_536

_SHORT: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Of which the service, and not a job, has too little: it looks again later."""


class Entry:
    """One generation that is not forgotten.

    Parameters
    ----------
    job : str
        The job.
    number : int
        The generation.
    generation : Generation
        Its directory.
    """

    def __init__(self, job: str, number: int, generation: Generation) -> None:
        self.job = job
        self.number = number
        self.key = key_of(job)
        self.generation = generation
        self.state: dict[str, Any] = {"phase": ACCEPTED, "command": 0, "accepted": 0.0}
        self.placement: tuple[Share, ...] = ()
        self.processes: tuple[str, ...] = ()
        self.deals: list[dict[str, Any]] = []
        self.port = 0
        self.grace = DEFAULT_GRACE
        self.progress = generation.progress
        self.stop_ordered = False
        self.told_start = False
        self.told_end = False
        self.launched = float("-inf")
        self.looking = asyncio.Lock()
        self._stop_command = 0
        self._seen_progress: tuple[int, int] | None = None
        self._fault = ""
        """What is wrong with what it reported last; empty where nothing is."""
        self._faults = 0
        """Looks in a row that found no report where there was something."""
        self._told_fault = False

    @property
    def phase(self) -> str:
        """Where it is, by its directory."""
        return str(self.state["phase"])

    @property
    def over(self) -> bool:
        """Whether it ended or was refused."""
        return self.phase in OVER

    @property
    def accepted(self) -> tuple[float, int]:
        """What orders generations as they were taken."""
        return float(self.state.get("accepted", 0.0)), self.number

    def take_plan(self, plan: dict[str, Any]) -> None:
        """Keep what the executor has to know of a plan."""
        if plan:
            self.processes = tuple(one["name"] for one in plan["processes"])
            self.deals = plan["deals"]
            self.port = plan["port"]
            self.grace = plan["grace"]
            self.progress = Path(plan.get("progress") or self.generation.progress)

    def read(self) -> None:
        """Read its directory."""
        try:
            self.state = self.generation.state()
            self._stop_command = self.generation.stop()["command"]
            if not self.deals and not self.over:
                self.take_plan(self.generation.plan())
        except FileNotFoundError:  # it is being taken, or was removed
            return
        except (OSError, ValueError):
            self.state = {**self.state, "phase": DAMAGED}
        self.stop_ordered = bool(self._stop_command)
        self.placement = tuple(Share(*share) for share in self.state.get("placement", ()))

    def is_live(self) -> bool:
        """Whether it has still to be forgotten."""
        jobs = self.generation.path.parent.parent.parent
        return (jobs.parent / "live" / f"{self.key}.{self.number}").exists()

    def news(self) -> list[Report]:
        """Return the reports that were not told yet, and take them for told."""
        reports: list[Report] = []
        started = self._started()
        if started is not None and not self.told_start:
            self.told_start = True
            reports.append(started)
        # One look may have come while it was being written.
        if self._faults > 1 and not self._told_fault:
            self._told_fault = True
            reports.append(Misreported(self.job, self.number, time.time(), self._fault))
        end = self._end()
        if end is not None and not self.told_end:
            self.told_end = True
            reports.append(end)
        return reports

    def _started(self) -> Started | None:
        # A generation that was lost while it was launched began with that.
        began = self.state.get("started")
        if began is None and self.phase == ENDED:
            began = self.state.get("at", 0.0)
        if began is None:
            return None
        return Started(self.state["command"], self.job, self.number, began)

    def _end(self) -> Ended | Refused | None:
        at = float(self.state.get("at", 0.0))
        reason = escaped(str(self.state.get("reason", "")))
        if self.phase == REFUSED:
            command = self.state["command"]
            return Refused(command, self.job, self.number, at, reason)
        if self.phase != ENDED:
            return None
        return Ended(
            command=self._stop_command,
            job=self.job,
            generation=self.number,
            at=at,
            ending=Ending(self.state["ending"]),
            code=self.state.get("code"),
            reason=reason,
            tail=tuple(escaped(line) for line in self.state.get("tail", ())),
            forced=bool(self.state.get("forced", False)),
        )

    def held(self) -> Held:
        """Return how `Executor.list` tells it."""
        if self.over:
            phase = Phase.ENDED
        elif self.stop_ordered:
            phase = Phase.STOPPING
        else:
            early = self.phase in {ACCEPTED, LAUNCHING}
            phase = Phase.STARTING if early else Phase.RUNNING
        return Held(
            job=self.job,
            generation=self.number,
            phase=phase,
            placement=self.placement,
            processes=self.processes,
            started=self.state.get("started"),
            end=self._end(),
            identity=str(self.state.get("identity", "")),
        )

    def new_progress(self) -> Progressed | None:
        """Return what the job reported by file since the last look; what is no report is none.

        The job may have put anything there: a link, a pipe, gigabytes.
        """
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            descriptor = os.open(self.progress, flags)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno not in _SHORT:
                why = "its file of progress is none that can be read: a link, or locked away"
                self._misread(why)
            return None
        try:
            found = os.fstat(descriptor)
            seen = (found.st_mtime_ns, found.st_ino)
            if not stat.S_ISREG(found.st_mode):
                self._misread("its file of progress is no file")
                return None
            if seen == self._seen_progress:
                self._faults += bool(self._faults)
                return None
            self._seen_progress = seen
            content = os.read(descriptor, _MOST_PROGRESS)
        except OSError:
            return None
        finally:
            os.close(descriptor)
        return self.reported_by(content, found.st_mtime)

    async def newest_progress(self) -> Progressed | None:
        """Return what `new_progress` does, without the event loop waiting for a file."""
        return await asyncio.to_thread(self.new_progress)

    def reported_by(self, content: bytes | str, at: float) -> Progressed | None:
        """Return what the content of a file of progress says, and note where it is no report."""
        try:
            report = read_progress(self.job, json.loads(content), at)
        except InputError as error:
            self._misread(str(error))
        except (ValueError, RecursionError):
            self._misread('its file of progress holds no JSON; write {"generation": 1, ...}')
        else:
            self._faults = 0
            return report if report.generation == self.number else None
        return None

    def _misread(self, why: str) -> None:
        self._fault = told_fault(why)
        self._faults += 1


class DrivenEntry(Entry):
    """One whose processes are each in a place of their own, and carried on by a task.

    Parameters
    ----------
    job, number, generation
        As of `Entry`.
    """

    def __init__(self, job: str, number: int, generation: Generation) -> None:
        super().__init__(job, number, generation)
        self.workers = 0
        self.tolerant = False
        self.news_came = asyncio.Event()
        self.driving: asyncio.Task[None] | None = None

    @property
    def carrying(self) -> str:
        """What `driving` does, for people."""
        return f"carrying generation {self.number} of {self.job!r} on"

    def take_plan(self, plan: dict[str, Any]) -> None:
        """Keep what the executor has to know of a plan."""
        super().take_plan(plan)
        if plan:
            self.tolerant = bool(plan["tolerates_workers"])
            self.workers = sum(name.startswith("worker-") for name in self.processes)

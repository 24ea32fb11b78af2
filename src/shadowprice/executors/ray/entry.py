"""What the executor has in memory of a generation on Ray: its record here, its processes there."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from shadowprice.executors.contract import Progressed
from shadowprice.executors.generations.disk import Lock
from shadowprice.executors.generations.entry import DrivenEntry
from shadowprice.executors.generations.generation import OVER, Generation
from shadowprice.executors.generations.parts import PartEnd


@dataclass
class Part:
    """One process of a generation.

    Parameters
    ----------
    process : str
        Its name.
    server : str
        Where it runs.
    node : str
        Number of the Ray node that it was begun on.
    actor : str
        Name of its actor.
    """

    process: str
    server: str
    node: str
    actor: str
    attached: bool = False
    """Whether its actor is followed."""
    asking: bool = False
    """Whether something is being asked about it just now."""
    gone_since: float | None = None
    """Since when neither its actor nor its node can be found, on the monotonic clock."""
    state: dict[str, Any] = field(default_factory=dict)
    delivered: int = 0
    """The newest order to stop that its actor took."""
    end: PartEnd | None = None
    on_node: bool = True
    """Whether its log has still to be fetched from its actor."""
    reports: bool = False
    """Whether it ever put anything into its report file."""
    heard: bool = True
    """Whether it was, when it was last looked at."""

    def take(self, state: dict[str, Any]) -> None:
        """Take in what its supervisor wrote."""
        self.state = state
        if state.get("phase") in OVER:
            self.end = PartEnd.of(self.process, state, f"{self.process} was lost on {self.server}")

    def lose(self, why: str) -> None:
        """Take in that nobody will see how it ended."""
        self.end = PartEnd(self.process, -1, 0.0, lost=why)
        self.on_node = False


class RayEntry(DrivenEntry):
    """One generation that is not forgotten; see `generations.entry`.

    Parameters
    ----------
    job, number, generation
        As of `Entry`.
    """

    def __init__(self, job: str, number: int, generation: Generation) -> None:
        super().__init__(job, number, generation)
        self.parts: dict[str, Part] = {}
        self.lock: Lock | None = None
        self.latest: Progressed | None = None
        self._told: list[Any] = []

    def take_plan(self, plan: dict[str, Any]) -> None:
        """Keep what the executor has to know of a plan."""
        super().take_plan(plan)
        if plan and not self.parts:
            parts = (Part(**one) for one in plan["parts"])
            self.parts = {one.actor: one for one in parts}

    def unlock(self) -> None:
        """Let its lock go, where it is held."""
        lock, self.lock = self.lock, None
        if lock is not None:
            lock.release()

    def new_progress(self) -> Progressed | None:
        """Return what was reported by file since the last look."""
        latest, self.latest = self.latest, None
        return latest

    async def newest_progress(self) -> Progressed | None:
        """Return the same: actors told it, and it is here."""
        return self.new_progress()

    @property
    def unheard(self) -> bool:
        """Whether it reports by file, and could not be looked at the last time."""
        return any(
            part.reports and part.end is None and not (part.attached and part.heard)
            for part in self.parts.values()
        )

    def reported(self, part: Part, progress: list[Any] | None) -> None:
        """Take in what a process has put into its file; what is no report is none."""
        if progress is None:
            return
        part.reports = True
        if progress == self._told:
            return
        self._told = progress
        report = self.reported_by(progress[0], float(progress[1]))
        if report is not None:
            self.latest = report

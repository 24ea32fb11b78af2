"""What should run against what runs: which orders to give next, and which were carried out.

Pure bookkeeping, by level and not by edge: whatever was lost on the way, the next comparison tells
what is to be done.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from shadowprice.core.events import Resize, Start, Stop
from shadowprice.executors.contract import (
    UNASKED,
    Ended,
    Ending,
    Held,
    Misreported,
    Phase,
    Progressed,
    Refused,
    Report,
    Started,
)
from shadowprice.service.clock import SECOND

Run = Start | Resize
Order = Start | Resize | Stop

FIRST_DELAY: Final = 5 * SECOND
"""Delay before a job starts again after a failure; it doubles with each further one."""

LONGEST_DELAY: Final = 600 * SECOND
"""The longest such delay."""


@dataclass(frozen=True, slots=True)
class Begin:
    """A generation is to be started."""

    order: Run


@dataclass(frozen=True, slots=True)
class End:
    """A generation is to be stopped.

    Parameters
    ----------
    command : int
        The order that asks for it, `UNASKED` where none does any more.
    job : str
        The job.
    generation : int
        The generation.
    """

    command: int
    job: str
    generation: int


@dataclass(slots=True)
class Outbox:
    """Generations that an executor holds, by job and number.

    One that the store never ordered is *foreign*: its number is used up, it is stopped, nothing
    that it reports is taken for what the job of its name did, and nothing begins on its servers
    before its end was seen.

    Parameters
    ----------
    held : dict of str to dict of int to Phase
        Those that are not over and recorded.
    """

    held: dict[str, dict[int, Phase]] = field(default_factory=dict)
    _failures: dict[str, int] = field(default_factory=dict)
    _counted: dict[str, int] = field(default_factory=dict)
    """The newest generation of each job whose failure was counted: reports come again."""
    _not_before: dict[str, int] = field(default_factory=dict)
    _stopping: set[tuple[str, int]] = field(default_factory=set)
    _foreign: dict[tuple[str, int], frozenset[str]] = field(default_factory=dict)
    """Servers of each; kept when it is over, for what it reported may come again."""

    # ---------------------------------------------------------------- learning

    def found(self, held: Collection[Held], foreign: Collection[Held] = ()) -> None:
        """Take in what an executor holds in place of what was thought, and which is foreign."""
        self.held = {}
        self._stopping.clear()
        for one in held:
            self.held.setdefault(one.job, {})[one.generation] = one.phase
        for one in foreign:
            servers = frozenset(share.server for share in one.placement)
            self._foreign[one.job, one.generation] = servers

    def used_up(self, job: str, generation: int) -> None:
        """Take in that a number is a foreign generation's, of which nothing is held any more."""
        self._foreign.setdefault((job, generation), frozenset())

    def is_foreign(self, job: str, generation: int) -> bool:
        """Whether a generation of this number was not ordered by the store."""
        return (job, generation) in self._foreign

    def says_nothing(self, report: Report) -> bool:
        """Whether a report tells of a foreign generation: what became of a job is not in it.

        A refusal does: whoever was refused, no generation of that number will be.
        """
        return isinstance(report, Started | Ended | Progressed | Misreported) and self.is_foreign(
            report.job, report.generation
        )

    def accepted(self, job: str, generation: int) -> None:
        """Take in that a start was taken."""
        self.held.setdefault(job, {}).setdefault(generation, Phase.STARTING)

    def stopping(self, job: str, generation: int) -> None:
        """Take in that a stop was taken."""
        self._stopping.add((job, generation))

    def heard(self, report: Report, now: int) -> None:
        """Take in a report."""
        if isinstance(report, Started):
            phases = self.held.setdefault(report.job, {})
            if phases.get(report.generation) is not Phase.ENDED:
                phases[report.generation] = Phase.RUNNING
        elif isinstance(report, Ended | Refused):
            self.held.setdefault(report.job, {})[report.generation] = Phase.ENDED
            self._stopping.discard((report.job, report.generation))
            if self.is_foreign(report.job, report.generation):
                return  # not the fault of the job
            if isinstance(report, Refused) or report.ending in {Ending.FAILED, Ending.LOST}:
                if report.generation > self._counted.get(report.job, 0):
                    self._counted[report.job] = report.generation
                    self.delay(report.job, now)
            else:
                self._failures.pop(report.job, None)

    def delay(self, job: str, now: int) -> None:
        """Let a job wait before it starts again, longer each time."""
        failures = self._failures[job] = self._failures.get(job, 0) + 1
        wait = min(LONGEST_DELAY, FIRST_DELAY << min(failures - 1, 30))
        self._not_before[job] = now + wait

    def recorded(self, job: str, generation: int) -> None:
        """Forget a generation whose end was written down."""
        phases = self.held.get(job, {})
        if phases.get(generation) is Phase.ENDED:
            del phases[generation]
        if not phases:
            self.held.pop(job, None)

    def closed(self, job: str) -> None:
        """Forget the failures of a job that is over."""
        self._failures.pop(job, None)
        self._counted.pop(job, None)
        self._not_before.pop(job, None)

    # ---------------------------------------------------------------- telling

    def acknowledged(
        self, running: Mapping[str, Run], unacknowledged: Mapping[int, Order]
    ) -> list[int]:
        """Return the orders that were carried out, or overtaken before they were."""
        return [
            number
            for number, order in unacknowledged.items()
            if self._done(order, running.get(order.job))
        ]

    def _done(self, order: Order, wanted: Run | None) -> bool:
        phases = self.held.get(order.job, {})
        if isinstance(order, Stop):
            return all(
                phase is Phase.ENDED for number, phase in phases.items()
                if number <= order.generation
            )  # fmt: skip
        older_over = all(
            phase is Phase.ENDED for number, phase in phases.items() if number < order.generation
        )
        if isinstance(order, Resize):
            return older_over
        foreign = self.is_foreign(order.job, order.generation)
        phase = None if foreign else phases.get(order.generation)
        if phase in {Phase.RUNNING, Phase.STOPPING, Phase.ENDED}:
            return True
        overtaken = wanted is None or wanted.generation > order.generation
        return overtaken and phase is None

    def actions(
        self, running: Mapping[str, Run], unacknowledged: Mapping[int, Order], now: int
    ) -> list[Begin | End]:
        """Return what an executor is to be told now.

        Parameters
        ----------
        running : mapping of str to Start or Resize
            The newest order of every job that is to run.
        unacknowledged : mapping of int to Order
            Orders whose end was not seen yet.
        now : int
            The service's time.
        """
        found: list[Begin | End] = []
        stops = {order.job: number for number, order in unacknowledged.items()}
        for job, phases in self.held.items():
            wanted = running.get(job)
            for generation, phase in phases.items():
                if phase is Phase.ENDED or (job, generation) in self._stopping:
                    continue
                foreign = self.is_foreign(job, generation)
                if wanted is not None and wanted.generation == generation and not foreign:
                    continue
                command = UNASKED if foreign else stops.get(job, UNASKED)
                found.append(End(command, job, generation))
        withheld = self._withheld()
        for job, order in running.items():
            phases = self.held.get(job, {})
            if order.generation in phases or now < self._not_before.get(job, 0):
                continue
            if any(phase is not Phase.ENDED for phase in phases.values()):
                continue
            if any(number in unacknowledged for number in order.after):
                continue
            if not withheld.isdisjoint(order.servers):
                continue
            found.append(Begin(order))
        return found

    def _withheld(self) -> frozenset[str]:
        """Return the servers on which a foreign generation still runs: the engine knows of none."""
        still = [
            servers
            for (job, generation), servers in self._foreign.items()
            if self.held.get(job, {}).get(generation, Phase.ENDED) is not Phase.ENDED
        ]
        return frozenset().union(*still)

    def next_moment(self, running: Mapping[str, Run]) -> int | None:
        """Return when a job that waits after a failure may start, None where none does."""
        times = [at for job, at in self._not_before.items() if job in running]
        return min(times, default=None)

"""Which jobs restart, told by commands alone."""

from __future__ import annotations

from collections.abc import Iterable

from shadowprice.core.events import Command, Completed, Resize, Start


class Restarts:
    """Tells which jobs restart: every start of a placement but a job's first one is a restart."""

    def __init__(self) -> None:
        self._ran: set[str] = set()

    def obey(self, commands: Iterable[Command]) -> set[str]:
        """Take commands in; return the jobs that restart by them."""
        restarted: set[str] = set()
        for command in commands:
            match command:
                case Start(_, job):
                    if job in self._ran:
                        restarted.add(job)
                    self._ran.add(job)
                case Resize(_, job):
                    restarted.add(job)
                case Completed(_, job):
                    self._ran.discard(job)
                case _:
                    pass
        return restarted

"""What an executor may offer besides; a service asks each whether it does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from shadowprice.executors.contract.executor import Executor
from shadowprice.executors.contract.reports import Progressed


@runtime_checkable
class Reaching(Executor, Protocol):
    """An executor of another machine, of which it can be asked whether it is there."""

    async def reach(self) -> None:
        """Make sure that somebody answers where jobs would run; nothing is changed there or here.

        A service asks before it keeps anything; its own event loop does not run yet.

        Raises
        ------
        ExecutorError
            If nobody does.
        """


@runtime_checkable
class Remembering(Executor, Protocol):
    """An executor whose records of what runs are in a directory of this machine alone."""

    @property
    def directory(self) -> Path:
        """That directory; without it nobody knows what runs."""


@runtime_checkable
class ReportsHealth(Protocol):
    """An executor that knows when it is cut off from where its jobs run, or fails itself."""

    @property
    def health_error(self) -> str | None:
        """Why not all can be started, stopped or heard just now; None where it can."""


@runtime_checkable
class Fresh(Protocol):
    """An executor that can look at once at what jobs report by file."""

    async def progress(self) -> Sequence[Progressed]:
        """Return what was reported by file since the last look, and is told nowhere else."""

    def unheard(self) -> frozenset[str]:
        """Return the jobs that report by file and could not be looked at the last time.

        What they did by now is not known: how fast they are is not judged by it.
        """

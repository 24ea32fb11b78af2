"""Optional protocols of executors; the service checks each with `isinstance`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from shadowprice.executors.contract.answers import Obstacle
from shadowprice.executors.contract.commands import GenerationSpec
from shadowprice.executors.contract.executor import Executor
from shadowprice.executors.contract.reports import Progressed


@runtime_checkable
class ChecksReachability(Executor, Protocol):
    """An executor of other machines that can check its connection."""

    async def reach(self) -> None:
        """Check that the cluster answers, without changing anything; raise `ExecutorError` if not.

        The service calls this before it stores anything and before its event loop runs.
        """


@runtime_checkable
class KeepsLocalRecords(Executor, Protocol):
    """An executor that stores its records only in a directory of this machine."""

    @property
    def directory(self) -> Path:
        """The directory; without it, running generations can't be found again."""


@runtime_checkable
class LimitsServers(Executor, Protocol):
    """An executor that may have less than the capacity that its servers are configured with."""

    def available(self) -> Mapping[str, Mapping[str, int]]:
        """Return the amounts that each server really has, in the units of `core.amounts`.

        Only resources that the executor allocates itself are given. ``gpu`` counts GPUs of all
        kinds. The service plans no job on the rest. Return the same object until an amount changes.
        """


@dataclass(frozen=True, slots=True)
class UnpackFailure:
    """Why a job's files could not be unpacked.

    ``reason`` is for people. ``lasting`` says that the cause is the archive, and not the disk.
    """

    reason: str
    lasting: bool


@runtime_checkable
class UnpacksFiles(Executor, Protocol):
    """An executor that can unpack `GenerationSpec.archive` before it gets the start command."""

    async def unpack(self, spec: GenerationSpec) -> UnpackFailure | None:
        """Fill a job's directory, so that `start` needs no time for it; return why it is refused.

        The result is None on success. If `start` wouldn't accept the generation, nothing is done.
        Repeating a call, also after a kill, has no other effect. Raises `ExecutorError` if the disk
        write failed.
        """

    def unpacked(self) -> Collection[str]:
        """Return the jobs whose directories may hold unpacked files, also after a restart."""

    async def release(self, job: str) -> None:
        """Delete the unpacked files that a closed job didn't change; keep what it wrote.

        A job with a generation that hasn't ended is skipped, and kept in `unpacked`. Raises
        `ExecutorError` if they can't be deleted.
        """


@runtime_checkable
class ReportsHealth(Protocol):
    """An executor that detects its own failures, or the loss of its connection."""

    @property
    def health_error(self) -> str | None:
        """Why generations can't all be started, stopped or followed now; None if healthy."""


@runtime_checkable
class ReportsObstacles(Protocol):
    """An executor that detects generations which it can't start or end."""

    def obstacles(self) -> Sequence[Obstacle]:
        """Return these generations."""


@runtime_checkable
class PollsProgress(Protocol):
    """An executor that can poll progress files on request."""

    async def progress(self) -> Sequence[Progressed]:
        """Return file progress that is new since the last poll; it isn't repeated elsewhere."""

    def stale_jobs(self) -> frozenset[str]:
        """Return the jobs whose progress files couldn't be read in the last poll.

        Their current progress is unknown, so it must not be used to judge their speed.
        """

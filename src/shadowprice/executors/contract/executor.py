"""The protocol that every executor implements, its capabilities and its error."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from shadowprice.core.errors import ShadowpriceError
from shadowprice.executors.contract.answers import GenerationStatus, LogChunk, ObservedJob
from shadowprice.executors.contract.commands import GenerationSpec, Receipt
from shadowprice.executors.contract.reports import Report, ServerInfo


class ExecutorError(ShadowpriceError):
    """The executor can't be reached or can't store its records.

    The caller doesn't know whether the executor accepted the command, and must send it again.
    """

    code = "executor"


@dataclass(frozen=True, slots=True)
class ExecutorCapabilities:
    """Features that an executor declares."""

    discovers_servers: bool = False  # by `ServerSeen`; otherwise `set_servers` sets them
    several_machines: bool = False  # processes run on other machines
    progress_files: bool = False  # emits progress from files as `Progressed`
    isolates_users: bool = False  # jobs run as users other than the service's
    observes: bool = False  # `observe` also returns jobs of other schedulers
    runs_containers: bool = False  # applies ``run.image`` and ``run.pod``
    takes_uploads: bool = False  # unpacks `GenerationSpec.archive`; others get none


@runtime_checkable
class Executor(Protocol):
    """Runs jobs for one service at a time, from one event loop."""

    @property
    def capabilities(self) -> ExecutorCapabilities:
        """Features of this executor."""

    async def open(self) -> None:
        """Connect, and adopt generations that are still running.

        Raises `ExecutorError` if the executor can't be reached, or another service uses it.
        """

    async def close(self) -> None:
        """Disconnect; running generations continue."""

    async def set_servers(self, servers: Sequence[ServerInfo]) -> None:
        """Set all servers that start commands may name.

        Generations on a server that is left out continue, and their end is reported. An executor
        that discovers servers reports `ServerGone` for each given server that it doesn't find.
        """

    async def start(self, spec: GenerationSpec) -> Receipt:
        """Start a generation.

        After ``accepted``, `Started` or `StartRefused` follows. After ``busy``, an older generation
        hasn't ended, and nothing happened. Raises `ExecutorError` if it is unknown whether the
        command was accepted; send it again.
        """

    async def stop(
        self, command: int, job: str, generation: int, grace: float | None = None
    ) -> Receipt:
        """Stop a generation: SIGTERM to its processes, then SIGKILL after the grace period.

        A generation that was never started is barred from starting and reported `StartRefused`. One
        that has ended is reported `Ended` again, unless it was forgotten. Older generations need no
        stop command. ``command`` is `UNCOMMANDED_STOP` if the service itself stops the generation.
        ``grace`` is in seconds, by default the program's own; a later command may shorten it.
        Raises `ExecutorError` as `start` does.
        """

    async def list(self) -> tuple[GenerationStatus, ...]:
        """Return every generation that isn't forgotten, in order of acceptance."""

    def watch(self) -> AsyncIterator[Report]:
        """Yield reports: first the current state of every unforgotten generation, then changes.

        There is one consumer at a time. The iterator ends when the executor is closed.
        """

    async def acknowledge_end(self, job: str, generation: int) -> None:
        """Acknowledge that a generation's end or refusal was recorded; it isn't repeated.

        The logs are kept until `delete_job_data`.
        """

    async def delete_job_data(self, job: str) -> None:
        """Remove a finished job's logs and the executor's checkpoints of it; keep its fence."""

    async def logs(
        self,
        job: str,
        generation: int | None = None,
        process: str = "worker-0",
        *,
        start: int | None = None,
        max_bytes: int = 65_536,
    ) -> LogChunk:
        """Return a chunk of a process's log, by default of the newest generation that has logs.

        ``start`` is the offset of the first byte; by default the last ``max_bytes`` bytes are
        returned. If that byte was rotated away, the chunk starts at the first byte that is kept. At
        most one mebibyte is returned. Raises KeyError if the job, generation or process is unknown.
        """

    async def observe(self) -> tuple[ObservedJob, ...]:
        """Return the jobs that run on the cluster, from this and other schedulers.

        Ended jobs may be included for a while, with their end and result. Jobs of other schedulers
        may have the names of this executor's jobs.
        """

"""What every executor does, and declares that it can."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from shadowprice.executors.contract.answers import Held, LogChunk, Observed
from shadowprice.executors.contract.orders import GenerationSpec, Receipt
from shadowprice.executors.contract.reports import Report
from shadowprice.executors.contract.servers import ServerSlice


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an executor can do; declared, never inferred from its name.

    Parameters
    ----------
    discovers_servers : bool
        Whether servers are found (`ServerSeen`) rather than told (`configure`).
    several_machines : bool
        Whether work leaves this machine.
    progress_files : bool
        Whether processes may report by file, and `Progressed` comes from here too.
    isolates_users : bool
        Whether a job runs as anyone else than the service's own user.
    observes : bool
        Whether `observe` tells what others started.
    """

    discovers_servers: bool = False
    several_machines: bool = False
    progress_files: bool = False
    isolates_users: bool = False
    observes: bool = False


@runtime_checkable
class Executor(Protocol):
    """What runs jobs. One service uses it at a time, from one event loop."""

    @property
    def capabilities(self) -> Capabilities:
        """What it can do."""

    async def open(self) -> None:
        """Begin, and find again what runs.

        Raises
        ------
        ExecutorError
            If it cannot be reached, or another service uses it.
        """

    async def close(self) -> None:
        """Let go. What runs goes on."""

    async def configure(self, servers: Sequence[ServerSlice]) -> None:
        """Tell the servers that orders may name, all of them.

        What runs on one that is left out goes on, and its end is reported as ever. An executor that
        discovers servers only compares: it reports `ServerGone` of those that it does not find.
        """

    async def start(self, spec: GenerationSpec) -> Receipt:
        """Start a generation.

        Returns
        -------
        Receipt
            ``accepted``: `Started` or `Refused` follows. ``busy``: an older generation has not
            ended; nothing happened.

        Raises
        ------
        ExecutorError
            If it is not known to be taken; send it again.
        """

    async def stop(
        self, command: int, job: str, generation: int, grace: float | None = None
    ) -> Receipt:
        """Stop a generation: SIGTERM to its processes, SIGKILL to all that remains after the grace.

        One that was never started never will be: that is reported `Refused`. One that is over is
        reported `Ended` again, unless it is forgotten.

        Parameters
        ----------
        command : int
            Number of the engine's command; `UNASKED` where none asks for it.
        job : str
            The job.
        generation : int
            The generation; older ones need no order.
        grace : float, optional
            Seconds; by default the program's own. A later order may shorten it.

        Raises
        ------
        ExecutorError
            If it is not known to be taken; send it again.
        """

    async def list(self) -> tuple[Held, ...]:
        """Return every generation that is not forgotten, in the order in which they were taken."""

    def watch(self) -> AsyncIterator[Report]:
        """Tell what happens: first everything that holds and is not forgotten, then all that comes.

        One consumer at a time; it ends when the executor is closed.
        """

    async def forget(self, job: str, generation: int) -> None:
        """Take in that a generation's end, or its refusal, was recorded: it need not come again.

        Its logs stay until `discard`.
        """

    async def discard(self, job: str) -> None:
        """Remove what is kept of a job that is over: logs, own checkpoints, all but the fence."""

    async def logs(
        self,
        job: str,
        generation: int | None = None,
        process: str = "worker-0",
        *,
        start: int | None = None,
        most: int = 65_536,
    ) -> LogChunk:
        """Return a piece of a process's log.

        Parameters
        ----------
        job : str
            The job.
        generation : int, optional
            The generation; by default the newest with logs.
        process : str
            Which of its processes.
        start : int, optional
            First byte wanted; by default the last ``most`` bytes. Where that was rotated away, the
            piece begins at the first that is left.
        most : int
            Most bytes wanted; never more than a mebibyte is returned.

        Raises
        ------
        KeyError
            If there is no such job, generation or process.
        """

    async def observe(self) -> tuple[Observed, ...]:
        """Return what really runs, this executor's own generations and those of others.

        What ended may be told for a while, with when and how; a job is told of once.
        """

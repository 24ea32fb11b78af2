"""The contract between the live service and what runs its jobs.

An executor starts *generations*. A generation is one placement of a job: fixed numbers of workers
and parameter servers on named servers, each a process. It begins once, ends once, and at most one
generation of a job runs at a time. The service changes a job by stopping one generation, seeing its
end, and starting the next.

Orders (`start`, `stop`) are answered at once by a `Receipt`, after what they change is durable;
what becomes of them is told by `watch`, as reports. What was accepted is reported `Started`
or `Refused`, and one that started is reported `Ended`, exactly one of each, in that order. A
report may come again, word for word, until `forget` says that it was recorded. So a service
that was away, for a moment or a month, misses nothing: what it did not record it is told again.

Fencing. The newest generation that an executor saw of a job, in a `start` or a `stop`, is kept
where it survives both of them. A `start` of an older one is stale, a `start` of the same one a
duplicate: neither starts anything. Orders may so be repeated, delayed and reordered at will.
The same one is the same order, not only the same number: a store that was restored counts again
from where the copy was made, and may give a number to another order. What tells orders apart
(`GenerationSpec.identity`) is kept with a generation; another order of its number is stale.

Endings. All processes of a generation end together: with the first that fails, and once all workers
exited 0. A program that tolerates workers (`Program.tolerates_workers`) says that the others go on
without one that dies: only parameter servers, or the last worker, then end the generation.
`executors.generations.verdict` is that rule, for every executor.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

from shadowprice.core.errors import ShadowpriceError
from shadowprice.core.program import Program


class ExecutorError(ShadowpriceError):
    """An executor cannot be reached, or cannot keep its records; no order is known to be taken.

    The same order may, and has to, be sent again.
    """

    code = "executor"


# ------------------------------------------------------------------ what is ordered

UNASKED: Final = -2
"""Number of a stop that no command of the engine asks for; 0 stands for no order at all."""


@dataclass(frozen=True, slots=True)
class Share:
    """What a generation has on one server.

    Parameters
    ----------
    server : str
        The server's name.
    workers, ps : int
        Workers and parameter servers there; one of them is positive.
    """

    server: str
    workers: int
    ps: int = 0


@dataclass(frozen=True, slots=True)
class GenerationSpec:
    """Everything that an executor and the processes of a generation have to be told.

    Parameters
    ----------
    command : int
        Number of the engine's command that asks for it (`core.events.Order.id`).
    job : str
        The job's name: any text, never to be taken for a path.
    generation : int
        Which placement of the job it is, from 1 on.
    placement : tuple of Share
        Where it runs, a share a server. Processes are numbered in this order.
    program : Program
        What every process runs.
    worker, ps : mapping of str to int
        What one worker, and one parameter server, takes by resource, in the units of
        `core.amounts`: thousandths, bytes or bit/s.
    checkpoint_dir : str
        Absolute path that every generation of the job sees; empty lets the executor make one.
    progress_url : str
        Where processes report their progress, by POST; empty where nobody listens.
    progress_token : str
        What lets them, as a bearer token. A secret: no log and no message shows it.
    slot_end : float
        End of the slot in which the generation begins, seconds since 1970.
    tenant : str or None
        The job's owner.
    devices : mapping of str to tuple of str
        Devices to use by server, in the order of its processes; a server that is not named leaves
        the choice to the executor.
    labels : mapping of str to str
        The job's labels.
    identity : str
        What tells this order from any other that bears its number, in whatever store; empty where
        nobody compares.
    """

    command: int
    job: str
    generation: int
    placement: tuple[Share, ...]
    program: Program
    worker: Mapping[str, int] = field(default_factory=dict)
    ps: Mapping[str, int] = field(default_factory=dict)
    checkpoint_dir: str = ""
    progress_url: str = ""
    progress_token: str = field(default="", repr=False)
    slot_end: float = 0.0
    tenant: str | None = None
    devices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    identity: str = ""

    @property
    def workers(self) -> int:
        """Workers on all servers."""
        return sum(share.workers for share in self.placement)

    @property
    def parameter_servers(self) -> int:
        """Parameter servers on all servers."""
        return sum(share.ps for share in self.placement)

    def record(self) -> dict[str, object]:
        """Return the specification as plain values, the token among them."""
        return {
            "command": self.command,
            "job": self.job,
            "generation": self.generation,
            "placement": [[share.server, share.workers, share.ps] for share in self.placement],
            "program": self.program.record(),
            "worker": dict(self.worker),
            "ps": dict(self.ps),
            "checkpoint_dir": self.checkpoint_dir,
            "progress_url": self.progress_url,
            "progress_token": self.progress_token,
            "slot_end": self.slot_end,
            "tenant": self.tenant,
            "devices": {server: list(names) for server, names in self.devices.items()},
            "labels": dict(self.labels),
            "identity": self.identity,
        }

    @classmethod
    def from_record(cls, record: Mapping[str, object]) -> GenerationSpec:
        """Build the specification that `record` described."""
        values = dict(record)
        values["placement"] = tuple(Share(*share) for share in values["placement"])  # type: ignore[attr-defined]  # a list of lists
        values["program"] = Program.from_record(values["program"])  # type: ignore[arg-type]  # a mapping
        values["devices"] = {server: tuple(names) for server, names in values["devices"].items()}  # type: ignore[attr-defined]  # a mapping
        return cls(**values)  # type: ignore[arg-type]  # the fields are those of `record`


@dataclass(frozen=True, slots=True)
class ServerSlice:
    """A server as an executor is told of it, or tells of it.

    Parameters
    ----------
    name : str
        Its name in the cluster.
    capacity : mapping of str to int
        What it has by resource, in the units of `core.amounts`.
    labels : mapping of str to str
        What else is known of it.
    takes_work : bool
        Whether anything new may be placed there; what runs there runs on.
    """

    name: str
    capacity: Mapping[str, int]
    labels: Mapping[str, str] = field(default_factory=dict)
    takes_work: bool = True


class Receipt(StrEnum):
    """What became of an order, at once."""

    ACCEPTED = "accepted"
    """It was new, is durable, and is carried out; reports follow."""
    DUPLICATE = "duplicate"
    """It was taken before; nothing new happens."""
    STALE = "stale"
    """A newer generation of the job is known, or another order of this number; nothing happens, now
    or later."""
    BUSY = "busy"
    """Another generation of the job has not ended yet; nothing happens, order again later."""


# ------------------------------------------------------------------ what is reported


class Ending(StrEnum):
    """How a generation ended."""

    DONE = "done"
    """Every worker exited 0; of a program that tolerates workers, all have ended, and one so."""
    STOPPED = "stopped"
    """It was told to stop, and exited 143, died of SIGTERM, or was killed after its grace."""
    FAILED = "failed"
    """A process exited otherwise; of a program that tolerates workers, a server did, or all did."""
    LOST = "lost"
    """It was ended from outside: its server, machine or agent went away. No fault of the job."""


@dataclass(frozen=True, slots=True)
class Started:
    """Acknowledgement: every process of a generation runs.

    Parameters
    ----------
    command : int
        The command that asked for it.
    job : str
        The job.
    generation : int
        The generation.
    at : float
        When, seconds since 1970.
    """

    command: int
    job: str
    generation: int
    at: float


@dataclass(frozen=True, slots=True)
class Refused:
    """A generation was not started, and never will be: its place is not there, or not free.

    Parameters
    ----------
    command, job, generation, at
        As in `Started`.
    reason : str
        Why, for people.
    """

    command: int
    job: str
    generation: int
    at: float
    reason: str


@dataclass(frozen=True, slots=True)
class Ended:
    """Acknowledgement: a generation is over, and nothing of it runs any more.

    Parameters
    ----------
    command : int
        The newest command that told it to stop; 0 where none did.
    job : str
        The job.
    generation : int
        The generation.
    at : float
        When, seconds since 1970.
    ending : Ending
        How.
    code : int or None
        Exit status of the process that decided it, 128 + n for death by signal n; None where
        nobody saw it.
    reason : str
        What happened, for people.
    tail : tuple of str
        Last lines of that process's log, printable.
    forced : bool
        Whether it had to be killed after its grace.
    """

    command: int
    job: str
    generation: int
    at: float
    ending: Ending
    code: int | None
    reason: str
    tail: tuple[str, ...] = ()
    forced: bool = False


@dataclass(frozen=True, slots=True)
class Progressed:
    """How far a generation says it is.

    Parameters
    ----------
    job : str
        The job.
    generation : int
        The generation that reports.
    progress : int
        Since the job's very beginning, in millionths of a mini-batch.
    metrics : mapping of str to float
        What it measures: losses, accuracies, rates.
    at : float
        When it was reported, seconds since 1970.
    """

    job: str
    generation: int
    progress: int
    metrics: Mapping[str, float]
    at: float


@dataclass(frozen=True, slots=True)
class Misreported:
    """What a generation puts where its progress belongs is no report; told once of each.

    Parameters
    ----------
    job : str
        The job.
    generation : int
        The generation that reports.
    at : float
        When that was seen, seconds since 1970.
    reason : str
        What is wrong with it, and what mends it.
    """

    job: str
    generation: int
    at: float
    reason: str


@dataclass(frozen=True, slots=True)
class ServerSeen:
    """A server is there, new or changed; only from executors that discover servers."""

    server: ServerSlice
    at: float


@dataclass(frozen=True, slots=True)
class ServerGone:
    """A server is not there any more; what ran on it is reported `Ended` as lost."""

    server: str
    at: float
    reason: str = ""


Report = Started | Refused | Ended | Progressed | Misreported | ServerSeen | ServerGone

# ------------------------------------------------------------------ what can be asked


class Phase(StrEnum):
    """Where a generation is between its order and the moment it is forgotten."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Held:
    """A generation that an executor holds, as `list` tells it.

    Parameters
    ----------
    job : str
        The job.
    generation : int
        The generation.
    phase : Phase
        Where it is.
    placement : tuple of Share
        Where it runs.
    processes : tuple of str
        Names of its processes, as `logs` takes them: ``worker-0``, ``ps-1``.
    started : float or None
        When it started, seconds since 1970.
    end : Ended or Refused or None
        How it ended, until it is forgotten.
    identity : str
        That of the order which asked for it; empty where that said none.
    """

    job: str
    generation: int
    phase: Phase
    placement: tuple[Share, ...]
    processes: tuple[str, ...]
    started: float | None = None
    end: Ended | Refused | None = None
    identity: str = ""


@dataclass(frozen=True, slots=True)
class LogChunk:
    """A piece of what one process wrote, standard output and error together.

    Parameters
    ----------
    generation : int
        The generation it is of.
    process : str
        The process.
    start, end : int
        Its place among all bytes that the process wrote; what was rotated away counts.
    text : str
        The piece; bytes that are no UTF-8 are replaced.
    complete : bool
        Whether the process is over and nothing comes after ``end``.
    """

    generation: int
    process: str
    start: int
    end: int
    text: str
    complete: bool


@dataclass(frozen=True, slots=True)
class Observed:
    """A job that really runs, or ran, whoever started it; for services that only look on.

    Parameters
    ----------
    job : str
        Its name.
    placement : tuple of Share
        Where, by the names of the cluster's servers as far as they are known.
    since : float
        When it began, seconds since 1970.
    tenant : str or None
        Its owner.
    ended : float or None
        When it ended, where that is known; what is not told of any more ended as well.
    done : bool or None
        Whether it ended with success; None where nobody can tell.
    """

    job: str
    placement: tuple[Share, ...]
    since: float
    tenant: str | None = None
    ended: float | None = None
    done: bool | None = None


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


class Election(Protocol):
    """By which one of several services gives orders at a time."""

    @property
    def name(self) -> str:
        """Which election it is: the same for all who stand for it."""

    @property
    def number(self) -> int:
        """Number of this leader, higher than those of all before it; 0 before it is elected."""

    def holds(self) -> bool:
        """Whether nobody else can lead at this moment."""


def unheeded(what: str) -> None:
    """Take in that something failed where nobody counts it."""
    del what


@dataclass(frozen=True, slots=True)
class ExecutorOptions:
    """What every executor is made with.

    Parameters
    ----------
    directory : str
        Absolute path of a directory of the executor's own, mode 700: its memory.
    namespace : str
        Tells the jobs of one service from those of another where they share a place.
    address : str
        Of what runs the jobs, where that is elsewhere (``ray://...``, a kubeconfig).
    settings : mapping of str to str
        What only this executor understands.
    observing : bool
        Whether it is only to look on: then it takes no lock that others see, and writes nothing.
    election : Election or None
        By which its service is one of several that gives orders; None where nobody is elected.
    failed : callable
        Told each time that something failed in it which nobody foresaw, in a word: who counts that.
    """

    directory: str
    namespace: str = "shadowprice"
    address: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    observing: bool = False
    election: Election | None = None
    failed: Callable[[str], None] = unheeded


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
class Troubled(Protocol):
    """An executor that knows when it is cut off from where its jobs run, or fails itself."""

    @property
    def trouble(self) -> str | None:
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

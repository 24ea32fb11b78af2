"""The contract between the live service and the executors that run its jobs.

An executor runs *generations*. A generation is one run of a job at a fixed placement: fixed numbers
of workers and parameter servers on named servers, each a process. It starts once and ends once, and
a job has at most one running generation. To rescale a job, the service stops its generation, waits
for the end, and starts the next one.

Commands and reports. An executor makes a command (`start`, `stop`) durable, and then returns a
`Receipt`. `watch` reports the effect. An accepted generation is reported `Started` or
`StartRefused`, and a started one is reported `Ended`: one of each, in that order. An executor may
repeat a report until `acknowledge_end`; only the stop command of a repeated end may differ. So a
service that was down for any time receives every report that it didn't record.

Fencing. The executor durably stores the newest generation of each job that a `start` or a `stop`
named. A `start` of an older generation is stale, and a `start` of the same one is a duplicate.
Neither starts anything, so commands may be repeated, delayed and reordered. Two commands are the
same if their `GenerationSpec.identity` is equal. A store restored from a backup may reuse a
generation's number for a different command; that command is stale.

Endings. All processes of a generation end together: when the first one fails, or when every worker
has exited 0. With `Program.tolerates_workers`, the generation continues if a worker dies, until a
parameter server or the last worker fails. `executors.generations.outcome` implements this rule for
every executor.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

from shadowprice.core.errors import ShadowpriceError
from shadowprice.core.program import Program

UNCOMMANDED_STOP: Final = -2  # command number of the service's own stops; 0 means no stop


@dataclass(frozen=True, slots=True)
class ServerAllocation:
    """Workers and parameter servers of a generation on one server; one count is positive."""

    server: str
    workers: int
    ps: int = 0


@dataclass(frozen=True, slots=True)
class GenerationSpec:
    """Everything that an executor and the processes of a generation need to know.

    Demands are in the units of `core.amounts`: thousandths, bytes or bit/s. ``devices`` are device
    names by server, in the order of its processes; the executor chooses on other servers.
    ``archive`` is the path of an archive (`uploads.archive`) that fills the job's own directory
    before its first generation. ``program.directory`` is empty then.
    """

    command: int  # number of the engine's start command (`core.events.NumberedCommand.id`)
    job: str  # its key: arbitrary text, never used as a path
    generation: int  # from 1
    placement: tuple[ServerAllocation, ...]  # processes are ranked in this order
    program: Program
    worker: Mapping[str, int] = field(default_factory=dict)  # demand of one worker
    ps: Mapping[str, int] = field(default_factory=dict)  # demand of one parameter server
    checkpoint_dir: str = ""  # shared by the job's generations; if empty, the executor makes one
    progress_url: str = ""  # processes POST their progress to it; empty for none
    progress_token: str = field(default="", repr=False)  # must not be logged
    slot_end: float = 0.0  # end of the slot in which it starts, seconds since 1970
    tenant: str | None = None
    devices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    identity: str = ""  # tells apart commands of different stores; empty if unknown
    name: str = ""  # the job's name for its processes; empty if it equals the key
    archive: str = ""

    @property
    def workers(self) -> int:
        """Number of workers on all servers."""
        return sum(share.workers for share in self.placement)

    @property
    def parameter_servers(self) -> int:
        """Number of parameter servers on all servers."""
        return sum(share.ps for share in self.placement)

    def record(self) -> dict[str, object]:
        """Return the specification as JSON-compatible values, including the secret token."""
        return {
            **{item.name: getattr(self, item.name) for item in fields(self)},
            "placement": [[share.server, share.workers, share.ps] for share in self.placement],
            "program": self.program.record(),
            "worker": dict(self.worker),
            "ps": dict(self.ps),
            "devices": {server: list(names) for server, names in self.devices.items()},
            "labels": dict(self.labels),
        }

    @classmethod
    def from_record(cls, record: Mapping[str, object]) -> GenerationSpec:
        """Build a specification from the output of `record`."""
        values = dict(record)
        values["placement"] = tuple(ServerAllocation(*share) for share in values["placement"])  # type: ignore[attr-defined]  # a list of lists
        values["program"] = Program.from_record(values["program"])  # type: ignore[arg-type]  # a mapping
        values["devices"] = {server: tuple(names) for server, names in values["devices"].items()}  # type: ignore[attr-defined]  # a mapping
        return cls(**values)  # type: ignore[arg-type]  # the fields are those of `record`


class Receipt(StrEnum):
    """Immediate result of a command."""

    ACCEPTED = "accepted"  # the command is new and durable, and will be executed; reports follow
    DUPLICATE = "duplicate"  # the command was accepted before; nothing happens
    STALE = "stale"  # a newer generation or another command of this number exists; nothing happens
    BUSY = "busy"  # another generation of the job hasn't ended; the caller may retry


ROLE_LABEL: Final = "shadowprice.io/role"  # label with a server's role: worker, ps or any


class Ending(StrEnum):
    """How a generation ended."""

    DONE = "done"  # every worker exited 0; with `tolerates_workers`, all ended and one exited 0
    STOPPED = "stopped"  # a stop command ended it: status 143, or killed after the grace period
    FAILED = "failed"  # a process failed; with `tolerates_workers`, a PS or the last worker
    LOST = "lost"  # an external cause ended it, and the job isn't at fault


@dataclass(frozen=True, slots=True)
class Started:
    """Report that the processes of a generation were started by ``command``.

    A generation that failed or was lost during its start is also reported so, before its `Ended`.
    """

    command: int
    job: str
    generation: int
    at: float


@dataclass(frozen=True, slots=True)
class StartRefused:
    """Report that a generation was refused and never starts: a server is missing or not free.

    ``command`` and ``at`` are as in `Started`. ``reason`` is for people. ``lasting`` says that the
    cause is the job itself, such as missing files, so that other starts fail too.
    """

    command: int
    job: str
    generation: int
    at: float
    reason: str
    lasting: bool = False


@dataclass(frozen=True, slots=True)
class Ended:
    """Report that a generation has ended and none of its processes run.

    ``code`` and ``tail`` (last lines of its log) are those of the process that decided the end. If
    ``from_outside``, it ended after a signal that belonged to no stop command. Then ``done`` only
    completes the job if its progress shows that the work is done.
    """

    command: int  # the newest stop command; 0 if there was none
    job: str
    generation: int
    at: float  # seconds since 1970
    ending: Ending
    code: int | None  # exit status, 128 + n for death by signal n; None if unknown
    reason: str  # for people
    tail: tuple[str, ...] = ()
    forced: bool = False  # whether processes were killed after the grace period
    from_outside: bool = False  # whether something other than a command asked it to end


@dataclass(frozen=True, slots=True)
class Progressed:
    """Progress that a generation reports."""

    job: str
    generation: int
    progress: int  # total since the job's first generation began, in millionths of a mini-batch
    metrics: Mapping[str, float]
    at: float  # seconds since 1970
    checkpoints: bool = False  # whether the job declares that it resumes from checkpoints


@dataclass(frozen=True, slots=True)
class InvalidProgress:
    """Report that a generation's progress report is malformed; once for each kind of problem."""

    job: str
    generation: int
    at: float
    reason: str


@dataclass(frozen=True, slots=True)
class PartlyEnded:
    """Report that workers of a running generation exited 0, while others have not ended.

    It is emitted some seconds after the first worker's exit, and again when more have exited.
    """

    job: str
    generation: int
    at: float
    ended: tuple[str, ...]
    running: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """A server's name in the cluster, its capacity and its labels.

    ``capacity`` is by resource, in the units of `core.amounts`. If ``takes_work`` is false, nothing
    new may be placed on the server. Its processes continue, but have to leave if it ``evicts``.
    """

    name: str
    capacity: Mapping[str, int]
    labels: Mapping[str, str] = field(default_factory=dict)
    takes_work: bool = True
    evicts: bool = False


@dataclass(frozen=True, slots=True)
class ServerSeen:
    """A server is new or changed; only from executors that discover servers."""

    server: ServerInfo
    at: float


@dataclass(frozen=True, slots=True)
class ServerGone:
    """A server is lost; its generations are reported `Ended` as lost."""

    server: str
    at: float
    reason: str = ""


Report = (
    Started
    | StartRefused
    | Ended
    | Progressed
    | InvalidProgress
    | PartlyEnded
    | ServerSeen
    | ServerGone
)


class GenerationPhase(StrEnum):
    """State of a generation from its start command until it is forgotten."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class GenerationStatus:
    """A generation that the executor hasn't forgotten, as returned by `list`.

    ``processes`` are the names that `logs` accepts, such as ``worker-0`` and ``ps-1``. ``started``
    is in seconds since 1970. ``end`` is set once the generation has ended or was refused.
    ``identity`` is that of its start command, or empty.
    """

    job: str
    generation: int
    phase: GenerationPhase
    placement: tuple[ServerAllocation, ...]
    processes: tuple[str, ...]
    started: float | None = None
    end: Ended | StartRefused | None = None
    identity: str = ""


@dataclass(frozen=True, slots=True)
class Obstacle:
    """A generation that the executor can't start or end now, and the servers that it occupies."""

    job: str
    generation: int
    servers: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class LogChunk:
    """A chunk of one process's log, with standard output and error interleaved.

    ``start`` and ``end`` are byte offsets in everything that the process wrote, including bytes
    already rotated away. Invalid UTF-8 is replaced in ``text``.
    """

    generation: int
    process: str
    start: int
    end: int
    text: str
    complete: bool  # whether the process has ended and wrote nothing after `end`


@dataclass(frozen=True, slots=True)
class ObservedJob:
    """A job that runs or ran on the cluster. A job that `observe` no longer returns has ended."""

    job: str  # its name; its key if `is_own`
    placement: tuple[ServerAllocation, ...]  # may lack servers whose names are unknown
    since: float
    tenant: str | None = None
    ended: float | None = None  # None if it runs or the time is unknown
    done: bool | None = None  # whether it succeeded; None if unknown
    is_own: bool = False  # whether this executor started it


class Election(Protocol):
    """Leader election among several services that share an executor."""

    @property
    def name(self) -> str:
        """Identifier of the election, equal for all its candidates."""

    @property
    def number(self) -> int:
        """Fencing token: increases with each leader; 0 before this service is elected."""

    def holds(self) -> bool:
        """Return whether this service still holds the lease, so that no other can lead."""


def ignore_failure(kind: str) -> None:
    """Ignore a failure; the default if failures aren't counted."""
    del kind


@dataclass(frozen=True, slots=True)
class ExecutorOptions:
    """Options that every executor is constructed with."""

    directory: str  # absolute path of its own directory, mode 700, for its durable state
    namespace: str = "shadowprice"  # separates services that share a cluster
    address: str = ""  # of a remote cluster (`ray://...`, a kubeconfig); else empty
    settings: Mapping[str, str] = field(default_factory=dict)  # specific to the executor
    observing: bool = False  # acquire no shared lock and write nothing
    election: Election | None = None  # None if the service has no standby
    failed: Callable[[str], None] = ignore_failure  # counts failures by kind, for metrics


class ExecutorError(ShadowpriceError):
    """The executor can't be reached, or can't store its records; send the command again."""

    code = "executor"


class UnreachableError(ExecutorError):
    """No usable cluster answers at the service's start; exits as a usage error."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class ExecutorCapabilities:
    """Features that an executor declares."""

    discovers_servers: bool = False  # by `ServerSeen`; otherwise `set_servers` sets them
    several_machines: bool = False  # processes run on other machines
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
        """Connect, and adopt running generations; raise `ExecutorError` if that is impossible."""

    async def close(self) -> None:
        """Disconnect; running generations continue."""

    async def set_servers(self, servers: Sequence[ServerInfo]) -> None:
        """Set all servers that start commands may name.

        Generations on a server that isn't given any more continue, and their end is reported. An
        executor that discovers servers reports `ServerGone` for given servers that don't exist.
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

        A generation that was never started is barred from starting and reported `StartRefused`. An
        ended generation is reported `Ended` again, unless it was forgotten. ``command`` is
        `UNCOMMANDED_STOP` if the service itself stops the generation. ``grace`` is in seconds, by
        default the program's own; a later command may shorten it.
        Raises `ExecutorError` as `start` does.
        """

    async def list(self) -> tuple[GenerationStatus, ...]:
        """Return every generation whose end isn't acknowledged, in order of acceptance."""

    def watch(self) -> AsyncIterator[Report]:
        """Yield reports: first the current state of every listed generation, then changes.

        There is one consumer at a time. The iterator ends when the executor is closed.
        """

    async def acknowledge_end(self, job: str, generation: int) -> None:
        """Acknowledge a recorded end or refusal: the generation is forgotten, its logs are kept."""

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
        returned. If the first byte was rotated away, the chunk starts at the first kept byte. At
        most one mebibyte is returned. Raises KeyError if the job, generation or process is unknown.
        """

    async def observe(self) -> tuple[ObservedJob, ...]:
        """Return the jobs that run on the cluster, from this and other schedulers.

        Ended jobs may be included for a while, with their end and result. Jobs of other schedulers
        may have the names of this executor's jobs.
        """


@runtime_checkable
class ChecksReachability(Executor, Protocol):
    """An executor of other machines that can check its connection."""

    async def reach(self) -> None:
        """Raise `ExecutorError` if the cluster doesn't answer; called before anything is stored."""


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

        The result only has resources that the executor allocates itself. ``gpu`` counts GPUs of
        all kinds. The service plans no job on configured capacity beyond these amounts. Return the
        same object until an amount changes.
        """


@dataclass(frozen=True, slots=True)
class UnpackFailure:
    """Why a job's files could not be unpacked."""

    reason: str
    lasting: bool


@runtime_checkable
class UnpacksFiles(Executor, Protocol):
    """An executor that can unpack `GenerationSpec.archive` before it gets the start command."""

    async def unpack(self, spec: GenerationSpec) -> UnpackFailure | None:
        """Fill a job's directory, so that `start` needs no time for it; return why that failed.

        The result is None on success. If `start` wouldn't accept the generation, nothing is done.
        Calls may be repeated, also after a kill. Raises `ExecutorError` if a record can't be
        written.
        """

    def unpacked(self) -> Collection[str]:
        """Return the jobs whose directories may hold unpacked files, also after a restart."""

    async def release(self, job: str) -> None:
        """Delete the unpacked files that a closed job didn't change; keep what it wrote.

        A job with a generation that hasn't ended is skipped, and kept in `unpacked`. Raises
        `ExecutorError` if files can't be deleted.
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
        """Return file progress that is new since the last poll; `watch` doesn't repeat it."""

    def stale_jobs(self) -> frozenset[str]:
        """Return the jobs whose current progress is unknown, because the last poll missed them."""

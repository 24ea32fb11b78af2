"""Commands to an executor, and their receipts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from shadowprice.core.program import Program

UNCOMMANDED_STOP: Final = -2
"""Command number of a stop that the engine didn't command; 0 means that there was no stop."""


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

    command: int  # number of the engine's command (`core.events.NumberedCommand.id`)
    job: str  # its key: arbitrary text, never used as a path
    generation: int  # from 1
    placement: tuple[ServerAllocation, ...]  # processes are ranked in this order
    program: Program
    worker: Mapping[str, int] = field(default_factory=dict)  # of one worker
    ps: Mapping[str, int] = field(default_factory=dict)  # of one parameter server
    checkpoint_dir: str = ""  # seen by every generation; if empty, the executor makes one
    progress_url: str = ""  # processes POST their progress to it; empty for none
    progress_token: str = field(default="", repr=False)  # must not be logged
    slot_end: float = 0.0  # of the slot in which it starts, seconds since 1970
    tenant: str | None = None
    devices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    identity: str = ""  # of the command, across stores that reuse its number; empty if unknown
    name: str = ""  # of the job for its processes; empty if it is the key
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
            "name": self.name,
            "archive": self.archive,
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

    ACCEPTED = "accepted"
    """The command is new and durable, and will be executed; reports follow."""
    DUPLICATE = "duplicate"
    """The command was accepted before; nothing happens."""
    STALE = "stale"
    """The job has a newer generation, or another command has this number; nothing happens."""
    BUSY = "busy"
    """Another generation of the job hasn't ended; nothing happens, and the caller may retry."""

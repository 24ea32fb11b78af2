"""What an executor is ordered: to start a generation, and to stop it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from shadowprice.core.program import Program

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

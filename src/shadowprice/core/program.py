"""What a job really runs: the program that executors start once a place is found for it.

Schedulers and the engine know nothing of it: it goes from the job's file to an executor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

DEFAULT_GRACE: Final = 30.0
"""Seconds that a process has to end by itself once it is told to, where its job says nothing."""

RESERVED: Final = frozenset({"MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"})
"""Variables that executors set, and a job may not."""

RESERVED_BEGINNINGS: Final = ("SHADOWPRICE_", "PET_")
"""Beginnings of such variables."""


@dataclass(frozen=True, slots=True)
class Program:
    """A command and how it is to be treated.

    Parameters
    ----------
    command : tuple of str
        The words of the command, never interpreted by a shell.
    environment : mapping of str to str
        Variables to set beside those of the contract; may hold secrets, and is never shown.
    directory : str
        Absolute path of the directory it runs in; empty for one of the job's own.
    retries : int
        Failures that the job is allowed in all; one more ends it.
    grace : float
        Seconds between being told to end (SIGTERM) and being ended (SIGKILL).
    tolerates_workers : bool
        Whether a worker that dies does not end its generation while another lives.
    user : str
        Name of the user whose processes they are; empty for the executor's own.
    image : str
        The container image that the processes run in, where the executor runs containers.
    pod : mapping of str to object
        What is said of the job's pods, as `core.specs.pod.PodSpec.plain` returns it.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    directory: str = ""
    retries: int = 0
    grace: float = DEFAULT_GRACE
    tolerates_workers: bool = False
    user: str = ""
    image: str = ""
    pod: Mapping[str, object] = field(default_factory=dict)

    def record(self) -> dict[str, object]:
        """Return the program as plain values."""
        return {
            "command": list(self.command),
            "environment": dict(self.environment),
            "directory": self.directory,
            "retries": self.retries,
            "grace": self.grace,
            "tolerates_workers": self.tolerates_workers,
            "user": self.user,
            "image": self.image,
            "pod": dict(self.pod),
        }

    @classmethod
    def from_record(cls, record: Mapping[str, object]) -> Program:
        """Build the program that `record` described."""
        values = dict(record)
        values["command"] = tuple(values["command"])  # type: ignore[arg-type]  # a list
        return cls(**values)  # type: ignore[arg-type]  # the fields are those of `record`

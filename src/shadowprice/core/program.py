"""The program of a job, which executors start once the job has a placement.

Schedulers and the engine don't use it. It goes from the job's file to an executor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

DEFAULT_GRACE_SECONDS: Final = 30.0  # default grace period in seconds between SIGTERM and SIGKILL

RESERVED_VARIABLES: Final = frozenset({"MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"})
"""Environment variables that executors set and jobs may not."""

RESERVED_PREFIXES: Final = ("SHADOWPRICE_", "PET_")  # prefixes of reserved environment variables


@dataclass(frozen=True, slots=True)
class Program:
    """A command and how executors run it."""

    command: tuple[str, ...]  # never interpreted by a shell
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)  # may hold secrets
    directory: str = ""  # absolute working directory; empty for a directory of the job's own
    retries: int = 0  # total failures that the job is allowed; the next failure closes it
    grace: float = DEFAULT_GRACE_SECONDS
    tolerates_workers: bool = False  # the generation continues while any worker lives
    user: str = ""  # runs the processes; empty for the executor's own user
    image: str = ""  # for executors that run containers
    pod: Mapping[str, object] = field(default_factory=dict)  # result of `PodSpec.plain`

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
        """Build the program from the result of `record`."""
        values = dict(record)
        values["command"] = tuple(values["command"])  # type: ignore[arg-type]  # a list
        return cls(**values)  # type: ignore[arg-type]  # the fields are those of `record`

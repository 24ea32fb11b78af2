"""The program of a job, which executors start once the job has a placement.

Schedulers and the engine don't use it. It goes from the job's file to an executor.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Final

from shadowprice.core import bounds

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
        return {**asdict(self), "command": list(self.command)}

    @classmethod
    def from_record(cls, record: Mapping[str, object]) -> Program:
        """Build the program from the result of `record`."""
        values = dict(record)
        values["command"] = tuple(values["command"])  # type: ignore[arg-type]  # a list
        return cls(**values)  # type: ignore[arg-type]  # the fields are those of `record`


# The script is a file, because interpreters other than shells take no script as an argument. It has
# a directory of its own while it runs: interpreters search for modules beside the script, and read
# it again in child processes. Executors send SIGTERM to every process, so this shell only has to
# outlive the script.
_RUN_SCRIPT: Final = """\
directory=$(mktemp -d "${{TMPDIR:-/tmp}}/shadowprice-XXXXXX") || exit 126
trap 'rm -rf "$directory"' EXIT
trap 'exit 143' TERM
pieces=$1; shift
while [ "$pieces" -gt 0 ]; do
  printf %s "$1" || exit 126; shift; pieces=$((pieces - 1))
done >"$directory/$0" || exit 126
trap : TERM
{interpreter} "$directory/$0" "$@"
exit "$?"
"""
_BEGINNING: Final = _RUN_SCRIPT.partition("{interpreter}")[0].format()


def build_script_command(
    name: str, text: str, interpreter: Sequence[str], arguments: Sequence[str]
) -> list[str]:
    """Return the words that run a script, and pass it arguments; ``name`` is its file name."""
    size = int(bounds.TEXT.maximum)
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    program = _RUN_SCRIPT.format(interpreter=shlex.join(interpreter))
    return ["/bin/sh", "-c", program, name, str(len(pieces)), *pieces, *arguments]


def script_name(command: object) -> str | None:
    """Return the file name of the script that a command contains; None for other commands."""
    if isinstance(command, str) or not isinstance(command, Sequence) or len(command) < 5:
        return None
    is_script = str(command[2]).startswith(_BEGINNING)
    return str(command[3]) if is_script else None

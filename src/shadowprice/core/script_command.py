"""Commands that contain a script: executors run them without knowing scripts."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final

from shadowprice.core import bounds

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

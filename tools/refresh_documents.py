"""Replace the output of commands in the documents; a test checks that it is current.

Run, from the root of a clone: ``python tools/refresh_documents.py``
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCUMENTS = {"README.md": "$ ", "docs/tutorial.md": "$ ", "docs/results.md": "examples/"}
"""Documents, each with a text that only commands of runnable blocks contain."""


def refreshed(text: str, folder: Path, mark: str = "$ ") -> str:
    """Run a document's commands in order, in a folder; return the text with their new output.

    A YAML block that begins with ``# NAME.yaml`` is written to that file.
    """
    parts = re.split(r"^(```.*\n)", text, flags=re.MULTILINE)
    inside = False
    for index, part in enumerate(parts):
        if part.startswith("```"):
            inside = not inside
        elif inside:
            file_name = re.match(r"# (\S+\.yaml)\n", part)
            if file_name:
                (folder / file_name[1]).write_text(part, encoding="utf-8")
            parts[index] = _refreshed_block(part, folder, mark)
    return "".join(parts)


def _refreshed_block(block: str, folder: Path, mark: str) -> str:
    lines = block.splitlines()
    if not any(line.startswith("$ ") and mark in line for line in lines):
        return block
    output: list[str] = []
    for index, line in enumerate(lines):
        if line.startswith("$ "):
            output.append(line)
            # Twice, because the first call may load kernels from a cold disk, which takes longer.
            for _ in range(2):
                done = subprocess.run(
                    shlex.split(line[2:]), cwd=folder, capture_output=True, text=True, check=True
                )
            # Documents omit the output of some commands.
            if index + 1 < len(lines) and not lines[index + 1].startswith("$ "):
                output += [row.rstrip() for row in done.stdout.splitlines()]
    return "\n".join(output) + "\n"


def main() -> None:
    """Refresh every document."""
    for document, mark in DOCUMENTS.items():
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            shutil.copytree(ROOT / "examples", folder / "examples")
            path = ROOT / document
            text = refreshed(path.read_text(encoding="utf-8"), folder, mark)
            path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

"""One call of the command line with its files, as plain data.

A file's content is text, or one of these mappings, so that a table of large inputs stays small::

    {"repeat": ["unit", 1000], "before": "...", "after": "..."}     a repeated unit
    {"base64": "..."}                                               bytes that aren't text
    {"gzip": CONTENT}                                               compressed content
    {"cut": CONTENT, "at": 20}                                      its first bytes
    {"zeros": 100000}                                               zero bytes
    {"link": "target"}                                              a symbolic link
    {"run": "fifo", "damage": [["jobs.parquet", ACTION, ...], ...]} a damaged run directory

Actions on a file of a run: ``cut AT``, ``flip AT`` (one byte; negative from the end), ``empty``,
``remove``, ``text TEXT``, ``copy OTHER``, ``link TARGET``, ``folder``, ``append TEXT``, and for
JSON ``set PATH VALUE`` and ``drop PATH`` (``PATH`` with dots); for a line of JSON Lines
``edit LINE PATH [VALUE]``, which drops it without a value, and ``move LINE LINE``.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Content = str | Mapping[str, Any]


@dataclass(frozen=True)
class Case:
    """A call and its files.

    Parameters
    ----------
    words : tuple of str
        The arguments.
    files : mapping of str to content
        Files by their path from the working directory; a path that ends in ``/`` is a folder.
    """

    words: tuple[str, ...]
    files: Mapping[str, Content] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """Return the case as plain values."""
        return {"words": list(self.words), "files": dict(self.files)}

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Case:
        """Build the case that `record` described."""
        return cls(tuple(record["words"]), dict(record.get("files", {})))


def lay_out(case: Case, folder: Path, runs: Path) -> None:
    """Write the files of a case into an empty folder.

    Parameters
    ----------
    case : Case
        The case.
    folder : Path
        The folder.
    runs : Path
        Folder with a valid run directory for each policy that a case may name.
    """
    for name, content in case.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("/"):
            path.mkdir(exist_ok=True)
        elif isinstance(content, Mapping) and "run" in content:
            shutil.copytree(runs / content["run"], path)
            for target, action, *values in content.get("damage", ()):
                # A part that is already removed can't be damaged again.
                with suppress(OSError, ValueError, LookupError, TypeError):
                    _damage(path, target, action, values)
        elif isinstance(content, Mapping) and "link" in content:
            path.symlink_to(content["link"])
        else:
            path.write_bytes(content_bytes(content))


def content_bytes(content: Content) -> bytes:
    """Return the bytes of a file's content."""
    if isinstance(content, str):
        return content.encode("utf-8", "surrogatepass")
    if "repeat" in content:
        unit, times = content["repeat"]
        parts = (content.get("before", ""), unit * times, content.get("after", ""))
        return content_bytes("".join(parts))
    if "base64" in content:
        return base64.b64decode(content["base64"])
    if "gzip" in content:
        return gzip.compress(content_bytes(content["gzip"]), 6, mtime=0)
    if "cut" in content:
        return content_bytes(content["cut"])[: content["at"]]
    if "zeros" in content:
        return bytes(content["zeros"])
    raise ValueError(f"no content: {sorted(content)}")


def _damage(run: Path, target: str, action: str, values: Sequence[Any]) -> None:
    path = run / target
    if action in {"set", "drop"}:
        _edit_json(path, values)
        return
    if action in {"edit", "move"}:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        if action == "move":
            lines.insert(values[1], lines.pop(values[0]))
        else:
            record = json.loads(lines[values[0]])
            _edit(record, values[1], *values[2:])
            lines[values[0]] = json.dumps(record) + "\n"
        path.write_text("".join(lines), encoding="utf-8")
        return
    data = path.read_bytes() if path.is_file() else b""
    if action == "cut":
        path.write_bytes(data[: values[0]])
    elif action == "flip":
        at = values[0] % max(len(data), 1)
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :])
    elif action == "empty":
        path.write_bytes(b"")
    elif action == "remove":
        path.unlink()
    elif action == "text":
        path.write_bytes(content_bytes(values[0]))
    elif action == "append":
        path.write_bytes(data + content_bytes(values[0]))
    elif action == "copy":
        shutil.copyfile(run / values[0], path)
    elif action == "link":
        path.unlink(missing_ok=True)
        path.symlink_to(values[0])
    elif action == "folder":
        path.unlink(missing_ok=True)
        path.mkdir()
    else:
        raise ValueError(f"no action {action!r}")


def _edit_json(path: Path, values: Sequence[Any]) -> None:
    """Change one value of a JSON file, or of the first line of a JSON Lines file."""
    first, _, rest = path.read_text(encoding="utf-8").partition("\n")
    whole = path.suffix != ".jsonl"
    document = json.loads(path.read_text(encoding="utf-8") if whole else first)
    _edit(document, *values)
    text = json.dumps(document)
    path.write_text(text if whole else f"{text}\n{rest}", encoding="utf-8")


def _edit(document: Any, place: str, *value: Any) -> None:
    """Set a value inside a document, or drop it if no value is given."""
    *parents, last = place.split(".")
    for part in parents:
        document = document[int(part)] if isinstance(document, list) else document[part]
    key = int(last) if isinstance(document, list) else last
    if value:
        document[key] = value[0]
    else:
        del document[key]


def snapshot(folder: Path) -> dict[str, str]:
    """Return every entry of a folder with its kind and its digest or target."""
    found: dict[str, str] = {}
    for base, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(base, name)
            key = str(path.relative_to(folder))
            if path.is_symlink():
                found[key] = f"link {path.readlink()}"
            elif path.is_file():
                found[key] = hashlib.sha256(path.read_bytes()).hexdigest()
            else:
                found[key] = "folder" if path.is_dir() else "other"
    return found

"""Directory of a bag: results and files of its tasks, each committed once, atomically.

::

    .lock                   locked while a process uses the bag
    bag.json                identity of the bag
    token                   the largest token granted so far
    task-000012/            a finished task: the files of its copy, and result.pickle
    .copies/                files of copies that have not won
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import pickle
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from shadowprice.jobs.files import replace_file, sync
from shadowprice.training.errors import TrainingError

RESULT: Final = "result.pickle"
_FORMAT: Final = "shadowprice-bag"
_IDENTITY: Final = "bag.json"
_LOCK: Final = ".lock"

_SET_OPCODES: Final = (b"\x8f", b"\x91")
"""EMPTY_SET and FROZENSET in pickles: the order of a set's elements depends on the hash seed."""


class ResultStore:
    """Directory of a bag, locked; raises `TrainingError` if it is in use or has other content."""

    def __init__(
        self,
        path: Path,
        function: Callable[..., Any],
        tasks: Sequence[Any],
        payloads: Sequence[bytes],
    ) -> None:
        self._path = path.absolute()
        self._copies = self._path / ".copies"
        content = hashlib.sha256()
        for index, (task, payload) in enumerate(zip(tasks, payloads, strict=True)):
            content.update(_digest(task, payload, f"tasks[{index}]"))
        identity = {
            "format": _FORMAT,
            "function": f"{function.__module__}.{getattr(function, '__qualname__', function)}",
            "tasks": len(tasks),
            "content": content.hexdigest(),
        }
        self._path.mkdir(parents=True, exist_ok=True)
        if not (self._path / _LOCK).exists():  # don't put a lock file into a foreign directory
            self._check_content()
        # Not the directory itself, because NFS locks only files that are open for writing.
        self._lock = os.open(self._path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._check_identity(identity)
            shutil.rmtree(self._copies, ignore_errors=True)
            self._copies.mkdir()
            self._token = self._last_token()
        except BlockingIOError as error:
            os.close(self._lock)
            raise TrainingError(
                f"{path}: in use by another process; wait for its end, or give another directory"
            ) from error
        except BaseException:
            os.close(self._lock)
            raise

    def _check_content(self) -> None:
        """Raise `TrainingError` for a directory with files but no bag."""
        names = {path.name for path in self._path.iterdir()}
        if _IDENTITY not in names and names - {_LOCK}:
            raise TrainingError(
                f"{self._path}: contains files, but no bag; give a new or empty directory"
            )

    def _check_identity(self, identity: dict[str, object]) -> None:
        file = self._path / _IDENTITY
        try:
            stored = json.loads(file.read_text())
        except FileNotFoundError:
            self._check_content()  # again, because the directory was not locked before
            replace_file(file, json.dumps(identity).encode(), durable=True)
            return
        except ValueError:
            stored = None
        if stored != identity:
            raise TrainingError(
                f"{self._path}: contains a bag with another function or other tasks; "
                "give another directory, or remove this one"
            )

    def _last_token(self) -> int:
        file = self._path / "token"
        try:
            return int(file.read_text())
        except FileNotFoundError:
            return 0
        except ValueError as error:
            raise TrainingError(
                f"{file}: expected an integer ({error}); write the largest token granted so far"
            ) from error

    def done(self) -> dict[int, Any]:
        """Return the results of the tasks that earlier runs finished, by task."""
        results = {}
        for folder in sorted(self._path.glob("task-*")):
            file = folder / RESULT
            try:
                results[int(folder.name.removeprefix("task-"))] = pickle.loads(file.read_bytes())
            except FileNotFoundError:  # the user removed it to run the task again
                continue
            except Exception as error:  # damaged, or of a missing class: it may raise anything
                raise TrainingError(
                    f"{file}: can't be read ({type(error).__name__}: {error}); "
                    f"remove {folder.name} to run that task again"
                ) from error
        return results

    def scratch(self, task: int, copy: int) -> Path:
        """Create the directory of a copy."""
        path = self._copies / f"{task}-{copy}"
        path.mkdir()
        return path

    def grant(self) -> int:
        """Return a token larger than all earlier ones; it is on disk before the call returns."""
        self._token += 1
        replace_file(self._path / "token", str(self._token).encode(), durable=True)
        return self._token

    def refusal_reason(self, scratch: Path) -> str:
        """Return why a copy's files can't be committed; empty if they can."""
        if not scratch.is_dir() or scratch.is_symlink():
            return "it removed its attempt.directory, which is stored with the result"
        if os.path.lexists(scratch / RESULT):
            return f"it wrote {RESULT} in attempt.directory; that name is reserved: rename the file"
        return ""

    def commit(self, task: int, scratch: Path, result: bytes) -> None:
        """Sync a copy's directory to disk, then rename it atomically to the task's directory."""
        (scratch / RESULT).write_bytes(result)
        for parent, _, files in os.walk(scratch):
            for file in (Path(parent, name) for name in files):
                if file.is_file() and not file.is_symlink():
                    sync(file)
            sync(Path(parent))
        target = self._path / f"task-{task:06d}"
        shutil.rmtree(target, ignore_errors=True)  # exists if the user removed only the result
        scratch.rename(target)
        sync(self._path)

    def drop(self, scratch: Path | None) -> None:
        """Remove the files of a copy that did not win."""
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)

    def close(self) -> None:
        """Remove the copies' files, and unlock the directory."""
        if self._lock >= 0:
            shutil.rmtree(self._copies, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


class _OrderedPickler(pickle._Pickler):
    """Pickles sets in an order that doesn't depend on the hash seed; the C pickler can't."""

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, set | frozenset):
            return NotImplemented
        elements = sorted(_ordered_pickle(element) for element in value)
        return type(value), (elements,), getattr(value, "__dict__", None)


def _ordered_pickle(value: Any) -> bytes:
    stream = io.BytesIO()
    _OrderedPickler(stream, pickle.HIGHEST_PROTOCOL).dump(value)
    return stream.getvalue()


def _digest(task: Any, payload: bytes, location: str) -> bytes:
    """Return a digest of a task, the same in every process; ``location`` names it in errors."""
    content = payload
    if any(opcode in content for opcode in _SET_OPCODES):
        try:
            content = _ordered_pickle(task)
        except Exception as error:  # raised by the task's own types, or a cycle through a set
            raise TrainingError(
                f"{location}: can't be identified ({type(error).__name__}: {error}); "
                "use lists instead of sets"
            ) from error
    return hashlib.sha256(content).digest()

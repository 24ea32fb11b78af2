"""Directory of a bag: results and files of its tasks, each committed once, atomically.

::

    bag.json                identity of the bag
    token                   the largest token granted so far
    task-000012/            a finished task: the files of its copy, and result.pickle
    .copies/                files of copies that have not won
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import pickle
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from shadowprice.jobs.files import replace_file
from shadowprice.training.errors import TrainingError

RESULT: Final = "result.pickle"
_FORMAT: Final = "shadowprice-bag"


class ResultStore:
    """The directory of one bag, created if necessary and locked against other processes.

    Raises `TrainingError` if the directory contains another bag or other files, or another process
    uses it.
    """

    def __init__(self, path: Path, function: Callable[..., Any], payloads: Sequence[bytes]) -> None:
        self._path = path.absolute()
        self._copies = self._path / ".copies"
        content = hashlib.sha256()
        for payload in payloads:
            content.update(hashlib.sha256(payload).digest())
        identity = {
            "format": _FORMAT,
            "function": f"{function.__module__}.{getattr(function, '__qualname__', function)}",
            "tasks": len(payloads),
            "content": content.hexdigest(),
        }
        self._path.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._check_identity(identity)
        except BlockingIOError as error:
            os.close(self._lock)
            raise TrainingError(
                f"{path}: in use by another process; wait for its end, or give another directory"
            ) from error
        except BaseException:
            os.close(self._lock)
            raise
        shutil.rmtree(self._copies, ignore_errors=True)
        self._copies.mkdir()
        self._token = self._last_token()

    def _check_identity(self, identity: dict[str, object]) -> None:
        file = self._path / "bag.json"
        try:
            stored = json.loads(file.read_text())
        except FileNotFoundError:
            if any(self._path.iterdir()):
                raise TrainingError(
                    f"{self._path}: contains files, but no bag; give a new or empty directory"
                ) from None
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
        try:
            return int((self._path / "token").read_text())
        except FileNotFoundError:
            return 0

    def done(self) -> dict[int, Any]:
        """Return the results of the tasks that earlier runs finished, by task."""
        results = {}
        for folder in sorted(self._path.glob("task-*")):
            file = folder / RESULT
            try:
                results[int(folder.name[5:])] = pickle.loads(file.read_bytes())
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
            for name in files:
                _sync(Path(parent, name))
            _sync(Path(parent))
        target = self._path / f"task-{task:06d}"
        shutil.rmtree(target, ignore_errors=True)  # exists if the user removed only the result
        scratch.rename(target)
        _sync(self._path)

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


def _sync(path: Path) -> None:
    if path.is_symlink() or not (path.is_file() or path.is_dir()):
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

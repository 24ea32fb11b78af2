"""Where results go: places that are free, or that hold an earlier result of the same kind."""

from __future__ import annotations

import errno
import json
import os
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from shadowprice.core import bounds
from shadowprice.core.errors import Fault, InputError

WRITTEN_BY: Final = "shadowprice"
"""What a file says that wrote it, where its format has a place for that."""

_HEAD: Final = 4096


def check_file(path: Path, ours: Callable[[str], bool]) -> None:
    """Refuse a place that a file must not be written to, before anything is computed.

    Parameters
    ----------
    path : Path
        The file to be.
    ours : callable
        Whether the first 4 KiB of a file there show that it is an earlier result.

    Raises
    ------
    InputError
        If it is a link, a device, a directory or somebody else's file, or cannot be written.
    """
    new = "give a new name, or remove it first"
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        mode = None
    except OSError as error:
        raise InputError(Fault(str(path), f"cannot be written: {error.strerror}")) from error
    if mode is not None:
        if stat.S_ISLNK(mode):
            raise InputError(Fault(str(path), "is a link", new))
        if stat.S_ISDIR(mode):
            raise InputError(Fault(str(path), "is a directory, not a file", new))
        if not stat.S_ISREG(mode):
            raise InputError(Fault(str(path), "is no regular file", new))
        if not ours(_head_of(path)):
            raise InputError(Fault(str(path), "is a file that was not written by this", new))
    folder = path.parent
    if not folder.is_dir():
        message = f"the folder {folder} does not exist"
        raise InputError(Fault(str(path), message, "make it first"))
    _check_writable(folder, str(path))


def _check_writable(folder: Path, place: str) -> None:
    """Refuse a folder that takes no new file, by making one that is never seen."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        message = f"the folder {folder} cannot be written to: {error.strerror}"
        raise InputError(Fault(place, message)) from error


@contextmanager
def made_folder(folder: Path) -> Iterator[None]:
    """Make a folder and those above it; what was made goes again if the body fails.

    Made at once, rather than when there is something to put there: no check beforehand knows all
    that may be in the way.

    Raises
    ------
    InputError
        If it cannot be made.
    """
    made: list[Path] = []
    try:
        make_missing(folder, made)
    except OSError as error:
        remove_made(made)
        message = f"cannot be made a directory: {error.strerror}"
        raise InputError(Fault(str(folder), message)) from error
    try:
        yield
    except BaseException:
        remove_made(made)
        raise


def make_missing(folder: Path, made: list[Path]) -> None:
    """Make a folder and those above it that are missing, noting each in ``made`` as it is there."""
    missing = []
    while not folder.exists():
        if folder.is_symlink():
            raise FileNotFoundError(errno.ENOENT, f"{folder.name} is a link to nothing")
        missing.append(folder)
        folder = folder.parent
    for one in reversed(missing):
        one.mkdir()
        made.append(one)


def remove_made(made: list[Path]) -> None:
    """Remove folders that `make_missing` made, but for those that something else moved into."""
    for folder in reversed(made):
        with suppress(OSError):
            folder.rmdir()


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Give a file beside ``path`` to write to; it takes its place if nothing goes wrong."""
    handle, name = tempfile.mkstemp(prefix=".shadowprice.", suffix=".part", dir=path.parent)
    os.close(handle)
    part = Path(name)
    try:
        yield part
        part.chmod(0o666 & ~umask())
        part.replace(path)
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def own_page(head: str) -> bool:
    """Return that a file may be replaced whatever it holds: a run's own page."""
    del head
    return True


def json_with(path: Path, keys: Iterable[str]) -> bool:
    """Return whether a file is a JSON object with some keys."""
    try:
        if path.stat().st_size > bounds.RUN_FILE.most:
            return False
        record = json.loads(path.read_bytes())
    except (ValueError, OSError, RecursionError):
        return False
    return isinstance(record, dict) and set(keys) <= record.keys()


def is_page(head: str) -> bool:
    """Return whether a file begins as the pages of this package do."""
    return head.lower().startswith("<!doctype html") and GENERATOR in head


GENERATOR: Final = f'<meta name="generator" content="{WRITTEN_BY}">'
"""What every page says in its head."""


def marked_page(text: str) -> str:
    """Return a page that says what wrote it."""
    return text if GENERATOR in text[:_HEAD] else text.replace("<head>", f"<head>{GENERATOR}", 1)


def is_marked_yaml(head: str) -> bool:
    """Return whether a YAML file begins as those that this package writes."""
    return head.startswith(YAML_MARK)


YAML_MARK: Final = f"# Written by {WRITTEN_BY}; edit a copy: it may be written again.\n"


def is_job_lines(head: str) -> bool:
    """Return whether a JSON Lines file begins with a job as `Workload.write` writes it."""
    line = head.partition("\n")[0]
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return False
    if not isinstance(record, dict):
        return False
    ends = list(record)[-2:]
    labels = record.get("labels")
    return (
        ends == ["utility", "labels"]
        and isinstance(labels, dict)
        and "class" in labels
        and {"name", "arrival", "epochs", "chunks", "minibatches", "workers"} <= record.keys()
    )


def umask() -> int:
    """Return the process's mask of permissions."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _head_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_HEAD).decode("utf-8", "replace")
    except OSError:
        return ""

"""Output files and directories: checks of their paths, and atomic writing."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Final

from shadowprice.core import bounds
from shadowprice.core.errors import Fault, InputError, ShadowpriceError

WRITTEN_BY: Final = "shadowprice"
"""Marker of files written by this package, if their format has a field for it."""

_HEAD_BYTES: Final = 4096  # bytes of a file that show who wrote it


def check_output_file(path: Path, ours: Callable[[str], bool]) -> None:
    """Check that a file can be written, before anything is computed.

    ``ours`` returns whether the first 4 KiB of an existing file show that it is an earlier result.
    Links, devices, directories and foreign files are refused.
    """
    hint = "choose a new name, or remove it first"
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        mode = None
    except OSError as error:
        raise InputError(Fault(str(path), f"cannot be written: {error.strerror}")) from error
    if mode is not None:
        if stat.S_ISLNK(mode):
            raise InputError(Fault(str(path), "is a link", hint))
        if stat.S_ISDIR(mode):
            raise InputError(Fault(str(path), "is a directory, not a file", hint))
        if not stat.S_ISREG(mode):
            raise InputError(Fault(str(path), "is not a regular file", hint))
        if not ours(_read_head(path)):
            raise InputError(Fault(str(path), "is a file that this command did not write", hint))
    folder = path.parent
    if not folder.is_dir():
        message = f"the folder {folder} does not exist"
        raise InputError(Fault(str(path), message, "create it first"))
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        message = f"the folder {folder} is not writable: {error.strerror}"
        raise InputError(Fault(str(path), message)) from error


@contextmanager
def created_directory(folder: Path) -> Iterator[None]:
    """Create a folder and its missing parents; remove them if the body fails.

    The folder is created at once, because no earlier check can rule out every failure.
    """
    created: list[Path] = []
    try:
        create_directories(folder, created)
    except OSError as error:
        remove_created_directories(created)
        message = f"cannot be created as a directory: {error.strerror}"
        raise InputError(Fault(str(folder), message)) from error
    try:
        yield
    except BaseException:
        remove_created_directories(created)
        raise


def create_directories(folder: Path, created: list[Path]) -> None:
    """Create a folder and its missing parents; append each to ``created`` once it exists."""
    missing = []
    while not folder.exists():
        if folder.is_symlink():
            raise FileNotFoundError(errno.ENOENT, f"{folder.name} is a link to nothing")
        missing.append(folder)
        folder = folder.parent
    for directory in reversed(missing):
        directory.mkdir()
        created.append(directory)


def remove_created_directories(created: list[Path]) -> None:
    """Remove folders that `create_directories` created, unless they contain other files."""
    for folder in reversed(created):
        with suppress(OSError):
            folder.rmdir()


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary file that replaces ``path`` atomically if the body succeeds."""
    handle, name = tempfile.mkstemp(prefix=".shadowprice.", suffix=".part", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        # tempfile creates files that only their owner may read.
        temporary.chmod(0o666 & ~umask())
        temporary.replace(path)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_atomically(path: Path, text: str) -> None:
    """Replace the content of a file atomically."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def json_with(path: Path, keys: Iterable[str]) -> bool:
    """Return whether a file is a JSON object that has the given keys."""
    try:
        if path.stat().st_size > bounds.RUN_FILE.maximum:
            return False
        record = json.loads(path.read_bytes())
    except (ValueError, OSError, RecursionError):
        return False
    return isinstance(record, dict) and set(keys) <= record.keys()


def is_page(head: str) -> bool:
    """Return whether a file starts like the pages of this package."""
    return head.lower().startswith("<!doctype html") and GENERATOR in head


GENERATOR: Final = f'<meta name="generator" content="{WRITTEN_BY}">'
"""Marker in the head of every page."""


def add_generator_tag(text: str) -> str:
    """Return a page with the marker in its head."""
    if GENERATOR in text[:_HEAD_BYTES]:
        return text
    return text.replace("<head>", f"<head>{GENERATOR}", 1)


def is_marked_yaml(head: str) -> bool:
    """Return whether a YAML file starts with the marker of this package."""
    return head.startswith(YAML_MARK)


YAML_MARK: Final = f"# Written by {WRITTEN_BY}; edit a copy: it may be written again.\n"


def is_job_lines(head: str) -> bool:
    """Return whether a JSON Lines file starts with a job in the format of `Workload.write`."""
    try:
        record = json.loads(head.partition("\n")[0])
    except (ValueError, RecursionError):
        return False
    if not isinstance(record, dict) or list(record)[-2:] != ["utility", "labels"]:
        return False
    labels = record["labels"]
    required = {"name", "arrival", "epochs", "chunks", "minibatches", "workers"}
    return isinstance(labels, dict) and "class" in labels and required <= record.keys()


def umask() -> int:
    """Return the process's file mode creation mask; not thread-safe."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _read_head(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_HEAD_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


_NEW = "give --out a new directory"
_INSIDE = "give --out a new directory inside it"  # a mount point can't be renamed or replaced


def check_directory(out: Path, is_replaceable: Callable[[Path], bool]) -> None:
    """Check that an `AtomicDirectory` can be created, before anything is read or computed."""
    with AtomicDirectory(out, is_replaceable):
        pass


class AtomicDirectory:
    """Output directory that is filled under a temporary name and then renamed.

    An earlier result at the final path is replaced if ``is_replaceable`` returns true. Links,
    devices, and directories with other files are refused. ``path`` is the temporary directory to
    write to. Leaving the context removes it unless `commit` was called.
    """

    def __init__(self, out: Path, is_replaceable: Callable[[Path], bool]) -> None:
        self._is_replaceable = is_replaceable
        self._given_path = out
        self._created_parents: list[Path] = []
        try:
            self.out = out.absolute()
            self._check()
            create_directories(self.out.parent, self._created_parents)
            self.path = Path(
                tempfile.mkdtemp(prefix=".shadowprice.", suffix=".unfinished", dir=self.out.parent)
            )
        except OSError as error:
            remove_created_directories(self._created_parents)
            raise _write_error(out, error) from error
        self.path.chmod(0o777 & ~umask())

    def __enter__(self) -> AtomicDirectory:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.path.exists():
            shutil.rmtree(self.path, ignore_errors=True)
            remove_created_directories(self._created_parents)

    def commit(self) -> None:
        """Move the directory to its final path.

        If the path has become occupied or can't be replaced, keep the results in a numbered
        directory beside it and raise `ShadowpriceError`.
        """
        try:
            self._check()
            self._move()
        except (InputError, OSError) as error:
            problem = _write_error(self._given_path, error) if isinstance(error, OSError) else error
            alternative = self._unused_sibling()
            self.path.rename(alternative)
            raise ShadowpriceError(f"{problem}; the results are in {alternative}") from error

    def _move(self) -> None:
        if not self.out.exists():
            self.path.rename(self.out)
            return
        # A directory can't be renamed to one that has files, so move the old one away first.
        old = self.path.with_suffix(".replaced")
        self.out.rename(old)
        try:
            self.path.rename(self.out)
        except BaseException:
            old.rename(self.out)
            raise
        shutil.rmtree(old, ignore_errors=True)

    def _check(self) -> None:
        out = self.out
        if out.is_symlink():
            raise InputError(Fault(str(self._given_path), "is a symbolic link", _NEW))
        if not out.exists():
            if not out.name:
                raise InputError(Fault(str(self._given_path), "is the root directory", _NEW))
            return
        if not out.is_dir():
            raise InputError(Fault(str(self._given_path), "is not a directory", _NEW))
        if out.resolve() in {Path.cwd(), *Path.cwd().parents}:
            raise InputError(Fault(str(self._given_path), "contains the current directory", _NEW))
        if out.is_mount():
            raise InputError(Fault(str(self._given_path), "is a mount point", _INSIDE))
        if any(out.iterdir()) and not self._is_replaceable(out):
            message = "contains files that no earlier run of this kind wrote"
            raise InputError(Fault(str(self._given_path), message, _NEW))

    def _unused_sibling(self) -> Path:
        number = 2
        while (candidate := self.out.with_name(f"{self.out.name}-{number}")).exists():
            number += 1
        return candidate


def _write_error(path: Path, error: OSError) -> InputError:
    return InputError(Fault(str(path), f"cannot be written: {error.strerror or error}"))

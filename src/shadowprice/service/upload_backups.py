"""Backups of uploads: the files that the open jobs of a backup need, beside the backup.

    FILE                              a backup of a database
    FILE.uploads/TENANT/DIGEST.tar    as in the folder ``uploads`` of a data directory

Uploads never change, so a later backup copies only new uploads. Copies are on disk before the
backup gets its name, and are removed after no open job of the backup needs them.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shadowprice.core.errors import Fault, InputError
from shadowprice.executors.generations.disk import make_private, sync_directory
from shadowprice.service.uploads import FOLDER, is_upload_name, upload_path

PARTIAL_SUFFIX: Final = ".part"
_COPY_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class UploadBackup:
    """Copies of the uploads that a backup needs."""

    folder: Path
    count: int = 0  # number of copies
    size: int = 0  # bytes of all copies
    incomplete: tuple[str, ...] = ()  # names of open jobs whose uploads are missing or damaged

    def remove_others(self, database: Path) -> None:
        """Remove the copies that no open job of a database needs; the folder must be locked."""
        if not self.folder.is_dir():
            return
        needed = {upload_path(self.folder, *upload) for upload in _uploads_of_open_jobs(database)}
        for folder in list(self.folder.iterdir()):
            for file in list(folder.iterdir()):
                if file not in needed:
                    file.unlink()
            if not any(folder.iterdir()):
                folder.rmdir()
        if not any(self.folder.iterdir()):
            self.folder.rmdir()


def backup_folder(target: Path) -> Path:
    """Return the folder for the uploads of a backup."""
    return target.with_name(f"{target.name}.{FOLDER}")


def check_backup_folder(target: Path) -> None:
    """Raise `InputError` if a backup's folder has anything except copies of uploads."""
    folder = backup_folder(target)
    hint = "choose a new name for the backup"
    try:
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            raise InputError(Fault(str(folder), "expected a directory with uploads", hint))
        for path in folder.glob("*/*"):
            if not is_upload_name(path) and path.suffix != PARTIAL_SUFFIX:
                raise InputError(Fault(str(path), "is not a copy of an upload", hint))
        for path in folder.glob("*"):
            if not path.is_dir() or path.is_symlink():
                raise InputError(Fault(str(path), "is not a copy of an upload", hint))
    except OSError as error:
        raise InputError(Fault(str(folder), f"cannot be read: {error.strerror}")) from error


@contextmanager
def lock_backup_folder(target: Path) -> Iterator[None]:
    """Lock the folder of a backup during a block; raise `InputError` if another process does."""
    folder = backup_folder(target)
    path = folder.with_name(f"{folder.name}.lock")
    with ExitStack() as stack:
        while True:
            # A file beside the folder, because NFS locks only files that are open for writing.
            file = stack.enter_context(path.open("ab"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                hint = "wait for its end, or choose a new name for the backup"
                raise InputError(
                    Fault(str(target), "another backup writes this file", hint)
                ) from None
            # If the previous holder removed the opened file meanwhile, try again.
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    break
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def copy_uploads(database: Path, source: Path, target: Path) -> UploadBackup:
    """Copy the uploads that the open jobs of a database need.

    ``source`` is the data directory, and ``target`` the path of the backup.
    """
    folder = backup_folder(target)
    count = size = 0
    incomplete: list[str] = []
    for (tenant, digest), names in _uploads_of_open_jobs(database).items():
        copy = upload_path(folder, tenant, digest)
        if not _is_intact(copy, digest):
            try:
                original = upload_path(source / FOLDER, tenant, digest).open("rb")
            except FileNotFoundError:
                incomplete += names
                continue
            with original:
                make_private(folder)
                make_private(copy.parent)
                if not _copy(original.fileno(), copy, digest):
                    incomplete += names
                    continue
        count, size = count + 1, size + copy.stat().st_size
    return UploadBackup(folder, count, size, tuple(incomplete))


def _is_intact(copy: Path, digest: str) -> bool:
    try:
        with copy.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == digest
    except FileNotFoundError:
        return False


def _copy(descriptor: int, target: Path, digest: str) -> bool:
    """Copy a file durably; return False and leave no copy if its content has another digest."""
    actual = hashlib.sha256()
    handle, name = tempfile.mkstemp(suffix=PARTIAL_SUFFIX, dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            while piece := os.read(descriptor, _COPY_BYTES):
                actual.update(piece)
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        if actual.hexdigest() != digest:
            return False
        Path(name).rename(target)
    finally:
        Path(name).unlink(missing_ok=True)
    for folder in (target.parent, target.parent.parent, target.parent.parent.parent):
        sync_directory(folder)
    return True


def _uploads_of_open_jobs(database: Path) -> dict[tuple[str | None, str], list[str]]:
    """Return the names of the open jobs that need each upload, by tenant and digest."""
    needed: dict[tuple[str | None, str], list[str]] = {}
    query = "SELECT name, tenant, spec FROM jobs WHERE open = 1 AND instr(spec, '\"upload\"')"
    uri = f"{database.absolute().as_uri()}?mode=ro"
    with closing(sqlite3.connect(uri, uri=True)) as connection:
        for name, tenant, spec in connection.execute(query):
            digest = (json.loads(spec).get("run") or {}).get("upload")
            if digest is not None:
                needed.setdefault((tenant, digest), []).append(name)
    return needed

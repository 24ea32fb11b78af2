"""The files that a job gets from its submitter."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from shadowprice.core.errors import InputError
from shadowprice.core.job_keys import key_digest
from shadowprice.executors.contract import UnpackFailure
from shadowprice.executors.generations.disk import (
    create_file,
    list_names,
    make_private,
    sync_directory,
)
from shadowprice.uploads.unpacking import is_unpacked, remove_unchanged, unpack


@dataclass(frozen=True, slots=True)
class JobFiles:
    """The directory that a job's archive fills.

    ``fill`` fills it, and returns the cause if that fails. It may take long.
    """

    directory: Path
    fill: Callable[[], UnpackFailure | None]

    def are_unpacked(self, archive: str) -> bool:
        """Return whether the directory is filled with an archive."""
        try:
            return is_unpacked(Path(archive), self.directory)
        except OSError:  # `fill` explains it
            return False


class UnpackedJobs:
    """Durable list of the jobs whose archives were unpacked: a file for each in a directory.

    A job is listed before its archive is unpacked, until its unchanged files are deleted.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        make_private(path)
        self._records: dict[str, tuple[Path, Path]] = {}
        for name in list_names(path):
            try:
                job, archive, directory = json.loads((path / name).read_bytes())
            except ValueError:  # its file never became complete
                (path / name).unlink()
                continue
            self._records[job] = Path(archive), Path(directory)

    def jobs(self) -> Collection[str]:
        """Return the jobs that are listed now; other threads add and remove some meanwhile."""
        return list(self._records)

    def add(self, job: str, archive: str, directory: Path) -> None:
        """List a job, durably; its archive fills ``directory``."""
        if job in self._records:
            return
        record = json.dumps([job, archive, str(directory)])  # ASCII, whatever names contain
        create_file(self._file(job), record.encode())
        sync_directory(self._path)
        self._records[job] = Path(archive), directory

    def clean(self, job: str) -> None:
        """Delete the files that a job didn't change, and remove it from the list."""
        if job not in self._records:
            return
        archive, directory = self._records[job]
        with suppress(InputError):  # a damaged archive was never unpacked
            remove_unchanged(archive, directory)
        self.remove(job)

    def remove(self, job: str) -> None:
        """Remove a job from the list."""
        if self._records.pop(job, None) is not None:
            self._file(job).unlink(missing_ok=True)

    def _file(self, job: str) -> Path:
        return self._path / key_digest(job)


def unpack_files(
    archive: str, directory: Path, owner: tuple[int, int] | None = None
) -> UnpackFailure | None:
    """Fill a job's directory unless it is filled; return the cause if that fails.

    ``owner`` is the user and the group of the files, by default those of this process.
    """
    try:
        unpack(Path(archive), directory, owner)
    except FileNotFoundError:
        reason = "its files are missing; submit it again from its directory"
        return UnpackFailure(reason, lasting=not Path(archive).exists())
    except OSError as error:
        return UnpackFailure(f"its files can't be unpacked: {error.strerror}", lasting=False)
    except InputError as error:
        return UnpackFailure(f"its files can't be unpacked: {error}", lasting=True)
    return None

"""The files that a job gets from its submitter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from shadowprice.core.errors import InputError
from shadowprice.uploads.archive import is_unpacked, unpack


@dataclass(frozen=True, slots=True)
class JobFiles:
    """The directory that a job's archive fills.

    ``fill`` fills it and returns a reason if that fails, for people. It may take long.
    """

    directory: Path
    fill: Callable[[], str]

    def are_unpacked(self, archive: str) -> bool:
        """Return whether the directory is filled with an archive."""
        try:
            return is_unpacked(Path(archive), self.directory)
        except OSError:  # `fill` explains it
            return False


def unpack_files(archive: str, directory: Path, owner: tuple[int, int] | None = None) -> str:
    """Fill a job's directory unless it is filled; return a reason if that fails, for people.

    ``owner`` is the user and the group of the files, by default those of this process.
    """
    try:
        unpack(Path(archive), directory, owner)
    except FileNotFoundError:
        return "its files are missing; submit it again from its directory"
    except OSError as error:
        return f"its files can't be unpacked: {error.strerror}"
    except InputError as error:
        return f"its files can't be unpacked: {error}"
    return ""

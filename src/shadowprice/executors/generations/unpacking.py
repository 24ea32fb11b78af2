"""The files that a job gets from its submitter."""

from __future__ import annotations

from pathlib import Path

from shadowprice.core.errors import InputError
from shadowprice.uploads.archive import unpack


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

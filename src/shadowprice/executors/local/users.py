"""Jobs as other users than the service's: who they are, and where their files may be.

Needs root. The executor's own directory stays closed to everybody; what such a job writes (work,
checkpoints, progress) lies in a tree beside it. There a job's directory belongs to root, so that
nothing in it can be replaced by a link, and only what is inside belongs to the user.
"""

from __future__ import annotations

import errno
import os
import pwd
import shutil
import stat
from pathlib import Path
from typing import Any

from shadowprice.executors.generations.placing import NoPlaceError


def identity(name: str) -> dict[str, Any]:
    """Return what a process has to become: numbers, groups, and what it is told of them.

    Raises
    ------
    NoPlaceError
        If this is not root, there is no such user, or it is root by another name.
    """
    if os.geteuid() != 0:
        raise NoPlaceError("the service is not root, so that its jobs cannot be other users")
    try:
        known = pwd.getpwnam(name)
    except KeyError:
        raise NoPlaceError(f"this machine has no user {name!r}") from None
    if known.pw_uid == 0:
        raise NoPlaceError("no job runs as root")
    return {
        "uid": known.pw_uid,
        "gid": known.pw_gid,
        "groups": [group for group in os.getgrouplist(name, known.pw_gid) if group != 0],
        "environment": {
            "HOME": known.pw_dir,
            "USER": name,
            "LOGNAME": name,
            "SHELL": known.pw_shell or "/bin/sh",
        },
    }


class Tree:
    """Where jobs of other users have their files.

    Parameters
    ----------
    root : Path
        Its beginning; made where it is missing.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def job(self, key: str) -> Path:
        """Return the directory of a job."""
        return self._root / key

    def make(self, key: str, user: dict[str, Any]) -> None:
        """Make the directories of a job, those inside the user's own.

        Raises
        ------
        OSError
            If they cannot be made, or the tree is not root's alone to write.
        """
        self._root.mkdir(mode=0o711, parents=True, exist_ok=True)
        found = os.lstat(self._root)
        open_to_others = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or open_to_others:
            why = "has to be root's, and no one else's to write"
            raise PermissionError(errno.EPERM, why, str(self._root))
        self.job(key).mkdir(mode=0o711, exist_ok=True)
        self.job(key).chmod(0o711)  # whatever the mask
        self._root.chmod(0o711)
        for name in ("work", "checkpoints", "progress"):
            folder = self.job(key) / name
            folder.mkdir(mode=0o700, exist_ok=True)
            os.chown(folder, user["uid"], user["gid"], follow_symlinks=False)

    def remove(self, key: str) -> None:
        """Remove the directories of a job."""
        shutil.rmtree(self.job(key), ignore_errors=True)

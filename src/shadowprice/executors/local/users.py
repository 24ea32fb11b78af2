"""Jobs that run as other users than the service: their identities and directories.

This requires root. Other users can't enter the executor's own directory, so the files of these jobs
(work, checkpoints, progress) are in a separate tree. Root owns the directory of each job there, so
that the user can't replace its entries by links. The user owns only the directories inside.
"""

from __future__ import annotations

import errno
import os
import pwd
import shutil
import stat
from pathlib import Path
from typing import Any

from shadowprice.executors.generations.placement_checks import PlacementError
from shadowprice.uploads.unpacking import remove_unpacked


def user_credentials(name: str) -> dict[str, Any]:
    """Return uid, gid, supplementary groups and environment variables of a user.

    Raises `PlacementError` if the service isn't root, or the user is unknown or has uid 0.
    """
    if os.geteuid() != 0:
        raise PlacementError(
            "the service doesn't run as root, so its jobs can't run as other users"
        )
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise PlacementError(f"this machine has no user {name!r}") from None
    if entry.pw_uid == 0:
        raise PlacementError("jobs may not run as root")
    return {
        "uid": entry.pw_uid,
        "gid": entry.pw_gid,
        "groups": [group for group in os.getgrouplist(name, entry.pw_gid) if group != 0],
        "environment": {
            "HOME": entry.pw_dir,
            "USER": name,
            "LOGNAME": name,
            "SHELL": entry.pw_shell or "/bin/sh",
        },
    }


class UserJobDirs:
    """Directories of jobs that run as other users; ``root`` is created if missing."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def job(self, key: str) -> Path:
        """Return the directory of a job."""
        return self._root / key

    def make(self, key: str, user: dict[str, Any]) -> None:
        """Create the directories of a job; the user owns the inner ones.

        Raises OSError if they can't be created, or users other than root can write to the tree.
        """
        self._root.mkdir(mode=0o711, parents=True, exist_ok=True)
        status = os.lstat(self._root)
        open_to_others = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or open_to_others:
            reason = "must belong to root and be writable only by root"
            raise PermissionError(errno.EPERM, reason, str(self._root))
        self.job(key).mkdir(mode=0o711, exist_ok=True)
        self.job(key).chmod(0o711)  # regardless of the umask
        self._root.chmod(0o711)
        for name in ("work", "checkpoints", "progress"):
            folder = self.job(key) / name
            folder.mkdir(mode=0o700, exist_ok=True)
            os.chown(folder, user["uid"], user["gid"], follow_symlinks=False)

    def remove(self, key: str) -> None:
        """Remove the directories of a job."""
        remove_unpacked(self.job(key) / "work")
        shutil.rmtree(self.job(key), ignore_errors=True)

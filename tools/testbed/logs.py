"""A log folder for each kubelet.

The folder ``/var/log/pods`` is compiled into kubelets. Once a minute a kubelet removes logs of
unknown pods from it; on a machine with several kubelets, those are the logs of the others' pods.
So the path becomes a link to the working directory of the process that opens it, which for a
kubelet and its containerd is their node's folder.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

PLACE: Final = Path("/var/log/pods")
OWN: Final = "pods.log"
"""Name of the link's target in a node's folder."""

_TARGET: Final = f"/proc/self/cwd/{OWN}"
_LOCK: Final = Path("/tmp/testbed.logs.lock")


@contextmanager
def apart(place: Path = PLACE, lock: Path = _LOCK) -> Iterator[None]:
    """Give each process its own log folder, and restore the original folder afterwards.

    The last user restores it, whether the others ended or were killed.

    Parameters
    ----------
    place : Path
        The folder of kubelets' logs.
    lock : Path
        File that is locked during a change; a file beside it is shared by all users of the folder.
    """
    with lock.with_name(f"{lock.name}.users").open("a") as users:
        with _locked(lock):
            fcntl.flock(users, fcntl.LOCK_SH)
            _take(place)
        try:
            yield
        finally:
            with _locked(lock):
                fcntl.flock(users, fcntl.LOCK_UN)
                with suppress(OSError):  # still in use
                    fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _give_back(place)


def _take(place: Path) -> None:
    if place.is_symlink() and str(place.readlink()) == _TARGET:
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.is_symlink() or place.exists():
        place.rename(_kept(place))
    place.symlink_to(_TARGET)


def _give_back(place: Path) -> None:
    if place.is_symlink() and str(place.readlink()) == _TARGET:
        place.unlink()
    if os.path.lexists(_kept(place)) and not os.path.lexists(place):
        _kept(place).rename(place)


def _kept(place: Path) -> Path:
    return place.with_name(f"{place.name}.before-testbed")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield

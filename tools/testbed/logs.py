"""A log folder for each kubelet.

Where they are is written into the program: ``/var/log/pods``. And once a minute a kubelet removes
there what belongs to no pod that it knows: on a machine with several, the logs of all others' pods.
So the place leads to the working directory of whoever opens it, which for a kubelet and its
containerd is their node's folder.
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
"""Its name in a node's folder."""

_TARGET: Final = f"/proc/self/cwd/{OWN}"
_LOCK: Final = Path("/tmp/testbed.logs.lock")


@contextmanager
def apart(place: Path = PLACE, lock: Path = _LOCK) -> Iterator[None]:
    """Give each process its own log folder, and restore the original folder afterwards.

    The last of those who use it gives it back, whether others ended or were killed.

    Parameters
    ----------
    place : Path
        Where kubelets keep logs.
    lock : Path
        Held while it is changed; beside it another one is shared by all who use the place.
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

"""A log folder for each kubelet.

The path ``/var/log/pods`` is compiled into kubelets. Once a minute, a kubelet removes the logs of
pods that it doesn't know. With several kubelets on a machine, each would remove the logs of the
others. So the path becomes a link to ``/proc/self/cwd``: each process opens a folder in its own
working directory, which is the node's folder for a kubelet and its containerd.
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

    The last process that uses the link restores the folder, even if others were killed.

    Parameters
    ----------
    place : Path
        Folder of the kubelets' logs.
    lock : Path
        File that is locked during a change. Another file has a shared lock of each process that
        uses the link.
    """
    with lock.with_name(f"{lock.name}.users").open("a") as users:
        with _locked(lock):
            fcntl.flock(users, fcntl.LOCK_SH)
            _replace_by_link(place)
        try:
            yield
        finally:
            with _locked(lock):
                fcntl.flock(users, fcntl.LOCK_UN)
                with suppress(OSError):  # still in use
                    fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _restore(place)


def _replace_by_link(place: Path) -> None:
    if place.is_symlink() and str(place.readlink()) == _TARGET:
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.is_symlink() or place.exists():
        place.rename(_original(place))
    place.symlink_to(_TARGET)


def _restore(place: Path) -> None:
    if place.is_symlink() and str(place.readlink()) == _TARGET:
        place.unlink()
    if os.path.lexists(_original(place)) and not os.path.lexists(place):
        _original(place).rename(place)


def _original(place: Path) -> Path:
    """Return the path of the original folder while the link has its place."""
    return place.with_name(f"{place.name}.before-testbed")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield

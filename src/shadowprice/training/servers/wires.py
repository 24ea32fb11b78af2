"""Wires: how gradients and parameters travel where they do not go with their headers.

NCCL moves tensors from GPU to GPU, and knows little else: what it was asked to receive holds its
stream until it comes, and a process that dies is noticed by nobody. So headers stay with gloo,
which waits on the CPU and tells of a death at once, and NCCL is asked to move a tensor only when
its header says that it is under way.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist

from shadowprice.training.generation import nccl_here, no_backend, own_device

_FOREVER: Final = timedelta(days=3650)
_STALLED: Final = 60.0
"""Seconds that a tensor has that is under way, and as many more as it takes at `_SLOWEST`."""
_SLOWEST: Final = 10e6
"""Bytes a second below which a tensor counts as lost."""

_BY_ITSELF: Final = {
    # What fails is told to who asked for it: by default a thread of torch's ends the process, which
    # would be a server's end where a worker dies.
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    # The same for a thread that looks into the store, which is gone once all have met.
    "TORCH_NCCL_ENABLE_MONITORING": "0",
}


class Wire:
    """One end of a wire.

    Parameters
    ----------
    group : process group
        A group of two, in which nothing else travels.
    rank : int
        Which of the two this is, 0 or 1.
    device : torch.device
        Where its tensors are.
    """

    def __init__(self, group: Any, rank: int, device: Any) -> None:
        self._group, self._other = group, 1 - rank
        self.device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def meet(self, patience: timedelta) -> None:
        """Move a byte from 0 to 1: NCCL connects when first used, by a store that is not kept.

        Raises
        ------
        RuntimeError
            If that fails, or takes too long.
        """
        byte = torch.zeros(1, dtype=torch.uint8, device=self.device)
        move = self._group.recv if self._other == 0 else self._group.send
        with self._aside():
            move([byte], self._other, 0).wait(patience)

    def send(self, content: Any, announce: Callable[[], None]) -> None:
        """Send bytes, and return when they are there.

        Parameters
        ----------
        content : tensor
            Of bytes, on `device`.
        announce : callable
            Tells the other that they are under way, and waits until it says that it has them.

        Raises
        ------
        RuntimeError
            If the other is gone.
        """
        with self._or_none():
            with self._aside():
                work = self._group.send([content], self._other, 0)
            announce()
            with self._aside():
                work.wait(_limit(content))

    def receive(self, into: Any) -> None:
        """Receive bytes that are under way.

        Parameters
        ----------
        into : tensor
            Of as many bytes, on `device`.

        Raises
        ------
        RuntimeError
            If they do not come.
        """
        with self._or_none(), self._aside():
            self._group.recv([into], self._other, 0).wait(_limit(into))

    @contextlib.contextmanager
    def _or_none(self) -> Any:
        """End all that is under way where some of it fails: it would hold its stream for good."""
        try:
            yield
        except RuntimeError:
            self._group.abort()
            raise

    @contextlib.contextmanager
    def _aside(self) -> Any:
        """Let a GPU wait for the other process beside what it computes.

        All threads compute on one stream. What waited there for another process would hold up
        whoever this process is to answer meanwhile, and two processes each other.
        """
        if self._stream is None:
            yield
            return
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._stream):
            yield


def _limit(content: Any) -> timedelta:
    return timedelta(seconds=_STALLED + content.numel() / _SLOWEST)


def by_nccl(store: Any, rank: int) -> Wire:
    """Return one end of a wire between GPUs.

    Parameters
    ----------
    store : Store
        Where both ends find each other.
    rank : int
        0 at one end, 1 at the other.
    """
    for name, value in _BY_ITSELF.items():
        os.environ.setdefault(name, value)
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = _FOREVER  # `Wire` has limits of its own
    return Wire(dist.ProcessGroupNCCL(store, rank, 2, options), rank, own_device())


WIRES: Final[dict[str, Callable[[Any, int], Wire]]] = {"nccl": by_nccl}
"""By backend, what makes a wire; tensors of gloo travel with their headers."""


def device_of(backend: str) -> Any:
    """Return where gradients and parameters travel from and to: there a server keeps its stretch.

    Parameters
    ----------
    backend : str
        As of `recipe.Settings`.

    Raises
    ------
    TrainingError
        If torch has no such backend here.
    """
    if backend not in {"gloo", *WIRES} or (backend == "nccl" and not nccl_here()):
        raise no_backend(backend)
    return own_device() if backend == "nccl" else torch.device("cpu")

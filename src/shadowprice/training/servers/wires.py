"""Wires: how gradients and parameters travel where they do not go with their headers.

NCCL moves tensors from GPU to GPU, and knows little else: what it was asked to receive holds its
stream until it comes, and a process that dies is noticed by nobody. So headers stay with gloo,
which waits on the CPU and tells of a death at once, and NCCL is asked to move a tensor only when
its header says that it is under way.
"""

from __future__ import annotations

import contextlib
import os
import time
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
_LEAST_PAUSE: Final = 20e-6
_MOST_PAUSE: Final = 1e-3
"""Seconds between two looks at what a GPU moves, soon and later."""

_UNWATCHED: Final = {"TORCH_NCCL_BLOCKING_WAIT": "1"}
"""Lets torch watch no group by a thread of its own, which would end the process where one fails:
a server, where a worker dies. `Wire` waits for whatever it asks for, and is told of what fails."""


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
        """Move a byte each way: NCCL connects a way when it is first used, by a store not kept.

        Both have to be there for that, so who sends the first time waits for who receives: later
        that one waits for a header, which comes after what is sent.

        Raises
        ------
        RuntimeError
            If that fails, or takes too long.
        """
        byte = torch.zeros(1, dtype=torch.uint8, device=self.device)
        ways = [self._group.send, self._group.recv]
        with self._aside():
            for move in ways if self._other else reversed(ways):
                self._wait_for(move([byte], self._other, 0), patience)

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
                self._wait_for(work, _limit(content))

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
            self._wait_for(self._group.recv([into], self._other, 0), _limit(into))

    def close(self) -> None:
        """Let go of the other."""
        self._group.abort()

    def _wait_for(self, work: Any, limit: timedelta) -> None:
        """Wait until something has moved, looking often: torch looks every 10 ms."""
        if self._stream is not None:
            until, pause = time.monotonic() + limit.total_seconds(), _LEAST_PAUSE
            while not work.is_completed() and time.monotonic() < until:
                time.sleep(pause)
                pause = min(2.0 * pause, _MOST_PAUSE)
        work.wait(limit)

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
    for name, value in _UNWATCHED.items():
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

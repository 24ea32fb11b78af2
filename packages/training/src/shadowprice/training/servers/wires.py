"""Transport of tensors between GPUs, separate from their headers.

NCCL moves tensors between GPUs and does little else. A receive blocks its stream until the tensor
comes, and NCCL doesn't notice the death of a process. So headers stay with gloo, which waits on the
CPU and reports a death at once. NCCL moves a tensor only after its header has announced it.
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
_TRANSFER_TIMEOUT_SECONDS: Final = 60.0
"""Timeout of a tensor in transit, in seconds, plus its transfer time at `_MIN_BYTES_PER_SECOND`."""
_MIN_BYTES_PER_SECOND: Final = 10e6
"""Minimum bandwidth in bytes per second; a slower tensor counts as lost."""
_MIN_POLL_SECONDS: Final = 20e-6
_MAX_POLL_SECONDS: Final = 1e-3  # seconds between two polls of a transfer, at first and later

_NCCL_ENVIRONMENT: Final = {"TORCH_NCCL_BLOCKING_WAIT": "1"}
"""Keeps torch from watching groups in a thread of its own, which would end a server's process when
a worker dies. `TensorTransport` waits for each operation itself and gets its errors.
"""


class TensorTransport:
    """One end of a GPU transport.

    ``group`` is a process group of two for these tensors only, and ``rank`` is 0 or 1. ``device``
    is the device of the tensors.
    """

    def __init__(self, group: Any, rank: int, device: Any) -> None:
        self._group, self._other = group, 1 - rank
        self.device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def meet(self, timeout: timedelta) -> None:
        """Move a byte each way, so that NCCL connects while the store for the rendezvous exists.

        NCCL connects each direction at its first use, and needs both ends for that. A first send
        would therefore block until the receive. Later the receiver waits for a header, which comes
        after the send. Raises RuntimeError if the connection fails or times out.
        """
        byte = torch.zeros(1, dtype=torch.uint8, device=self.device)
        operations = [self._group.send, self._group.recv]
        with self._on_own_stream():
            for operation in operations if self._other else reversed(operations):
                self._wait_for(operation([byte], self._other, 0), timeout)

    def send(self, content: Any, announce: Callable[[], None]) -> None:
        """Send bytes, and return when they have arrived.

        ``content`` is a tensor of bytes on `device`. ``announce`` sends their header, and waits for
        the acknowledgement of the receiver. Raises RuntimeError if the other end is gone.
        """
        with self._aborting():
            with self._on_own_stream():
                work = self._group.send([content], self._other, 0)
            announce()
            with self._on_own_stream():
                self._wait_for(work, _transfer_timeout(content))

    def receive(self, into: Any) -> None:
        """Receive announced bytes into a tensor of the same size on `device`.

        Raises RuntimeError if they don't arrive.
        """
        with self._aborting(), self._on_own_stream():
            self._wait_for(self._group.recv([into], self._other, 0), _transfer_timeout(into))

    def close(self) -> None:
        """Abort the group."""
        self._group.abort()

    def _wait_for(self, work: Any, limit: timedelta) -> None:
        """Wait for an operation with short polls, because torch polls only every 10 ms."""
        if self._stream is not None:
            deadline, pause = time.monotonic() + limit.total_seconds(), _MIN_POLL_SECONDS
            while not work.is_completed() and time.monotonic() < deadline:
                time.sleep(pause)
                pause = min(2.0 * pause, _MAX_POLL_SECONDS)
        work.wait(limit)

    @contextlib.contextmanager
    def _aborting(self) -> Any:
        """Abort the group on an error; a failed operation would block its stream forever."""
        try:
            yield
        except RuntimeError:
            self._group.abort()
            raise

    @contextlib.contextmanager
    def _on_own_stream(self) -> Any:
        """Run transfers on a stream of their own, parallel to the GPU's computation.

        All threads compute on one stream. A transfer on it that waits for another process would
        delay the responses of this process, and two such processes would block each other.
        """
        if self._stream is None:
            yield
            return
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._stream):
            yield


def _transfer_timeout(content: Any) -> timedelta:
    return timedelta(seconds=_TRANSFER_TIMEOUT_SECONDS + content.numel() / _MIN_BYTES_PER_SECOND)


def create_nccl_transport(store: Any, rank: int) -> TensorTransport:
    """Return one end of a transport between GPUs.

    Both ends meet in ``store``; ``rank`` is 0 at one end and 1 at the other.
    """
    for name, value in _NCCL_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = _FOREVER  # `TensorTransport` has limits of its own
    return TensorTransport(dist.ProcessGroupNCCL(store, rank, 2, options), rank, own_device())


TRANSPORTS: Final[dict[str, Callable[[Any, int], TensorTransport]]] = {
    "nccl": create_nccl_transport
}
"""Constructors of transports by backend; with gloo, tensors travel with their headers."""


def transport_device(backend: str) -> Any:
    """Return the device for transfers of tensors, where a server keeps its shard.

    ``backend`` is that of `recipe.Settings`. Raises `TrainingError` if torch lacks it here.
    """
    if backend not in {"gloo", *TRANSPORTS} or (backend == "nccl" and not nccl_here()):
        raise no_backend(backend)
    return own_device() if backend == "nccl" else torch.device("cpu")

"""Links between processes: one process group of `torch.distributed` per worker and server.

One group of all processes would not start if one process is missing, and could not receive from any
process once one is gone. A group of two ends at once with either process, and only affects this
pair.

A message is a header with its numbers, and perhaps a tensor, its payload. On one machine, gradients
and parameters go through shared memory. With the backend ``nccl``, they move between GPUs. All
other payloads use the group, as headers do.

NCCL isn't used for headers: a receive blocks its stream until the tensor comes, and NCCL doesn't
notice the death of a process. Gloo waits on the CPU and reports a death at once. So NCCL moves a
tensor only after its header has announced it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import stat
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist

from shadowprice.training.errors import first_line
from shadowprice.training.generation import nccl_here, no_backend, own_device
from shadowprice.training.servers.measuring import TrafficMeter
from shadowprice.training.servers.messages import Message, MessageKind, PeerLostError

# No timeout: a worker computes as long as necessary, and the death of its peer ends a wait.
_FOREVER: Final = timedelta(days=3650)
_TRANSFER_TIMEOUT_SECONDS: Final = 60.0  # plus the time at `_MIN_BYTES_PER_SECOND`
_MIN_BYTES_PER_SECOND: Final = 10e6  # bandwidth below which a tensor counts as lost
_MIN_POLL_SECONDS: Final = 20e-6  # seconds between the first two polls of a transfer
_MAX_POLL_SECONDS: Final = 1e-3  # seconds between later polls

# Without it, torch watches groups in a thread, which would end a server's process when a worker
# dies. `TensorTransport` waits for each operation itself and gets its errors.
_NCCL_ENVIRONMENT: Final = {"TORCH_NCCL_BLOCKING_WAIT": "1"}

MAX_HEADER_NUMBERS: Final = 24  # limit of the numbers in a message
_FIXED: Final = 7  # number of other values in a header
# Routes of a payload: with the header's group, in shared memory, between GPUs.
_INLINE: Final = 1
_SHARED: Final = 2
_TRANSPORT: Final = 3
_ROUTES: Final = 10  # exclusive limit of routes, which share a value with the type
_MIN_SHARED_BYTES: Final = 4096  # payload size below which shared memory saves nothing

_TYPES: Final = (
    torch.uint8,
    torch.int64,
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
)

# Kinds of messages whose payloads use shared memory or a GPU transport. In shared memory, the next
# payload in the same direction overwrites the last. Workers have only one of these exchanges at a
# time, so the payloads neither overwrite nor block each other.
_LARGE_KINDS: Final = (MessageKind.PUSH, MessageKind.VALUES)

_CPU: Final = torch.device("cpu")
_MARK_BYTES: Final = 32  # size of the mark by which shared memory is recognized


class TensorTransport:
    """One end of a GPU transport, a process group of two for tensors on ``device`` only."""

    def __init__(self, group: Any, rank: int, device: Any) -> None:
        self._group, self._other = group, 1 - rank
        self.device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def meet(self, timeout: timedelta) -> None:
        """Move a byte each way, because NCCL needs the store for the first transfer."""
        byte = torch.zeros(1, dtype=torch.uint8, device=self.device)
        operations = [self._group.send, self._group.recv]
        with self._on_own_stream():
            for operation in operations if self._other else reversed(operations):
                self._wait_for(operation([byte], self._other, 0), timeout)

    def send(self, content: Any, announce: Callable[[], None]) -> None:
        """Send bytes; ``announce`` sends their header and waits for the acknowledgement."""
        with self._aborting():
            with self._on_own_stream():
                work = self._group.send([content], self._other, 0)
            announce()
            with self._on_own_stream():
                self._wait_for(work, _transfer_timeout(content))

    def receive(self, into: Any) -> None:
        """Receive announced bytes into a tensor on `device`, or raise RuntimeError."""
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
        """Run transfers on their own CUDA stream, because they may wait for another process."""
        if self._stream is None:
            yield
            return
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._stream):
            yield


def _transfer_timeout(content: Any) -> timedelta:
    return timedelta(seconds=_TRANSFER_TIMEOUT_SECONDS + content.numel() / _MIN_BYTES_PER_SECOND)


def create_nccl_transport(store: Any, rank: int) -> TensorTransport:
    """Return one end of a transport between GPUs; both ends meet in ``store``."""
    for name, value in _NCCL_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = _FOREVER  # `TensorTransport` has its own timeouts
    return TensorTransport(dist.ProcessGroupNCCL(store, rank, 2, options), rank, own_device())


TRANSPORTS: Final[dict[str, Callable[[Any, int], TensorTransport]]] = {
    "nccl": create_nccl_transport
}
"""Constructors of transports by backend; gloo needs none, because the group moves its tensors."""


def transport_device(backend: str) -> Any:
    """Return the device of transfers; raise `TrainingError` if torch lacks the backend."""
    if backend not in {"gloo", *TRANSPORTS} or (backend == "nccl" and not nccl_here()):
        raise no_backend(backend)
    return own_device() if backend == "nccl" else torch.device("cpu")


class SharedMemoryBuffer:
    """Memory that two processes of one machine share, half of it for each direction.

    It has no name in a file system, so it disappears with the processes, however they end. It
    starts with random bytes, the mark: the same path on another machine is other memory.
    """

    def __init__(self, mapped: mmap.mmap, *, first: bool) -> None:
        content = torch.frombuffer(mapped, dtype=torch.uint8)[_MARK_BYTES:]
        half = len(content) // 2
        lower, upper = content[:half], content[half:]
        self.outgoing, self.incoming = (lower, upper) if first else (upper, lower)
        self.capacity = half

    @classmethod
    def make(cls, capacity: int) -> tuple[SharedMemoryBuffer, str] | None:
        """Return new memory and its address for the other process; None if it is unavailable."""
        if not hasattr(os, "memfd_create"):
            return None
        pages = -(-capacity // mmap.PAGESIZE)
        size = _MARK_BYTES + 2 * pages * mmap.PAGESIZE
        try:
            descriptor = os.memfd_create("shadowprice", os.MFD_CLOEXEC)
            os.ftruncate(descriptor, size)
            mapped = mmap.mmap(descriptor, size)
        except OSError:
            return None
        mark = secrets.token_bytes(_MARK_BYTES)
        mapped[:_MARK_BYTES] = mark
        # The descriptor stays open, because the other process opens it by its name in /proc.
        return cls(mapped, first=True), f"/proc/{os.getpid()}/fd/{descriptor}:{size}:{mark.hex()}"

    @classmethod
    def open(cls, handle: str) -> SharedMemoryBuffer | None:
        """Return the memory at an address, None if it is on another machine."""
        try:
            path, size, mark = handle.split(":")
            status = os.stat(path)  # noqa: PTH116  # a name in /proc
            if not stat.S_ISREG(status.st_mode) or status.st_size != int(size):
                return None
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                mapped = mmap.mmap(descriptor, int(size))
            finally:
                os.close(descriptor)
        except (OSError, ValueError):
            return None
        return cls(mapped, first=False) if mapped[:_MARK_BYTES].hex() == mark else None


class PairLink:
    """One end of a group of two; gradients and parameters use ``transport`` if there is one."""

    def __init__(self, group: Any, rank: int, transport: TensorTransport | None = None) -> None:
        self._group = group
        self._other = 1 - rank
        self._transport = transport
        self.device = _CPU if transport is None else transport.device  # of gradients and parameters
        self.memory: SharedMemoryBuffer | None = None
        self.traffic = TrafficMeter()  # meter of moved bytes, which several links may share
        self._received: dict[MessageKind, Any] = {}  # reused tensors for payloads

    @property
    def has_transport(self) -> bool:
        """Whether gradients and parameters move between GPUs."""
        return self._transport is not None

    def send(self, message: Message) -> None:
        """Send a message; see `messages.Link.send`."""
        content, type_index = None, 0
        if message.payload is not None and message.payload.numel():
            payload = message.payload.detach().contiguous()
            type_index = _TYPES.index(payload.dtype)
            content = payload.view(torch.uint8)
        size = 0 if content is None else content.numel()
        route = self._route(message.kind, size)
        header = torch.zeros(_FIXED + MAX_HEADER_NUMBERS, dtype=torch.float64)
        fixed = (message.kind, message.token, message.index, message.version)
        rest = (size, _ROUTES * type_index + route, len(message.numbers), *message.numbers)
        values = torch.tensor((*fixed, *rest), dtype=torch.float64)
        header[: len(values)] = values
        try:
            with self.traffic:
                if route == _TRANSPORT:
                    self._transport.send(content, lambda: self._announce(header))  # type: ignore[union-attr]
                else:
                    if route == _SHARED:  # before the header, which allows the receiver to read
                        self.memory.outgoing[:size].copy_(content)  # type: ignore[union-attr]
                    self._send_tensor(header, 0)
                    if size and route == _INLINE:
                        self._send_tensor(content, 1)
                self.traffic.add_bytes(size)
        except RuntimeError as error:
            raise PeerLostError(first_line(error)[:200]) from error

    def _route(self, kind: MessageKind, size: int) -> int:
        if kind not in _LARGE_KINDS or not size:
            return _INLINE
        if self._transport is not None:
            return _TRANSPORT
        shared = self.memory is not None and _MIN_SHARED_BYTES <= size <= self.memory.capacity
        return _SHARED if shared else _INLINE

    def receive(self, into: Any = None) -> Message:
        """Return the next message; see `messages.Link.receive`."""
        header = torch.empty(_FIXED + MAX_HEADER_NUMBERS, dtype=torch.float64)
        try:
            self._group.recv([header], self._other, 0).wait(_FOREVER)
            values = header.tolist()
            kind, token, index, version, size, type_and_route, count = (
                int(value) for value in values[:_FIXED]
            )
            type_index, route = divmod(type_and_route, _ROUTES)
            payload = None
            if size:
                with self.traffic:
                    payload = self._receive_payload(MessageKind(kind), size, route, into)
                    self.traffic.add_bytes(size)
        except RuntimeError as error:
            raise PeerLostError(first_line(error)[:200]) from error
        if payload is not None and payload is not into:
            payload = payload.view(_TYPES[type_index])
        numbers = tuple(values[_FIXED : _FIXED + count])
        return Message(MessageKind(kind), token, index, version, numbers, payload)

    def close(self) -> None:
        """Close this end; see `messages.Link.close`."""
        if self._transport is not None:
            self._transport.close()
        self._group = self._transport = None

    def _send_tensor(self, tensor: Any, tag: int) -> None:
        self._group.send([tensor.to(_CPU)], self._other, tag).wait(_FOREVER)

    def _announce(self, header: Any) -> None:
        """Send the header of a tensor in transit, and wait until the tensor has arrived."""
        self._send_tensor(header, 0)
        self._group.recv([torch.empty(1)], self._other, 1).wait(_FOREVER)

    def _receive_payload(self, kind: MessageKind, size: int, route: int, into: Any) -> Any:
        target = None if into is None else into.view(torch.uint8)
        if target is not None and target.numel() != size:
            raise PeerLostError(f"expected {target.numel()} bytes, got {size}")
        if route == _SHARED and self.memory is not None:
            shared = self.memory.incoming[:size]
            if target is None:
                return shared
            target.copy_(shared)
            return into
        device = self.device if route == _TRANSPORT else _CPU
        direct = target is not None and target.device == device
        received = target if direct else self._received.get(kind)
        if received is None or received.numel() != size:
            received = torch.empty(size, dtype=torch.uint8, device=device)
            self._received[kind] = received
        if route == _TRANSPORT and self._transport is not None:
            self._transport.receive(received)
            self._send_tensor(torch.zeros(1), 1)  # the acknowledgement that `_announce` awaits
        else:
            self._group.recv([received], self._other, 1).wait(_FOREVER)
        if target is None:
            return received
        if not direct:
            target.copy_(received)
        return into


def connect_pair(
    store: Any, name: str, rank: int, timeout: timedelta, backend: str = "gloo"
) -> PairLink:
    """Return one end of a link, once the other process has connected under the same ``name``.

    ``rank`` is 0 at one end and 1 at the other.

    Raises `PeerLostError` if the other process doesn't connect in time, and `TrainingError` if
    torch lacks the backend.
    """
    transport_device(backend)  # fail before waiting for the other process
    transport = None
    try:
        group = dist.ProcessGroupGloo(dist.PrefixStore(name, store), rank, 2, timeout)
        if backend in TRANSPORTS:
            transport = TRANSPORTS[backend](dist.PrefixStore(f"{name}-wire", store), rank)
            transport.meet(timeout)
    except RuntimeError as error:
        raise PeerLostError(
            f"{name}: the other process did not connect: {first_line(error)[:200]}"
        ) from error
    return PairLink(group, rank, transport)


def offer_shared_memory(link: PairLink, capacity: int) -> bool:
    """Offer shared memory to a worker, none if ``capacity`` is 0; return whether it is shared."""
    memory = SharedMemoryBuffer.make(capacity) if capacity and not link.has_transport else None
    address = b"" if memory is None else memory[1].encode()
    payload = torch.frombuffer(bytearray(address), dtype=torch.uint8) if address else None
    link.send(Message(MessageKind.OFFER, payload=payload))
    is_accepted = bool(link.receive().numbers[0])
    if memory is not None and is_accepted:
        link.memory = memory[0]
    return is_accepted


def accept_shared_memory(link: PairLink) -> bool:
    """Accept a server's offer of shared memory if possible; return whether it is shared."""
    message = link.receive()
    memory = None
    if message.payload is not None:
        memory = SharedMemoryBuffer.open(message.payload.numpy().tobytes().decode())
    link.send(Message(MessageKind.OFFER, numbers=(float(memory is not None),)))
    link.memory = memory
    return memory is not None

"""Links between processes: a process group of `torch.distributed` for every worker and server.

One group for all would do no good here: it does not come together if one process is missing, and
a message from anybody cannot be awaited in it once somebody is gone. A group of two ends with
either of them, at once, and with it only what the two had to say to each other.

Where both are on one machine, tensors go through memory that both have mapped, where both have GPUs
and are told so, through a wire between these (`wires`), and only the headers through the group.
"""

from __future__ import annotations

import mmap
import os
import secrets
import stat
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist

from shadowprice.training.servers.measuring import Traffic
from shadowprice.training.servers.messages import GoneError, Kind, Message
from shadowprice.training.servers.wires import WIRES, Wire, device_of

NUMBERS: Final = 24
"""Most numbers of a message."""

_FIXED: Final = 7
_HERE: Final = 1
_SHARED: Final = 2
_BESIDE: Final = 3
"""Where a payload travels: after its header, in memory, or through a wire."""
_LEAST: Final = 4096
"""Bytes below which a payload is sent with its header's means: mapping saves nothing."""

_TYPES: Final = (
    torch.uint8,
    torch.int64,
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
)
_FOREVER: Final = timedelta(days=3650)
"""For whatever has no end but the other's: a worker computes as long as it takes."""

_LARGE: Final = (Kind.PUSH, Kind.VALUES)
"""What goes through memory, or a wire: there is room for one message each way, which the next
overwrites. A worker asks for one or the other, so neither waits for the other on a wire."""

_CPU: Final = torch.device("cpu")

_MARK: Final = 32


class Memory:
    """Memory that two processes of one machine have mapped, half of it for each direction.

    It has no name in any file system, so it is gone when both are, however they end.

    Parameters
    ----------
    mapped : mmap
        The mapping: a mark, then both halves.
    first : bool
        Whether this process writes to the first half.
    """

    def __init__(self, mapped: mmap.mmap, *, first: bool) -> None:
        whole = torch.frombuffer(mapped, dtype=torch.uint8)[_MARK:]
        half = len(whole) // 2
        one, other = whole[:half], whole[half:]
        self.outgoing, self.incoming = (one, other) if first else (other, one)
        self.capacity = half

    @classmethod
    def make(cls, capacity: int) -> tuple[Memory, str] | None:
        """Return new memory and what the other process needs to find it; None where none can be."""
        if not hasattr(os, "memfd_create"):
            return None
        size = _MARK + 2 * _rounded(capacity)
        try:
            descriptor = os.memfd_create("shadowprice", os.MFD_CLOEXEC)
            os.ftruncate(descriptor, size)
            mapped = mmap.mmap(descriptor, size)
        except OSError:
            return None
        mark = secrets.token_bytes(_MARK)
        mapped[:_MARK] = mark
        # The descriptor stays open: its name in /proc is how the other process comes to it.
        return cls(mapped, first=True), f"/proc/{os.getpid()}/fd/{descriptor}:{size}:{mark.hex()}"

    @classmethod
    def open(cls, told: str) -> Memory | None:
        """Return the memory that another process made; None where that is on another machine."""
        try:
            path, size, mark = told.split(":")
            found = os.stat(path)  # noqa: PTH116  # a name in /proc, not a file's
            if not stat.S_ISREG(found.st_mode) or found.st_size != int(size):
                return None
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                mapped = mmap.mmap(descriptor, int(size))
            finally:
                os.close(descriptor)
        except (OSError, ValueError):
            return None
        return cls(mapped, first=False) if mapped[:_MARK].hex() == mark else None


class PairLink:
    """One end of a group of two.

    Parameters
    ----------
    group : process group
        The group, whose tensors are on the CPU.
    rank : int
        Which of the two this is, 0 or 1.
    wire : Wire, optional
        What gradients and parameters travel through instead.
    """

    def __init__(self, group: Any, rank: int, wire: Wire | None = None) -> None:
        self._group = group
        self._other = 1 - rank
        self._wire = wire
        self.device = _CPU if wire is None else wire.device
        """Where gradients and parameters are."""
        self.memory: Memory | None = None
        self.traffic = Traffic()
        """What is moved; links may share one."""
        self._received: dict[Kind, Any] = {}

    @property
    def copies(self) -> bool:
        """Whether `send` only copies a payload; see `messages.Link.copies`."""
        return self.memory is not None

    @property
    def wired(self) -> bool:
        """Whether gradients and parameters travel beside the group."""
        return self._wire is not None

    def send(self, message: Message) -> None:
        """Send a message; see `messages.Link.send`."""
        content, kind_of = None, 0
        if message.payload is not None and message.payload.numel():
            payload = message.payload.detach().contiguous()
            kind_of = _TYPES.index(payload.dtype)
            content = payload.view(torch.uint8)
        size = 0 if content is None else content.numel()
        place = self._place(message.kind, size)
        header = torch.zeros(_FIXED + NUMBERS, dtype=torch.float64)
        fixed = (message.kind, message.token, message.index, message.version)
        rest = (size, 10 * kind_of + place, len(message.numbers), *message.numbers)
        said = torch.tensor((*fixed, *rest), dtype=torch.float64)
        header[: len(said)] = said
        try:
            with self.traffic:
                if place == _BESIDE:
                    self._wire.send(content, lambda: self._announced(header))  # type: ignore[union-attr]
                else:
                    if place == _SHARED:  # before the header: who has that may read
                        self.memory.outgoing[:size].copy_(content)  # type: ignore[union-attr]
                    self._sent(header, 0)
                    if size and place == _HERE:
                        self._sent(content, 1)
                self.traffic.bytes += size
        except RuntimeError as error:
            raise GoneError(_first_line(error)) from error

    def _place(self, kind: Kind, size: int) -> int:
        if kind not in _LARGE or not size:
            return _HERE
        if self._wire is not None:
            return _BESIDE
        shared = self.memory is not None and _LEAST <= size <= self.memory.capacity
        return _SHARED if shared else _HERE

    def receive(self, into: Any = None) -> Message:
        """Return the next message; see `messages.Link.receive`."""
        header = torch.empty(_FIXED + NUMBERS, dtype=torch.float64)
        try:
            self._group.recv([header], self._other, 0).wait(_FOREVER)
            values = header.tolist()
            kind, token, index, version, size, coded, count = (int(one) for one in values[:_FIXED])
            kind_of, place = divmod(coded, 10)
            payload = None
            if size:
                with self.traffic:
                    payload = self._content(Kind(kind), size, place, into)
                    self.traffic.bytes += size
        except RuntimeError as error:
            raise GoneError(_first_line(error)) from error
        if payload is not None and payload is not into:
            payload = payload.view(_TYPES[kind_of])
        numbers = tuple(values[_FIXED : _FIXED + count])
        return Message(Kind(kind), token, index, version, numbers, payload)

    def close(self) -> None:
        """Say that nothing more comes; see `messages.Link.close`."""
        if self._wire is not None:
            self._wire.close()
        self._group = self._wire = None

    def _sent(self, tensor: Any, tag: int) -> None:
        self._group.send([tensor.to(_CPU)], self._other, tag).wait(_FOREVER)

    def _announced(self, header: Any) -> None:
        """Send the header of what is under way on the wire, and wait until that is there."""
        self._sent(header, 0)
        self._group.recv([torch.empty(1)], self._other, 1).wait(_FOREVER)

    def _content(self, kind: Kind, size: int, place: int, into: Any) -> Any:
        target = None if into is None else into.view(torch.uint8)
        if target is not None and target.numel() != size:
            raise GoneError(f"{size} bytes came where {target.numel()} are expected")
        if place == _SHARED and self.memory is not None:
            there = self.memory.incoming[:size]
            if target is None:
                return there
            target.copy_(there)
            return into
        device = self.device if place == _BESIDE else _CPU
        direct = target is not None and target.device == device
        received = target if direct else self._received.get(kind)
        if received is None or received.numel() != size:
            received = torch.empty(size, dtype=torch.uint8, device=device)
            self._received[kind] = received
        if place == _BESIDE and self._wire is not None:
            self._wire.receive(received)
            self._sent(torch.zeros(1), 1)
        else:
            self._group.recv([received], self._other, 1).wait(_FOREVER)
        if target is None:
            return received
        if not direct:
            target.copy_(received)
        return into


def pair(store: Any, name: str, rank: int, patience: timedelta, backend: str = "gloo") -> PairLink:
    """Return one end of a link, once the other process asks for the other end.

    Parameters
    ----------
    store : Store
        Where both find each other.
    name : str
        The link's, among all that find each other there.
    rank : int
        0 at one end, 1 at the other.
    patience : timedelta
        How long to wait for the other.
    backend : str, optional
        ``gloo``, or ``nccl`` where both compute on GPUs.

    Raises
    ------
    GoneError
        If the other does not come.
    TrainingError
        If torch has no such backend here.
    """
    device_of(backend)  # what cannot be is said before anybody is waited for
    wire = None
    try:
        group = dist.ProcessGroupGloo(dist.PrefixStore(name, store), rank, 2, patience)
        if backend in WIRES:
            wire = WIRES[backend](dist.PrefixStore(f"{name}-wire", store), rank)
            wire.meet(patience)
    except RuntimeError as error:
        raise GoneError(f"{name}: the other process did not come: {_first_line(error)}") from error
    return PairLink(group, rank, wire)


def offer(link: PairLink, capacity: int) -> bool:
    """Offer memory to the worker at the other end; return whether it is on this machine."""
    made = Memory.make(capacity) if capacity and not link.wired else None
    told = b"" if made is None else made[1].encode()
    payload = torch.frombuffer(bytearray(told), dtype=torch.uint8) if told else None
    link.send(Message(Kind.OFFER, payload=payload))
    taken = bool(link.receive().numbers[0])
    if made is not None and taken:
        link.memory = made[0]
    return taken


def take_offer(link: PairLink) -> bool:
    """Take the memory that a server offers, if it is on this machine; return whether it is."""
    message = link.receive()
    memory = None
    if message.payload is not None:
        memory = Memory.open(message.payload.numpy().tobytes().decode())
    link.send(Message(Kind.OFFER, numbers=(float(memory is not None),)))
    link.memory = memory
    return memory is not None


def _rounded(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]

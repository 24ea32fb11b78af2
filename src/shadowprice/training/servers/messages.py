"""What workers and servers say to each other."""

from __future__ import annotations

import queue
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol

import torch


class GoneError(Exception):
    """The process at the other end of a link is not there any more."""


class Kind(IntEnum):
    """What a message is."""

    NEXT = 1
    """Worker to leader: what is to be done next?"""
    PUSH = 2
    """Worker to server: its share of a gradient, which counts only once it is committed."""
    COMMIT = 3
    """Worker to leader: that gradient is with all servers; count it."""
    PULL = 4
    """Worker to server: its parameters, of this version or a later one."""
    BYE = 5
    """Worker to server: nothing more comes."""

    WORK = 11
    """Answer to NEXT: do this."""
    DONE = 12
    """Answer to NEXT: everything is done; its index is 1 for the worker that shows the result."""
    STOP = 13
    """Answer to NEXT and COMMIT: save nothing, end; the leader has what counts."""
    STAGED = 14
    """Answer to PUSH: it is here."""
    TAKEN = 15
    """Answer to COMMIT: it counts."""
    REFUSED = 16
    """Answer to COMMIT: it does not count, the work was given to another."""
    VALUES = 17
    """Answer to PULL."""
    BUFFERS = 18
    """What the leader answers to it after that, if the model has any: running means, counts."""

    APPLY = 21
    """Leader to server: these gradients count; apply them together, now."""
    STATE = 22
    """Leader to server: everything you keep; and the answer to that."""
    END = 23
    """Leader to server: it is over."""
    OFFER = 24
    """Server to worker: memory that both may reach, if they are on one machine; and the answer."""


@dataclass(slots=True)
class Message:
    """One message.

    Parameters
    ----------
    kind : Kind
        What it is.
    token, index : int
        What it is about: `dealing.Key`.
    version : int
        Mini-batches, or steps, that the parameters have in them.
    numbers : tuple of float
        What else there is to say; `NUMBERS` at most.
    payload : tensor or None
        A tensor in one dimension. What `Link.receive` returns is good until the next message of
        that kind.
    """

    kind: Kind
    token: int = 0
    index: int = 0
    version: int = 0
    numbers: tuple[float, ...] = ()
    payload: Any = None


class Link(Protocol):
    """A line between two processes, or two threads."""

    @property
    def copies(self) -> bool:
        """Whether `send` is done with a payload when it returns, and waits for nobody meanwhile."""

    @property
    def device(self) -> Any:
        """Where gradients and parameters are that travel on it, and where they come out."""

    def send(self, message: Message) -> None:
        """Send a message.

        Raises
        ------
        GoneError
            If nobody is there to take it.
        """

    def receive(self, into: Any = None) -> Message:
        """Return the next message, once it comes.

        Parameters
        ----------
        into : tensor, optional
            Where its payload goes, if it has as many bytes.

        Raises
        ------
        GoneError
            If none can come any more.
        """

    def close(self) -> None:
        """Say that nothing more comes."""


class LocalLink:
    """A line between two threads.

    Parameters
    ----------
    incoming, outgoing : queue.SimpleQueue
        What comes, and what goes.
    """

    def __init__(self, incoming: queue.SimpleQueue[Any], outgoing: queue.SimpleQueue[Any]) -> None:
        self._incoming, self._outgoing = incoming, outgoing
        self.device = torch.device("cpu")

    @property
    def copies(self) -> bool:
        """Whether `send` only copies a payload; see `Link.copies`."""
        return True

    @classmethod
    def pair(cls) -> tuple[LocalLink, LocalLink]:
        """Return both ends of a line."""
        one: queue.SimpleQueue[Any] = queue.SimpleQueue()
        other: queue.SimpleQueue[Any] = queue.SimpleQueue()
        return cls(one, other), cls(other, one)

    def send(self, message: Message) -> None:
        """Send a message; see `Link.send`."""
        payload = None if message.payload is None else message.payload.detach().clone()
        self._outgoing.put(
            Message(
                message.kind,
                message.token,
                message.index,
                message.version,
                message.numbers,
                payload,
            )
        )

    def receive(self, into: Any = None) -> Message:
        """Return the next message; see `Link.receive`."""
        message = self._incoming.get()
        if message is None:
            self._incoming.put(None)
            raise GoneError("it was closed")
        assert isinstance(message, Message)
        if into is not None and message.payload is not None:
            into.copy_(message.payload)
            message.payload = into
        return message

    def close(self) -> None:
        """Say that nothing more comes, and take nothing more; see `Link.close`."""
        self._outgoing.put(None)
        self._incoming.put(None)

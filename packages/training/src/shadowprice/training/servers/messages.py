"""Messages and links between workers and parameter servers."""

from __future__ import annotations

import queue
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, Protocol

import torch


class PeerLostError(Exception):
    """The process at the other end of a link is gone."""


class MessageKind(IntEnum):
    """Kind of a message."""

    # Worker to leader: request for the next assignment. The payload of a worker's first request is
    # its host and rack, in JSON.
    NEXT = 1
    PUSH = 2  # worker to server: the server's slice of a gradient, which counts once committed
    # Worker to leader: accept the gradient, which all servers have. The numbers are the loss, the
    # seconds of computing and of exchange, the bytes moved, and the version of the parameters.
    COMMIT = 3
    PULL = 4  # worker to server: request for the server's parameters at this version or later
    BYE = 5  # worker to server: the worker's last message

    WORK = 11  # response to NEXT: the numbers are the fields of `assignment.Work` except the token
    # Response to NEXT: training is done; index 1 marks the worker that reports the result.
    DONE = 12
    STOP = 13  # response to NEXT and COMMIT: exit; the leader has all committed state
    STAGED = 14  # response to PUSH: received
    TAKEN = 15  # response to COMMIT: the gradient is accepted
    REFUSED = 16  # response to COMMIT: the gradient is dropped, because its work was reassigned
    VALUES = 17  # response to PULL: parameters
    BUFFERS = 18  # second response of the leader to PULL if the model has buffers
    APPLY = 21  # leader to server: apply these accepted gradients as one mini-batch or step
    STATE = 22  # leader to server: request for all of the server's state; also the response
    END = 23  # leader to server: training has ended
    # Leader to server: the checkpoint to restore, by its version; index 0 for none. Also the
    # response, with the restored version.
    RESTORE = 25
    OFFER = 24  # server to worker on the same machine: offer of shared memory; also the response


@dataclass(slots=True)
class Message:
    """One message; token and index are the `assignment.Key` of a gradient."""

    kind: MessageKind
    token: int = 0
    index: int = 0
    version: int = 0  # number of mini-batches, or steps, in the parameters
    numbers: tuple[float, ...] = ()  # other content, at most `pairs.MAX_HEADER_NUMBERS` values
    payload: Any = None  # 1-D tensor; valid until the link receives the next message of this kind


class Link(Protocol):
    """A connection between two processes, or two threads."""

    @property
    def device(self) -> Any:
        """Device of the gradients and parameters on this link."""

    def send(self, message: Message) -> None:
        """Send a message; raise `PeerLostError` if the other end is gone."""

    def receive(self, into: Any = None) -> Message:
        """Return the next message, its payload in ``into``, or raise `PeerLostError`."""

    def close(self) -> None:
        """Close this end; send no message afterwards."""


class LocalLink:
    """A link between two threads, with a queue for each direction."""

    def __init__(self, incoming: queue.SimpleQueue[Any], outgoing: queue.SimpleQueue[Any]) -> None:
        self._incoming, self._outgoing = incoming, outgoing
        self.device = torch.device("cpu")

    @classmethod
    def pair(cls) -> tuple[LocalLink, LocalLink]:
        """Return both ends of a connection."""
        first: queue.SimpleQueue[Any] = queue.SimpleQueue()
        second: queue.SimpleQueue[Any] = queue.SimpleQueue()
        return cls(first, second), cls(second, first)

    def send(self, message: Message) -> None:
        """Send a message; see `Link.send`."""
        payload = None if message.payload is None else message.payload.detach().clone()
        self._outgoing.put(replace(message, payload=payload))

    def receive(self, into: Any = None) -> Message:
        """Return the next message; see `Link.receive`."""
        message = self._incoming.get()
        if message is None:  # `close` was called; keep the mark for the next call
            self._incoming.put(None)
            raise PeerLostError("the link was closed")
        assert isinstance(message, Message)
        if into is not None and message.payload is not None:
            into.copy_(message.payload)
            message.payload = into
        return message

    def close(self) -> None:
        """Close both directions; see `Link.close`."""
        self._outgoing.put(None)
        self._incoming.put(None)

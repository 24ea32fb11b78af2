"""A parameter server: receives gradients, applies those that count, sends parameters."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch

from shadowprice.training import checkpoints
from shadowprice.training.servers.dealing import Key
from shadowprice.training.servers.measuring import Traffic
from shadowprice.training.servers.messages import GoneError, Kind, Link, Message
from shadowprice.training.servers.shard import Shard


class Server:
    """The work of every server for its workers; the leader decides which gradients count.

    ``version`` is the number of mini-batches in ``shard``. ``keeps`` allows several waiting
    gradients of one worker, as in synchronous training.
    """

    def __init__(self, shard: Shard, version: int, *, keeps: bool) -> None:
        self.shard = shard
        self.version = version
        self.changed = threading.Condition()
        self.traffic = Traffic()
        self.ended: str = ""
        """How it ended: ``done``, ``stop``, ``gone`` or ``failed``; empty while it runs."""
        self.failure: BaseException | None = None
        """The error of a failed server."""
        self._keeps = keeps
        self._staged: dict[Key, Any] = {}
        self._newest: dict[int, Key] = {}

    # ------------------------------------------------------------------ for workers

    def serve(self, worker: int, link: Link) -> None:
        """Respond to a worker until it leaves; runs in a thread of its own."""
        try:
            while True:
                message = link.receive()
                if message.kind is Kind.BYE:
                    break
                if message.kind is Kind.PULL:
                    self._pulled(message.version, link)
                else:
                    link.send(self.answer(worker, message))
        except GoneError:
            pass
        except Exception as error:  # of the script or of this package: the job can't go on
            self.fail(error)
        finally:
            self.left(worker)

    def left(self, worker: int) -> None:
        """Handle the end of a worker; its pushed gradients may still count."""

    def answer(self, worker: int, message: Message) -> Message:
        """Return the response to a worker's message; it may wait for other workers.

        Raises
        ------
        GoneError
            If the message isn't one of a worker.
        """
        if message.kind is Kind.PUSH:
            self._stage(worker, (message.token, message.index), message.payload)
            return Message(Kind.STAGED)
        raise GoneError(f"worker {worker} said {message.kind.name}, which it cannot")

    def _stage(self, worker: int, key: Key, gradient: Any) -> None:
        with self.changed:
            if not self._keeps:  # a worker pushes only after its last gradient was settled
                self._staged.pop(self._newest.get(worker, (0, 0)), None)
                self._newest[worker] = key
            self._staged[key] = gradient.clone() if self._keeps else gradient

    def _pulled(self, version: int, link: Link) -> None:
        """Send a worker the parameters of one version once they are available."""
        with self.changed:
            self.changed.wait_for(lambda: self.version >= version or self.ended)
            if self.version < version:
                raise GoneError("it ended before that version was there")
            messages = self.kept()
            for message in messages:  # the next gradient may be applied while it is sent
                message.payload = message.payload.clone()
        # Without the lock: a gloo send waits for the receiver, which may wait for another server.
        for message in messages:
            link.send(message)

    def kept(self) -> list[Message]:
        """Return the messages that answer a pull; the caller holds `changed`."""
        return [Message(Kind.VALUES, version=self.version, payload=self.shard.values)]

    # ------------------------------------------------------------------ for the leader

    def apply(self, keys: Sequence[Key]) -> None:
        """Apply gradients that count together; the caller holds `changed`."""
        self.shard.apply([self._staged.pop(key) for key in keys], self.version)
        self.version += 1
        # Lost workers may have pushed gradients for this step that they never committed.
        newest_token = max(token for token, _ in keys)
        for key in [key for key in self._staged if self._keeps and key[0] <= newest_token]:
            del self._staged[key]
        self.changed.notify_all()

    def follow(self, link: Link) -> None:
        """Execute the leader's messages until the end; runs in a thread of its own."""
        ended = "stop"
        try:
            while True:
                message = link.receive()
                if message.kind is Kind.APPLY:
                    keys = [(int(row[0]), int(row[1])) for row in message.payload.view(-1, 2)]
                    with self.changed:
                        self.apply(keys)
                elif message.kind is Kind.STATE:
                    with self.changed:
                        content = checkpoints.packed(self.shard.state())
                    payload = torch.frombuffer(bytearray(content), dtype=torch.uint8)
                    link.send(Message(Kind.STATE, version=self.version, payload=payload))
                elif message.kind is Kind.END:
                    ended = "done" if message.index else "stop"
                    break
        except GoneError:
            ended = "gone"
        except Exception as error:
            self.fail(error)
            return
        with self.changed:
            self.ended = ended
            self.changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """End with an error that the main thread raises."""
        with self.changed:
            self.failure = self.failure or error
            self.ended = "failed"
            self.changed.notify_all()

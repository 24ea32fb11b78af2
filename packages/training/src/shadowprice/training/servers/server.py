"""A parameter server: stages gradients, applies accepted ones, sends parameters."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch

from shadowprice.training import checkpoints
from shadowprice.training.servers.assignment import Key
from shadowprice.training.servers.measuring import TrafficMeter
from shadowprice.training.servers.messages import Link, Message, MessageKind, PeerLostError
from shadowprice.training.servers.shard import Shard


class ParameterServer:
    """A parameter server; the leader decides which gradients count.

    ``version`` is the number of mini-batches in ``shard``. With ``keeps``, as in synchronous
    training, a worker may have several gradients that are not committed yet.
    """

    def __init__(self, shard: Shard, version: int, *, keeps: bool) -> None:
        self.shard = shard
        self.version = version
        self.changed = threading.Condition()
        self.traffic = TrafficMeter()
        self.ended: str = ""
        """``done``, ``stop``, ``gone`` or ``failed`` once it has ended; empty while it runs."""
        self.failure: BaseException | None = None
        """The error of a failed server."""
        self._keeps = keeps
        self._staged: dict[Key, Any] = {}
        self._last_pushed: dict[int, Key] = {}

    # ------------------------------------------------------------------ for workers

    def serve(self, worker: int, link: Link) -> None:
        """Respond to a worker until it leaves; runs in a thread of its own."""
        try:
            while True:
                message = link.receive()
                if message.kind is MessageKind.BYE:
                    break
                if message.kind is MessageKind.PULL:
                    self._send_parameters(message.version, link)
                else:
                    link.send(self.respond(worker, message))
        except PeerLostError:
            pass
        except BaseException as error:
            # The job can't continue after an error or exit of the script or of this package.
            self.fail(error)
        finally:
            self.on_worker_left(worker)

    def on_worker_absent(self, worker: int) -> None:
        """Handle a worker that didn't connect in time."""

    def on_worker_left(self, worker: int) -> None:
        """Handle the end of a worker; its pushed gradients may still be accepted."""

    def respond(self, worker: int, message: Message) -> Message:
        """Return the response to a worker's message; may block until other workers respond."""
        if message.kind is MessageKind.PUSH:
            self._stage(worker, (message.token, message.index), message.payload)
            return Message(MessageKind.STAGED)
        raise PeerLostError(
            f"worker {worker} sent {message.kind.name}, which isn't a message of workers"
        )

    def _stage(self, worker: int, key: Key, gradient: Any) -> None:
        with self.changed:
            if not self._keeps:  # the worker's previous gradient is accepted or refused by now
                self._staged.pop(self._last_pushed.get(worker, (0, 0)), None)
                self._last_pushed[worker] = key
            self._staged[key] = gradient.clone() if self._keeps else gradient

    def _send_parameters(self, version: int, link: Link) -> None:
        """Send a worker the parameters once they include ``version`` mini-batches."""
        with self.changed:
            self.changed.wait_for(lambda: self.version >= version or self.ended)
            if self.version < version:
                raise PeerLostError(f"training ended before version {version}")
            messages = self.pull_response()
            for message in messages:  # the next gradient may be applied during the send
                message.payload = message.payload.clone()
        # Send without the lock: gloo waits for the receiver, which may wait for another server.
        for message in messages:
            link.send(message)

    def pull_response(self) -> list[Message]:
        """Return the messages that respond to a pull; the caller holds `changed`."""
        return [Message(MessageKind.VALUES, version=self.version, payload=self.shard.values)]

    # ------------------------------------------------------------------ for the leader

    def apply(self, keys: Sequence[Key]) -> None:
        """Apply accepted gradients as one mini-batch or step; the caller holds `changed`."""
        self.shard.apply([self._staged.pop(key) for key in keys], self.version)
        self.version += 1
        # Lost workers may have pushed gradients for this step without committing them.
        newest_token = max(token for token, _ in keys)
        for key in [key for key in self._staged if self._keeps and key[0] <= newest_token]:
            del self._staged[key]
        self.changed.notify_all()

    def follow(self, link: Link) -> None:
        """Execute the leader's messages until training ends; runs in a thread of its own."""
        ended = "stop"
        try:
            while True:
                message = link.receive()
                if message.kind is MessageKind.APPLY:
                    keys = [(int(row[0]), int(row[1])) for row in message.payload.view(-1, 2)]
                    with self.changed:
                        self.apply(keys)
                elif message.kind is MessageKind.STATE:
                    with self.changed:
                        content = checkpoints.serialize(self.shard.state())
                    payload = torch.frombuffer(bytearray(content), dtype=torch.uint8)
                    link.send(Message(MessageKind.STATE, version=self.version, payload=payload))
                elif message.kind is MessageKind.END:
                    ended = "done" if message.index else "stop"
                    break
        except PeerLostError:
            ended = "gone"
        except BaseException as error:
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

"""A parameter server: takes gradients, applies those that count, gives parameters."""

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
    """What every server does for its workers; what counts is said by the leader.

    Parameters
    ----------
    shard : Shard
        Its stretch of the model.
    version : int
        Mini-batches that are in it.
    keeps : bool
        Whether several gradients of one worker may wait at once, as in synchronous training.
    """

    def __init__(self, shard: Shard, version: int, *, keeps: bool) -> None:
        self.shard = shard
        self.version = version
        self.changed = threading.Condition()
        self.traffic = Traffic()
        self.ended: str = ""
        """How it ended: ``done``, ``stop``, ``gone`` or ``failed``; empty while it runs."""
        self.failure: BaseException | None = None
        """Why it failed."""
        self._keeps = keeps
        self._staged: dict[Key, Any] = {}
        self._newest: dict[int, Key] = {}

    # ------------------------------------------------------------------ for workers

    def serve(self, worker: int, link: Link) -> None:
        """Answer a worker until it goes; in a thread of its own.

        Parameters
        ----------
        worker : int
            Its number.
        link : Link
            The line to it.
        """
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
        except Exception as error:  # the script's own, or one of ours: the job cannot go on
            self.fail(error)
        finally:
            self.left(worker)

    def left(self, worker: int) -> None:
        """Take note that a worker is gone; what it pushed may still count."""

    def answer(self, worker: int, message: Message) -> Message:
        """Return the answer to a worker's message, which may take until others have done theirs.

        Raises
        ------
        GoneError
            If it says what no worker says.
        """
        if message.kind is Kind.PUSH:
            self._stage(worker, (message.token, message.index), message.payload)
            return Message(Kind.STAGED)
        raise GoneError(f"worker {worker} said {message.kind.name}, which it cannot")

    def _stage(self, worker: int, key: Key, gradient: Any) -> None:
        with self.changed:
            if not self._keeps:  # it pushes again only once its last one was applied or refused
                self._staged.pop(self._newest.get(worker, (0, 0)), None)
                self._newest[worker] = key
            self._staged[key] = gradient.clone() if self._keeps else gradient

    def _pulled(self, version: int, link: Link) -> None:
        """Give a worker parameters of a version, once they are there; never half of two."""
        with self.changed:
            self.changed.wait_for(lambda: self.version >= version or self.ended)
            if self.version < version:
                raise GoneError("it ended before that version was there")
            messages = self.kept()
            for message in messages:  # others may be applied while it is on its way
                message.payload = message.payload.clone()
        # Not under the lock: gloo sends once the other receives, which may wait for another server.
        for message in messages:
            link.send(message)

    def kept(self) -> list[Message]:
        """Return what a worker pulls; `changed` is held."""
        return [Message(Kind.VALUES, version=self.version, payload=self.shard.values)]

    # ------------------------------------------------------------------ for the leader

    def apply(self, keys: Sequence[Key]) -> None:
        """Apply gradients that count, together; `changed` is held."""
        self.shard.apply([self._staged.pop(key) for key in keys], self.version)
        self.version += 1
        # What workers that are gone pushed for this step, and never committed, is of no more use.
        over = max(token for token, _ in keys)
        for key in [key for key in self._staged if self._keeps and key[0] <= over]:
            del self._staged[key]
        self.changed.notify_all()

    def follow(self, link: Link) -> None:
        """Do what the leader says until it ends; in a thread of its own."""
        ended = "stop"
        try:
            while True:
                message = link.receive()
                if message.kind is Kind.APPLY:
                    keys = [(int(one[0]), int(one[1])) for one in message.payload.view(-1, 2)]
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
        """End, for a reason that the main thread is to raise."""
        with self.changed:
            self.failure = self.failure or error
            self.ended = "failed"
            self.changed.notify_all()

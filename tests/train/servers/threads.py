"""All processes of a generation as threads of this one: fast, and without a network."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from shadowprice.training import checkpoints
from shadowprice.training.servers.messages import LocalLink, PeerLostError
from shadowprice.training.servers.recipe import Recipe, Settings
from shadowprice.training.servers.server import Leader, ParameterServer
from shadowprice.training.servers.shard import Shard
from shadowprice.training.servers.worker import Worker


class Threads:
    """A generation.

    Parameters
    ----------
    recipe, settings
        What is learnt, and how.
    workers, servers : int
        Number of each.
    dies : mapping of int to int
        Workers that die, each after a number of messages to the leader.
    stop : list, optional
        Becomes non-empty when they are to stop.
    """

    def __init__(
        self,
        recipe: Recipe,
        settings: Settings,
        workers: int,
        servers: int,
        dies: Mapping[int, int] | None = None,
        stop: list[int] | None = None,
    ) -> None:
        result = checkpoints.load()
        state = None if result is None else result.state
        self.leader = Leader(recipe, settings, servers, workers, state)
        everyone: list[ParameterServer] = [self.leader]
        self.threads: list[threading.Thread] = []
        for number in range(1, servers):
            shard = Shard(recipe, number, servers, None if state is None else state["model"])
            server = ParameterServer(shard, self.leader.version, keeps=settings.synchronous)
            ours, theirs = LocalLink.pair()
            self.leader.followers.append(ours)
            self._begin(server.follow, theirs)
            everyone.append(server)
        self.workers: list[Worker] = []
        self.stop = [] if stop is None else stop
        for number in range(workers):
            pairs = [LocalLink.pair() for _ in everyone]
            for server, (_, theirs) in zip(everyone, pairs, strict=True):
                self._begin(server.serve, number, theirs)
            links: list[Any] = [ours for ours, _ in pairs]
            links[0] = Frail(links, (dies or {}).get(number, 10**9))
            worker = Worker(recipe, settings, links, self.stop)
            self.workers.append(worker)
            self._begin(self._work, worker)

    def _begin(self, action: Any, *given: Any) -> None:
        self.threads.append(threading.Thread(target=action, args=given, daemon=True))

    def _work(self, worker: Worker) -> None:
        try:
            worker.work()
        except (PeerLostError, SystemExit):
            pass
        finally:  # whatever else it raises, the leader must not wait for it
            for link in worker._links:
                link.close()

    def run(self) -> str:
        """Run it to its end; return the result."""
        for thread in self.threads:
            thread.start()
        try:
            return self.leader.lead(self.stop)
        finally:
            for thread in self.threads:
                thread.join(60)
                assert not thread.is_alive()


class Frail:
    """The connection to the leader of a worker that dies; then all its connections end."""

    def __init__(self, links: list[Any], sends: int) -> None:
        self._own, self._all, self._sends = links[0], list(links), sends
        self.device = self._own.device

    def send(self, message: Any) -> None:
        """Send, or die."""
        self._sends -= 1
        if self._sends < 0:
            for link in self._all:
                link.close()
            raise PeerLostError("it died")
        self._own.send(message)

    def receive(self, into: Any = None) -> Any:
        """Receive."""
        return self._own.receive(into)

    def close(self) -> None:
        """Close."""
        self._own.close()

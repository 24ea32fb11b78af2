"""The leading server: assigns work, decides what counts, saves, reports."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from shadowprice import jobs
from shadowprice.training import checkpoints
from shadowprice.training.errors import TrainingError
from shadowprice.training.generation import say
from shadowprice.training.servers.dealing import Key, Ledger, Rounds, equally_near
from shadowprice.training.servers.locality import Localities
from shadowprice.training.servers.measuring import Measured
from shadowprice.training.servers.messages import GoneError, Kind, Link, Message
from shadowprice.training.servers.recipe import Recipe, Settings
from shadowprice.training.servers.server import Server
from shadowprice.training.servers.shard import Shard, State, gathered

_LOOK: float = 0.2
"""Seconds between two checks of deadlines and of the stop signal."""

_LINGER: float = 10.0
"""Timeout of a finished leader for workers that never came, in seconds."""


class Leader(Server):
    """The first server.

    A gradient counts when its commit is accepted under one lock, which fixes one order for all
    servers. Each server applies the same gradients in the same order. So the servers' states at one
    version fit together: they include the same mini-batches.

    ``servers`` includes this one, ``workers`` is the expected number, ``state`` is that of a
    checkpoint, and ``device`` is as in `Shard`.
    """

    def __init__(
        self,
        recipe: Recipe,
        settings: Settings,
        servers: int,
        workers: int,
        state: State | None = None,
        device: Any = None,
    ) -> None:
        record = None if state is None else state["dealer"]
        order = recipe.order()
        dealer: Ledger | Rounds
        localities = Localities()
        if settings.synchronous:
            dealer = Rounds(recipe.steps(settings.parts), recipe.epochs, record)
        else:
            minibatches = order.minibatches(recipe.minibatch)
            near = localities.distance if recipe.data.has_locations else equally_near
            dealer = Ledger(minibatches, recipe.epochs, order.chunks, record, near)
        shard = Shard(recipe, 0, servers, None if state is None else state["model"], device)
        super().__init__(shard, dealer.committed, keeps=settings.synchronous)
        self.measured = Measured()
        self.followers: list[Link] = []
        """Links to the other servers, in their order."""
        self._recipe, self._settings = recipe, settings
        self._dealer = dealer
        self._localities = localities
        self._workers = workers
        self._live: set[int] = set()
        self._came: set[int] = set()
        self._last_requests: dict[int, float] = {}
        self._waiting: set[int] = set()
        """Workers that wait here, for an assignment or for slower workers."""
        self._patience = settings.patience
        self._clocks: dict[int, int] = {}
        self._buffers: dict[Key, Any] = {}
        self._losses: dict[Key, float] = {}
        self._began = False
        """Whether any work was assigned in this generation."""
        self._shown: int | None = None
        """The worker that shows the result, once it is chosen."""
        if recipe.data.has_locations and not settings.synchronous and not dealer.finished:
            # Locations must not delay training: a chunk may be assigned before its own is known.
            threading.Thread(target=self._locate, args=(dealer.epoch,), daemon=True).start()

    def _locate(self, epoch: int) -> None:
        """Record the locations of all chunks, in the order of an epoch."""
        data = self._recipe.data
        for chunk in self._recipe.order().chunks(epoch):
            if self.ended:
                return
            try:
                self._localities.add_chunk(chunk, data.locations(chunk))
            except TrainingError as error:
                say(f"chunks are assigned without regard to their location: {error}")
                return

    # ------------------------------------------------------------------ for workers

    def serve(self, worker: int, link: Link) -> None:
        """Respond to a worker until it leaves; see `Server.serve`."""
        with self.changed:
            self._live.add(worker)
            self._came.add(worker)
        super().serve(worker, link)

    def left(self, worker: int) -> None:
        """Release the assignments of a worker, so that another can process them."""
        with self.changed:
            self._live.discard(worker)
            self._dealer.lost(worker)
            self.changed.notify_all()

    def answer(self, worker: int, message: Message) -> Message:
        """Return the response to a worker's message; see `Server.answer`."""
        if message.kind is Kind.NEXT:
            return self._next(worker, message.payload)
        if message.kind is Kind.COMMIT:
            return self._committed(worker, message)
        return super().answer(worker, message)

    def kept(self) -> list[Message]:
        """Return the parameters, and the buffers if the model has any."""
        messages = super().kept()
        if len(self.shard.buffers):
            messages.append(Message(Kind.BUFFERS, version=self.version, payload=self.shard.buffers))
        return messages

    def _next(self, worker: int, host_and_rack: Any) -> Message:
        """Assign work as soon as there is some; ``host_and_rack`` is the request's payload."""
        with self.changed, self._waits(worker):
            if host_and_rack is not None:
                host, rack = json.loads(host_and_rack.numpy().tobytes())
                self._localities.add_worker(worker, host, rack)
            while not self.ended:
                if self._dealer.finished:
                    return Message(Kind.DONE, 0, int(self._shows(worker)), self.version)
                self._lapse(time.monotonic())
                work = self._dealer.deal(worker, max(1, len(self._live)))
                if work is not None:
                    if not self._began:
                        self._began = True
                        jobs.note_restored(self.version)
                    if self._localities.is_known(work.chunk):
                        distance = self._localities.distance(worker, work.chunk)
                        self.measured.distances[distance] += 1
                    self._last_requests[worker] = time.monotonic()
                    others = self._dealer.holders() - {worker}
                    slowest = min((self._clocks.get(other, 0) for other in others), default=0)
                    # A worker that was idle must not slow down those that worked.
                    self._clocks[worker] = max(self._clocks.get(worker, 0), slowest)
                    numbers = (work.epoch, work.chunk, work.first, work.last, work.ahead)
                    return Message(
                        Kind.WORK,
                        work.token,
                        0,
                        self.version,
                        tuple(float(number) for number in numbers),
                    )
                self.changed.wait()
            return Message(Kind.STOP)

    def _shows(self, worker: int) -> bool:
        """Return whether a worker shows the result: the first of the remaining workers.

        A worker that lives but is silent is waited for only `_LINGER` seconds. The caller holds
        `changed`.
        """

        def known() -> bool:
            return self._shown is not None or worker == min(self._live, default=worker)

        self.changed.wait_for(known, _LINGER)
        if self._shown is None:
            self._shown = worker
            self.changed.notify_all()
        return self._shown == worker

    def _committed(self, worker: int, message: Message) -> Message:
        """Count a worker's gradient if its token is current; return the response."""
        key = (message.token, message.index)
        with self.changed:
            if self.ended:
                return Message(Kind.STOP)
            now = time.monotonic()
            silent, self._last_requests[worker] = now - self._last_requests.get(worker, now), now
            keys = self._dealer.commit(worker, *key)
            if keys is None:
                self._was_slow(worker, silent)
                return Message(Kind.REFUSED, version=self.version)
            self._measure(message)
            self._losses[key] = message.numbers[0]
            if message.payload is not None:
                self._buffers[key] = message.payload.clone()
            if keys:
                self._count(keys)
            self._clocks[worker] = self._clocks.get(worker, 0) + 1
            self._hold(worker)
            return Message(Kind.STOP if self.ended else Kind.TAKEN, version=self.version)

    def _count(self, keys: Sequence[Key]) -> None:
        """Apply gradients here and on the other servers."""
        flat = torch.tensor(keys, dtype=torch.int64).view(-1)
        for follower in self.followers:
            follower.send(Message(Kind.APPLY, payload=flat))
        began = time.monotonic()
        for key in keys:
            change = self._buffers.pop(key, None)
            if change is not None:
                self.shard.buffers += change
        number = self.version
        self.apply(keys)
        self.measured.update_time.add(time.monotonic() - began)
        loss = sum(self._losses.pop(key) for key in keys)
        self.measured.loss.add(loss)
        jobs.note_step(self.version)
        self._settings.observe(number, loss)

    def _hold(self, worker: int) -> None:
        """Block a worker while it is too far ahead of the slowest one."""
        limit = self._settings.staleness
        if limit is None or self._settings.synchronous:
            return

        def may_go() -> bool:
            others = self._dealer.holders() - {worker}
            slowest = min((self._clocks.get(other, 0) for other in others), default=None)
            return bool(self.ended) or slowest is None or self._clocks[worker] - slowest <= limit

        self.changed.notify_all()  # this worker is no longer the slowest
        with self._waits(worker):
            self.changed.wait_for(may_go)
        self._last_requests[worker] = time.monotonic()

    def _measure(self, message: Message) -> None:
        _, computing, exchanging, moved, pulled = message.numbers
        measured = self.measured
        measured.minibatch_time.add(computing)
        if exchanging > 0 and moved > 0:
            measured.exchange_time.add(exchanging)
            measured.worker_bandwidth.add(8.0 * moved / exchanging)
        stale = self.version - int(pulled)
        measured.staleness.add(stale)
        measured.stalest = max(measured.stalest, stale)
        if self.traffic.seconds > 0:
            measured.ps_bandwidth = 8.0 * self.traffic.bytes / self.traffic.seconds

    # ------------------------------------------------------------------ main loop

    def lead(self, stop: Any) -> str:
        """Supervise the job until it is done or SIGTERM comes; return ``done`` or ``stop``.

        Raises
        ------
        GoneError
            If another server is gone, or all workers are.
        """
        saved = reported = occupied = time.monotonic()
        finished = float("inf")
        while True:
            with self.changed:
                self.changed.wait(_LOOK)
                done = self._dealer.finished
            now = time.monotonic()
            if self.failure is not None:
                raise self.failure
            if done and finished == float("inf"):
                finished = now
                self._save_if_possible()
                self.report()
            elif not done and bool(stop):
                return self._end("stop")
            with self.changed:
                self._lapse(now)
            if now - saved >= self._settings.save_every and not done:
                saved = now
                self._save_if_possible()
            if now - reported >= self._settings.report_every:
                reported = now
                self.report()
            with self.changed:
                all_came = len(self._came) == self._workers
                if self._live or not all_came:
                    occupied = now
                if done and not self._live and (all_came or stop or now - finished > _LINGER):
                    return self._end("done")
            if now - occupied > _LINGER:  # an executor ends a generation of which no worker lives
                self._end("stop")
                raise GoneError("all workers are")

    def _end(self, how: str) -> str:
        with self.changed:
            self.ended = how
            self.changed.notify_all()
        if how == "stop":
            try:
                self.save()
            except OSError as error:
                message = f"stopping, but mini-batch {self.version} could not be saved: {error}"
                raise TrainingError(message) from error
            self.report()
        for follower in self.followers:
            follower.send(Message(Kind.END, index=int(how == "done")))
        return how

    @contextlib.contextmanager
    def _waits(self, worker: int) -> Iterator[None]:
        """Count a worker among the waiting ones; the caller holds `changed`."""
        self._waiting.add(worker)
        try:
            yield
        finally:
            self._waiting.discard(worker)

    def _lapse(self, now: float) -> None:
        """Reassign the work of workers that are silent for too long; the caller holds `changed`.

        This happens only if a worker waits, because otherwise no other worker could do the work.
        """
        for worker in self._dealer.holders() - self._waiting if self._waiting else ():
            silent = now - self._last_requests.get(worker, now)
            if silent > self._patience:
                say(f"worker {worker} has been silent for {silent:.3g} s: another goes on for it")
                self._dealer.lost(worker)
                self.changed.notify_all()

    def _was_slow(self, worker: int, silent: float) -> None:
        """Raise the timeout, because a worker whose work was reassigned has come back with it.

        Otherwise workers that are all slower than the timeout would take the same work from each
        other forever.
        """
        self._patience = max(self._patience, 2.0 * silent)
        say(
            f"worker {worker} was slow, not gone: what it did in {silent:.3g} s, another does "
            f"again. Work is taken away after {self._patience:.3g} s from now on; set patience to "
            "more than a mini-batch takes"
        )

    def report(self) -> None:
        """Report progress and measurements; this server outlives any worker."""
        jobs.announce(self.version, self.measured.metrics())

    def _save_if_possible(self) -> None:
        try:
            self.save()
        except OSError as error:
            say(
                f"failed to save a checkpoint after mini-batch {self.version}; the previous one "
                f"remains: {error}"
            )

    def save(self) -> int:
        """Save the state of all servers at one version; return its size in bytes."""
        with self.changed:
            for follower in self.followers:
                follower.send(Message(Kind.STATE))
            states = [self.shard.state()]
            for follower in self.followers:
                response = follower.receive()
                if response.version != self.version:
                    raise GoneError("a server has not applied what counts")
                states.append(checkpoints.unpacked(response.payload.numpy().tobytes()))
            model = {**gathered(states), "buffers": self.shard.buffers.clone()}
            record, version = self._dealer.record(), self.version
        state = {
            "synchronous": self._settings.synchronous,
            "recipe": self._recipe.to_record(),
            "dealer": record,
            "model": model,
        }
        # The leader may be a parameter server; by default only worker 0 saves.
        size = checkpoints.save(version, state, jobs.current().checkpoint_dir)
        jobs.note_saved(version)
        return size

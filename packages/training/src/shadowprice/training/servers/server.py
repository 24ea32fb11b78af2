"""Parameter servers and their leader, which also assigns work, accepts gradients, and saves."""

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
from shadowprice.training.servers.assignment import AsyncAssigner, Key, SyncAssigner, equally_near
from shadowprice.training.servers.locality import Localities
from shadowprice.training.servers.measuring import LeaderMetrics, TrafficMeter
from shadowprice.training.servers.messages import Link, Message, MessageKind, PeerLostError
from shadowprice.training.servers.recipe import Recipe, Settings
from shadowprice.training.servers.shard import Shard, State, merge_shards

KIND = "training with parameter servers"  # kind of the checkpoints, for `Restored.check_kind`
_POLL_SECONDS: float = 0.2  # seconds between two checks of deadlines and of the stop signal

# Seconds to wait for workers after training, and for any worker to return before all count as gone.
_LEAVE_TIMEOUT_SECONDS: float = 10.0


class ParameterServer:
    """A parameter server; ``version`` is the number of mini-batches in its shard.

    A staged gradient was pushed, but isn't accepted yet. With ``keeps``, as in synchronous
    training, a worker may have several of them.
    """

    def __init__(self, shard: Shard, version: int, *, keeps: bool) -> None:
        self.shard = shard
        self.version = version
        self.changed = threading.Condition()
        self.traffic = TrafficMeter()
        self.ended: str = ""  # ``done``, ``stop``, ``gone`` or ``failed``; empty while it runs
        self.failure: BaseException | None = None  # the error of a failed server
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
                self._staged.pop(self._last_pushed.get(worker, (0, 0)), None)  # tokens are from 1
                self._last_pushed[worker] = key
            # The worker's next push overwrites a received payload.
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
        """Execute the messages of the leader until training ends; runs in a thread of its own."""
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


class Leader(ParameterServer):
    """The first parameter server, which supervises the job.

    A gradient counts once its commit is accepted. Commits are accepted under one lock, so all
    servers apply the same gradients in the same order. So the states of all servers at one version
    include the same mini-batches.
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
        record = None if state is None else state["assigner"]
        order = recipe.order()
        assigner: AsyncAssigner | SyncAssigner
        localities = Localities()
        if settings.synchronous:
            assigner = SyncAssigner(recipe.steps(settings.parts), recipe.epochs, record)
        else:
            minibatches = order.minibatches(recipe.minibatch)
            near = localities.distance if recipe.data.has_locations else equally_near
            assigner = AsyncAssigner(minibatches, recipe.epochs, order.chunks, record, near)
        shard = Shard(recipe, 0, servers, None if state is None else state["model"], device)
        super().__init__(shard, assigner.committed, keeps=settings.synchronous)
        self.measured = LeaderMetrics(shard.gradient_bytes)
        self.followers: list[Link] = []  # links to the other servers, in their order
        self._recipe, self._settings = recipe, settings
        self._assigner = assigner
        self._localities = localities
        self._workers = workers
        self._live: set[int] = set()  # connected workers
        self._joined: set[int] = set()  # workers that have connected, or failed to do so in time
        self._last_requests: dict[int, float] = {}  # monotonic time by worker
        self._waiting: set[int] = set()  # workers that wait for an assignment or slower workers
        self._timeout = settings.patience
        self._progress_clocks: dict[int, int] = {}  # committed mini-batches by worker
        self._buffers: dict[Key, Any] = {}  # changes of buffers by accepted gradients
        self._losses: dict[Key, float] = {}  # of accepted gradients
        self._has_assigned = False  # whether any work was assigned in this generation
        self._result_worker: int | None = None  # reports the result; None until it is chosen
        if recipe.data.has_locations and not settings.synchronous and not assigner.finished:
            # In a thread, because locations must not delay training.
            threading.Thread(target=self._locate, args=(assigner.epoch,), daemon=True).start()

    def _locate(self, epoch: int) -> None:
        """Record the locations of all chunks, in the order of an epoch."""
        data = self._recipe.data
        for chunk in self._recipe.order().chunks(epoch):
            if self.ended:
                return
            try:
                self._localities.add_chunk(chunk, data.locations(chunk))
            except TrainingError as error:
                say(f"failed to read the locations of chunks; assigning without them: {error}")
                return

    # ------------------------------------------------------------------ for workers

    def serve(self, worker: int, link: Link) -> None:
        """Respond to a worker's messages until it leaves; see `ParameterServer.serve`."""
        with self.changed:
            self._live.add(worker)
            self._joined.add(worker)
        super().serve(worker, link)

    def on_worker_absent(self, worker: int) -> None:
        """Count a worker as joined, so that training doesn't wait for it any longer."""
        with self.changed:
            self._joined.add(worker)

    def on_worker_left(self, worker: int) -> None:
        """Release the assignments of a worker, so that other workers get them."""
        with self.changed:
            self._live.discard(worker)
            self._assigner.release_worker(worker)
            self.changed.notify_all()

    def respond(self, worker: int, message: Message) -> Message:
        """Return the response to a worker's message; see `ParameterServer.respond`."""
        if message.kind is MessageKind.NEXT:
            return self._assign(worker, message.payload)
        if message.kind is MessageKind.COMMIT:
            return self._commit(worker, message)
        return super().respond(worker, message)

    def pull_response(self) -> list[Message]:
        """Return the parameters, and the buffers if the model has any."""
        messages = super().pull_response()
        if len(self.shard.buffers):
            messages.append(
                Message(MessageKind.BUFFERS, version=self.version, payload=self.shard.buffers)
            )
        return messages

    def _assign(self, worker: int, host_and_rack: Any) -> Message:
        """Wait for work, and assign it; ``host_and_rack`` is the payload of the request."""
        with self.changed, self._counted_as_waiting(worker):
            if host_and_rack is not None:
                host, rack = json.loads(host_and_rack.numpy().tobytes())
                self._localities.add_worker(worker, host, rack)
            while not self.ended:
                if self._assigner.finished:
                    return Message(
                        MessageKind.DONE, 0, int(self._is_result_worker(worker)), self.version
                    )
                self._reassign_silent(time.monotonic())
                work = self._assigner.assign(worker, max(1, len(self._live)))
                if work is not None:
                    if not self._has_assigned:
                        self._has_assigned = True
                        jobs.record_restored(self.version)
                    if self._localities.is_known(work.chunk):
                        distance = self._localities.distance(worker, work.chunk)
                        self.measured.distances[distance] += 1
                    self._last_requests[worker] = time.monotonic()
                    clock = self._progress_clocks.get(worker, 0)
                    # A worker that was idle has a low clock. It is raised, so that the others
                    # don't wait for this worker.
                    self._progress_clocks[worker] = max(clock, self._slowest_clock(worker) or 0)
                    numbers = (work.epoch, work.chunk, work.first, work.last, work.ahead)
                    numbers_sent = tuple(map(float, numbers))
                    return Message(MessageKind.WORK, work.token, 0, self.version, numbers_sent)
                self.changed.wait()
            return Message(MessageKind.STOP)

    def _is_result_worker(self, worker: int) -> bool:
        """Return whether a worker reports the result: the first, or another if that is silent."""

        def is_chosen() -> bool:
            return self._result_worker is not None or worker == min(self._live, default=worker)

        self.changed.wait_for(is_chosen, _LEAVE_TIMEOUT_SECONDS)
        if self._result_worker is None:
            self._result_worker = worker
            self.changed.notify_all()
        return self._result_worker == worker

    def _commit(self, worker: int, message: Message) -> Message:
        """Accept a worker's gradient if its token is current; return the response."""
        key = (message.token, message.index)
        with self.changed:
            if self.ended:
                return Message(MessageKind.STOP)
            now = time.monotonic()
            silence, self._last_requests[worker] = now - self._last_requests.get(worker, now), now
            keys = self._assigner.commit(worker, *key)
            if keys is None:
                self._increase_timeout(worker, silence)
                return Message(MessageKind.REFUSED, version=self.version)
            self._record_measurements(message)
            self._losses[key] = message.numbers[0]
            if message.payload is not None:
                self._buffers[key] = message.payload.clone()
            if keys:  # empty before the last share of a step
                self._apply_everywhere(keys)
            self._progress_clocks[worker] = self._progress_clocks.get(worker, 0) + 1
            self._wait_if_ahead(worker)
            return Message(
                MessageKind.STOP if self.ended else MessageKind.TAKEN, version=self.version
            )

    def _apply_everywhere(self, keys: Sequence[Key]) -> None:
        flat = torch.tensor(keys, dtype=torch.int64).view(-1)
        for follower in self.followers:
            follower.send(Message(MessageKind.APPLY, payload=flat))
        start = time.monotonic()
        changes = [self._buffers.pop(key) for key in keys if key in self._buffers]
        if changes:
            self.shard.apply_buffer_changes(changes)
        minibatch = self.version  # its number, from 0
        self.apply(keys)
        self.measured.update_time.add(time.monotonic() - start)
        loss = sum(self._losses.pop(key) for key in keys)
        self.measured.loss.add(loss)
        jobs.record_step(self.version)
        self._settings.observe(minibatch, loss)

    def _wait_if_ahead(self, worker: int) -> None:
        """Block a worker while it is too far ahead of the slowest other worker."""
        limit = self._settings.staleness
        if limit is None or self._settings.synchronous:
            return

        def may_continue() -> bool:
            slowest = self._slowest_clock(worker)
            ahead = 0 if slowest is None else self._progress_clocks[worker] - slowest
            return bool(self.ended) or ahead <= limit

        self.changed.notify_all()  # this worker is no longer the slowest
        with self._counted_as_waiting(worker):
            self.changed.wait_for(may_continue)
        self._last_requests[worker] = time.monotonic()

    def _slowest_clock(self, worker: int) -> int | None:
        """Return the minimum clock of the other workers with an assignment, None without any."""
        others = self._assigner.holders() - {worker}
        return min((self._progress_clocks.get(other, 0) for other in others), default=None)

    def _record_measurements(self, message: Message) -> None:
        _, computing, exchanging, moved, pulled = message.numbers
        measured = self.measured
        measured.minibatch_time.add(computing)
        if exchanging > 0 and moved > 0:
            measured.exchange_time.add(exchanging)
            measured.worker_bandwidth.add(8.0 * moved / exchanging)
        staleness = self.version - int(pulled)
        measured.staleness.add(staleness)
        measured.max_staleness = max(measured.max_staleness, staleness)
        measured.ps_bandwidth = self.traffic.bandwidth()

    # ------------------------------------------------------------------ main loop

    def lead(self, stop: jobs.StopSignal) -> str:
        """Supervise the job until it is done or SIGTERM comes; return ``done`` or ``stop``."""
        saved_at = reported_at = time.monotonic()
        occupied_at = time.monotonic()  # when a worker was last connected or still expected
        finished_at = float("inf")
        while True:
            with self.changed:
                self.changed.wait(_POLL_SECONDS)
                done = self._assigner.finished
            now = time.monotonic()
            if self.failure is not None:
                raise self.failure
            if done and finished_at == float("inf"):
                finished_at = now
                self._save_if_possible()
                self.report()
            elif not done and bool(stop):
                return self._finish("stop")
            with self.changed:
                self._reassign_silent(now)
            if now - saved_at >= self._settings.save_every and not done:
                saved_at = now
                self._save_if_possible()
            if now - reported_at >= self._settings.report_every:
                reported_at = now
                self.report()
            with self.changed:
                all_joined = len(self._joined) == self._workers
                if self._live or not all_joined:
                    occupied_at = now
                timed_out = now - finished_at > _LEAVE_TIMEOUT_SECONDS
                if done and not self._live and (all_joined or stop or timed_out):
                    return self._finish("done")
            if now - occupied_at > _LEAVE_TIMEOUT_SECONDS:  # the executor ended all workers
                self._finish("stop")
                raise PeerLostError("all workers are gone")

    def _finish(self, end: str) -> str:
        with self.changed:
            self.ended = end
            self.changed.notify_all()
        if end == "stop":
            try:
                self.save()
            except OSError as error:
                message = f"stopping, but mini-batch {self.version} couldn't be saved: {error}"
                raise TrainingError(message) from error
            self.report()
        for follower in self.followers:
            follower.send(Message(MessageKind.END, index=int(end == "done")))
        return end

    @contextlib.contextmanager
    def _counted_as_waiting(self, worker: int) -> Iterator[None]:
        """Count a worker as waiting in this block; the caller holds `changed`."""
        self._waiting.add(worker)
        try:
            yield
        finally:
            self._waiting.discard(worker)

    def _reassign_silent(self, now: float) -> None:
        """Reassign the work of silent workers if another waits; the caller holds `changed`."""
        for worker in self._assigner.holders() - self._waiting if self._waiting else ():
            silence = now - self._last_requests.get(worker, now)
            if silence > self._timeout:
                say(f"worker {worker} has been silent for {silence:.3g} s; reassigning its work")
                self._assigner.release_worker(worker)
                self.changed.notify_all()

    def _increase_timeout(self, worker: int, silence: float) -> None:
        """Increase the timeout, so that the work of slow workers isn't reassigned forever."""
        self._timeout = max(self._timeout, 2.0 * silence)
        say(
            f"worker {worker} took {silence:.3g} s for a mini-batch that was reassigned meanwhile; "
            f"the timeout is now {self._timeout:.3g} s. Set patience above the time of a mini-batch"
        )

    def report(self) -> None:
        """Report progress and measurements. The leader does this because workers may leave."""
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
        """Save a checkpoint of all servers at one version; return its size in bytes."""
        with self.changed:
            for follower in self.followers:
                follower.send(Message(MessageKind.STATE))
            states = [self.shard.state()]
            for follower in self.followers:
                response = follower.receive()
                if response.version != self.version:
                    raise PeerLostError("a server lacks gradients that the leader accepted")
                states.append(checkpoints.deserialize(response.payload.numpy().tobytes()))
            model = {**merge_shards(states), "buffers": self.shard.buffers.clone()}
            record, version = self._assigner.record(), self.version
        state = {
            "kind": KIND,
            "synchronous": self._settings.synchronous,
            "recipe": self._recipe.to_record(),
            "assigner": record,
            "model": model,
        }
        # The directory is explicit, because by default only worker 0 saves.
        size = checkpoints.save(version, state, jobs.current().checkpoint_dir)
        jobs.record_saved(version)
        return size

"""A worker: computes gradients of its assignments, pushes them, pulls parameters."""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import Any, Final

import numpy as np
import torch

from shadowprice import jobs
from shadowprice.training.generation import own_device
from shadowprice.training.model_buffers import buffer_change
from shadowprice.training.randomness import seed_all
from shadowprice.training.servers.assignment import Work
from shadowprice.training.servers.chunks import Arrays
from shadowprice.training.servers.locality import own_host_and_rack
from shadowprice.training.servers.messages import Link, Message, MessageKind, PeerLostError
from shadowprice.training.servers.recipe import Recipe, Settings
from shadowprice.training.servers.shard import (
    build_seeded_model,
    flattened_buffers,
    parameter_layout,
    set_buffers,
    trainable_parameters,
)

_STOP_POLL_SECONDS: Final = 0.1  # seconds between polls of the stop signal while a worker waits

# Streams of random numbers for a mini-batch, and for a part of a step; see `ordering`.
_MINIBATCH_STREAM: Final = 4
_PART_STREAM: Final = 5

Batch = Mapping[str, Any]


class ChunkPrefetcher:
    """Fetches chunks in background threads, and keeps the last ``keep`` in memory."""

    def __init__(self, fetch: Callable[[int], Arrays], keep: int = 2) -> None:
        self._read = fetch
        self._keep = max(1, keep)
        self._futures: OrderedDict[int, Future[Arrays]] = OrderedDict()

    def want(self, number: int) -> None:
        """Start to fetch a chunk, unless it is in memory or being fetched."""
        if number < 0 or number in self._futures:
            return
        future: Future[Arrays] = Future()
        self._futures[number] = future
        # One daemon thread per chunk: a fetch that hangs delays neither other fetches nor the exit.
        threading.Thread(target=self._fetch_into, args=(number, future), daemon=True).start()
        while len(self._futures) > self._keep:
            self._futures.popitem(last=False)

    def prefetch_if_room(self, number: int) -> None:
        """Prefetch a chunk, unless only one chunk is kept."""
        if self._keep > 1:
            self.want(number)

    def fetch(self, number: int, stop: Any = None) -> Arrays:
        """Wait for a chunk, and return it; exit on SIGTERM even if the storage hangs."""
        prefetched = self._futures.get(number)
        if prefetched is not None and prefetched.done() and prefetched.exception() is not None:
            del self._futures[number]  # retry a failed prefetch, because the storage may be back
        self.want(number)
        self._futures.move_to_end(number)
        future = self._futures[number]
        while not wait((future,), _STOP_POLL_SECONDS).done:
            if stop:
                jobs.leave()
        try:
            return future.result()
        except BaseException:
            self._futures.pop(number, None)
            raise

    def _fetch_into(self, number: int, future: Future[Arrays]) -> None:
        try:
            future.set_result(self._read(number))
        except BaseException as error:  # raised again in `fetch`
            future.set_exception(error)


class Worker:
    """One worker, with links to all servers, first the leading server."""

    def __init__(
        self, recipe: Recipe, settings: Settings, links: Sequence[Link], stop: jobs.StopSignal
    ) -> None:
        self._recipe, self._settings, self._links, self._stop = recipe, settings, links, stop
        self._device = torch.device(settings.device) if settings.device else own_device()
        self.model = build_seeded_model(recipe).to(self._device)
        layout = parameter_layout(self.model)
        self._spans = [layout.span(number, len(links)) for number in range(len(links))]
        named_parameters = trainable_parameters(self.model)
        first = named_parameters[0][1]
        # One flat tensor holds all parameters, another all gradients: a server's share is a slice.
        self._values = torch.empty(layout.elements, dtype=first.dtype, device=self._device)
        self._gradient = torch.zeros_like(self._values)
        start = 0
        for _, parameter in named_parameters:
            part = slice(start, start + parameter.numel())
            start += parameter.numel()
            self._values[part] = parameter.detach().reshape(-1)
            parameter.data = self._values[part].view(parameter.shape)
            parameter.grad = self._gradient[part].view(parameter.shape)
        self._parameters = [(parameter, parameter.grad) for _, parameter in named_parameters]
        self._buffers = flattened_buffers(self.model)
        self._order = recipe.order()
        self._steps = recipe.steps(settings.parts)
        self._chunks = ChunkPrefetcher(recipe.data.fetch, settings.keep)
        # Whether this worker reports the result; the leading server chooses one worker at the end.
        self.leads = False
        self._version = -1  # of the pulled parameters; -1 before the first pull
        self._wanted = 0  # version of the parameters that the next mini-batch needs
        # Since the last push: seconds, and bytes.
        self._computing = self._exchanging = 0.0
        self._moved = 0
        self._due = 0.0  # earliest commit time of a mini-batch, given its minimum time

    def work(self) -> int:
        """Process assignments until training is done; return the number of mini-batches."""
        content = bytearray(json.dumps(own_host_and_rack()).encode())
        request = Message(MessageKind.NEXT, payload=torch.frombuffer(content, dtype=torch.uint8))
        while True:
            response = self._request(request)
            request = Message(MessageKind.NEXT)
            self._wanted = response.version
            if response.kind is MessageKind.DONE:
                self.leads = bool(response.index)
                break
            epoch, chunk, first, last, ahead = (int(number) for number in response.numbers)
            work = Work(response.token, epoch, chunk, first, last, ahead)
            if self._settings.synchronous:
                self._process_parts(work)
            else:
                self._process_chunk(work)
        self._pull()
        for link in self._links:
            link.send(Message(MessageKind.BYE))
        return self._version

    # ------------------------------------------------------------------ assignments

    def _process_chunk(self, work: Work) -> None:
        """Process the rest of a chunk, one mini-batch after the other, while it is assigned."""
        self._chunks.want(work.chunk)
        self._chunks.prefetch_if_room(work.ahead)
        arrays = self._chunks.fetch(work.chunk, self._stop)
        for index in range(work.first, work.last):
            self._set_pace()
            self._pull()
            indices = self._order.minibatch(work.epoch, work.chunk, index, self._recipe.minibatch)
            batch = {name: torch.from_numpy(array[indices]) for name, array in arrays.items()}
            key = (self._recipe.seed, _MINIBATCH_STREAM, work.epoch, work.chunk, index)
            self._gradient.zero_()
            loss, change = self._compute_gradient(batch, 1.0, key)
            self._wait_for_pace()
            if not self._push(work.token, index, loss, change):
                return

    def _process_parts(self, work: Work) -> None:
        """Compute this worker's parts of a step."""
        self._set_pace()
        self._pull()
        self._gradient.zero_()
        loss, changes = 0.0, torch.zeros_like(self._buffers)
        step = work.chunk  # in synchronous training
        for part in self._steps.split_step(step)[work.first : work.last]:
            # `part.samples` are positions in the epoch's order.
            batch = self._batch_at(work.epoch, part.samples)
            key = (self._recipe.seed, _PART_STREAM, step, part.number)
            part_loss, change = self._compute_gradient(batch, part.weight, key)
            loss, changes = loss + part_loss, changes + change
        self._wait_for_pace()
        self._push(work.token, work.first, loss, changes)

    def _batch_at(self, epoch: int, positions: Any) -> Batch:
        """Return the samples at positions of an epoch's order, and prefetch the next chunk."""
        rows: dict[str, list[Any]] = {}
        for chunk, indices in self._order.located(epoch, positions):
            for name, array in self._chunks.fetch(chunk, self._stop).items():
                rows.setdefault(name, []).append(array[indices])
        order = self._order.chunks(epoch)
        position = order.index(chunk)  # of the last chunk with one of the samples
        if position + 1 < len(order):
            self._chunks.prefetch_if_room(order[position + 1])
        return {name: torch.from_numpy(np.concatenate(parts)) for name, parts in rows.items()}

    # ------------------------------------------------------------------ computing

    def _compute_gradient(
        self, batch: Batch, weight: float, key: Sequence[int]
    ) -> tuple[float, Any]:
        """Add the gradient of samples, seeded by ``key``; return loss and buffers' change."""
        started = time.monotonic()
        # Shifted, because seeds of torch are below 2^63.
        seed_all(int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> 1))
        if len(self._buffers):
            set_buffers(self.model, self._buffers)
        self.model.train()
        on_device = {name: tensor.to(self._device) for name, tensor in batch.items()}
        loss = self._recipe.loss(self.model, on_device) * weight
        loss.backward()
        for parameter, gradient in self._parameters:
            if parameter.grad is not gradient:  # the script has replaced the tensor
                gradient.copy_(parameter.grad)
                parameter.grad = gradient
        change = buffer_change(flattened_buffers(self.model), self._buffers) * weight
        loss_value = float(loss.detach())
        self._computing += time.monotonic() - started
        return loss_value, change

    # ------------------------------------------------------------------ minimum time per mini-batch

    def _set_pace(self) -> None:
        """Start a mini-batch's minimum time when the last one's ends, so it includes the push."""
        pace, now = self._settings.pace, time.monotonic()
        start = self._due if 0.0 <= now - self._due < pace else now
        self._due = start + pace

    def _wait_for_pace(self) -> None:
        """Wait for the end of a mini-batch's minimum time; exit on SIGTERM."""
        remaining = self._due - time.monotonic()
        if self._settings.pace and remaining > 0.0 and self._stop.wait(remaining):
            jobs.leave()

    # ------------------------------------------------------------------ exchanging

    def _push(self, token: int, index: int, loss: float, change: Any) -> bool:
        """Push the gradient to all servers and commit it; return whether it counts."""
        started = time.monotonic()
        gradient = self._gradient.to(self._links[0].device)
        for link, (first, last) in zip(self._links, self._spans, strict=True):
            link.send(Message(MessageKind.PUSH, token, index, payload=gradient[first:last]))
        for link in self._links:
            self._receive(link, MessageKind.STAGED)
        self._exchanging += time.monotonic() - started
        self._moved += self._gradient.nbytes
        numbers = (loss, self._computing, self._exchanging, float(self._moved), self._version)
        self._computing = self._exchanging = 0.0
        self._moved = 0
        commit = Message(
            MessageKind.COMMIT, token, index, numbers=tuple(float(number) for number in numbers)
        )
        if len(change):
            finite = self._buffers.isfinite()  # see `Shard.apply_buffer_changes`
            commit.payload = change if finite.all() else torch.cat([change, (~finite).double()])
        response = self._request(commit)
        self._wanted = response.version
        return response.kind is MessageKind.TAKEN

    def _pull(self) -> None:
        """Pull parameters, unless this worker already has the required version."""
        if self._version >= self._wanted:
            return
        started = time.monotonic()
        for link in self._links:
            link.send(Message(MessageKind.PULL, version=self._wanted))
        values = self._values.to(self._links[0].device)  # no copy on the same device
        versions = []
        for number, (link, (first, last)) in enumerate(zip(self._links, self._spans, strict=True)):
            versions.append(self._receive(link, MessageKind.VALUES, values[first:last]).version)
            if number == 0 and len(self._buffers):
                self._receive(link, MessageKind.BUFFERS, self._buffers)
        if values is not self._values:
            self._values.copy_(values)
        if len(self._buffers):
            set_buffers(self.model, self._buffers)
        self._version = min(versions)
        self._exchanging += time.monotonic() - started
        self._moved += self._gradient.nbytes

    def _request(self, message: Message) -> Message:
        """Send a request to the leader and return its response; exit on SIGTERM or STOP."""
        if self._stop:
            jobs.leave()
        leader = self._links[0]
        leader.send(message)
        response = leader.receive()
        if response.kind is MessageKind.STOP:
            jobs.leave()
        return response

    def _receive(self, link: Link, kind: MessageKind, into: Any = None) -> Message:
        response = link.receive(into)
        if response.kind is not kind:
            raise PeerLostError(f"expected {kind.name} from a server, got {response.kind.name}")
        return response

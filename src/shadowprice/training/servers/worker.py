"""A worker: computes gradients of what it is dealt, pushes them, pulls parameters."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from shadowprice import jobs
from shadowprice.training.differences import difference
from shadowprice.training.generation import own_device
from shadowprice.training.randomness import seed_all
from shadowprice.training.servers.dealing import Work
from shadowprice.training.servers.fetching import Fetcher
from shadowprice.training.servers.messages import GoneError, Kind, Link, Message
from shadowprice.training.servers.recipe import Recipe, Settings
from shadowprice.training.servers.shard import (
    flattened_buffers,
    layout_of,
    seeded,
    set_buffers,
    trained,
)

Batch = Mapping[str, Any]


class Worker:
    """One worker.

    Parameters
    ----------
    recipe : Recipe
        What is learnt.
    settings : Settings
        How.
    links : sequence of Link
        Lines to all servers, the leading one first.
    stop : object
        True once the job was told to stop.
    """

    def __init__(
        self, recipe: Recipe, settings: Settings, links: Sequence[Link], stop: Any
    ) -> None:
        self._recipe, self._settings, self._links, self._stop = recipe, settings, links, stop
        self._device = torch.device(settings.device) if settings.device else own_device()
        self.model = seeded(recipe).to(self._device)
        layout = layout_of(self.model)
        self._spans = [layout.span(number, len(links)) for number in range(len(links))]
        found = trained(self.model)
        first = found[0][1]
        # Parameters and gradients each become one line, so that what a server has is a slice of it.
        self._values = torch.empty(layout.elements, dtype=first.dtype, device=self._device)
        self._gradient = torch.zeros_like(self._values)
        begin = 0
        for _, one in found:
            part = slice(begin, begin + one.numel())
            begin += one.numel()
            self._values[part] = one.detach().reshape(-1)
            one.data = self._values[part].view(one.shape)
            one.grad = self._gradient[part].view(one.shape)
        self._parameters = [(one, one.grad) for _, one in found]
        self._buffers = flattened_buffers(self.model)
        self._order = recipe.order()
        self._steps = recipe.steps(settings.parts)
        self._chunks = Fetcher(recipe.data.fetch, settings.keep)
        self.leads = False
        """Whether this worker, of those that are left in the end, is to show the result."""
        self._version = -1
        self._wanted = 0
        self._computing = self._exchanging = 0.0
        self._moved = 0
        self._due = 0.0
        """When the mini-batch under way, or the last one, may count."""

    @property
    def gradient_bytes(self) -> int:
        """Bytes of a gradient."""
        return int(self._gradient.numel() * self._gradient.element_size())

    def work(self) -> int:
        """Do what is dealt until everything is done; return how many mini-batches there were.

        The model then has the last parameters.

        Raises
        ------
        SystemExit
            Status 143, if the job is told to stop.
        GoneError
            If a server is gone.
        """
        while True:
            answer = self._asked(Message(Kind.NEXT))
            self._wanted = answer.version
            if answer.kind is Kind.DONE:
                self.leads = bool(answer.index)
                break
            epoch, chunk, first, last, ahead = (int(one) for one in answer.numbers)
            work = Work(answer.token, epoch, chunk, first, last, ahead)
            if self._settings.synchronous:
                self._share(work)
            else:
                self._chunk(work)
        self._pull()
        for link in self._links:
            link.send(Message(Kind.BYE))
        return self._version

    # ------------------------------------------------------------------ what is dealt

    def _chunk(self, work: Work) -> None:
        """Go through the rest of a chunk, a mini-batch after the other, while it is ours."""
        self._chunks.want(work.chunk)
        self._chunks.want_ahead(work.ahead)
        arrays = self._chunks.take(work.chunk, self._stop)
        for index in range(work.first, work.last):
            self._set_pace()
            self._pull()
            places = self._order.minibatch(work.epoch, work.chunk, index, self._recipe.minibatch)
            batch = {name: torch.from_numpy(array[places]) for name, array in arrays.items()}
            key = (self._recipe.seed, 4, work.epoch, work.chunk, index)
            self._gradient.zero_()
            loss, change = self._computed(batch, 1.0, key)
            self._wait_out()
            if not self._pushed(work.token, index, loss, change):
                return

    def _share(self, work: Work) -> None:
        """Compute our parts of a step."""
        self._set_pace()
        self._pull()
        self._gradient.zero_()
        loss, changes = 0.0, torch.zeros_like(self._buffers)
        for part in self._steps.divided(work.chunk)[work.first : work.last]:
            # Where a step lies in its epoch's order; which samples are there, that order says.
            batch = self._located(work.epoch, part.samples)
            key = (self._recipe.seed, 5, work.chunk, part.number)
            more, change = self._computed(batch, part.weight, key)
            loss, changes = loss + more, changes + change
        self._wait_out()
        self._pushed(work.token, work.first, loss, changes)

    def _located(self, epoch: int, positions: Any) -> Batch:
        rows: dict[str, list[Any]] = {}
        for chunk, places in self._order.located(epoch, positions):
            for name, array in self._chunks.take(chunk, self._stop).items():
                rows.setdefault(name, []).append(array[places])
        order = self._order.chunks(epoch)
        here = order.index(chunk)
        if here + 1 < len(order):
            self._chunks.want_ahead(order[here + 1])
        return {name: torch.from_numpy(np.concatenate(parts)) for name, parts in rows.items()}

    # ------------------------------------------------------------------ computing

    def _computed(self, batch: Batch, weight: float, key: Sequence[int]) -> tuple[float, Any]:
        """Add the gradient of some samples to ours; return their loss and the buffers' change.

        What a model draws depends on the samples only, not on who computes them.
        """
        began = time.monotonic()
        seed_all(int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> 1))
        if len(self._buffers):
            set_buffers(self.model, self._buffers)
        self.model.train()
        on_device = {name: one.to(self._device) for name, one in batch.items()}
        loss = self._recipe.loss(self.model, on_device) * weight
        loss.backward()
        for parameter, gradient in self._parameters:
            if parameter.grad is not gradient:  # the script put another in its place
                gradient.copy_(parameter.grad)
                parameter.grad = gradient
        change = difference(flattened_buffers(self.model), self._buffers) * weight
        found = float(loss.detach())
        self._computing += time.monotonic() - began
        return found, change

    # ------------------------------------------------------------------ at a stated pace

    def _set_pace(self) -> None:
        """Begin a mini-batch: where the last one ended, unless that is long ago.

        So what is pushed after a wait comes out of the next one's, and the pace is kept.
        """
        pace, now = self._settings.pace, time.monotonic()
        began = self._due if 0.0 <= now - self._due < pace else now
        self._due = began + pace

    def _wait_out(self) -> None:
        """Wait until a mini-batch has taken as long as it is to take; end if told to stop."""
        rest = self._due - time.monotonic()
        if self._settings.pace and rest > 0.0 and self._stop.wait(rest):
            jobs.leave()

    # ------------------------------------------------------------------ exchanging

    def _pushed(self, token: int, index: int, loss: float, change: Any) -> bool:
        """Give our gradient to all servers, and let it count; return whether it did."""
        began = time.monotonic()
        gradient = self._gradient.to(self._links[0].device)
        for link, (first, last) in zip(self._links, self._spans, strict=True):
            link.send(Message(Kind.PUSH, token, index, payload=gradient[first:last]))
        for link in self._links:
            self._answer(link, Kind.STAGED)
        self._exchanging += time.monotonic() - began
        self._moved += self.gradient_bytes
        numbers = (loss, self._computing, self._exchanging, float(self._moved), self._version)
        self._computing = self._exchanging = 0.0
        self._moved = 0
        commit = Message(Kind.COMMIT, token, index, numbers=tuple(float(one) for one in numbers))
        commit.payload = change if len(change) else None
        answer = self._asked(commit)
        self._wanted = answer.version
        return answer.kind is Kind.TAKEN

    def _pull(self) -> None:
        """Fetch parameters, unless ours are those that are wanted."""
        if self._version >= self._wanted:
            return
        began = time.monotonic()
        for link in self._links:
            link.send(Message(Kind.PULL, version=self._wanted))
        values = self._values.to(self._links[0].device)  # itself, if it is there
        versions = []
        for number, (link, (first, last)) in enumerate(zip(self._links, self._spans, strict=True)):
            versions.append(self._answer(link, Kind.VALUES, values[first:last]).version)
            if number == 0 and len(self._buffers):
                self._answer(link, Kind.BUFFERS, self._buffers)
        if values is not self._values:
            self._values.copy_(values)
        if len(self._buffers):
            set_buffers(self.model, self._buffers)
        self._version = min(versions)
        self._exchanging += time.monotonic() - began
        self._moved += self.gradient_bytes

    def _asked(self, message: Message) -> Message:
        """Ask the leader; end where it says so."""
        if self._stop:
            jobs.leave()
        leader = self._links[0]
        leader.send(message)
        answer = leader.receive()
        if answer.kind is Kind.STOP:
            jobs.leave()
        return answer

    def _answer(self, link: Link, kind: Kind, into: Any = None) -> Message:
        answer = link.receive(into)
        if answer.kind is not kind:
            raise GoneError(f"a server said {answer.kind.name} for {kind.name}")
        return answer

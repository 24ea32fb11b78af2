"""Scripts of the processes of these tests."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shadowprice.training.servers import chunks
from shadowprice.training.servers.messages import Link, Message, MessageKind
from shadowprice.training.servers.pairs import accept_shared_memory, connect_pair
from shadowprice.training.servers.recipe import Recipe, Settings
from shadowprice.training.servers.running import run
from shadowprice.training.servers.server import ParameterServer
from tests.train.backends import share_gpus
from tests.train.storages import by_arrow

by_arrow()

SAMPLES, FEATURES, CLASSES = 150, 5, 3


def written(folder: Path | str, samples: int = SAMPLES, chunk: int = 17) -> str:
    """Write numbered samples of some classes; return their folder."""
    where = f"{folder}/data"
    draw = np.random.default_rng(3)
    points = draw.normal(size=(samples, FEATURES))
    label = (points @ draw.normal(size=(FEATURES, CLASSES))).argmax(axis=1)
    chunks.write(where, {"x": points, "y": label, "id": np.arange(samples)}, chunk)
    return where


class Small(torch.nn.Module):
    """A small network, with batch normalisation and dropout if wanted."""

    def __init__(self, *, moody: bool) -> None:
        super().__init__()
        self.first = torch.nn.Linear(FEATURES, 12)
        self.norm = torch.nn.BatchNorm1d(12) if moody else torch.nn.Identity()
        self.drop = torch.nn.Dropout(0.2) if moody else torch.nn.Identity()
        self.last = torch.nn.Linear(12, CLASSES)

    def forward(self, points: Any) -> Any:
        """Return scores."""
        return self.last(self.drop(torch.tanh(self.norm(self.first(points)))))


def recipe(
    data: str,
    *,
    epochs: int = 2,
    minibatch: int = 8,
    adam: bool = False,
    moody: bool = False,
    pace: float = 0.0,
    double: bool = True,
    seed: int = 0,
) -> Recipe:
    """Return a recipe that learns which class each sample is of."""

    def loss(model: Any, batch: Mapping[str, Any]) -> Any:
        time.sleep(pace)
        points = batch["x"] if double else batch["x"].float()
        return torch.nn.functional.cross_entropy(model(points), batch["y"])

    def optimizer(parameters: Any) -> Any:
        if adam:
            return torch.optim.Adam(parameters, lr=0.02)
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)

    return Recipe(
        model=lambda: Small(moody=moody).to(torch.float64 if double else torch.float32),
        loss=loss,
        optimizer=optimizer,
        data=chunks.read(data),
        epochs=epochs,
        minibatch=minibatch,
        schedule=lambda minibatch: 1.0 / (1.0 + 0.01 * minibatch),
        seed=seed,
    )


def counted(data: str, epochs: int, pace: float = 0.0) -> Recipe:
    """Return a recipe whose parameters count how often each sample was applied.

    A parameter belongs to each sample, and each mini-batch adds 1 to those of its samples.
    """
    made = chunks.read(data)

    def loss(model: Any, batch: Mapping[str, Any]) -> Any:
        time.sleep(pace)
        rows = torch.zeros(made.samples, dtype=torch.float64, device=batch["id"].device)
        rows[batch["id"]] = -1.0
        return (model.weight[0] * rows).sum()

    def model() -> Any:
        result = torch.nn.Linear(made.samples, 1, bias=False).double()
        torch.nn.init.zeros_(result.weight)
        return result

    return Recipe(
        model=model,
        loss=loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1.0),
        data=made,
        epochs=epochs,
        minibatch=4,
    )


def train(
    data: str,
    losses: str = "",
    result: str = "",
    settings: Mapping[str, Any] | None = None,
    **more: Any,
) -> None:
    """Train; the leader writes each loss, worker 0 the model."""
    torch.set_num_threads(1)

    def observe(number: int, loss: float) -> None:
        if losses:
            with open(losses, "a", encoding="utf-8") as stream:  # noqa: PTH123
                stream.write(json.dumps([number, loss]) + "\n")

    outcome = run(recipe(data, **more), Settings(observe=observe, **(settings or {})))
    if outcome is not None and outcome.leads and result:
        torch.save({"minibatches": outcome.minibatches, **outcome.model.state_dict()}, result)


def count(data: str, epochs: int, pace: float, result: str, settings: Mapping[str, Any]) -> None:
    """Count how often samples are applied; the worker that leads, or remains, writes the counts."""
    torch.set_num_threads(1)
    outcome = run(counted(data, epochs, pace), Settings(**settings))
    if outcome is not None:
        np.save(result, outcome.model.weight.detach().cpu().numpy()[0])


def count_lingering(**given: Any) -> None:
    """Count, with a thread of the leader's connection that ends after the main thread.

    That happens on a busy machine. An interpreter that shuts down while such a thread closes its
    connection is aborted within a millisecond. So the test checks that no thread is left.
    """
    returned = threading.Event()
    follow = ParameterServer.follow

    def late(self: ParameterServer, link: Link) -> None:
        follow(self, link)
        returned.wait(1.0)

    ParameterServer.follow = late  # type: ignore[method-assign]
    count(**given)
    left = threading.enumerate()
    returned.set()
    assert left == [threading.main_thread()], left


SAY_ONLY = -1.0
"""Announces a tensor to a peer, and never sends it."""


class Silent:
    """A group that accepts what it should send, and sends nothing."""

    def send(self, *_: Any) -> Silent:
        """Send nothing."""
        return self

    def wait(self, *_: Any) -> None:
        """Return at once."""

    def abort(self) -> None:
        """Do nothing."""


def peer(port: int, backend: str) -> None:
    """Send back everything that comes over a link, until it is killed."""
    share_gpus(0)
    store = torch.distributed.TCPStore("127.0.0.1", port, is_master=False)
    link = connect_pair(store, "link", 0, timedelta(seconds=60), backend)
    accept_shared_memory(link)
    while True:
        message = link.receive()
        if message.numbers == (SAY_ONLY,):
            wire: Any = link._transport
            wire._group, moved = Silent(), wire._group
            link.send(Message(MessageKind.PUSH, payload=torch.zeros(1 << 20, device=link.device)))
            wire._group = moved
            continue
        if message.payload is not None:
            message.payload = message.payload.clone()
        link.send(message)

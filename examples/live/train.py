"""Elastic training with numpy: a small network that really learns, on any number of workers.

    python train.py --task spirals --steps 300

Under a scheduler every worker is one such process. They divide each batch, and worker 0 adds up
their gradients. The samples of a batch depend on its step only. So the curve is the same, up to
rounding, with one worker or four, however often the job moves and resumes from its checkpoint.
"""

from __future__ import annotations

import argparse
import io
import math
import os
import sys
import time
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shadowprice import jobs

Array = NDArray[np.float64]
Network = list[Array]

HIDDEN, BATCH, RATE, MOMENTUM = 48, 120, 0.2, 0.9
SAVE_EVERY, REPORT_EVERY = 50, 5


def spirals(seed: int) -> tuple[Array, NDArray[np.int64], int]:
    """Return points on three entangled spirals, and the spiral of each point."""
    draw = np.random.default_rng(seed)
    count = 400
    along = np.tile(np.linspace(0.05, 1.0, count), 3)
    label = np.repeat(np.arange(3), count)
    angle = 4.0 * along + label * 2.0 * np.pi / 3.0 + draw.normal(0.0, 0.12, 3 * count)
    points = np.stack([along * np.cos(angle), along * np.sin(angle)], axis=1)
    return 2.0 * points, label, 3


def text(seed: int) -> tuple[Array, NDArray[np.int64], int]:
    """Return windows of three letters of this file, and the letter after each."""
    del seed
    letters = [ord(one) for one in Path(__file__).read_text(encoding="utf-8").lower()]
    known = sorted(set(letters))
    code = np.searchsorted(known, letters)
    windows = np.stack([code[at : len(code) - 3 + at] for at in range(3)], axis=1)
    return np.eye(len(known))[windows].reshape(len(windows), -1), code[3:], len(known)


TASKS = {"spirals": spirals, "text": text}


def gradient(network: Network, points: Array, label: NDArray[np.int64]) -> tuple[float, Network]:
    """Return the summed loss of some samples, and its gradient."""
    first, bias, second, offset = network
    hidden = np.tanh(points @ first + bias)
    scores = hidden @ second + offset
    scores -= scores.max(axis=1, keepdims=True)
    chance = np.exp(scores)
    chance /= chance.sum(axis=1, keepdims=True)
    rows = np.arange(len(label))
    loss = -float(np.log(chance[rows, label] + 1e-300).sum())
    chance[rows, label] -= 1.0
    back = (chance @ second.T) * (1.0 - hidden**2)
    return loss, [points.T @ back, back.sum(axis=0), hidden.T @ chance, chance.sum(axis=0)]


def accuracy(network: Network, points: Array, label: NDArray[np.int64]) -> float:
    """Return the share of samples that the network classifies correctly."""
    first, bias, second, offset = network
    scores = np.tanh(points @ first + bias) @ second + offset
    return float((scores.argmax(axis=1) == label).mean())


def packed(arrays: Network) -> bytes:
    """Return arrays as bytes."""
    stream = io.BytesIO()
    np.savez(stream, *arrays)
    return stream.getvalue()


def unpacked(data: bytes) -> Network:
    """Return the arrays that `packed` packed."""
    with np.load(io.BytesIO(data)) as stored:
        return [stored[name] for name in stored.files]


class Group:
    """The workers of this generation: the others are connected to worker 0."""

    def __init__(self, rank: int, workers: int) -> None:
        self.rank, self.workers = rank, workers
        self.others: list[Connection] = []
        if workers == 1:
            return
        address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        key = os.environ["PET_RDZV_ID"].encode()
        if rank == 0:
            with Listener(address, authkey=key) as listener:
                found = {}
                while len(found) < workers - 1:
                    connection = listener.accept()
                    found[connection.recv()] = connection
            self.others = [found[one] for one in sorted(found)]  # always added up in one order
        else:
            for _ in range(300):
                try:
                    self.others = [Client(address, authkey=key)]
                    break
                except ConnectionRefusedError:  # worker 0 has not started yet
                    time.sleep(0.1)
            self.others[0].send(rank)


def main() -> None:
    """Train from the newest checkpoint on."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", choices=TASKS, default="spirals")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--pace", type=float, default=0.0, help="seconds of one worker for a batch")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()

    stop = jobs.StopSignal()
    job = jobs.current()
    points, label, classes = TASKS[chosen.task](chosen.seed)
    draw = np.random.default_rng(chosen.seed)
    network: Network = [
        draw.normal(0.0, 1.0 / np.sqrt(points.shape[1]), (points.shape[1], HIDDEN)),
        np.zeros(HIDDEN),
        draw.normal(0.0, 1.0 / np.sqrt(HIDDEN), (HIDDEN, classes)),
        np.zeros(classes),
    ]
    speed = [np.zeros_like(part) for part in network]
    step = 0
    found = jobs.load()
    if found is not None:
        step, arrays = found.step, unpacked(found.data)
        network, speed = arrays[:4], arrays[4:]
    group = Group(job.rank, job.workers)
    loss = float("nan")
    if job.leads:
        print(f"{chosen.task}: step {step} of {chosen.steps}, {job.workers} workers", flush=True)

    while step < chosen.steps:
        began = time.monotonic()
        batch = np.random.default_rng((chosen.seed, step)).choice(len(label), BATCH, replace=False)
        mine = np.array_split(batch, job.workers)[job.rank]
        loss, slope = gradient(network, points[mine], label[mine])
        # A batch takes one worker a stated time, so that this example runs alike everywhere.
        time.sleep(max(0.0, chosen.pace * len(mine) / BATCH - (time.monotonic() - began)))
        if job.leads:
            for other in group.others:
                more, part = other.recv()
                loss, slope = loss + more, [a + b for a, b in zip(slope, part, strict=True)]
            speed = [MOMENTUM * a - RATE * b / BATCH for a, b in zip(speed, slope, strict=True)]
            network = [a + b for a, b in zip(network, speed, strict=True)]
            step += 1
            leaving = bool(stop) and step < chosen.steps
            if leaving or step % SAVE_EVERY == 0 or step == chosen.steps:
                jobs.save(step, packed([*network, *speed]))
            if leaving or step % REPORT_EVERY == 0 or step == chosen.steps:
                jobs.report(step, loss=loss / BATCH)
            for other in group.others:
                other.send(None if leaving else network)
        else:
            try:
                group.others[0].send((loss, slope))
                message = group.others[0].recv()
            except (EOFError, OSError):  # worker 0 is gone
                sys.exit(jobs.STOPPED if stop else 1)
            leaving = message is None
            if not leaving:
                network, step = message, step + 1
        if leaving:
            if job.leads:
                print(f"saved after step {step}, loss {loss / BATCH:.4f}", flush=True)
            jobs.leave()
    if job.leads:
        right = accuracy(network, points, label)
        # If the newest checkpoint is the last, nothing is left to train.
        loss_text = "" if math.isnan(loss) else f"loss {loss / BATCH:.4f}, "
        print(f"done: {loss_text}{right:.1%} right", flush=True)


if __name__ == "__main__":
    main()

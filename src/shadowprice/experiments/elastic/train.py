"""The experiment's job: logistic regression, trained by workers that share every batch.

The samples of a batch only depend on the step, and worker 0 adds the gradients in a fixed order. So
the number of workers, and moves of the job, only change the result by rounding. Each worker waits
until its stated time is over, so the speed of a batch doesn't depend on this machine's cores.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from multiprocessing.connection import Client, Connection, Listener

import numpy as np
from numpy.typing import NDArray

from shadowprice import jobs

BATCH, FEATURES, RATE = 96, 24, 0.5


def connected(job: jobs.Job) -> list[Connection]:
    """Return the connections of worker 0 to the others, by rank, or of another worker to 0."""
    if job.workers == 1:
        return []
    address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    key = os.environ["PET_RDZV_ID"].encode()
    if job.rank == 0:
        with Listener(address, authkey=key) as listener:
            by_rank: dict[int, Connection] = {}
            while len(by_rank) < job.workers - 1:
                other = listener.accept()
                by_rank[other.recv()] = other
        return [by_rank[rank] for rank in sorted(by_rank)]
    for _ in range(600):
        try:
            leader = Client(address, authkey=key)
            break
        except ConnectionRefusedError:  # worker 0 doesn't listen yet
            time.sleep(0.05)
    else:
        sys.exit("worker 0 accepted no connection within 30 s")
    leader.send(job.rank)
    return [leader]


def gradient(
    weights: NDArray[np.float64], rows: NDArray[np.int64], seed: int
) -> NDArray[np.float64]:
    """Return the summed gradient of some samples, followed by their summed loss."""
    generator = np.random.default_rng(seed)
    truth = generator.normal(size=FEATURES)
    points = np.stack(
        [np.random.default_rng((seed, int(row))).normal(size=FEATURES) for row in rows]
    )
    label = (points @ truth > 0).astype(np.float64)
    chance = 1.0 / (1.0 + np.exp(-points @ weights))
    loss = -np.log(np.where(label > 0, chance, 1.0 - chance) + 1e-12).sum()
    return np.append(points.T @ (chance - label), loss)


def main() -> None:
    """Train, starting from the newest checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--shared", type=float, default=0.24, help="seconds that workers divide")
    parser.add_argument(
        "--serial", type=float, default=0.03, help="seconds that workers don't divide"
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    stop, job = jobs.StopSignal(), jobs.current()
    weights, step = np.zeros(FEATURES), 0
    if (checkpoint := jobs.load()) is not None:
        step, weights = checkpoint.step, np.frombuffer(checkpoint.data).copy()
    others = connected(job)
    step_seconds = options.serial + options.shared / job.workers
    while step < options.steps:
        due = time.monotonic() + step_seconds
        rows = np.arange(step * BATCH, (step + 1) * BATCH)
        part = gradient(weights, np.array_split(rows, job.workers)[job.rank], options.seed)
        time.sleep(max(0.0, due - time.monotonic()))
        if job.rank:
            try:
                others[0].send(part)
                response = others[0].recv()
            except (EOFError, OSError):  # worker 0 is gone
                sys.exit(jobs.STOPPED if stop else 1)
            if response is None:
                jobs.leave()
            weights, step = response, step + 1
            continue
        for other in others:
            part = part + other.recv()
        weights = weights - RATE / BATCH * part[:-1]
        step += 1
        jobs.report(step, loss=float(part[-1]) / BATCH)
        leaving = bool(stop) and step < options.steps
        if leaving or step == options.steps:
            jobs.save(step, weights.tobytes())
        for other in others:
            other.send(None if leaving else weights)
        if leaving:
            jobs.leave()


if __name__ == "__main__":
    main()

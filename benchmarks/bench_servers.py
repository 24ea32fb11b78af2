"""Parameter servers: memory against TCP between processes of one machine, and what resizing costs.

python -m benchmarks.bench_servers            # the exchange
python -m benchmarks.bench_servers accuracy   # asynchronous, fixed against resized, over seeds
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

if not all(importlib.util.find_spec(one) for one in ("torch", "fsspec", "sklearn")):
    sys.exit("needs torch, fsspec and scikit-learn: pip install 'shadowprice[train,examples]'")

import numpy as np
import torch
from sklearn.datasets import load_digits
from tests.train.forking import CONTEXT
from tests.train.servers import generations

from shadowprice.training import servers
from shadowprice.training.servers.messages import Message, MessageKind
from shadowprice.training.servers.pairs import (
    accept_shared_memory,
    connect_pair,
    offer_shared_memory,
)

SIZES = (1, 16, 48)
"""Megabytes of a gradient."""

REPEATS = 15
SEEDS = range(4)
EPOCHS, MINIBATCH, CHUNK, HELD = 8, 32, 100, 397


def serve(port: int, size: int) -> None:
    """Take gradients and give parameters, as a server does."""
    store = torch.distributed.TCPStore("127.0.0.1", port, is_master=False)
    link = connect_pair(store, "link", 1, timedelta(seconds=120))
    offer_shared_memory(link, size if size > 0 else 0)
    values = torch.ones(abs(size) // 4)
    while True:
        link.receive()
        link.send(Message(MessageKind.VALUES, payload=values.clone()))


def cpu_of(process: int) -> float:
    """Return the CPU seconds that a process has taken, its kernel's included."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def exchanges(megabytes: int, *, memory: bool) -> tuple[list[float], float]:
    """Return how long it takes to push a gradient and pull parameters, each time.

    And the CPU seconds of both processes for each: what tells them apart on a busy machine.
    """
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    gradient = torch.ones(megabytes * 250_000)
    arguments = (store.port, gradient.nbytes if memory else -gradient.nbytes)
    process = CONTEXT.Process(target=serve, args=arguments, daemon=True)
    process.start()
    link = connect_pair(store, "link", 0, timedelta(seconds=120))
    assert accept_shared_memory(link) is memory
    values = torch.empty_like(gradient)
    found = []
    assert process.pid is not None
    both = (os.getpid(), process.pid)
    taken = -math.fsum(cpu_of(one) for one in both)
    for _ in range(REPEATS):
        began = time.perf_counter()
        link.send(Message(MessageKind.PUSH, payload=gradient))
        link.receive(values)
        found.append(time.perf_counter() - began)
    taken += math.fsum(cpu_of(one) for one in both)
    process.kill()
    process.join()
    return found, taken / REPEATS


def compare_exchange() -> None:
    """Print the table of exchanges."""
    print(f"{'gradient':>9} {'by':>7} {'median':>9} {'best':>9} {'CPU':>9}")
    for megabytes in SIZES:
        for name, memory in (("TCP", False), ("memory", True)):
            found, cpu = exchanges(megabytes, memory=memory)
            middle = statistics.median(found)
            print(
                f"{megabytes:6} MB {name:>7} {1e3 * middle:6.1f} ms {1e3 * min(found):6.1f} ms "
                f"{1e3 * cpu:6.1f} ms",
                flush=True,
            )


def digits() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return scikit-learn's digits: to learn from, and held out."""
    found = load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    points, label = (found.data[order] / 16.0).astype(np.float32), found.target[order]
    return (
        {"x": points[HELD:], "y": label[HELD:]},
        {"x": torch.from_numpy(points[:HELD]), "y": torch.from_numpy(label[:HELD])},
    )


def network() -> torch.nn.Module:
    """Return a small network."""
    return torch.nn.Sequential(torch.nn.Linear(64, 48), torch.nn.ReLU(), torch.nn.Linear(48, 10))


def loss(model: Any, batch: Mapping[str, Any]) -> Any:
    """Return the mean cross-entropy."""
    return torch.nn.functional.cross_entropy(model(batch["x"]), batch["y"])


def learn(data: str, seed: int, result: str) -> None:
    """Be one process of a job."""
    torch.set_num_threads(1)
    recipe = servers.Recipe(
        model=network,
        loss=loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.2),
        data=servers.read(data),
        epochs=EPOCHS,
        minibatch=MINIBATCH,
        seed=seed,
    )
    outcome = servers.run(recipe, servers.Settings(report_every=0.05))
    if outcome is not None and outcome.leads:
        torch.save(outcome.model.state_dict(), result)


def run(folder: Path, plans: list[tuple[int, int]], works: int, **given: Any) -> float:
    """Train through generations; return the most stale gradient's age."""
    folder.mkdir(parents=True)
    reported = folder / "progress.json"
    for number, (workers, ps) in enumerate(plans, start=1):
        begun = generations.Generation(folder, learn, workers, ps, number, **given)
        if number < len(plans):
            until = works * number / len(plans)
            begun.until(
                lambda until=until: (
                    reported.exists() and json.loads(reported.read_text())["minibatches"] >= until
                )
            )
            begun.stop()
        else:
            assert set(begun.ended().values()) == {0}, begun.said()
    return float(json.loads(reported.read_text())["metrics"]["max_staleness"])


def compare_accuracy() -> None:
    """Print accuracy after the same epochs."""
    learnt, held = digits()
    plans = {
        "1 worker": [(1, 1)],
        "3 workers": [(3, 2)],
        "resized": [(1, 1), (4, 2), (2, 3), (3, 1)],
    }
    found: dict[str, list[float]] = {name: [] for name in plans}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = servers.write(str(folder / "data"), learnt, CHUNK)
        works = EPOCHS * sum(-(-one.samples // MINIBATCH) for one in data.chunks)
        for seed in SEEDS:
            for plan, steps in plans.items():
                own = folder / f"{plan}-{seed}"
                result = str(own / "model.pt")
                max_staleness = run(own, steps, works, data=data.url, seed=seed, result=result)
                model = network()
                model.load_state_dict(torch.load(result, weights_only=True))
                with torch.no_grad():
                    right = (model(held["x"]).argmax(dim=1) == held["y"]).double().mean()
                found[plan].append(float(right))
                print(f"seed {seed} {plan:10} {float(right):.4f} max staleness {max_staleness:.0f}")
    for plan, values in found.items():
        spread = statistics.stdev(values)
        print(f"{plan:10} {statistics.mean(values):.4f} +- {spread:.4f} over {len(values)} seeds")


if __name__ == "__main__":
    if sys.argv[1:] == ["accuracy"]:
        compare_accuracy()
    else:
        compare_exchange()

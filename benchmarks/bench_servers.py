"""Parameter servers: exchange by shared memory and by TCP, and accuracy of resized training.

python -m benchmarks.bench_servers            # time to exchange gradients on one machine
python -m benchmarks.bench_servers accuracy   # asynchronous training, fixed and resized, by seed
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

if not all(importlib.util.find_spec(module) for module in ("torch", "fsspec", "sklearn")):
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

SIZES = (1, 16, 48)  # megabytes of a gradient
REPEATS = 15
SEEDS = range(4)
EPOCHS, MINIBATCH, CHUNK = 8, 32, 100  # the last two in samples
HELD_OUT = 397  # samples that measure accuracy


def serve(port: int, size: int) -> None:
    """Receive gradients and send parameters, as a parameter server does.

    ``size`` is the gradient's in bytes; negative to use TCP instead of shared memory.
    """
    store = torch.distributed.TCPStore("127.0.0.1", port, is_master=False)
    link = connect_pair(store, "link", 1, timedelta(seconds=120))
    offer_shared_memory(link, size if size > 0 else 0)
    values = torch.ones(abs(size) // 4)
    while True:
        link.receive()
        link.send(Message(MessageKind.VALUES, payload=values.clone()))


def cpu_seconds(process: int) -> float:
    """Return the processor seconds of a process, in user and kernel mode."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def exchanges(megabytes: int, *, memory: bool) -> tuple[list[float], float]:
    """Return the seconds of each push of a gradient and pull of parameters.

    Also return the mean processor seconds of both processes, which matter on a busy machine.
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
    times = []
    assert process.pid is not None
    processes = (os.getpid(), process.pid)
    cpu = -math.fsum(map(cpu_seconds, processes))
    for _ in range(REPEATS):
        began = time.perf_counter()
        link.send(Message(MessageKind.PUSH, payload=gradient))
        link.receive(values)
        times.append(time.perf_counter() - began)
    cpu += math.fsum(map(cpu_seconds, processes))
    process.kill()
    process.join()
    return times, cpu / REPEATS


def compare_exchange() -> None:
    """Print the table of exchanges."""
    print(f"{'gradient':>9} {'by':>7} {'median':>9} {'best':>9} {'CPU':>9}")
    for megabytes in SIZES:
        for name, memory in (("TCP", False), ("memory", True)):
            times, cpu = exchanges(megabytes, memory=memory)
            median = statistics.median(times)
            print(
                f"{megabytes:6} MB {name:>7} {1e3 * median:6.1f} ms {1e3 * min(times):6.1f} ms "
                f"{1e3 * cpu:6.1f} ms",
                flush=True,
            )


def split_digits() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return scikit-learn's digits as training data and held-out data."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    points, label = (digits.data[order] / 16.0).astype(np.float32), digits.target[order]
    held_out = {
        "x": torch.from_numpy(points[:HELD_OUT]),
        "y": torch.from_numpy(label[:HELD_OUT]),
    }
    return {"x": points[HELD_OUT:], "y": label[HELD_OUT:]}, held_out


def network() -> torch.nn.Module:
    """Return a small network."""
    return torch.nn.Sequential(torch.nn.Linear(64, 48), torch.nn.ReLU(), torch.nn.Linear(48, 10))


def loss(model: Any, batch: Mapping[str, Any]) -> Any:
    """Return the mean cross-entropy."""
    return torch.nn.functional.cross_entropy(model(batch["x"]), batch["y"])


def train(data: str, seed: int, result: str) -> None:
    """Run one process of a job; the leading one writes the trained model."""
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


def run(folder: Path, sizes: list[tuple[int, int]], minibatches: int, **given: Any) -> float:
    """Train with a generation per size, (workers, PS); return the maximum staleness of gradients.

    Generations do equal parts of all ``minibatches``.
    """
    folder.mkdir(parents=True)
    progress = folder / "progress.json"
    for number, (workers, ps) in enumerate(sizes, start=1):
        generation = generations.Generation(folder, train, workers, ps, number, **given)
        if number < len(sizes):
            until = minibatches * number / len(sizes)
            generation.until(
                lambda until=until: (
                    progress.exists() and json.loads(progress.read_text())["minibatches"] >= until
                )
            )
            generation.stop()
        else:
            assert set(generation.ended().values()) == {0}, generation.said()
    return float(json.loads(progress.read_text())["metrics"]["max_staleness"])


def compare_accuracy() -> None:
    """Print the accuracy of fixed and resized training after the same epochs."""
    training_data, held_out = split_digits()
    plans = {
        "1 worker": [(1, 1)],
        "3 workers": [(3, 2)],
        "resized": [(1, 1), (4, 2), (2, 3), (3, 1)],
    }
    accuracies: dict[str, list[float]] = {name: [] for name in plans}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = servers.write(str(folder / "data"), training_data, CHUNK)
        minibatches = EPOCHS * sum(-(-chunk.samples // MINIBATCH) for chunk in data.chunks)
        for seed in SEEDS:
            for plan, sizes in plans.items():
                own = folder / f"{plan}-{seed}"
                result = str(own / "model.pt")
                max_staleness = run(
                    own, sizes, minibatches, data=data.url, seed=seed, result=result
                )
                model = network()
                model.load_state_dict(torch.load(result, weights_only=True))
                with torch.no_grad():
                    is_right = model(held_out["x"]).argmax(dim=1) == held_out["y"]
                accuracy = float(is_right.double().mean())
                accuracies[plan].append(accuracy)
                print(f"seed {seed} {plan:10} {accuracy:.4f} max staleness {max_staleness:.0f}")
    for plan, values in accuracies.items():
        spread = statistics.stdev(values)
        print(f"{plan:10} {statistics.mean(values):.4f} +- {spread:.4f} over {len(values)} seeds")


if __name__ == "__main__":
    if sys.argv[1:] == ["accuracy"]:
        compare_accuracy()
    else:
        compare_exchange()

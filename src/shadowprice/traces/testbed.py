"""The testbed of OASiS's section V-B: nine servers, and twelve jobs of six model families.

The paper states: two servers of 8 cores, 32 GB and 1.5 TB for parameter servers; seven of 32 cores,
80 GB and 600 GB for workers, four of them with a GPU; 1 and 10 GbE, both with two ports; containers
of 0 or 1 GPU, 1 to 5 cores, 2 to 10 GB and 1 to 3 Gbps; 200 images in chunks of 20 or 30, 10 per
mini-batch; 4 to 30 epochs; ten slots of 20 minutes; twelve jobs that arrive in the first nine slots
and take 40 minutes to two hours each; utilities as in the simulations.

The rest is chosen here. The two 10 GbE ports carry the training (20 Gbps). A job's 40 minutes to
two hours are those of one worker, so that a mini-batch of ten images takes about ten seconds on a
few cores, as such models do; with the time of all workers it would take minutes, and parameter
servers would fit a sixth of the work. A parameter server has at least the bandwidth of a worker, as
(6) requires. Families take turns. Gradients are four bytes per parameter of the published
architectures: AlexNet 61.1 M (Krizhevsky et al. 2012), ResNet-50, 101 and 152 25.6, 44.5 and 60.2 M
(He et al. 2016), VGG-11 132.9 M (Simonyan and Zisserman 2015), Inception-BN 11.3 M (Ioffe and
Szegedy 2015).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from fractions import Fraction
from itertools import count
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.amounts import MILLI
from shadowprice.core.cluster import BANDWIDTH
from shadowprice.traces.synthesis import CLASSES, draw_sigmoids
from shadowprice.traces.workload import NANO, JobProfile, Workload

JOBS: Final = 12
SLOTS: Final = 10
SLOT: Final = Fraction(1200)
FAMILIES: Final[Mapping[str, int]] = {
    "alexnet": 61_100_000,
    "resnet-50": 25_600_000,
    "resnet-101": 44_500_000,
    "resnet-152": 60_200_000,
    "vgg-11": 132_900_000,
    "inception-bn": 11_300_000,
}
"""Number of parameters of each model."""

IMAGES: Final = 200
CHUNK_IMAGES: Final = (20, 30)
BATCH_IMAGES: Final = 10
EPOCHS: Final = (4, 30)
MINUTES: Final = (40.0, 120.0)
CORES: Final = (1, 5)
MEMORY_GB: Final = (2, 10)
MBPS: Final = (1000, 3000)
TARGET: Final = (1.0, 15.0)
MIN_STEP_SECONDS: Final = 0.1
"""Minimum computing time of a mini-batch in seconds; long communication reduces epochs."""


def generate_testbed(
    jobs: int,
    slots: int,
    slot_seconds: Fraction,
    *,
    value: tuple[float, float],
    shares: tuple[float, float],
    seed: int,
) -> Workload:
    """Draw the testbed's jobs in order of arrival, called ``alexnet-0``, ``resnet-50-0``, ...

    Jobs arrive in any of ``slots`` slots but the last. ``value`` is the range of the priority.
    ``shares`` are those of time-insensitive and time-sensitive jobs.
    """
    rng = np.random.default_rng([seed, 33])
    arrival = np.sort(rng.integers(0, max(slots - 1, 1), jobs))
    families = [list(FAMILIES)[at % len(FAMILIES)] for at in range(jobs)]
    families = [families[at] for at in rng.permutation(jobs)]
    images = rng.choice(CHUNK_IMAGES, jobs)
    chunks = -(-IMAGES // images)
    minibatches = images // BATCH_IMAGES
    gradients = np.array([4 * FAMILIES[family] for family in families])
    worker_mbps = rng.integers(*MBPS, jobs, endpoint=True)
    ps_mbps = rng.integers(worker_mbps, MBPS[1], endpoint=True)
    sending = 16.0 * gradients / (worker_mbps * 1e6)
    whole = 60.0 * rng.uniform(*MINUTES, jobs)
    steps = chunks * minibatches
    max_epochs = np.floor(whole / (steps * (sending + MIN_STEP_SECONDS))).astype(np.int64)
    epochs = np.minimum(
        rng.integers(*EPOCHS, jobs, endpoint=True), np.maximum(max_epochs, EPOCHS[0])
    )
    tau = np.maximum(whole / (epochs * steps) - sending, MIN_STEP_SECONDS)
    drawn, decay, classes = draw_sigmoids(rng, jobs, shares)
    low, high = value
    gpus = rng.integers(0, 1, jobs, endpoint=True)
    sides = [_demands(rng, rates) for rates in (worker_mbps, ps_mbps)]
    profiles = [
        JobProfile(
            worker={**({"gpu": MILLI} if gpus[at] else {}), **sides[0][at]},
            ps=sides[1][at],
            gradient=int(gradients[at]),
        )
        for at in range(jobs)
    ]
    numbers: defaultdict[str, Iterator[int]] = defaultdict(count)
    return Workload(
        names=[f"{family}-{next(numbers[family])}" for family in families],
        tenants=[None] * jobs,
        arrival=np.array([int(int(at) * slot_seconds * NANO) for at in arrival], dtype=np.int64),
        epochs=epochs,
        chunks=chunks,
        minibatches=minibatches,
        minibatch_time=np.rint(tau * NANO).astype(np.int64),
        min_workers=np.ones(jobs, dtype=np.int64),
        max_workers=chunks.copy(),
        profiles=profiles,
        kind=["sigmoid"] * jobs,
        value=low + (drawn - 1.0) / 99.0 * (high - low),
        decay=decay,
        target=rng.uniform(*TARGET, jobs),
        labels=[
            {"class": CLASSES[kind], "family": family}
            for kind, family in zip(classes, families, strict=True)
        ],
        slot_seconds=slot_seconds,
    )


def _demands(rng: np.random.Generator, mbps: NDArray[np.int64]) -> list[dict[str, int]]:
    cores = rng.integers(*CORES, len(mbps), endpoint=True)
    memory = rng.integers(*MEMORY_GB, len(mbps), endpoint=True)
    return [
        {"cpu": int(core) * MILLI, "memory": int(size) * 10**9, BANDWIDTH: int(rate) * 10**6}
        for core, size, rate in zip(cores, memory, mbps, strict=True)
    ]


def oasis_testbed_cluster(*, slot_seconds: Fraction = SLOT, horizon: int = SLOTS) -> dict[str, Any]:
    """Return the nine servers in the format of a cluster file."""
    large = {"cpu": 32, "memory": "80GB", "storage": "600GB", BANDWIDTH: "20Gbps"}
    small = {"cpu": 8, "memory": "32GB", "storage": "1500GB", BANDWIDTH: "20Gbps"}
    return {
        "slot": f"{float(slot_seconds):.15g}s",
        "horizon": horizon,
        "servers": [
            {"name": "gpu", "count": 4, "role": "worker", "capacity": {"gpu": 1, **large}},
            {"name": "cpu", "count": 3, "role": "worker", "capacity": large},
            {"name": "ps", "count": 2, "role": "ps", "capacity": small},
        ],
    }

"""Generated workloads and matching clusters.

`paper` draws uniformly from the ranges of OASiS's evaluation (section V-A), as printed. Its median
job can't finish within 15 slots even alone with all its workers (papers' README, reading 6).

`calibrated` only draws the mini-batch time differently: log-uniformly in [1e-6, 0.01] slots. With
slots of 20 minutes, its median job can finish in 14 slots, of which communication takes 9.

`chunk` draws as printed, but takes tau as the time of a data chunk instead of a mini-batch. It is
meant for slots of an hour ("less than a minute" a chunk, "about a second" a mini-batch, "one hour
or longer" a slot, section III-A).

`testbed` draws the jobs of OASiS's own cluster (`testbed`), and `pdors` draws from the ranges of
PD-ORS's evaluation (`colocation`).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from shadowprice.core import bounds
from shadowprice.core.amounts import MAX_AMOUNT, MILLI
from shadowprice.core.cluster import BANDWIDTH
from shadowprice.core.errors import InputError
from shadowprice.traces.arrivals import Burstiness, Pattern, arrival_times
from shadowprice.traces.colocation import generate_colocated
from shadowprice.traces.synthesis import CLASSES, draw_sigmoids
from shadowprice.traces.testbed import generate_testbed
from shadowprice.traces.workload import NANO, JobProfile, Workload

Preset = Literal["paper", "chunk", "calibrated", "testbed", "pdors"]
PRESETS: Final = ("paper", "chunk", "calibrated", "testbed", "pdors")

# OASiS section V-A; tau in time slots.
TAU: Final = (0.001, 0.1)
CALIBRATED_TAU: Final = (1e-6, 0.01)
EPOCHS: Final = (50, 200)
CHUNKS: Final = (5, 100)
MINIBATCHES: Final = (10, 100)
GRADIENT_MB: Final = (30, 575)
TARGET: Final = (1.0, 15.0)

# EC2 capacities: GPU, vCPU, memory GiB. The paper gives C4 to workers and P2 and G3 to parameter
# servers; workers need up to 4 GPUs and C4 has none, so the two are evidently swapped in print.
# These are the largest sizes of each family; smaller ones can't hold the largest demands.
WORKER_INSTANCES: Final = {"p2.16xlarge": (16, 64, 732), "g3.16xlarge": (4, 64, 488)}
PS_INSTANCES: Final = {"c4.8xlarge": (0, 36, 60)}
SERVER_GBPS: Final = (20, 50)
# These instances have no local disk (EBS), so their storage is ample.
STORAGE: Final = "1TB"

MAX_UNITS_PER_SERVER: Final = 10_000
"""Maximum number of workers that a server without GPUs is sized for."""


@dataclass(frozen=True, slots=True)
class GeneratorOptions:
    """Options of a generated workload."""

    preset: Preset = "paper"
    """Ranges, see the module. `pdors` has its own utilities, without the shares and the value
    below; `testbed` has its own arrivals."""
    jobs: int = 100
    """Number of jobs."""
    slots: int = 300
    """Timespan T: arrivals lie in its first ``arrival_share``."""
    slot_seconds: Fraction = Fraction(1200)
    """Length of a slot. The paper's testbed has 20 minutes; its simulation states none. It changes
    only communication, because everything else is drawn in slots."""
    arrivals: Pattern = "poisson"
    """Pattern of arrivals. The paper takes the Google cluster trace, which isn't available here."""
    arrival_share: float = 1.0
    """Share of the timespan in which jobs arrive."""
    burstiness: Burstiness | None = None
    """Parameters of bursty arrivals; its hours are then hours of simulated time."""
    insensitive: float = 0.10
    """Share of time-insensitive jobs."""
    sensitive: float = 0.55
    """Share of time-sensitive jobs."""
    value: tuple[float, float] = (1.0, 100.0)
    """Range of the priority (Fig. 5 narrows it)."""
    internal_ratio: float = 40.0
    """Internal over external bandwidth, for `pdors`; with 1, co-location gains nothing."""

    def __post_init__(self) -> None:
        if self.preset not in PRESETS:
            raise InputError(f"no preset {self.preset!r}: write {' or '.join(PRESETS)}")
        if self.jobs < 1 or self.slots < 1:
            raise InputError("jobs and slots must be at least 1")
        bounds.JOBS.check(self.jobs, "jobs")
        bounds.HORIZON.check(self.slots, "slots")
        bounds.SECONDS.check(float(self.slots * self.slot_seconds), "the timespan")
        if not 0 < self.arrival_share <= 1:
            raise InputError("arrival_share must be above 0 and at most 1")
        if self.insensitive < 0 or self.sensitive < 0 or self.insensitive + self.sensitive > 1:
            raise InputError("insensitive and sensitive are shares, at most 1 together")
        if not 0 <= self.value[0] <= self.value[1]:
            raise InputError("value is a range of numbers from 0 up")
        if not 1 <= self.internal_ratio < 1e6:
            raise InputError("internal_ratio is at least 1: co-location never slows a job down")


def generate(options: GeneratorOptions, *, seed: int = 0) -> Workload:
    """Draw a workload in order of arrival; its jobs are called ``job-0``, ``job-1``, ..."""
    if options.preset == "pdors":
        return generate_colocated(
            options.jobs,
            options.slots,
            options.slot_seconds,
            arrivals=options.arrivals,
            arrival_share=options.arrival_share,
            burstiness=options.burstiness,
            internal_ratio=options.internal_ratio,
            seed=seed,
        )
    if options.preset == "testbed":
        return generate_testbed(
            options.jobs,
            options.slots,
            options.slot_seconds,
            value=options.value,
            shares=(options.insensitive, options.sensitive),
            seed=seed,
        )
    rng = np.random.default_rng(seed)
    count = options.jobs
    slot = options.slot_seconds
    # An arrival inside slot t is moved to its start, so that the job may run in slot t.
    span = float(options.slots * options.arrival_share * slot)
    times = arrival_times(options.arrivals, count, span, rng, options.burstiness)
    slots = np.minimum((times / float(slot)).astype(np.int64), options.slots - 1)

    def whole(low: int, high: int) -> NDArray[np.int64]:
        return rng.integers(low, high, count, endpoint=True)

    epochs, chunks, minibatches = whole(*EPOCHS), whole(*CHUNKS), whole(*MINIBATCHES)
    if options.preset == "paper":
        tau = rng.uniform(*TAU, count)
    elif options.preset == "chunk":
        tau = rng.uniform(*TAU, count) / minibatches
    else:
        shortest, longest = CALIBRATED_TAU
        tau = shortest * (longest / shortest) ** rng.random(count)
    profiles = _profiles(rng, count)
    value, decay, classes = draw_sigmoids(rng, count, (options.insensitive, options.sensitive))
    low, high = options.value
    # Rescaling instead of drawing again keeps every other draw of the seed.
    value = low + (value - 1.0) / 99.0 * (high - low)
    slot_nanoseconds = slot * NANO
    return Workload(
        names=[f"job-{at}" for at in range(count)],
        tenants=[None] * count,
        # Rounding down keeps an arrival at the start of a slot in that slot.
        arrival=np.array([int(int(at) * slot_nanoseconds) for at in slots], dtype=np.int64),
        epochs=epochs,
        chunks=chunks,
        minibatches=minibatches,
        minibatch_time=np.maximum(1, np.rint(tau * float(slot_nanoseconds))).astype(np.int64),
        min_workers=np.ones(count, dtype=np.int64),
        max_workers=chunks.copy(),
        profiles=profiles,
        kind=["sigmoid"] * count,
        value=value,
        decay=decay,
        target=rng.uniform(*TARGET, count),
        labels=[{"class": CLASSES[at]} for at in classes],
        slot_seconds=slot,
    )


def _profiles(rng: np.random.Generator, count: int) -> list[JobProfile]:
    """Draw the demands of section V-A, different for each job."""

    def whole(low: int, high: int, unit: int) -> list[int]:
        return [int(number) * unit for number in rng.integers(low, high, count, endpoint=True)]

    def rates(low: float, high: float) -> list[int]:
        return [round(number) * 10**6 for number in rng.uniform(low, high, count)]

    gpus = whole(0, 4, MILLI)
    gradients = whole(*GRADIENT_MB, 10**6)
    worker_rates, ps_rates = rates(100, 5000), rates(5000, 20000)

    def share() -> list[tuple[int, int, int]]:
        parts = (whole(1, 10, MILLI), whole(2, 32, 10**9), whole(5, 10, 10**9))
        return list(zip(*parts, strict=True))

    def demand(part: tuple[int, int, int], rate: int) -> dict[str, int]:
        return {"cpu": part[0], "memory": part[1], "storage": part[2], BANDWIDTH: rate}

    rows = zip(gpus, share(), worker_rates, share(), ps_rates, gradients, strict=True)
    return [
        JobProfile(
            worker={**({"gpu": gpu} if gpu else {}), **demand(worker, worker_rate)},
            ps=demand(ps, ps_rate),
            gradient=gradient,
        )
        for gpu, worker, worker_rate, ps, ps_rate, gradient in rows
    ]


def paper_cluster(
    *,
    workers: int = 50,
    parameter_servers: int = 50,
    slot_seconds: Fraction = Fraction(1200),
    horizon: int = 300,
    seed: int = 0,
) -> dict[str, Any]:
    """Return OASiS's evaluation cluster in the format of a cluster file.

    ``workers`` and ``parameter_servers`` are H and K of the paper. Servers for workers are random
    EC2 P2 or G3 instances, those for parameter servers C4; the paper swaps the two, see the module.
    Every server's bandwidth is drawn from 20 to 50 Gbps. ``horizon`` is in slots.
    """
    rng = np.random.default_rng([seed, 1])
    servers = []
    for prefix, role, count, instances in (
        ("gpu", "worker", workers, WORKER_INSTANCES),
        ("net", "ps", parameter_servers, PS_INSTANCES),
    ):
        kinds = list(instances.values())
        for index in range(count):
            gpu, cpu, memory = kinds[int(rng.integers(len(kinds)))]
            servers.append(
                {
                    "name": f"{prefix}-{index}",
                    "role": role,
                    "capacity": {
                        **({"gpu": gpu} if gpu else {}),
                        "cpu": cpu,
                        "memory": f"{memory}GiB",
                        "storage": STORAGE,
                        BANDWIDTH: f"{int(rng.integers(*SERVER_GBPS, endpoint=True))}Gbps",
                    },
                }
            )
    return {"slot": f"{slot_text(slot_seconds)}", "horizon": horizon, "servers": servers}


def cluster_for(
    workload: Workload, *, load: float = 1.0, horizon: int = 300, gpus_per_server: int = 8
) -> dict[str, Any]:
    """Return a cluster sized to a traced workload, in the format of a cluster file.

    ``load`` is the jobs' GPU-time (core-time if no job uses GPUs) over that of the cluster between
    the first and the last arrival.

    A worker server has ``gpus_per_server`` GPUs and 25 Gbps, and 8 cores and 32 GiB for each GPU.
    These amounts grow if one worker requests more. The bandwidth also grows if workers on every GPU
    request more. Without GPUs, a server has memory and bandwidth for as many workers as fit on its
    cores.

    There are at least as many servers as the widest job needs with its minimum number of workers.
    If jobs use parameter servers, equally many servers are added for those. They fit one parameter
    server for each GPU, so that GPUs are the scarce resource.
    """
    if not load > 0:
        raise InputError(f"load={load}: write a number above 0")
    bounds.OFFERED_LOAD.check(load, "load")
    counted = "gpu" if any(item.worker.get("gpu") for item in workload.profiles) else "cpu"
    requested = np.array([profile.worker.get(counted, 0) / MILLI for profile in workload.profiles])
    seconds = worker_seconds(workload)
    span = max(float(np.ptp(workload.arrival)) / NANO, float(workload.slot_seconds))
    needed_units = float((requested * seconds).sum()) / (span * load)
    widest = float((requested * workload.min_workers).max())
    maximum = {
        name: max(profile.worker.get(name, 0) for profile in workload.profiles)
        for name in ("gpu", "cpu", "memory", BANDWIDTH)
    }
    gpus_per_server = max(gpus_per_server, -(-maximum["gpu"] // MILLI))
    cores = max(8 * gpus_per_server, -(-maximum["cpu"] // MILLI))
    if counted == "gpu":
        places, memory = gpus_per_server, 32 * gpus_per_server
        capacity: dict[str, Any] = {"gpu": gpus_per_server}
    else:
        places = min(int(cores / requested.min()), MAX_UNITS_PER_SERVER)
        memory, capacity = min(places * -(-maximum["memory"] // 2**30), MAX_AMOUNT >> 30), {}
    needed = float(np.ceil(max(needed_units, widest) / (capacity.get("gpu") or cores)))
    bounds.SERVERS.check(needed, "the cluster sized to the jobs", "raise the load")
    count = max(1, int(needed))
    capacity |= {
        "cpu": cores,
        "memory": f"{max(memory, -(-maximum['memory'] // 2**30))}GiB",
        BANDWIDTH: f"{max(25, -(-places * maximum[BANDWIDTH] // 10**9))}Gbps",
    }
    servers = [{"name": counted, "count": count, "role": "worker", "capacity": capacity}]
    if any(profile.ps is not None for profile in workload.profiles):
        servers.append(
            {
                "name": "net",
                "count": count,
                "role": "ps",
                "capacity": _ps_capacity(workload, places),
            }
        )
    return {
        "slot": slot_text(workload.slot_seconds),
        "horizon": horizon,
        "servers": servers,
    }


def _ps_capacity(workload: Workload, places: int) -> dict[str, Any]:
    """Return the capacity of a server for ``places`` of the largest parameter servers."""
    demands = [profile.ps for profile in workload.profiles if profile.ps is not None]
    maximum = {
        name: max(ps.get(name, 0) for ps in demands) for name in ("cpu", "memory", BANDWIDTH)
    }
    return {
        "cpu": -(-places * maximum["cpu"] // MILLI),
        "memory": f"{-(-places * maximum['memory'] // 2**30)}GiB",
        BANDWIDTH: f"{-(-places * maximum[BANDWIDTH] // 10**9)}Gbps",
    }


def worker_seconds(workload: Workload) -> NDArray[np.float64]:
    """Return the worker-seconds of each job; with a measured curve, at its minimum workers."""
    seconds = np.empty(len(workload))
    work = workload.work
    for index, profile in enumerate(workload.profiles):
        if profile.curve is None:
            bandwidth = profile.worker.get(BANDWIDTH, 0)
            comm = 16 * profile.gradient / bandwidth if bandwidth else 0.0
            seconds[index] = work[index] * (workload.minibatch_time[index] / NANO + comm)
        else:
            workers_needed = min(
                workers for workers in profile.curve if workers >= workload.min_workers[index]
            )
            seconds[index] = work[index] / profile.curve[workers_needed] * workers_needed
    return seconds


def slot_text(seconds: Fraction) -> str:
    """Format a slot length for a cluster file."""
    if seconds.denominator == 1 and seconds % 60 == 0:
        return f"{seconds // 60}min"
    return f"{float(seconds)!r}s"

"""Generated workloads and matching clusters.

`paper` draws uniformly from the ranges of OASiS's evaluation (section V-A), as printed. Its median
job can't finish within 15 slots even alone with all its workers.

`calibrated` only draws the mini-batch time differently: log-uniformly in [1e-6, 0.01] slots. With
slots of 20 minutes, its median job can finish in 14 slots, of which communication takes 9.

`chunk` draws as printed, but takes tau as the time of a data chunk instead of a mini-batch. It is
meant for slots of an hour ("less than a minute" a chunk, "about a second" a mini-batch, "one hour
or longer" a slot, section III-A).

`testbed` draws the jobs of OASiS's own cluster: nine servers, and twelve jobs of six model
families. Section V-B states: two servers of 8 cores, 32 GB and 1.5 TB for parameter servers; seven
of 32 cores, 80 GB and 600 GB for workers, four of them with a GPU; 1 and 10 GbE, both with two
ports; containers of 0 or 1 GPU, 1 to 5 cores, 2 to 10 GB and 1 to 3 Gbps; 200 images in chunks of
20 or 30, 10 per mini-batch; 4 to 30 epochs; ten slots of 20 minutes; twelve jobs that arrive in the
first nine slots and take 40 minutes to two hours each; utilities as in the simulations. The rest is
chosen here. The two 10 GbE ports carry the training (20 Gbps). A job's 40 minutes to two hours are
those of one worker, so that a mini-batch of ten images takes about ten seconds on a few cores, as
such models do. If all workers together took that time, a mini-batch would take minutes, and the
parameter servers would have capacity for only a sixth of the work. A parameter server has at least
the bandwidth of a worker, as (6) requires. Families are equally frequent, in random order.
Gradients are four bytes per parameter of the published architectures: AlexNet 61.1 M (Krizhevsky et
al. 2012), ResNet-50, 101 and 152 25.6, 44.5 and 60.2 M (He et al. 2016), VGG-11 132.9 M (Simonyan
and Zisserman 2015), Inception-BN 11.3 M (Ioffe and Szegedy 2015).

`pdors` draws jobs that train faster on one machine. Yu's thesis (section 4.1) draws everything
uniformly. Jobs have 50 to 150 epochs, 5 to 20 chunks, 20 to 40 mini-batches per chunk, gradients of
50 to 100 and mini-batches of 0.01 to 0.05. Bandwidths are 100 Mbps to 4 Gbps for workers and 4 to
20 Gbps for parameter servers. A worker and a parameter server each request 0 to 4 GPUs, 2 to 30 GB
of memory and 4 to 8 GB of storage. The utility is 1 / (1 + duration), and the internal bandwidth is
40 times the external one. The thesis states no unit of the gradient and of the mini-batch time, no
slot length and no machine. Here the units are megabytes and seconds. At the middle of the ranges, a
mini-batch then computes for 30 ms and communicates for 0.6 s with external traffic. Co-location
therefore gains as much as Fig. 3.12 shows. With 20-minute slots, and mini-batches counted in slots
as in OASiS, communication would only be 5 % of a step. Machines are EC2's P2 and G3, as for OASiS;
arrivals follow `arrivals`.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping
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
from shadowprice.traces.synthesis import CLASSES, draw_sigmoids
from shadowprice.traces.workload import NANO, JobProfile, Workload

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Preset = Literal["paper", "chunk", "calibrated", "testbed", "pdors"]
PRESETS: Final = ("paper", "chunk", "calibrated", "testbed", "pdors")
TAU: Final = (0.001, 0.1)  # mini-batch time in slots, OASiS section V-A
CALIBRATED_TAU: Final = (1e-6, 0.01)  # in slots
TARGET: Final = (1.0, 15.0)  # in slots

# EC2 capacities: GPU, vCPU, memory GiB. The paper gives C4 to workers and P2 and G3 to parameter
# servers; workers need up to 4 GPUs and C4 has none, so the two are evidently swapped in print.
# These are the largest sizes of each family; smaller ones can't hold the largest demands.
WORKER_INSTANCES: Final = {"p2.16xlarge": (16, 64, 732), "g3.16xlarge": (4, 64, 488)}
PS_INSTANCES: Final = {"c4.8xlarge": (0, 36, 60)}
SERVER_GBPS: Final = (20, 50)
# These instances have no local disk (EBS), so their storage is ample.
STORAGE: Final = "1TB"

TESTBED_FAMILIES: Final[Mapping[str, int]] = {
    "alexnet": 61_100_000,
    "resnet-50": 25_600_000,
    "resnet-101": 44_500_000,
    "resnet-152": 60_200_000,
    "vgg-11": 132_900_000,
    "inception-bn": 11_300_000,
}
"""Number of parameters of each model."""

MIN_STEP_SECONDS: Final = 0.1
"""Minimum computing time of a mini-batch of the testbed; jobs with more communication have fewer
epochs."""

# GPUs and GiB of memory of the largest P2 and G3; they have no local disks (EBS).
PDORS_MACHINES: Final = ((16, 732), (4, 488))
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
    """Length of a slot. The paper's testbed has 20 minutes; its simulation states none. In
    `paper`, `chunk` and `calibrated`, computing times and arrivals scale with it. There it only
    affects communication, and bursty arrivals, which follow hours."""
    arrivals: Pattern = "poisson"
    """Pattern of arrivals. The paper takes the Google cluster trace, which isn't available here."""
    arrival_share: float = 1.0
    """Share of the timespan in which jobs arrive."""
    burstiness: Burstiness | None = None
    """Parameters of bursty arrivals; None for the defaults. Hours are hours of simulated time."""
    insensitive: float = 0.10
    """Share of time-insensitive jobs."""
    sensitive: float = 0.55
    """Share of time-sensitive jobs."""
    value: tuple[float, float] = (1.0, 100.0)
    """Range of the utility's value, the priority of OASiS; its Fig. 5 also has narrower ranges."""
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


TESTBED: Final = GeneratorOptions("testbed", jobs=12, slots=10, slot_seconds=Fraction(1200))


def generate(options: GeneratorOptions, *, seed: int = 0) -> Workload:
    """Draw a workload in order of arrival; its jobs are called ``job-0``, ``job-1``, ...

    Jobs of `testbed` are called after their families: ``alexnet-0``, ``resnet-50-0``, ...
    """
    # A second number in a seed separates the random numbers of presets and clusters.
    if options.preset == "pdors":
        return _generate_pdors(options, np.random.default_rng([seed, 31]))
    if options.preset == "testbed":
        return _generate_testbed(options, np.random.default_rng([seed, 33]))
    return _generate_oasis(options, np.random.default_rng(seed))


def _common_columns(options: GeneratorOptions, slots: Ints, chunks: Ints) -> dict[str, Any]:
    """Return columns of jobs that arrive at slot starts, with at most one worker per chunk."""
    jobs, slot_nanoseconds = options.jobs, options.slot_seconds * NANO
    return {
        "names": [f"job-{index}" for index in range(jobs)],
        "tenants": [None] * jobs,
        # Rounding down keeps an arrival at the start of a slot in that slot.
        "arrival": np.array([int(int(slot) * slot_nanoseconds) for slot in slots], dtype=np.int64),
        "chunks": chunks,
        "min_workers": np.ones(jobs, dtype=np.int64),
        "max_workers": chunks.copy(),
        "slot_seconds": options.slot_seconds,
    }


def _arrival_slots(options: GeneratorOptions, rng: np.random.Generator) -> Ints:
    """Draw the slots at whose beginning jobs arrive, so that they may run in them."""
    slot = options.slot_seconds
    span = float(options.slots * options.arrival_share * slot)
    times = arrival_times(options.arrivals, options.jobs, span, rng, options.burstiness)
    return np.minimum((times / float(slot)).astype(np.int64), options.slots - 1)


def _generate_oasis(options: GeneratorOptions, rng: np.random.Generator) -> Workload:
    jobs, slot_nanoseconds = options.jobs, float(options.slot_seconds * NANO)
    slots = _arrival_slots(options, rng)
    epochs, chunks, minibatches = (
        rng.integers(low, high, jobs, endpoint=True)
        for low, high in ((50, 200), (5, 100), (10, 100))
    )
    if options.preset == "paper":
        tau = rng.uniform(*TAU, jobs)
    elif options.preset == "chunk":
        tau = rng.uniform(*TAU, jobs) / minibatches
    else:
        shortest, longest = CALIBRATED_TAU
        tau = shortest * (longest / shortest) ** rng.random(jobs)
    profiles = _oasis_profiles(rng, jobs)
    value, decay, classes = _draw_sigmoids(options, rng)
    return Workload(
        **_common_columns(options, slots, chunks),
        epochs=epochs,
        minibatches=minibatches,
        minibatch_time=np.maximum(1, np.rint(tau * slot_nanoseconds)).astype(np.int64),
        profiles=profiles,
        kind=["sigmoid"] * jobs,
        value=value,
        decay=decay,
        target=rng.uniform(*TARGET, jobs),
        labels=[{"class": name} for name in classes],
    )


def _draw_sigmoids(
    options: GeneratorOptions, rng: np.random.Generator
) -> tuple[Floats, Floats, list[str]]:
    """Draw values, decays and names of classes in the ranges of the options."""
    shares = (options.insensitive, options.sensitive)
    value, decay, classes = draw_sigmoids(rng, options.jobs, shares)
    low, high = options.value
    # From [1, 100]. Rescaling instead of drawing again keeps every other draw of the seed.
    return low + (value - 1.0) / 99.0 * (high - low), decay, [CLASSES[index] for index in classes]


def _oasis_profiles(rng: np.random.Generator, count: int) -> list[JobProfile]:
    """Draw the demands of section V-A, different for each job."""

    def integers(low: int, high: int, unit: int) -> list[int]:
        return [int(number) * unit for number in rng.integers(low, high, count, endpoint=True)]

    def rates(low_mbps: float, high_mbps: float) -> list[int]:
        return [round(number) * 10**6 for number in rng.uniform(low_mbps, high_mbps, count)]

    gpus = integers(0, 4, MILLI)
    gradients = integers(30, 575, 10**6)
    worker_rates, ps_rates = rates(100, 5000), rates(5000, 20000)

    def cpu_memory_storage() -> list[tuple[int, int, int]]:
        columns = (integers(1, 10, MILLI), integers(2, 32, 10**9), integers(5, 10, 10**9))
        return list(zip(*columns, strict=True))

    def demand(amounts: tuple[int, int, int], rate: int) -> dict[str, int]:
        return {"cpu": amounts[0], "memory": amounts[1], "storage": amounts[2], BANDWIDTH: rate}

    workers, servers = cpu_memory_storage(), cpu_memory_storage()
    rows = zip(gpus, workers, worker_rates, servers, ps_rates, gradients, strict=True)
    return [
        JobProfile(
            worker={**({"gpu": gpu} if gpu else {}), **demand(worker, worker_rate)},
            ps=demand(ps, ps_rate),
            gradient=gradient,
        )
        for gpu, worker, worker_rate, ps, ps_rate, gradient in rows
    ]


def _generate_testbed(options: GeneratorOptions, rng: np.random.Generator) -> Workload:
    """Draw the testbed's jobs, which arrive in any slot but the last."""
    jobs = options.jobs
    slots = np.sort(rng.integers(0, max(options.slots - 1, 1), jobs))
    families = [list(TESTBED_FAMILIES)[index % len(TESTBED_FAMILIES)] for index in range(jobs)]
    families = [families[index] for index in rng.permutation(jobs)]
    images = rng.choice((20, 30), jobs)  # in a chunk; the data set has 200, a mini-batch has 10
    chunks, minibatches = -(-200 // images), images // 10
    gradients = np.array([4 * TESTBED_FAMILIES[family] for family in families])
    worker_mbps = rng.integers(1000, 3000, jobs, endpoint=True)
    ps_mbps = rng.integers(worker_mbps, 3000, endpoint=True)
    comm = 2 * 8.0 * gradients / (worker_mbps * 1e6)
    seconds = 60.0 * rng.uniform(40.0, 120.0, jobs)
    steps = chunks * minibatches
    min_epochs, max_epochs = 4, 30
    fitting_epochs = np.floor(seconds / (steps * (comm + MIN_STEP_SECONDS))).astype(np.int64)
    epochs = rng.integers(min_epochs, max_epochs, jobs, endpoint=True)
    epochs = np.minimum(epochs, np.maximum(fitting_epochs, min_epochs))
    tau = np.maximum(seconds / (epochs * steps) - comm, MIN_STEP_SECONDS)
    value, decay, classes = _draw_sigmoids(options, rng)
    gpus = rng.integers(0, 1, jobs, endpoint=True)
    workers, servers = (_testbed_demands(rng, rates) for rates in (worker_mbps, ps_mbps))
    numbers: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)
    columns = _common_columns(options, slots, chunks)
    columns["names"] = [f"{family}-{next(numbers[family])}" for family in families]
    return Workload(
        **columns,
        epochs=epochs,
        minibatches=minibatches,
        minibatch_time=np.rint(tau * NANO).astype(np.int64),
        profiles=[
            JobProfile({**({"gpu": MILLI} if gpu else {}), **worker}, ps, int(gradient))
            for gpu, worker, ps, gradient in zip(gpus, workers, servers, gradients, strict=True)
        ],
        kind=["sigmoid"] * jobs,
        value=value,
        decay=decay,
        target=rng.uniform(*TARGET, jobs),
        labels=[
            {"class": name, "family": family}
            for name, family in zip(classes, families, strict=True)
        ],
    )


def _testbed_demands(rng: np.random.Generator, mbps: Ints) -> list[dict[str, int]]:
    cores = rng.integers(1, 5, len(mbps), endpoint=True)
    memory = rng.integers(2, 10, len(mbps), endpoint=True)
    return [
        {"cpu": int(core) * MILLI, "memory": int(size) * 10**9, BANDWIDTH: int(rate) * 10**6}
        for core, size, rate in zip(cores, memory, mbps, strict=True)
    ]


def _generate_pdors(options: GeneratorOptions, rng: np.random.Generator) -> Workload:
    """Draw PD-ORS's jobs; the internal bandwidth changes no draw."""
    jobs = options.jobs
    slots = _arrival_slots(options, rng)

    def integers(low: int, high: int, rows: tuple[int, ...] = ()) -> Ints:
        return rng.integers(low, high, (*rows, jobs), endpoint=True)

    epochs, chunks, minibatches = integers(50, 150), integers(5, 20), integers(20, 40)
    milliseconds = rng.uniform(10.0, 50.0, jobs)
    gradients = integers(50, 100)
    worker_mbps, ps_mbps = integers(100, 4_000), integers(4_000, 20_000)
    # Row 0 is for workers, row 1 for parameter servers.
    gpus, memory, storage = (integers(low, high, (2,)) for low, high in ((0, 4), (2, 30), (4, 8)))

    def demand(row: int, index: int, mbps: int) -> dict[str, int]:
        gpu = int(gpus[row, index]) * MILLI
        return {
            **({"gpu": gpu} if gpu else {}),
            "memory": int(memory[row, index]) * 10**9,
            "storage": int(storage[row, index]) * 10**9,
            BANDWIDTH: mbps * 10**6,
        }

    return Workload(
        **_common_columns(options, slots, chunks),
        epochs=epochs,
        minibatches=minibatches,
        minibatch_time=np.rint(milliseconds * 1e6).astype(np.int64),
        profiles=[
            JobProfile(
                worker=demand(0, index, int(worker_mbps[index])),
                ps=demand(1, index, int(ps_mbps[index])),
                gradient=int(gradients[index]) * 10**6,
                internal=round(int(worker_mbps[index]) * options.internal_ratio) * 10**6,
            )
            for index in range(jobs)
        ],
        kind=["reciprocal"] * jobs,
        value=np.ones(jobs),
        decay=np.zeros(jobs),
        target=np.zeros(jobs),
        labels=[{} for _ in range(jobs)],
    )


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
    EC2 P2 or G3 instances, those for parameter servers C4; the paper swaps the two, see
    `WORKER_INSTANCES`. Every server's bandwidth is drawn from 20 to 50 Gbps. ``horizon`` is in
    slots.
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
    return {"slot": slot_text(slot_seconds), "horizon": horizon, "servers": servers}


def oasis_testbed_cluster(
    *, slot_seconds: Fraction = TESTBED.slot_seconds, horizon: int = TESTBED.slots
) -> dict[str, Any]:
    """Return the nine servers of OASiS's testbed in the format of a cluster file."""
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


def colocated_cluster(
    *, machines: int = 30, slot_seconds: Fraction = Fraction(60), horizon: int = 100, seed: int = 0
) -> dict[str, Any]:
    """Return the cluster of PD-ORS's evaluation in the format of a cluster file.

    ``machines`` is H of the thesis: each machine is a random P2 or G3 instance of role `any`.
    ``horizon`` is in slots. Bandwidth is not a resource, because the thesis's machines have only
    GPUs, memory and storage.
    """
    rng = np.random.default_rng([seed, 32])
    servers = []
    for index in range(machines):
        gpu, memory = PDORS_MACHINES[int(rng.integers(len(PDORS_MACHINES)))]
        capacity = {"gpu": gpu, "memory": f"{memory}GiB", "storage": STORAGE}
        servers.append({"name": f"machine-{index}", "role": "any", "capacity": capacity})
    seconds = float(slot_seconds)
    return {"slot": f"{seconds:.15g}s", "horizon": horizon, "servers": servers}


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

    There are at least as many servers as any job needs for its minimum number of workers. If jobs
    use parameter servers, equally many servers are added for them. These have capacity for one
    parameter server per GPU, so that GPUs are the scarce resource.
    """
    if not load > 0:
        raise InputError(f"load={load}: write a number above 0")
    bounds.OFFERED_LOAD.check(load, "load")
    # GPUs, or cores if no job uses GPUs, are the units of the load.
    unit = "gpu" if any(item.worker.get("gpu") for item in workload.profiles) else "cpu"
    requested = np.array([profile.worker.get(unit, 0) / MILLI for profile in workload.profiles])
    seconds = worker_seconds(workload)
    span = max(float(np.ptp(workload.arrival)) / NANO, float(workload.slot_seconds))
    units_for_load = float((requested * seconds).sum()) / (span * load)
    units_of_largest_job = float((requested * workload.min_workers).max())
    maximum = {
        name: max(profile.worker.get(name, 0) for profile in workload.profiles)
        for name in ("gpu", "cpu", "memory", BANDWIDTH)
    }
    gpus_per_server = max(gpus_per_server, -(-maximum["gpu"] // MILLI))
    cores = max(8 * gpus_per_server, -(-maximum["cpu"] // MILLI))
    # ``workers_per_server`` is how many workers memory and bandwidth of a server suffice for.
    if unit == "gpu":
        workers_per_server, memory_gib = gpus_per_server, 32 * gpus_per_server
        capacity: dict[str, Any] = {"gpu": gpus_per_server}
    else:
        workers_per_server = min(int(cores / requested.min()), MAX_UNITS_PER_SERVER)
        memory_gib = min(workers_per_server * -(-maximum["memory"] // 2**30), MAX_AMOUNT >> 30)
        capacity = {}
    units_per_server = capacity.get("gpu") or cores
    needed = float(np.ceil(max(units_for_load, units_of_largest_job) / units_per_server))
    bounds.SERVERS.check(needed, "the cluster sized to the jobs", "raise the load")
    count = max(1, int(needed))
    capacity |= {
        "cpu": cores,
        "memory": f"{max(memory_gib, -(-maximum['memory'] // 2**30))}GiB",
        BANDWIDTH: f"{max(25, -(-workers_per_server * maximum[BANDWIDTH] // 10**9))}Gbps",
    }
    servers = [{"name": unit, "count": count, "role": "worker", "capacity": capacity}]
    if any(profile.ps is not None for profile in workload.profiles):
        servers.append(
            {
                "name": "net",
                "count": count,
                "role": "ps",
                "capacity": _ps_capacity(workload, workers_per_server),
            }
        )
    return {"slot": slot_text(workload.slot_seconds), "horizon": horizon, "servers": servers}


def _ps_capacity(workload: Workload, count: int) -> dict[str, Any]:
    """Return the capacity of a server for ``count`` of the largest parameter servers."""
    demands = [profile.ps for profile in workload.profiles if profile.ps is not None]
    maximum = {
        name: max(ps.get(name, 0) for ps in demands) for name in ("cpu", "memory", BANDWIDTH)
    }
    return {
        "cpu": -(-count * maximum["cpu"] // MILLI),
        "memory": f"{-(-count * maximum['memory'] // 2**30)}GiB",
        BANDWIDTH: f"{-(-count * maximum[BANDWIDTH] // 10**9)}Gbps",
    }


def worker_seconds(workload: Workload) -> NDArray[np.float64]:
    """Return the worker-seconds of each job; with a measured curve, at its minimum workers."""
    seconds = np.empty(len(workload))
    work = workload.work
    for index, profile in enumerate(workload.profiles):
        if profile.curve is None:
            bandwidth = profile.worker.get(BANDWIDTH, 0)
            comm = 2 * 8 * profile.gradient / bandwidth if bandwidth else 0.0
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

"""Small workloads that make a policy call all its kernels, so that they are compiled and cached.

Numba compiles a kernel when it is first called. `shadowprice warm` calls kernels before they are
needed: it runs each policy on workloads that call the same kernels as the README's commands.
``python -m shadowprice.simulator.warm_up POLICY...`` prints how many kernels it compiled.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from shadowprice.core.errors import ShadowpriceError
from shadowprice.kernels import jit
from shadowprice.policies.choice import PolicyChoice
from shadowprice.policies.registry import builtin_policies
from shadowprice.results.recorder import Recorder
from shadowprice.simulator.scenario import Scenario
from shadowprice.simulator.source import ScenarioSource
from shadowprice.traces.generator import (
    GeneratorOptions,
    colocated_cluster,
    generate,
    paper_cluster,
)

Document = Mapping[str, Any]

SETTINGS: Final[Mapping[str, tuple[Document, ...]]] = {
    "dorm": ({"window": "4", "adjustable": "4"},),
    "oasis": ({"preset": "paper"}, {"lower": "clearing"}, {"prices": "online"}),
}
"""Parameters that make a policy call kernels that it doesn't call by default."""


def workloads(policy: str) -> Iterator[Scenario]:
    """Yield workloads that together call all kernels of a policy."""
    if builtin_policies()[policy].counts_places:
        # Servers state units, such as {worker: 4, ps: 2}.
        yield _scenario(TENANTS, _tenants_jobs(), "40 slots")
        return
    yield _scenario(MIXED, MIXED_JOBS, "20 slots", INCIDENTS)
    # Enough jobs for some to wait, to be moved and to be refused.
    options = GeneratorOptions(preset="calibrated", jobs=20, slots=40)
    cluster = paper_cluster(workers=50, parameter_servers=50, horizon=40, seed=3)
    yield _scenario(cluster, list(generate(options, seed=3).to_records()), "40 slots")
    if policy in {"oasis", "pdors", "rolling"}:
        # Jobs that run faster on one server, and bags of tasks.
        options = GeneratorOptions(preset="pdors", jobs=20, slots=40)
        cluster = colocated_cluster(machines=50, horizon=40, seed=3)
        yield _scenario(cluster, list(generate(options, seed=3).to_records()), "40 slots")
        yield _scenario(BAGS, BAGS_JOBS, "30 slots")


def warm_up(policy: str) -> None:
    """Run a policy on its workloads, which compiles the kernels that are not cached."""
    for number, scenario in enumerate(workloads(policy)):
        # The first workload has every kind of job, so other parameters run on it only.
        for settings in ({}, *(SETTINGS.get(policy, ()) if number == 0 else ())):
            built = PolicyChoice(policy, settings).build(scenario.context())
            # A recorder also reads the policy's prices, as in recorded runs.
            recorder = Recorder(scenario.cluster, scenario.jobs, built)
            scenario.simulation(built).run((recorder,))
    marker = _marker(policy)
    if marker is not None:
        with suppress(OSError):  # without it, the next start checks again
            marker.touch()


def is_warm(policy: str) -> bool:
    """Return whether a policy's kernels are cached, can't be cached, or don't exist."""
    info = builtin_policies().get(policy)
    if info is None or info.knows_all_jobs:  # it uses a solver instead of kernels
        return True
    marker = _marker(policy)
    return marker is None or marker.exists()


def warm_up_all(policies: Sequence[str]) -> int:
    """Warm policies up in parallel processes, one for each group with shared kernels.

    Returns the number of kernels that were compiled.
    """
    groups: dict[str, list[str]] = {}
    for policy in policies:
        groups.setdefault(_SHARED_KERNELS.get(policy, "baselines"), []).append(policy)
    started: list[subprocess.Popen[str]] = []
    stopped = threading.Event()
    lock = threading.Lock()

    def run(group: Sequence[str]) -> int:
        with lock:
            if stopped.is_set():
                return 0
            process = _start(group)
            started.append(process)
        printed, errors = process.communicate()
        if process.returncode and not stopped.is_set():
            reason = errors.strip().splitlines()[-1:] or [f"exit status {process.returncode}"]
            raise ShadowpriceError(f"failed to compile kernels of {group[0]}: {reason[0]}")
        return int(printed or 0)

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        # On an interrupt, kill all processes, because the pool waits for them.
        try:
            futures = [pool.submit(run, group) for group in groups.values()]
            return sum(future.result() for future in as_completed(futures))
        finally:
            with lock:
                stopped.set()
            for process in started:
                process.kill()


_SHARED_KERNELS: Final = {"rolling": "rolling", "oasis": "planners", "pdors": "planners"}
"""Policies with the same value share kernels; two processes would compile these twice."""


def _start(policies: Sequence[str]) -> subprocess.Popen[str]:
    # The child imports from the same folders, and never from the current one.
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "shadowprice.simulator.warm_up", *policies],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        text=True,
        start_new_session=True,  # Ctrl-C ends this process, which then kills the child
    )


def _marker(policy: str) -> Path | None:
    """Return the file that exists once a policy is warm; None if kernels aren't cached."""
    folder = jit.cache_folder()
    if folder is None:
        return None
    if folder == Path(jit.__file__).parent:
        folder /= "__pycache__"
    return folder / f"warm-{policy}-{jit.sources_digest()}"


def _scenario(
    cluster: Document, jobs: list[Document], until: str, incidents: list[Document] | None = None
) -> Scenario:
    source = ScenarioSource(cluster=cluster, jobs=jobs, incidents=incidents, until=until)
    return source.scenario()[0]


MIXED: Final[Document] = {
    "slot": "20min",
    "horizon": 20,
    "servers": [
        {"name": "gpu", "count": 2, "role": "worker",
         "capacity": {"gpu": 8, "cpu": 64, "memory": "480GiB", "bandwidth": "25Gbps"}},
        {"name": "net", "role": "ps",
         "capacity": {"cpu": 32, "memory": "128GiB", "bandwidth": "50Gbps"}},
    ],
}  # fmt: skip
MIXED_JOBS: Final[list[Document]] = [
    {
        "name": "parameter-servers", "epochs": 30, "chunks": 12, "minibatches": 200,
        "minibatch_time": "1.2s", "gradient": "102MB",
        "worker": {"gpu": 1, "cpu": 4, "memory": "24GiB", "bandwidth": "2Gbps"},
        "ps": {"cpu": 2, "memory": "8GiB", "bandwidth": "10Gbps"},
        "utility": {"kind": "sigmoid", "value": 60, "decay": 0.6, "target": "200min"},
    },
    {
        "name": "all-reduce", "arrival": "20min", "epochs": 2, "chunks": 8, "minibatches": 6000,
        "throughput": {1: 6.1, 2: 11.6, 4: 21.8, 8: 38.5},
        "worker": {"gpu": 1, "cpu": 6, "memory": "48GiB"},
        "utility": {"kind": "sigmoid", "value": 45, "decay": 1.5, "target": "140min"},
    },
    {
        "name": "constant", "arrival": "20min", "epochs": 10, "chunks": 6, "minibatches": 300,
        "minibatch_time": "3s", "worker": {"gpu": 2, "cpu": 8, "memory": "40GiB"},
        "utility": {"kind": "constant", "value": 6},
    },
    {
        "name": "deadline", "arrival": "2 slots", "epochs": 6, "chunks": 16, "minibatches": 120,
        "minibatch_time": "2s", "worker": {"gpu": 1, "cpu": 4, "memory": "16GiB"},
        "utility": {"kind": "deadline", "value": 30, "by": "140min"},
    },
    {
        "name": "refused", "arrival": "2 slots", "epochs": 40, "chunks": 16, "minibatches": 120,
        "minibatch_time": "2s", "worker": {"gpu": 1, "cpu": 4, "memory": "16GiB"},
        "utility": {"kind": "linear", "value": 4, "slope": -0.1},
    },
]  # fmt: skip
INCIDENTS: Final[list[Document]] = [
    {"slot": 4, "server_lost": "gpu-1"},
    {"slot": 9, "server_back": "gpu-1"},
]
"""`MIXED`, `MIXED_JOBS` and `INCIDENTS` are those of ``examples/``, which isn't installed."""

TENANTS: Final[Document] = {
    "slot": "20min",
    "horizon": 40,
    "servers": [{"name": "s", "count": 4, "capacity": {"worker": 4, "ps": 2}}],
    "tenants": [
        {"name": "one", "share": {"worker": 8, "ps": 4}},
        {"name": "two", "share": {"worker": 8, "ps": 4}},
    ],
}


def _tenants_jobs() -> list[Document]:
    return [
        {
            "name": f"{tenant}-{slot}", "tenant": tenant, "arrival": f"{slot} slots", "chunks": 4,
            "minibatches": 60, "minibatch_time": "60s", "worker": {"worker": 1}, "ps": {"ps": 1},
            "utility": {"kind": "linear", "value": 50, "slope": -2},
        }
        for slot in range(4)
        for tenant in ("one", "two")
    ]  # fmt: skip


BAGS: Final[Document] = {
    "slot": "1min",
    "horizon": 30,
    "servers": [{"name": "gpu", "count": 6, "role": "worker", "capacity": {"gpu": 8}}],
}
BAGS_JOBS: Final[list[Document]] = [
    {
        "name": "training", "chunks": 8, "minibatches": 20, "minibatch_time": "6s",
        "worker": {"gpu": 1},
        "utility": {"kind": "sigmoid", "value": 100, "decay": 0.1, "target": "9 slots"},
    },
    {
        "name": "heavy-tailed", "arrival": "2 slots",
        "tasks": [
            {"count": 12, "duration": {"kind": "pareto", "shape": 2.0, "mean": "90s"}},
            {"count": 4, "duration": {"kind": "log-normal", "sigma": 1.0, "mean": "60s"}},
        ],
        "deadline": "8min", "miss_probability": 0.05, "worker": {"gpu": 1},
        "utility": {"kind": "linear", "value": 60, "slope": -3},
    },
    {
        "name": "many-tasks", "arrival": "2 slots",
        "tasks": [
            {"count": 30,
             "duration": {"kind": "weibull", "shape": 0.7, "mean": "90s", "minimum": "1s"}},
        ],
        "deadline": "20min", "miss_probability": 0.2, "worker": {"gpu": 1},
        "utility": {"kind": "constant", "value": 90},
    },
]  # fmt: skip


if __name__ == "__main__":
    jit.announcer.print_line = None
    for name in sys.argv[1:]:
        warm_up(name)
    print(jit.announcer.compiled)

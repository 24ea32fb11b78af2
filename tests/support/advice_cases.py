"""Small workloads as job files, and the test of advice: edit the file and run it again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np

from shadowprice.core.cluster import Cluster
from shadowprice.core.errors import InputError
from shadowprice.core.job import Job
from shadowprice.core.policy import Status
from shadowprice.core.specs import ClusterSpec, JobSpec
from shadowprice.engine import Engine
from shadowprice.policies.choice import PolicyChoice
from shadowprice.results.advice import Advice, JobAdvice
from shadowprice.simulator.advice import advise
from shadowprice.simulator.driver import Simulation
from shadowprice.simulator.scenario import Scenario

Entries = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Case:
    """A policy on a cluster with the entries of a job file."""

    policy: str
    settings: Mapping[str, Any]
    cluster: Cluster
    entries: Entries
    until: int | None = None
    seed: int = 0

    @property
    def choice(self) -> PolicyChoice:
        return PolicyChoice(self.policy, self.settings)

    def scenario(self, entries: Entries | None = None) -> Scenario:
        return Scenario(
            self.cluster,
            resolve_jobs(self.cluster, self.entries if entries is None else entries),
            until=self.until,
            seed=self.seed,
        )

    def run(self, entries: Entries | None = None) -> Engine:
        """Run a job file to the end, with a new policy."""
        scenario = self.scenario(entries)
        policy = self.choice.build(scenario.context())
        return Simulation(
            self.cluster, scenario.jobs, policy, until=self.until, seed=self.seed
        ).run()

    def advise(self, position: int, **limits: int) -> JobAdvice:
        entry = self.entries[position]
        return advise(self.scenario(), self.choice, position, entry, **limits)

    def edited(self, position: int, key: str, value: str) -> list[dict[str, Any]]:
        """Return the entries with one value replaced, as by a text editor."""
        entries = [deepcopy(dict(entry)) for entry in self.entries]
        place: Any = entries[position]
        *parents, last = key.replace("[", ".#").replace("]", "").split(".")
        for part in parents:
            inner = int(part[1:]) if part.startswith("#") else part
            place = place[inner] if isinstance(place, list) else place.setdefault(inner, {})
        place[last] = parse_number(value)
        return entries

    def admitted(self, position: int, key: str, value: str) -> bool:
        """Whether the job is admitted with a value in its entry; ``(default)`` omits the key."""
        if value.endswith("(default)"):
            entries = [deepcopy(dict(entry)) for entry in self.entries]
        else:
            entries = self.edited(position, key, value)
        try:
            engine = self.run(entries)
        except InputError:  # an invalid file
            return False
        return is_accepted(engine, str(self.entries[position]["name"]))


def parse_number(text: str) -> int | float | str:
    """Read a value as YAML does."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def is_accepted(engine: Engine, name: str) -> bool:
    """Whether a job was accepted: planned, placed or, by a policy without promises, queued.

    An abandoned job was not accepted, unless it is a bag of tasks: a bag may miss its deadline.
    """
    record = engine.jobs[name]
    if record.status is Status.REFUSED:
        return False
    if record.status is Status.DROPPED and record.job.bag is None:
        return False
    final = engine.capabilities.answers_at_once
    return final or record.plans > 0 or record.started is not None


def resolve_jobs(cluster: Cluster, entries: Entries) -> list[Job]:
    return [JobSpec.model_validate(entry).resolve(cluster) for entry in entries]


def refused_positions(engine: Engine, entries: Entries) -> list[int]:
    """Return the positions of refused jobs."""
    return positions_by_status(engine, entries, Status.REFUSED)


def positions_by_status(engine: Engine, entries: Entries, status: Status) -> list[int]:
    """Return the positions of jobs with a final status."""
    return [
        index
        for index, entry in enumerate(entries)
        if engine.jobs[str(entry["name"])].status is status
    ]


def random_servers(rng: np.random.Generator, horizon: int = 10) -> Cluster:
    """Return one to three small GPU servers, and a server for PS."""
    document = {
        "slot": "20min",
        "horizon": horizon,
        "servers": [
            {
                "name": "gpu",
                "count": int(rng.integers(1, 4)),
                "role": "worker",
                "capacity": {"gpu": 4, "cpu": 24, "memory": "96GiB", "bandwidth": "25Gbps"},
            },
            {
                "name": "net",
                "role": "ps",
                "capacity": {"cpu": 16, "memory": "64GiB", "bandwidth": "50Gbps"},
            },
        ],
    }
    return ClusterSpec.model_validate(document).resolve()


def random_tight_servers(rng: np.random.Generator) -> Cluster:
    """Return two or three unequal servers that few jobs of `random_tight_entry` fit on together."""
    document = {
        "slot": "20min",
        "horizon": 10,
        "servers": [
            {
                "name": f"server-{index}",
                "capacity": {
                    "gpu": int(rng.integers(1, 5)),
                    "cpu": int(rng.integers(2, 9)),
                    "memory": f"{int(rng.integers(8, 33))}GiB",
                },
            }
            for index in range(int(rng.integers(2, 4)))
        ],
    }
    return ClusterSpec.model_validate(document).resolve()


def random_tight_entry(rng: np.random.Generator, name: str) -> dict[str, Any]:
    """Return a job whose workers and PS together nearly fill a server."""
    chunks = int(rng.integers(1, 5))
    return {
        "name": name,
        "arrival": f"{int(rng.integers(0, 5))} slots",
        "chunks": chunks,
        "minibatches": int(rng.integers(1, 60)),
        "minibatch_time": "40s",
        "gradient": "10MB",
        "worker": {
            "gpu": int(rng.integers(1, 3)),
            "cpu": int(rng.integers(1, 4)),
            "memory": f"{int(rng.integers(1, 16))}GiB",
            "bandwidth": "1Gbps",
        },
        "ps": {
            "cpu": int(rng.integers(1, 5)),
            "memory": f"{int(rng.integers(4, 20))}GiB",
            "bandwidth": f"{int(rng.integers(1, 3))}Gbps",
        },
        "workers": {"min": int(rng.integers(1, chunks + 1)), "max": chunks},
        "utility": random_utility(rng),
    }


def random_utility(rng: np.random.Generator) -> dict[str, Any]:
    value = round(float(10 ** rng.uniform(-2, 2)), 3)
    return [
        {"kind": "constant", "value": value},
        {
            "kind": "sigmoid",
            "value": value,
            "decay": round(float(rng.uniform(0, 3)), 2),
            "target": f"{int(rng.integers(1, 8))} slots",
        },
        {"kind": "reciprocal", "value": value},
        {"kind": "linear", "value": value, "slope": -round(value * float(rng.uniform(0, 0.3)), 4)},
        {"kind": "power", "scale": value, "exponent": 0.7},
        {"kind": "deadline", "value": value, "by": f"{int(rng.integers(0, 7))} slots"},
    ][int(rng.integers(6))]


def random_entry(rng: np.random.Generator, name: str, latest: int = 6) -> dict[str, Any]:
    """Return a job of a random kind that needs a large part of the cluster."""
    chunks = int(rng.integers(2, 9))
    record: dict[str, Any] = {
        "name": name,
        "arrival": f"{int(rng.integers(0, latest + 1))} slots",
        "epochs": int(rng.integers(1, 40)),
        "chunks": chunks,
        "minibatches": int(rng.integers(1, 60)),
        "worker": {
            "gpu": int(rng.integers(1, 3)),
            "cpu": int(rng.integers(1, 7)),
            "memory": f"{int(rng.integers(4, 40))}GiB",
        },
        "utility": random_utility(rng),
    }
    if rng.random() < 0.25:
        counts = [n for n in range(1, chunks + 1) if rng.random() < 0.7] or [chunks]
        record["throughput"] = {n: round(n**0.8 * float(rng.uniform(0.2, 1)), 3) for n in counts}
    else:
        record["minibatch_time"] = f"{int(rng.integers(5, 60))}s"
        if rng.random() < 0.4:
            record["worker"]["bandwidth"] = "2Gbps"
            record["gradient"] = "200MB"
            record["ps"] = {"cpu": 2, "memory": "8GiB", "bandwidth": "5Gbps"}
        if rng.random() < 0.4:
            fewest = int(rng.integers(1, chunks + 1))
            record["workers"] = {"min": fewest, "max": int(rng.integers(fewest, chunks + 1))}
    return record


def check_advice(
    case: Case, position: int, job_advice: JobAdvice
) -> list[tuple[Advice, bool, bool]]:
    """Return whether each advice gets the job admitted, and the next smaller change doesn't."""
    return [
        (
            advice,
            case.admitted(position, advice.key, advice.after),
            not case.admitted(position, advice.key, advice.refused),
        )
        for advice in job_advice.advice
    ]

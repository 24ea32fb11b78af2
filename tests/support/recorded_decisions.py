"""Recorded runs of every policy: digests of its decisions, to compare later versions with.

A change that keeps every decision leaves ``tests/golden/digests.json`` unchanged. A change of
decisions records new digests, and its commit says which and why.
``python -m tests.support.recorded_decisions`` lists the runs that differ, ``--write`` records them;
both take names of policies.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from shadowprice.core.cluster import Cluster
from shadowprice.core.events import Commit, JobCancelled, Place, Promise, ServerBack, ServerLost
from shadowprice.core.job import Job
from shadowprice.core.policy import PolicyContext, Status
from shadowprice.core.utility import utility_value
from shadowprice.engine import Engine
from shadowprice.policies.registry import make_policy, policies
from shadowprice.results.observer import Observer
from shadowprice.simulator.driver import Incident, Simulation
from tests.support import bag_cases, policy_cases
from tests.support.astraea_cases import random_jobs, shared_cluster
from tests.support.workloads import faster_together, make_cluster, random_job

GOLDEN: Final = Path(__file__).parents[1] / "golden" / "digests.json"

VARIANTS: Final[Mapping[str, Sequence[Mapping[str, Any]]]] = {
    "astraea": ({}, {"preset": "paper"}),
    "backfill": ({}, {"mode": "conservative", "rule": "shortest"}, {"rule": "arrival", "depth": 3}),
    "dorm": ({"window": 2, "adjustable": 2},),
    "fifo": ({}, {"backfill": 3, "workers": "max"}),
    "las": ({}, {"threshold": "2 slots", "promote": 1.0}),
    "oasis": ({}, {"preset": "paper"}, {"prices": "online"}, {"chunks": "literal"}),
    "pdors": ({}, {"prices": "online", "placement": "exact"}, {"placement": "greedy"}),
    "rolling": ({}, {"standby": False}, {"spare": False, "revision": False}),
    "rrh": ({}, {"alpha": 0.1, "threshold": 1.0, "workers": "min"}),
    "srtf": ({}, {"by": "service", "workers": 2}),
}
"""Settings of policies; the other policies run with their defaults."""

TRACES: Final = {
    "philly": "philly/philly.csv.gz?limit=150",
    "itp": "microsoft_itp_2021/elasticflow/cluster05.csv.gz?limit=120",
}
"""Beginnings of traces: paths in the folder of traces."""

IGNORED_FIELDS: Final = frozenset({"charged", "payoff_bound", "slot_costs"})
"""Descriptive fields of decisions, added after the first digests."""

COLOCATING: Final = frozenset({"pdors", "rolling"})
"""Policies that co-locate a job's processes if that is faster."""

SLOW: Final = frozenset({"optimum"})
"""Policies that are too slow for the larger worlds."""


@dataclass(frozen=True, slots=True)
class RecordedWorld:
    """A cluster, its jobs and incidents, and the end of the run."""

    cluster: Cluster
    jobs: list[Job]
    incidents: list[Incident]
    until: int | None = None


class CommandHasher(Observer):
    """Hashes every command in order, with floats rounded to six digits."""

    takes_quiet_slots = True  # they have no commands

    def __init__(self) -> None:
        self.hash = hashlib.sha256()

    def on_event(self, event: Any, commands: Any) -> None:
        del event
        for command in commands:
            self.hash.update(json.dumps(to_plain(command)).encode())


def to_plain(value: Any) -> Any:
    """Convert a value to JSON types: an object to its class name and its fields."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, float):
        return f"{value:.6g}"
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, Mapping):
        return [[to_plain(key), to_plain(item)] for key, item in value.items()]
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    if hasattr(value, "rows"):
        return to_plain(list(value.rows()))
    if hasattr(value, "record"):
        return to_plain(value.record())
    fields = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    assert fields, value
    decided = sorted(set(fields) - IGNORED_FIELDS)
    if isinstance(value, Place | Promise) and not value.copies:  # no bag: as before there were any
        decided.remove("copies")
    if isinstance(value, Commit):  # why a job is planned again is not part of what is decided
        decided.remove("message")
    return [type(value).__name__, *(to_plain(getattr(value, name)) for name in decided)]


def policy_worlds(policy: str) -> Iterator[tuple[str, RecordedWorld]]:
    """Yield small worlds that a policy supports, by name."""
    shared = policy in policy_cases.PLACE_COUNTING_POLICIES
    for seed in range(1, 7):
        yield f"eventful {seed}", RecordedWorld(*policy_cases.build_world(policy, seed))
    if policy in SLOW:
        return
    for seed in (2, 5):
        cluster, jobs, _ = policy_cases.build_world(policy, seed)
        happened: Any = policy_cases.cluster_changes(policy, cluster, np.random.default_rng(seed))
        yield f"changing {seed}", RecordedWorld(cluster, jobs, happened, 200)
    for seed in (1, 2):
        yield f"crowded {seed}", _crowded_places(seed) if shared else _crowded(seed)
    if policy in COLOCATING:
        for seed in (1, 2):
            yield f"together {seed}", _together(seed)


def _crowded(seed: int) -> RecordedWorld:
    rng = np.random.default_rng([seed, 7])
    cluster = make_cluster(4, 2, 1, horizon=40)
    jobs = [random_job(cluster, rng, f"job-{index}", latest=25) for index in range(60)]
    return RecordedWorld(cluster, jobs, _faults(cluster, jobs, rng), 60)


def _together(seed: int) -> RecordedWorld:
    rng = np.random.default_rng([seed, 9])
    cluster = make_cluster(1, 1, 4, horizon=40)
    jobs = [random_job(cluster, rng, f"job-{index}", latest=25) for index in range(40)]
    jobs = faster_together(jobs, rng)
    return RecordedWorld(cluster, jobs, _faults(cluster, jobs, rng), 60)


def _crowded_places(seed: int) -> RecordedWorld:
    on = shared_cluster(6, {"a": {"worker": 6, "ps": 2}, "b": {"worker": 6, "ps": 4}})
    jobs = random_jobs(on, 50, seed, latest=20)
    return RecordedWorld(on, jobs, _faults(on, jobs, np.random.default_rng([seed, 8])), 60)


def _faults(cluster: Cluster, jobs: Sequence[Job], rng: np.random.Generator) -> list[Incident]:
    happened: list[Incident] = []
    for _ in range(4):
        name, slot = cluster.names[int(rng.integers(cluster.servers))], int(rng.integers(30))
        happened += [ServerLost(slot, name), ServerBack(slot + int(rng.integers(1, 5)), name)]
    happened += [
        JobCancelled(job.arrival + int(rng.integers(1, 5)), job.name)
        for job in jobs
        if rng.random() < 0.1
    ]
    return happened


def bag_worlds(policy: str) -> Iterator[tuple[str, RecordedWorld]]:
    """Yield worlds of bags of tasks and training jobs, if a policy runs bags."""
    cluster, jobs, _ = policy_cases.build_world(policy, 1)
    if not policy_cases.build_policy(policy, cluster, jobs, 1).capabilities.runs_bags:
        return
    for seed in range(1, 9):
        yield f"bags {seed}", RecordedWorld(*bag_cases.random_bag_world(seed))


@cache
def trace_pieces(folder: Path) -> list[tuple[str, RecordedWorld]]:
    """Return the beginnings of traces, on clusters sized to them."""
    from shadowprice.simulator.source import ScenarioSource

    results = []
    for name, place in TRACES.items():
        scenario, _ = ScenarioSource(trace=f"{name}:{folder}/{place}", load=1.5).scenario(3)
        results.append(
            (name, RecordedWorld(scenario.cluster, list(scenario.jobs), [], scenario.until))
        )
    return results


def run_digest(policy: str, settings: Mapping[str, Any], world: RecordedWorld) -> str:
    """Run a world; return the digest of commands and results, with figures for a human reader."""
    seed = 1
    context = PolicyContext(world.cluster, world.jobs, world.until, seed)
    built = make_policy(policy, context, dict(settings))
    listener = CommandHasher()
    engine = Simulation(
        world.cluster, world.jobs, built, until=world.until, incidents=world.incidents, seed=seed
    ).run([listener])
    # The digest of the state would differ if one number differs in its last digit.
    for record in engine.jobs.values():
        state = (
            record.job.name,
            record.status.value,
            record.progress,
            record.started,
            record.completion,
        )
        listener.hash.update(json.dumps([*state, record.plans, record.promise]).encode())
    return f"{listener.hash.hexdigest()[:20]} {_figures(engine)}"


def _figures(engine: Engine) -> str:
    done = [record for record in engine.jobs.values() if record.status is Status.FINISHED]
    earned = sum(
        utility_value(one.job.utility, (one.completion or 0) - one.job.arrival) for one in done
    )
    return f"{len(done)}/{len(engine.jobs)} finished, {earned:.5g} earned"


def _label(settings: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in settings.items()) or "defaults"


def record_digests(policy: str, traces: Path | None = None) -> dict[str, str]:
    """Run all worlds of a policy, or all beginnings of traces; return the digests by name."""
    found = {}
    for settings in VARIANTS.get(policy, ({},)):
        if traces is not None:
            there = (
                []
                if policy in SLOW | set(policy_cases.PLACE_COUNTING_POLICIES)
                else trace_pieces(traces)
            )
        else:
            there = list(policy_worlds(policy)) + list(bag_worlds(policy))
        for name, world in there:
            found[f"{_label(settings)}: {name}"] = run_digest(policy, settings, world)
    return found


def differences(found: Mapping[str, str], before: Mapping[str, str], policy: str) -> list[str]:
    """Return the differences between two records of a policy, a line each."""
    return [
        f"{policy} {name}: recorded {before.get(name)}, found {found.get(name)}"
        for name in {**found, **before}
        if before.get(name) != found.get(name)
    ]


def stored_digests(policy: str, *, of_traces: bool = False) -> dict[str, str]:
    """Return the recorded digests of a policy."""
    every = json.loads(GOLDEN.read_text(encoding="utf-8")).get(policy, {})
    return {name: text for name, text in every.items() if _of_trace(name) == of_traces}


def _of_trace(name: str) -> bool:
    return name.rpartition(": ")[2] in TRACES


def main() -> None:
    """Print the differences from the record, or update it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("policies", nargs="*", default=sorted(policies()))
    parser.add_argument("--write", action="store_true", help="update the record")
    parser.add_argument("--traces", type=Path, help="folder of traces; run their beginnings too")
    options = parser.parse_args()
    every = json.loads(GOLDEN.read_text(encoding="utf-8")) if GOLDEN.exists() else {}
    for policy in options.policies:
        found = record_digests(policy)
        pieces_ = {} if options.traces is None else record_digests(policy, options.traces)
        before = every.get(policy, {})
        kept = {} if options.traces else {n: t for n, t in before.items() if _of_trace(n)}
        found = {**found, **pieces_, **kept}
        for line in differences(found, before, policy):
            print(line)
        every[policy] = found
    if options.write:
        text = json.dumps({name: every[name] for name in sorted(every)}, indent=1)
        GOLDEN.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

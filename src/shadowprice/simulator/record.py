"""Running a workload under a policy and keeping all that a reader may ask about it."""

from __future__ import annotations

import hashlib
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import shadowprice
from shadowprice.core.amounts import format_amount
from shadowprice.core.cluster import Cluster
from shadowprice.core.events import ServerBack, ServerLost
from shadowprice.core.job import Job
from shadowprice.core.policy import Policy, PolicyContext
from shadowprice.policies.registry import make_policy
from shadowprice.simulator.driver import Incident, Observer, Simulation
from shadowprice.simulator.execution import ExactExecution, ExecutionModel
from shadowprice.simulator.interrupt import StopSign, stop_sign
from shadowprice.simulator.metrics import latency, summarise
from shadowprice.simulator.recorder import Recorder
from shadowprice.simulator.results import FORMAT, Record, Run
from shadowprice.simulator.slot_tables import allocation_table, expand, heat_table, slot_table
from shadowprice.simulator.tables import decision_records, job_table, payment_record, plain

LIBRARIES: Final = ("highspy", "numba", "numpy", "polars", "scipy")
"""Libraries that can change a result; their versions are part of it."""


@dataclass(frozen=True, slots=True)
class Input:
    """Where a part of a run came from.

    Parameters
    ----------
    kind : str
        ``cluster``, ``jobs``, ``trace``, ``params`` or ``incidents``.
    name : str
        As the user gave it.
    sha256 : str
        Digest of the bytes; empty where there is no single file.
    """

    kind: str
    name: str
    sha256: str

    @classmethod
    def of(cls, kind: str, path: Path, name: str | None = None) -> Input:
        """Digest a file, or all files of a directory in the order of their names."""
        digest = hashlib.sha256()
        files = sorted(entry for entry in path.rglob("*") if entry.is_file())
        for file in files if path.is_dir() else [path]:
            with file.open("rb") as opened:
                while block := opened.read(1 << 20):
                    digest.update(block)
        return cls(kind, name or str(path), digest.hexdigest())


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is run, apart from the policy.

    Parameters
    ----------
    cluster : Cluster
        The servers.
    jobs : sequence of Job
        In file order.
    until : int or None
        End of the timespan T.
    seed : int
        Seed of the policy's and the execution model's randomness.
    incidents : sequence of ServerLost, ServerBack or JobCancelled
        What else happens.
    inputs : sequence of Input
        Where it came from.
    execution : ExecutionModel
        How fast placed jobs run.
    """

    cluster: Cluster
    jobs: Sequence[Job]
    until: int | None = None
    seed: int = 0
    incidents: Sequence[Incident] = ()
    inputs: Sequence[Input] = ()
    execution: ExecutionModel = field(default_factory=ExactExecution)


def build_policy(scenario: Scenario, name: str, settings: Mapping[str, Any]) -> Policy:
    """Build a policy that knows the whole workload of a scenario, as simulations allow.

    Raises
    ------
    InputError
        If the policy or a parameter is unknown.
    """
    context = PolicyContext(
        cluster=scenario.cluster,
        known_jobs=scenario.jobs,
        until=scenario.until,
        seed=scenario.seed,
    )
    return make_policy(name, context, settings)


def record_run(
    scenario: Scenario,
    name: str,
    policy: Policy,
    *,
    observers: Sequence[Observer] = (),
    progress: Callable[[int, int], None] | None = None,
    stop: StopSign | None = None,
) -> Run:
    """Run a scenario under a policy and keep everything about it.

    Parameters
    ----------
    scenario : Scenario
        What is run.
    name : str
        Name of the policy.
    policy : Policy
        The policy, freshly built.
    observers : sequence of Observer
        Who else looks on.
    progress : callable, optional
        Called with (jobs arrived, jobs in all) now and then.
    stop : StopSign, optional
        What stops it early; by default Ctrl-C does.

    Returns
    -------
    Run
        The run. On Ctrl-C what was done until then, with ``info["partial"]`` set.
    """
    recorder = Recorder(scenario.cluster, scenario.jobs, policy)
    simulation = Simulation(
        cluster=scenario.cluster,
        jobs=scenario.jobs,
        policy=policy,
        until=scenario.until,
        execution=scenario.execution,
        incidents=scenario.incidents,
        seed=scenario.seed,
    )
    partial = False
    began = time.perf_counter()
    with stop_sign() if stop is None else nullcontext(stop) as sign:
        try:
            simulation.run((recorder, *observers, sign), progress)
        except KeyboardInterrupt:
            partial = True
    wall = time.perf_counter() - began
    return _collect(scenario, name, policy, recorder, wall, partial=partial)


def _collect(
    scenario: Scenario, name: str, policy: Policy, recorder: Recorder, wall: float, *, partial: bool
) -> Run:
    slots, rows = expand(recorder.segments())
    jobs = job_table(recorder)
    per_slot = slot_table(recorder, slots, rows)
    info: Record = {
        "format": FORMAT,
        "partial": partial,
        "interrupted_in_slot": recorder.next_slot if partial else None,
        "policy": name,
        "parameters": plain(policy.parameters_in_force()),
        "capabilities": asdict(policy.capabilities),
        "seed": scenario.seed,
        "until": scenario.until,
        "inputs": [asdict(part) for part in scenario.inputs],
        "versions": _versions(),
        "cluster": _cluster_record(scenario.cluster),
        "incidents": [_incident(scenario.cluster, event) for event in recorder.incidents],
        "summary": summarise(jobs, per_slot),
        "state_digest": recorder.engine.state_digest() if recorder.engine else None,
        "timing": {"wall_seconds": wall, "decision_latency": latency(recorder.latencies)},
    }

    def decisions(plans: bool) -> Iterator[Record]:
        return decision_records(recorder, plans=plans)

    return Run(
        info=info,
        jobs=jobs,
        slots=per_slot,
        allocations=allocation_table(recorder, slots, rows),
        heat=heat_table(recorder, slots, rows),
        decisions=decisions,
        payments=(lambda: map(payment_record, recorder.charges))
        if policy.capabilities.charges
        else None,
    )


def _versions() -> dict[str, str]:
    return {
        "shadowprice": shadowprice.__version__,
        "python": platform.python_version(),
        **{library: metadata.version(library) for library in LIBRARIES},
    }


def _cluster_record(cluster: Cluster) -> Record:
    """Return the cluster as ``run.json`` keeps it: servers refer to their kind by number."""
    kinds = cluster.kinds.tolist()
    first = {kind: row for row, kind in reversed(list(enumerate(kinds)))}
    return {
        "slot_seconds": float(cluster.slot_seconds),
        "horizon": cluster.horizon,
        "resources": dict(
            zip(cluster.resources, (d.value for d in cluster.dimensions), strict=True)
        ),
        "kinds": [
            {
                "role": cluster.roles[first[kind]].value,
                "servers": kinds.count(kind),
                "capacity": {
                    resource: format_amount(int(amount), dimension)
                    for resource, dimension, amount in zip(
                        cluster.resources,
                        cluster.dimensions,
                        cluster.capacity[first[kind]],
                        strict=True,
                    )
                    if amount
                },
            }
            for kind in sorted(first)
        ],
        "servers": [list(pair) for pair in zip(cluster.names, kinds, strict=True)],
        "tenants": [tenant.name for tenant in cluster.tenants],
    }


def _incident(cluster: Cluster, event: Incident) -> Record:
    if isinstance(event, ServerLost):
        return {"slot": event.slot, "server_lost": cluster.names[event.server]}
    if isinstance(event, ServerBack):
        return {"slot": event.slot, "server_back": cluster.names[event.server]}
    return {"slot": event.slot, "cancel": event.job}

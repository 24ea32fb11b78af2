"""A service without an executor, in which every slot makes the declared progress."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shadowprice.core.specs import ClusterSpec
from shadowprice.experiments.live import LiveJobResult
from shadowprice.policies.choice import PolicyChoice
from shadowprice.service.clock import SECOND, MonotonicWallClock
from shadowprice.service.state.durable_engine import DurableEngine
from shadowprice.service.state.operations import SubmitJobs
from shadowprice.service.state.slot_operations import AdvanceSlots
from shadowprice.service.state.store_queries import list_jobs
from shadowprice.service.state.submission import read_submissions
from shadowprice.service.store import Store
from tests.support.simulated_world import ManualClock


def run_declared(
    folder: Path,
    cluster: Mapping[str, Any],
    jobs: Sequence[tuple[float, Mapping[str, Any]]],
    who: PolicyChoice,
) -> tuple[dict[str, int | None], dict[str, LiveJobResult]]:
    """Let a service decide on jobs that do exactly what they declare.

    Parameters
    ----------
    folder : Path
        Data directory of the service.
    cluster : mapping
        Content of a cluster file.
    jobs : sequence of (float, mapping)
        Seconds until each is submitted, ascending, and its entry of a job file.
    who : PolicyChoice
        The policy.

    Returns
    -------
    dict of str to int or None
        The slot in which each job completed.
    dict of str to Lived
        When each was submitted.
    """
    clock, lived = ManualClock(), {}
    origin = clock.at
    store = Store(str(folder))
    store.open()
    given = ClusterSpec.model_validate(dict(cluster)).resolve()
    durable = DurableEngine(store, given, who, MonotonicWallClock(clock), virtual=True)
    slot, waiting, passed = float(given.slot_seconds), list(jobs), 0.0
    while waiting or durable.state.engine.open_jobs:
        assert passed < 200 * slot, durable.state.engine.open_jobs
        due = waiting[0][0] if waiting else math.inf
        edge = slot * (1 + passed // slot)
        passed = min(due, edge)
        clock.at = origin + round(passed * SECOND)
        if passed == edge:
            durable.commit([AdvanceSlots(virtual=True)])
            continue
        _, job = waiting.pop(0)
        stated = {key: value for key, value in job.items() if key not in {"run", "arrival"}}
        result = read_submissions([stated], given, tenant=None, runs=False)
        durable.commit([SubmitJobs(result, at_once=True)])
        name = str(job["name"])
        lived[name] = LiveJobResult(
            {"name": name}, (clock.wall() - durable.state.calendar.origin) / SECOND, ()
        )
    with store.reading() as connection:
        ended = {view.name: view.completion for view in list_jobs(connection)}
    store.close()
    return ended, lived

"""The end of a timespan, set, moved and removed while jobs run, for every policy."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import pytest

from shadowprice.core.cluster import Cluster
from shadowprice.core.events import DriverEvent, JobsArrived, SlotBegan, TimespanChanged
from shadowprice.core.job import Job
from shadowprice.core.policy import PolicyContext, Status
from shadowprice.engine import Engine
from shadowprice.engine.journal import entry_line, parse_entry
from shadowprice.engine.snapshot import clone
from shadowprice.policies.registry import make_policy
from shadowprice.service.state.job_views import promised_slot
from tests.support.examples import sample
from tests.support.policy_cases import build_world, policy_names, run_slot

POLICIES = [name for name in policy_names() if name != "optimum"]
"""The optimum knows all jobs beforehand, and no service runs it."""

SLOTS = 200


def engine_of(policy: str, cluster: Cluster, until: int | None = None) -> Engine:
    return Engine(
        cluster, make_policy(policy, PolicyContext(cluster, until=until), {}), until=until
    )


def arriving(jobs: Sequence[Job]) -> dict[int, tuple[Job, ...]]:
    ordered = sorted(jobs, key=lambda job: job.arrival)
    return {slot: tuple(group) for slot, group in groupby(ordered, key=lambda job: job.arrival)}


def check_ends(engine: Engine) -> None:
    """Nothing runs, is planned or is promised in the end's slot or later."""
    until = engine.until
    if until is None:
        return
    for record in engine.open_jobs.values():
        assert not len(record.plan) or record.plan.completion < until
        promise = promised_slot(record)
        assert promise is None or promise < until or engine.slot < until
    if engine.slot_running is not None and engine.slot_running >= until:
        assert not engine.running


def drive(engine: Engine, jobs: Sequence[Job], changes: dict[int, int | None]) -> list[str]:
    """Run a world whose end changes; return the entries of its journal."""
    lines: list[str] = []
    arrivals = arriving(jobs)

    def handle(event: DriverEvent) -> None:
        engine.handle(event)
        assert engine.last is not None
        lines.append(entry_line(engine.last, engine.cluster.names))

    for slot in range(SLOTS):
        if slot in changes:
            handle(TimespanChanged(slot, changes[slot]))
        if slot in arrivals:
            handle(JobsArrived(slot, arrivals[slot]))
        handle(SlotBegan(slot))
        check_ends(engine)
        run_slot(engine, slot)
        assert engine.last is not None
        lines.append(entry_line(engine.last, engine.cluster.names))
        if not engine.open_jobs and slot > max((*arrivals, *changes)):
            break
    return lines


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", sample(range(3)))
def test_nothing_runs_past_an_end_that_is_set_moved_and_removed(policy: str, seed: int) -> None:
    cluster, jobs, _ = build_world(policy, seed)
    engine = engine_of(policy, cluster)
    lines = drive(engine, jobs, {3: 9, 5: 6, 12: None})
    left = list(engine.open_jobs.values())
    # Jobs that waited for a later end have run since.
    assert not [record for record in left if record.status is not Status.QUEUED]
    again = engine_of(policy, cluster)
    for line in lines:
        again.apply(parse_entry(line, again.cluster))
    assert again.state_digest() == engine.state_digest()
    assert again.until is None


@pytest.mark.parametrize("policy", POLICIES)
def test_a_clone_knows_the_end(policy: str) -> None:
    cluster, _, _ = build_world(policy, 1)
    engine = engine_of(policy, cluster)
    engine.handle(TimespanChanged(0, 4))
    twin = clone(engine)
    assert twin.until == twin.view.until == 4


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", sample(range(3)))
def test_an_end_that_is_set_at_once_is_one_that_was_known(policy: str, seed: int) -> None:
    """Set before the first job, it has the same effect as an end from the beginning."""
    cluster, jobs, _ = build_world(policy, seed)
    known, changed = engine_of(policy, cluster, 8), engine_of(policy, cluster)
    first = drive(known, jobs, {})
    later = drive(changed, jobs, {0: 8})

    def decisions(lines: list[str]) -> list[str]:
        entries = [parse_entry(line, cluster) for line in lines]
        kept = [entry for entry in entries if not isinstance(entry.event, TimespanChanged)]
        return [repr((entry.event, entry.consultations)) for entry in kept]

    assert decisions(later) == decisions(first)

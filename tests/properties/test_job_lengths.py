"""Hidden job lengths: jobs end after their true length, and no decision depends on the future."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice.core.cluster import Cluster
from shadowprice.core.events import Completed, JobsArrived, SlotEnded
from shadowprice.core.job import Job
from shadowprice.core.policy import PolicyContext
from shadowprice.engine import Engine
from shadowprice.engine.records import event_from_record, event_record
from shadowprice.policies.registry import make_policy
from shadowprice.simulator.driver import Incident, Simulation
from shadowprice.simulator.lengths import HiddenLengths
from tests.support.examples import example_count
from tests.support.policy_cases import EventRecorder, build_world, policy_names

SEEDS = st.integers(0, 2**32 - 1)
WITHOUT_LENGTHS = ("fifo", "las", "drf")
FORESEEING = ("optimum",)
"""Policies that need to know all jobs beforehand."""


def run(
    policy: str,
    world: tuple[Cluster, Sequence[Job], Sequence[Incident]],
    seed: int,
    hidden: HiddenLengths | None,
) -> tuple[Engine, EventRecorder]:
    cluster, jobs, incidents = world
    built = make_policy(policy, PolicyContext(cluster, None, None, seed), {})
    seen = EventRecorder()
    simulation = Simulation(
        cluster, jobs, built, incidents=incidents, seed=seed, hidden_lengths=hidden
    )
    return simulation.run([seen]), seen


def hide(cluster: Cluster, limits: dict[str, int] | None = None) -> HiddenLengths:
    return HiddenLengths(cluster, limits or {}, shows_limits=limits is not None)


def double_limits(jobs: Sequence[Job]) -> dict[str, int]:
    """Return limits of twice the work for most jobs, and less than the work for some."""
    return {
        job.name: job.required * 2 if index % 3 else max(1, job.required // 2)
        for index, job in enumerate(jobs)
        if index % 4
    }


@pytest.mark.parametrize("policy", WITHOUT_LENGTHS)
@given(SEEDS)
@settings(max_examples=example_count(20), deadline=None)
def test_policies_without_lengths_decide_the_same(policy: str, seed: int) -> None:
    world = build_world(policy, seed)
    known, expected = run(policy, world, seed, None)
    for hidden in (hide(world[0]), hide(world[0], double_limits(world[1]))):
        engine, seen = run(policy, world, seed, hidden)
        assert seen.commands == expected.commands
        for name, record in engine.jobs.items():
            known_record = known.jobs[name]
            assert (record.status, record.progress) == (known_record.status, known_record.progress)


@pytest.mark.parametrize("policy", [name for name in policy_names() if name not in FORESEEING])
@given(SEEDS, st.booleans())
@settings(max_examples=example_count(12), deadline=None)
def test_jobs_end_when_their_true_work_is_done(policy: str, seed: int, limits: bool) -> None:
    world = cluster, jobs, _ = build_world(policy, seed)
    hidden = hide(cluster, double_limits(jobs) if limits else None)
    _, seen = run(policy, world, seed, hidden)
    true = {job.name: job for job in jobs if job.bag is None}
    stated = {}
    done: Counter[str] = Counter()
    for event, commands in zip(seen.events, seen.commands, strict=True):
        completed = {
            command.job for command in commands if isinstance(command, Completed)
        } & true.keys()
        if isinstance(event, JobsArrived):
            stated |= {job.name: job for job in event.jobs if job.bag is None}
        if not isinstance(event, SlotEnded):
            assert not completed
            continue
        done.update(event.progress)
        for name, job in event.lengths.items():
            # A stated length is only replaced by a longer one, or by the true one at the end.
            assert job is true[name] or stated[name].required <= done[name] < job.required
            stated[name] = job
        ended = {name for name in event.progress.keys() & true.keys()
                 if done[name] >= true[name].required}  # fmt: skip
        assert completed == ended
        for name in completed:
            assert done[name] - event.progress[name] < true[name].required
            assert stated[name] is true[name]


def recorded(seen: EventRecorder, before: int) -> list[Any]:
    """Return events and commands before a slot ends, as text."""
    return [
        (json.dumps(event_record(event)), repr(commands))
        for event, commands in zip(seen.events, seen.commands, strict=True)
        if event.slot < before
    ]


@pytest.mark.parametrize("policy", ["rolling", "srtf", "backfill", "elasticflow", "oasis", "fifo"])
@given(SEEDS, st.sampled_from([2, 3, 7]), st.booleans())
@settings(max_examples=example_count(20), deadline=None)
def test_no_decision_depends_on_a_length_before_the_job_ends(
    policy: str, seed: int, factor: int, shorter: bool
) -> None:
    """Change one job's work: everything is the same up to the slot in which one version ends."""
    cluster, jobs, incidents = build_world(policy, seed)
    index = seed % len(jobs)
    required = max(1, jobs[index].required // factor) if shorter else jobs[index].required * factor
    other = [*jobs]
    other[index] = replace(jobs[index], required=required)
    ends = []
    seen = []
    for version in (jobs, other):
        _, events = run(policy, (cluster, version, incidents), seed, hide(cluster))
        name, left = version[index].name, version[index].required
        end = max(event.slot for event in events.events) + 1
        for event in events.events:
            if isinstance(event, SlotEnded):
                left -= event.progress.get(name, 0)
                end = event.slot if left <= 0 < left + event.progress.get(name, 0) else end
        ends.append(end)
        seen.append(events)
    first = min(ends)
    assert recorded(seen[0], first) == recorded(seen[1], first)


@given(SEEDS)
@settings(max_examples=example_count(10), deadline=None)
def test_a_run_with_hidden_lengths_replays_from_its_journal(seed: int) -> None:
    world = build_world("rolling", seed)
    engine, seen = run("rolling", world, seed, hide(world[0]))
    again = Engine(world[0], make_policy("rolling", PolicyContext(world[0], None, None, seed), {}))
    for event in seen.events:
        again.handle(event_from_record(json.loads(json.dumps(event_record(event)))))
    assert again.state_digest() == engine.state_digest()
    for name, record in engine.jobs.items():
        assert again.jobs[name].job.record() == record.job.record()

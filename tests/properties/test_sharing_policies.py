"""Guarantees of Gandiva_fair and HiveD, through the engine."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice.core.cluster import Cluster
from shadowprice.core.errors import InputError
from shadowprice.core.events import JobCancelled, ServerBack, ServerLost
from shadowprice.core.job import Job
from shadowprice.core.policy import PolicyContext, Status
from shadowprice.core.specs import ClusterSpec
from shadowprice.policies.astraea.market import assign_units
from shadowprice.policies.registry import make_policy
from shadowprice.policies.tenants.tenancy import read_tenant_shares
from tests.support.astraea_cases import (
    DecisionRecorder,
    random_jobs,
    shared_cluster,
    shared_job,
    simulate,
)
from tests.support.examples import example_count

TENANTS = {"a": {"worker": 3, "ps": 2}, "b": {"worker": 4, "ps": 1}, "c": {"worker": 1, "ps": 1}}
CLUSTER = shared_cluster(4, TENANTS)


def free_running(cluster: Cluster, name: str, tenant: str, arrival: int = 0, **changes: Any) -> Job:
    """Return an all-reduce job, which needs workers alone."""
    none = {"ps": None, "gradient": None, "internal_bandwidth": None}
    return shared_job(cluster, name, tenant, arrival, **(none | changes))


@settings(max_examples=example_count(20), deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    policy=st.sampled_from(["gandiva_fair", "hived"]),
    troubled=st.booleans(),
)
def test_every_job_runs_to_its_end(seed: int, policy: str, troubled: bool) -> None:
    jobs = random_jobs(CLUSTER, 14, seed)
    incidents: list[Any] = []
    if troubled:
        incidents = [
            ServerLost(3, CLUSTER.names[1]),
            ServerBack(9, CLUSTER.names[1]),
            JobCancelled(7, jobs[3].name),
        ]
    engine = simulate(CLUSTER, jobs, policy, {}, incidents=incidents)
    for record in engine.jobs.values():
        assert record.status in {Status.FINISHED, Status.REFUSED, Status.CANCELLED}
    again = simulate(CLUSTER, jobs, policy, {}, incidents=incidents)
    assert again.state_digest() == engine.state_digest()


@settings(max_examples=example_count(10), deadline=None, derandomize=True)
@given(
    tickets=st.tuples(*[st.integers(1, 6)] * 3),
    widths=st.lists(st.integers(1, 4), min_size=9, max_size=9),
)
def test_gandiva_fair_s_long_run_shares_are_the_tickets(
    tickets: tuple[int, int, int], widths: list[int]
) -> None:
    # Three tenants with too much work. Each one's share is that of its tickets, up to the effect of
    # the widest gang and the last slots.
    total = sum(tickets)
    shares = {name: {"worker": n} for name, n in zip("abc", tickets, strict=True)}
    on = shared_cluster(1, shares, worker=total, ps=0)
    jobs = [
        free_running(
            on,
            f"{name}{number}",
            name,
            chunks=min(widths[3 * index + number], total),
            workers={"min": min(widths[3 * index + number], total)},
            epochs=500,
        )
        for index, name in enumerate("abc")
        for number in range(3)
    ]
    notes = DecisionRecorder()
    slots = 120
    simulate(on, jobs, "gandiva_fair", {}, until=slots, observers=[notes])
    used: Counter[str] = Counter()
    for running in notes.running.values():
        for name, placement in running.items():
            used[name[0]] += placement.total_workers
    everything = sum(used.values())
    for name, count in zip("abc", tickets, strict=True):
        # A tenant never gets more than its gangs are wide.
        widest = sum(min(widths[3 * "abc".index(name) + n], total) for n in range(3))
        if widest >= total:
            assert used[name] / everything == pytest.approx(count / total, abs=0.06)


def test_gandiva_fair_trades_tickets_at_the_given_speeds() -> None:
    document = {
        "slot": "1h",
        "servers": [
            {"name": "old", "count": 2, "capacity": {"worker/k80": 4}},
            {"name": "new", "count": 2, "capacity": {"worker/v100": 4}},
        ],
        "tenants": [
            {"name": name, "share": {"worker/k80": 4, "worker/v100": 4}} for name in ("a", "b")
        ],
    }
    on = ClusterSpec.model_validate(document).resolve()

    def tickets(speeds: Any) -> Any:
        policy = make_policy("gandiva_fair", PolicyContext(on), {"speeds": speeds})
        return policy.parameters_in_force()["tickets"]

    even = {"worker/k80": 4000, "worker/v100": 4000}
    assert tickets({}) == {"a": even, "b": even}
    # a's jobs run five times as fast on the new type, b's only twice: b sells.
    traded = tickets({"a": {"worker/v100": 5.0}, "b": {"worker/v100": 2.0}})
    assert traded["a"]["worker/v100"] > 4000 > traded["b"]["worker/v100"]
    for kind in even:
        assert traded["a"][kind] + traded["b"][kind] == 8000
    with pytest.raises(InputError, match="unknown 'd'"):
        tickets({"d": {"worker/k80": 1.0}})
    with pytest.raises(InputError, match="unknown 'worker/t4'"):
        tickets({"a": {"worker/t4": 1.0}})


@settings(max_examples=example_count(15), deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), data=st.data())
def test_hived_starts_a_job_within_its_tenant_s_cells_at_once(
    seed: int, data: st.DataObject
) -> None:
    # Even beside opportunistic jobs, a job that fits its tenant's idle cells starts in the slot of
    # its arrival, and keeps its units.
    rng = np.random.default_rng(seed)
    shares = {"a": {"worker": 7}, "b": {"worker": 6}, "c": {"worker": 3}}
    on = shared_cluster(2, shares, worker=8, ps=0)
    flood = [
        free_running(
            on,
            f"flood{n}",
            "c",
            int(rng.integers(4)),
            chunks=8,
            epochs=9,
            workers={"min": int(rng.integers(1, 9))},
        )
        for n in range(8)
    ]
    mine = []
    left = {"a": 7, "b": 6}
    for number in range(data.draw(st.integers(1, 6))):
        tenant = data.draw(st.sampled_from(["a", "b"]))
        if left[tenant]:
            size = data.draw(st.integers(1, left[tenant]))
            left[tenant] -= size
            mine.append(
                free_running(
                    on,
                    f"own{number}",
                    tenant,
                    int(rng.integers(6)),
                    chunks=size,
                    epochs=6,
                    workers={"min": size},
                )
            )
    notes = DecisionRecorder()
    engine = simulate(on, [*flood, *mine], "hived", {}, observers=[notes])
    for job in mine:
        record = engine.jobs[job.name]
        assert record.started == job.arrival
        # Six epochs of as many mini-batches as workers, never interrupted.
        assert record.completion == job.arrival + 5
    if mine:
        assert any("flood" in name for running in notes.running.values() for name in running)


def test_hived_without_opportunism_is_bound_to_its_cells() -> None:
    on = shared_cluster(2, {"a": {"worker": 4}, "b": {"worker": 4}}, worker=4, ps=0)
    jobs = [free_running(on, f"j{n}", "a", epochs=3, chunks=4) for n in range(3)]
    alone = simulate(on, jobs, "hived", {"opportunistic": False})
    shared = simulate(on, jobs, "hived", {})
    assert [r.completion for r in alone.jobs.values()] == [2, 5, 8]
    assert sorted(r.completion for r in shared.jobs.values()) == [2, 2, 5]


def test_dealt_servers_are_the_shares() -> None:
    tenancy = read_tenant_shares(CLUSTER)
    units = assign_units(tenancy)
    assert (units.sum(axis=2) == tenancy.owned).all()
    assert (units.sum(axis=1) <= tenancy.units).all()
    # Whole servers if the share has them: a has one of two units and a single one.
    assert sorted(units[0, 0].tolist()) == [0, 0, 1, 2]

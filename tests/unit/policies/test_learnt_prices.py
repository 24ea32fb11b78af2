"""Learnt prices of `oasis` and `pdors`: what jobs teach, and servers that jobs divide."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shadowprice.core.cluster import Cluster
from shadowprice.core.events import JobRevised, JobsArrived, ServerLost, SlotBegan, SlotEnded
from shadowprice.core.policy import PolicyContext, Status
from shadowprice.core.utility import Constant
from shadowprice.engine import Engine
from shadowprice.policies.registry import make_policy
from tests.support.workloads import make_cluster, make_job


def live(policy: str, cluster: Cluster) -> tuple[Engine, Any]:
    """Return an engine and its policy, which knows no jobs beforehand."""
    made: Any = make_policy(policy, PolicyContext(cluster, None), {})
    return Engine(cluster, made), made


def lowest(policy: Any) -> float:
    return float(policy._learners[0].constants().ln_lower)


def test_servers_stay_divided_for_an_open_job_without_learning() -> None:
    cluster = make_cluster(0, 0, both=4, horizon=20)
    engine, policy = live("oasis", cluster)
    engine.handle(JobsArrived(0, (replace(make_job(cluster, "with-ps", epochs=8), points=0.0),)))
    plan = engine.jobs["with-ps"].plan
    assert engine.jobs["with-ps"].status is Status.ADMITTED
    engine.handle(JobsArrived(0, (make_job(cluster, "without", ps_amounts=None),)))
    assert policy.terms.divided
    engine.handle(SlotBegan(0))
    engine.handle(SlotEnded(0, dict.fromkeys(engine.running, 1)))
    hosts = {int(server) for server, ps in zip(plan.servers, plan.ps, strict=True) if ps}
    engine.handle(ServerLost(1, f"any-{hosts.pop()}"))
    assert engine.jobs["with-ps"].status is Status.ADMITTED


@pytest.mark.parametrize("policy", ["oasis", "pdors"])
def test_revised_job_updates_learnt_demand(policy: str) -> None:
    cluster = make_cluster(2, 0, horizon=20)
    results = []
    for first in (1.0, 1e5):
        engine, made = live(policy, cluster)
        jobs = [
            make_job(cluster, f"job-{index}", ps_amounts=None, utility=Constant(first))
            for index in range(3)
        ]
        engine.handle(JobsArrived(0, tuple(jobs)))
        assert all(engine.jobs[job.name].status is Status.ADMITTED for job in jobs)
        for each in jobs:
            engine.handle(JobRevised(0, replace(each, utility=Constant(2.0))))
        results.append(lowest(made))
    assert results[0] == pytest.approx(results[1])


def test_an_end_of_the_timespan_leaves_the_observed_demand() -> None:
    cluster = make_cluster(2, 0, horizon=20)
    engine, made = live("oasis", cluster)
    for slot in range(30):
        engine.handle(SlotBegan(slot))
        engine.handle(SlotEnded(slot, {}))
    jobs = [make_job(cluster, f"job-{index}", arrival=30, ps_amounts=None) for index in range(3)]
    engine.handle(JobsArrived(30, tuple(jobs)))
    before = [learner._ln_clearing() for learner in made._learners]
    after = [learner.within(45, 30)._ln_clearing() for learner in made._learners]
    assert after == before

"""PD-ORS keeps (3.2)-(3.5) and Fact 1 in every slot, whatever happens to the cluster."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice.core.events import JobCancelled, ServerBack, ServerLost
from shadowprice.core.policy import PolicyContext, Status
from shadowprice.engine import Engine
from shadowprice.policies.registry import make_policy
from shadowprice.simulator.driver import Incident, Simulation
from tests.support.examples import example_count
from tests.support.pdors_cases import GBPS, PRICES, random_pool, random_two_rate_job
from tests.support.policy_runs import SlotObserver


def check_slot(engine: Engine, slot: int) -> None:
    del slot
    on = engine.cluster
    for name, placement in engine.running.items():
        job = engine.jobs[name].job
        workers, ps = placement.total_workers, placement.total_ps
        assert 0 < workers <= job.max_workers  # (3.2)
        if job.ps is None:
            assert ps == 0
        else:
            assert workers * job.worker_bandwidth <= ps * job.ps_bandwidth  # (3.4)
            assert ps <= workers  # (3.5)
        assert sum(placement.workers) == workers
        for server, w, s in zip(placement.servers, placement.workers, placement.ps, strict=True):
            assert w == 0 or on.hosts_workers[server]
            assert s == 0 or on.hosts_ps[server]
    used = np.zeros_like(on.capacity)
    for name, placement in engine.running.items():
        job = engine.jobs[name].job
        for server, w, s in zip(placement.servers, placement.workers, placement.ps, strict=True):
            used[server] += w * job.worker + (s * job.ps if job.ps is not None else 0)
            assert server not in engine.lost
    assert (used <= on.capacity).all()  # (3.3)


@settings(max_examples=example_count(60), deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    placement=st.sampled_from(["randomised", "exact", "greedy"]),
    literal=st.booleans(),
    roles=st.booleans(),
)
def test_constraints_hold_whatever_happens(
    seed: int, placement: str, literal: bool, roles: bool
) -> None:
    rng = np.random.default_rng(seed)
    on = random_pool(rng, roles=roles, horizon=10)
    jobs = [
        random_two_rate_job(on, rng, f"job-{index}", latest=8)
        for index in range(int(rng.integers(1, 10)))
    ]
    if not on.hosts_ps.any():
        jobs = [job for job in jobs if job.ps is None]
    happened: list[Incident] = []
    for _ in range(int(rng.integers(0, 3))):
        server, slot = int(rng.integers(on.servers)), int(rng.integers(10))
        happened += [
            ServerLost(slot, on.names[server]),
            ServerBack(slot + int(rng.integers(1, 5)), on.names[server]),
        ]
    if jobs and rng.random() < 0.5:
        happened.append(JobCancelled(jobs[-1].arrival + 1, jobs[-1].name))
    parameters = PRICES | {
        "placement": placement,
        "bandwidth": "literal" if literal else "internal",
        "gain": "theorem" if seed % 5 == 0 else 1.006,
    }
    until = 20 if seed % 2 else None
    policy = make_policy("pdors", PolicyContext(on, jobs, until, seed), parameters)
    engine = Simulation(on, jobs, policy, until=until, incidents=happened).run(
        [SlotObserver(check_slot)]
    )
    for record in engine.jobs.values():
        job, plan = record.job, record.plan
        done = record.status is Status.FINISHED
        assert done == (record.progress >= job.required)
        if not (literal and done and job.ps is not None):
            continue
        # By the letter of (3.4), one machine must also serve the internal rate.
        workers, ps, alone = plan.totals()
        inside = job.internal_bandwidth // GBPS
        assert (workers[alone] * inside <= ps[alone] * (job.ps_bandwidth // GBPS)).all()
    if not engine.open_jobs:
        assert not engine.ledger.used.any()

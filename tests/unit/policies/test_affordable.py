"""Admissions of an empty cluster at the default L, and with ``empty=admits``."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shadowprice.core.cluster import Cluster
from shadowprice.core.errors import InputError
from shadowprice.core.events import Commit, Decided, Decision
from shadowprice.core.job import Job
from shadowprice.core.policy import PolicyContext
from shadowprice.core.utility import Constant, utility_value
from shadowprice.experiments import oasis
from shadowprice.policies.pricing.alone import StandaloneValue
from shadowprice.policies.pricing.constants import (
    ConstantsLearner,
    PriceConstants,
    PricePool,
    limit_lower,
)
from shadowprice.policies.registry import make_policy
from shadowprice.results.observer import Observer
from shadowprice.simulator.driver import Simulation
from tests.support.examples import example_count
from tests.support.workloads import make_cluster, make_job, random_job

SEEDS = st.integers(0, 2**32 - 1)
UNTIL = 6


class FirstDecisions(Observer):
    """Keeps the first decision on each job."""

    def __init__(self) -> None:
        self.by_job: dict[str, Decision] = {}

    def on_event(self, event: Any, commands: Any) -> None:
        del event
        for command in commands:
            if isinstance(command, Decided):
                self.by_job.setdefault(command.decision.job, command.decision)


def decide(
    cluster: Cluster, known: list[Job], arriving: list[Job], policy: str = "oasis", **options: Any
) -> dict[str, Decision]:
    """Return the decisions on arriving jobs, at the prices of a known set."""
    built = make_policy(policy, PolicyContext(cluster, known, UNTIL), options)
    seen = FirstDecisions()
    Simulation(cluster, arriving, built, until=UNTIL).run([seen])
    return seen.by_job


def few_large_jobs(seed: int) -> tuple[Cluster, list[Job]]:
    """Return a cluster of a few servers, and jobs of which most don't fit together."""
    rng = np.random.default_rng(seed)
    cluster = make_cluster(
        int(rng.integers(1, 3)), int(rng.integers(1, 3)), gpus=int(rng.integers(1, 6)), horizon=6
    )
    jobs = [
        random_job(cluster, rng, f"job-{index}", latest=3)
        for index in range(int(rng.integers(1, 12)))
    ]
    return cluster, [replace(job, required=job.required * int(rng.integers(1, 6))) for job in jobs]


def can_complete_alone(cluster: Cluster, job: Job) -> bool:
    """Return whether an empty cluster completes a job while it has a utility.

    Counted slot by slot, with the most processes that fit server by server.
    """

    def places(hosts: Any, demand: Any) -> int:
        needed = demand > 0
        return int((cluster.capacity[hosts][:, needed] // demand[needed]).min(axis=1).sum())

    gain = max(
        (
            int(of)
            for workers, ps, of in zip(job.worker_counts, job.ps_counts, job.gains, strict=True)
            if workers <= places(cluster.hosts_workers, job.worker)
            and (job.ps is None or ps <= places(cluster.hosts_ps, job.ps))
        ),
        default=0,
    )
    done = 0
    for slot in range(job.arrival, min(job.arrival + cluster.horizon, UNTIL)):
        done += gain
        if done >= job.required:
            return utility_value(job.utility, slot - job.arrival) > 0
    return False


@cache
def the_refused_ten() -> tuple[Cluster, list[Job]]:
    """Return the instance of Fig. 5 in which the clearing price is above what every job can pay."""
    on = oasis.cluster(2, 1, oasis.RATIO_SLOTS, 0)
    return on, oasis.draw_jobs(on, (1.0, 100.0), 0)


def test_the_instance_of_fig_5_in_which_all_ten_were_refused() -> None:
    on, jobs = the_refused_ten()
    options = {"preset": "paper", "lower": "clearing"}
    policy: Any = make_policy("oasis", PolicyContext(on, jobs, oasis.RATIO_SLOTS), options)
    seen = FirstDecisions()
    Simulation(on, jobs, policy, until=oasis.RATIO_SLOTS).run([seen])
    admitted = [entry for entry in seen.by_job.values() if isinstance(entry, Commit)]
    assert sum(entry.utility for entry in admitted) == pytest.approx(69.94, abs=0.01)
    # The prices of each pool as one machine, as they were.
    learners: list[ConstantsLearner] = list(policy._learners)
    cleared = [learner.constants() for learner in learners]
    limited = limit_lower(cleared, learners, policy._alone(on), jobs)
    fell = [
        after.ln_lower - before.ln_lower for before, after in zip(cleared, limited, strict=True)
    ]
    assert fell == pytest.approx([math.log(0.408861)] * 2, abs=1e-5)


def test_l_falls_until_the_best_job_pays_half_of_its_utility() -> None:
    cluster = make_cluster(1, 1, gpus=4, horizon=10)
    # 8 worker-slots, 4 at once: two slots with 4 workers and their parameter servers.
    poor, rich = (
        make_job(cluster, name, utility=Constant(value)) for name, value in (("a", 3), ("b", 12))
    )
    members = cluster.hosts_workers, cluster.hosts_ps
    alone = StandaloneValue(cluster, *members)
    learners = [
        ConstantsLearner(PricePool.of(cluster, servers), carries, 10, 10)  # type: ignore[arg-type]
        for servers, carries in zip(members, ("workers", "ps"), strict=True)
    ]
    for learner in learners:
        learner.learn_all([poor, rich])
    # A worker takes 1/4 of the GPUs, 1/8 of the cores and memory, and 1/25 of the bandwidth.
    per_worker = 1 / 4 + 1 / 8 + 1 / 8 + 1 / 25
    per_ps = 1 / 8 + 1 / 8 + 4 / 50
    counts, slots = alone.plans(rich, 10)
    assert (rich.worker_counts[counts[-1]], slots[-1]) == (4, 2)
    servers = int(rich.ps_counts[counts[-1]])
    cost = 2 * (4 * per_worker * 3.0 + servers * per_ps * 5.0)
    high = np.full(len(cluster.resources), 99.0)
    constants = [PriceConstants(math.log(price), high) for price in (3.0, 5.0)]

    limited = limit_lower(constants, learners, alone, [poor, rich])
    factor = min(1.0, 0.5 * 12 / cost)
    assert factor < 1
    assert [math.exp(pool.ln_lower) for pool in limited] == pytest.approx([3 * factor, 5 * factor])
    # They stay if a job pays, and if none can complete.
    cheap = [constant.lowered(math.log(factor)) for constant in constants]
    assert [
        entry.ln_lower for entry in limit_lower(cheap, learners, alone, [rich])
    ] == pytest.approx([entry.ln_lower for entry in cheap])
    endless = replace(rich, required=rich.required * 99)
    assert limit_lower(constants, learners, alone, [endless]) == constants


@pytest.mark.parametrize("policy", ["oasis", "pdors"])
@settings(deadline=None, derandomize=True, max_examples=example_count(60))
@given(seed=SEEDS)
@example(seed=5)  # here L alone would refuse all jobs
@example(seed=85)
@example(seed=113)
def test_an_empty_cluster_admits_a_job_of_every_known_set(policy: str, seed: int) -> None:
    on, jobs = few_large_jobs(seed)
    decisions = decide(on, jobs, jobs, policy)
    admitted = [decision for decision in decisions.values() if isinstance(decision, Commit)]
    if any(can_complete_alone(on, job) for job in jobs):
        assert admitted
    elif policy == "oasis":  # with pdors, workers and parameter servers share servers
        assert not admitted


@settings(deadline=None, derandomize=True, max_examples=example_count(60))
@given(seed=SEEDS, prices=st.sampled_from(["offline", "given", "online", "nothing learnt"]))
def test_every_job_that_can_complete_is_admitted(seed: int, prices: str) -> None:
    """With ``empty=admits``, and without it if no price was learnt."""
    on, jobs = few_large_jobs(seed)
    options: dict[str, Any] = {"prices": prices, "empty": "admits"}
    if prices == "nothing learnt":
        options = {"prices": "online"}
    if prices == "given":
        high = dict.fromkeys(("cpu", "memory", "bandwidth"), 1e6)
        options |= {"worker": {"L": 1e3, "U": {**high, "gpu": 1e6}}, "ps": {"L": 1e3, "U": high}}
    for job in jobs:
        (decision,) = decide(on, jobs, [job], **options).values()
        assert isinstance(decision, Commit) is can_complete_alone(on, job)
        if isinstance(decision, Commit):
            assert decision.payoff > 0


def test_prices_are_lowered_for_the_job_on_an_empty_cluster_alone() -> None:
    cluster = make_cluster(2, 2, horizon=UNTIL)
    high = dict.fromkeys(("cpu", "memory", "bandwidth"), 1e3)
    dear = {
        "prices": "given",
        "worker": {"L": 9.0, "U": {**high, "gpu": 1e3}},
        "ps": {"L": 9.0, "U": high},
    }
    poor = [
        make_job(cluster, f"poor-{index}", chunks=1, epochs=1, utility=Constant(1.0))
        for index in range(2)
    ]
    rich = make_job(cluster, "rich", chunks=1, epochs=1, utility=Constant(1e4))
    arriving = [*poor, rich]

    def admitted(empty: str, among: list[Job]) -> list[str]:
        decisions = decide(cluster, among, among, empty=empty, **dear)
        return [name for name, one in decisions.items() if isinstance(one, Commit)]

    assert admitted("priced", arriving) == ["rich"]
    assert admitted("admits", arriving) == ["poor-0", "rich"]
    assert admitted("admits", [rich, *poor]) == ["rich"]


def test_posted_prices_have_no_l_to_lower() -> None:
    cluster = make_cluster(1, 1)
    with pytest.raises(InputError, match="empty=admits"):
        make_policy(
            "oasis", PolicyContext(cluster, [], 5), {"prices": "fixed:x", "empty": "admits"}
        )

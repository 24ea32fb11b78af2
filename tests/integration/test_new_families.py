"""A new utility family is a class and an entry; no policy or table names it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest

from shadowprice.core import utility
from shadowprice.core.bag import BagTaskGroup
from shadowprice.core.job import Job
from shadowprice.core.policy import PolicyContext
from shadowprice.policies.registry import make_policy, policies
from shadowprice.results.run_directory import RunData
from shadowprice.simulator.scenario import Scenario, record_run
from tests.support.astraea_cases import shared_cluster, shared_job
from tests.support.bag_cases import build_bag, pareto, place_cluster
from tests.support.policy_cases import PLACE_COUNTING_POLICIES
from tests.support.workloads import make_cluster, make_job

SETTINGS: dict[str, dict[str, Any]] = {"dorm": {"window": 2, "adjustable": 2}}


@dataclass(frozen=True, slots=True)
class Sloping(utility.Utility):
    """Copy of `Linear` under an unregistered name, for arrays of durations only."""

    at_first: float
    each_slot: float
    kind: ClassVar[str] = "sloping"

    def values(self, durations: np.ndarray) -> np.ndarray:
        assert isinstance(durations, np.ndarray)
        return np.maximum(0.0, self.at_first - self.each_slot * durations.astype(np.float64))


def known(value: float, fall: float) -> utility.Utility:
    return utility.Linear(value, -fall)


def workload(name: str) -> tuple[Any, list[Job]]:
    rng = np.random.default_rng(8)
    jobs: list[Job] = []
    on = shared_cluster(4, {"a": {"worker": 4, "ps": 2}, "b": {"worker": 4, "ps": 2}})
    if name not in PLACE_COUNTING_POLICIES:
        on = make_cluster(2, 1, horizon=12)
    for index in range(9):
        worth = known(float(rng.integers(3, 40)), float(rng.uniform(0.2, 4.0)))
        if name in PLACE_COUNTING_POLICIES:
            job = shared_job(on, f"job-{index}", "ab"[index % 2], arrival=index // 3)
            jobs.append(replace(job, utility=worth))
        else:
            work = {"epochs": int(rng.integers(1, 6)), "utility": worth}
            jobs.append(make_job(on, f"job-{index}", arrival=index // 3, **work))
    return on, jobs


def renamed(job: Job) -> Job:
    linear = job.utility
    assert isinstance(linear, utility.Linear)
    return replace(job, utility=Sloping(linear.value, -linear.slope))


def outcome(name: str, on: Any, jobs: list[Job]) -> tuple[Any, RunData]:
    policy = make_policy(name, PolicyContext(on, jobs, 12), SETTINGS.get(name, {}))
    run = record_run(Scenario(on, jobs, until=12), name, policy)
    plans = [
        [line["job"], line["slot"], line["outcome"], line.get("plan")]
        for line in run.decisions(True)
    ]
    return (plans, run.allocations.rows(), run.jobs["utility"].to_list()), run


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(utility.FAMILIES, "sloping", Sloping)  # type: ignore[arg-type]  # a dict


@pytest.mark.parametrize("name", sorted(policies()))
def test_every_policy_decides_by_the_values_alone(name: str) -> None:
    on, jobs = workload(name)
    before, _ = outcome(name, on, jobs)
    after, run = outcome(name, on, [renamed(job) for job in jobs])
    assert after[:2] == before[:2]
    assert after[2] == pytest.approx(before[2])
    assert run.summary["total_utility"] > 0


def test_new_utility_family_is_serializable_and_prices_a_bag() -> None:
    on, (one, *_) = workload("fifo")
    changed = renamed(one)
    restored = Job.from_record(changed.record())  # type: ignore[arg-type]  # plain values
    assert restored.utility == changed.utility
    on = place_cluster()
    groups: tuple[BagTaskGroup, ...] = (pareto(3, 2.0, 0.5),)
    jobs = [build_bag(on, *groups, utility=known(40.0, 2.0))]
    before, _ = outcome("oasis", on, jobs)
    assert outcome("oasis", on, [renamed(jobs[0])])[0][:2] == before[:2]

"""Policies that decide nothing in most slots, beside twins that wake in every slot."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from shadowprice.core.specs import ClusterSpec
from shadowprice.core.utility import Constant
from shadowprice.policies.baselines.drf import DrfPolicy
from shadowprice.policies.baselines.elasticflow import ElasticFlow
from shadowprice.policies.baselines.ranked import LasPolicy, SrtfPolicy
from shadowprice.policies.choice import PolicyChoice
from shadowprice.policies.dorm.policy import Dorm
from shadowprice.policies.reactive.base import ReactivePolicy
from shadowprice.simulator.scenario import Scenario, run_policy
from shadowprice.traces.generator import GeneratorOptions, generate, paper_cluster

CASES = [
    ("srtf", SrtfPolicy, {}),
    ("las", LasPolicy, {"threshold": "20min", "promote": 1.3}),
    ("las", LasPolicy, {"threshold": "4h", "promote": 0.5}),
    ("las", LasPolicy, {"promote": 0}),
    ("drf", DrfPolicy, {}),
    ("elasticflow", ElasticFlow, {}),
    ("dorm", Dorm, {}),
]


def crowded(seed: int) -> Scenario:
    """Return jobs that last many slots, on servers that are too few for all of them."""
    options = GeneratorOptions(preset="calibrated", jobs=30, slots=1200, slot_seconds=Fraction(60))
    document = paper_cluster(
        workers=3, parameter_servers=3, slot_seconds=Fraction(60), horizon=300, seed=seed
    )
    for server in document["servers"]:
        server["capacity"]["gpu"] = 4
    on = ClusterSpec.model_validate(document).resolve("test")
    jobs = generate(options, seed=seed).to_jobs(on)
    # Half of the jobs have no deadline, so that `elasticflow` runs them whenever they complete.
    jobs[::2] = [replace(job, utility=Constant(100.0)) for job in jobs[::2]]
    return Scenario(on, jobs, 1200, seed)


@pytest.mark.parametrize(("name", "policy", "parameters"), CASES)
def test_held_slots_change_no_result(
    name: str,
    policy: type[ReactivePolicy],  # type: ignore[type-arg]
    parameters: dict[str, object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[int] = []
    begin = policy._begin

    def counted(self: object, view: object) -> object:
        begun.append(view.slot)  # type: ignore[attr-defined]
        return begin(self, view)  # type: ignore[arg-type]

    monkeypatch.setattr(policy, "_begin", counted)
    scenario, choice = crowded(5), PolicyChoice(name, parameters)
    fast = run_policy(scenario, choice)
    woken = len(begun)
    begun.clear()
    monkeypatch.setattr(policy, "capabilities", replace(policy.capabilities, holds=False))
    slow = run_policy(scenario, choice)
    assert woken < 0.8 * len(begun)
    for table in ("allocations", "slots", "jobs"):
        assert getattr(fast, table).equals(getattr(slow, table)), table
    assert fast.summary == slow.summary

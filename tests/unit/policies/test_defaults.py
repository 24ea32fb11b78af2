"""Policies with their defaults: live, on an empty cluster, and with the papers' settings."""

from __future__ import annotations

from typing import Any

import pytest

from shadowprice.core.events import JobsArrived, SlotBegan
from shadowprice.core.policy import (
    Capabilities,
    Policy,
    PolicyContext,
    Status,
    as_guaranteed_policy,
    as_priced_policy,
    as_quoting_policy,
)
from shadowprice.core.utility import Constant
from shadowprice.engine import Engine
from shadowprice.policies.registry import make_policy, policies, policy_parameters
from tests.support.astraea_cases import shared_cluster, shared_job
from tests.support.policy_cases import (
    PLACE_COUNTING_POLICIES,
    build_policy,
    build_world,
    policy_names,
)
from tests.support.workloads import make_cluster, make_job


@pytest.mark.parametrize("name", [n for n, info in policies().items() if not info.knows_all_jobs])
def test_every_policy_runs_live_with_defaults(name: str) -> None:
    if name in PLACE_COUNTING_POLICIES:
        on = shared_cluster()
        jobs = [shared_job(on, f"job-{index}", tenant="u1") for index in range(2)]
    else:
        on = make_cluster(2, 1, both=1)
        jobs = [make_job(on, "job-0", utility=Constant(9.0)), make_job(on, "job-1", ps=None)]
    engine = Engine(on, make_policy(name, PolicyContext(on, None), {}))
    engine.handle(JobsArrived(0, tuple(jobs)))
    engine.handle(SlotBegan(0))
    assert {state.status for state in engine.jobs.values()} <= {
        Status.ADMITTED, Status.QUEUED,
    }  # fmt: skip


@pytest.mark.parametrize("name", policies())
def test_every_policy_accepts_the_settings_of_the_live_service(name: str) -> None:
    wanted = policies()[name].live_settings
    parameters = policy_parameters(name, wanted).model_dump()
    assert {key: parameters[key] for key in wanted} == wanted


class Wrapped:
    """A policy within something that has none of its methods."""

    def __init__(self, policy: Policy) -> None:
        self.wrapped_policy = policy
        self.capabilities = policy.capabilities


@pytest.mark.parametrize("name", policy_names())
def test_declared_features_of_policies_exist(name: str) -> None:
    cluster, jobs, _ = build_world(name, 1)
    policy = build_policy(name, cluster, jobs, 1)
    for declared, feature, method in (
        (policy.capabilities.prices, as_priced_policy, "slot_prices"),
        (policy.capabilities.quotes, as_quoting_policy, "quote"),
        (policy.capabilities.guarantees, as_guaranteed_policy, "guarantee"),
    ):
        for candidate in (policy, Wrapped(policy)):
            assert feature(candidate) is (policy if declared else None)  # type: ignore[arg-type]  # a part
        assert not declared or callable(getattr(policy, method))


def test_features_depend_on_settings() -> None:
    cluster = make_cluster(2, 1, both=1)

    def can(name: str, **settings: Any) -> Capabilities:
        return make_policy(name, PolicyContext(cluster, ()), settings).capabilities

    assert can("oasis").guarantees
    assert can("pdors", prices="offline").forgets_refused
    assert can("pdors", prices="online").forgets_refused
    assert can("oasis", prices="offline", split="half").forgets_refused
    assert not can("oasis", prices="offline", split="auto").forgets_refused
    assert can("rrh").forgets_refused
    assert not can("fifo").forgets_refused


@pytest.mark.parametrize("name", ["oasis", "pdors"])
@pytest.mark.parametrize("wanted", [1, 2])
def test_prices_learnt_from_a_job_or_two_refuse_none_on_an_empty_cluster(
    name: str, wanted: int
) -> None:
    cluster = make_cluster(1, 1, both=1, horizon=10)
    jobs = [make_job(cluster, f"job-{index}", utility=Constant(1.0)) for index in range(wanted)]
    engine = Engine(cluster, make_policy(name, PolicyContext(cluster, None), {}))
    engine.handle(JobsArrived(0, tuple(jobs)))
    assert all(record.status is not Status.REFUSED for record in engine.jobs.values())


@pytest.mark.parametrize("name", sorted(policies()))
def test_every_policy_accepts_the_preset_of_its_paper(name: str) -> None:
    on = shared_cluster() if name in PLACE_COUNTING_POLICIES else make_cluster(2, 1)
    context = PolicyContext(on, [])
    parameters = make_policy(name, context, {"preset": "paper"}).parameters_in_force()
    assert parameters["preset"] == "paper"


@pytest.mark.parametrize("name", ["oasis", "pdors"])
def test_paper_preset_sets_literal_prices_and_is_overridable(name: str) -> None:
    context = PolicyContext(make_cluster(2, 1), [])

    def forced_prices(**settings: Any) -> tuple[object, object]:
        force = make_policy(name, context, settings).parameters_in_force()
        return force["prices"], force["lower"]

    assert forced_prices() == ("offline", "clearing")
    assert forced_prices(preset="paper") == ("offline", "theory")
    assert forced_prices(preset="paper", lower="clearing") == ("offline", "clearing")
    live = make_policy(name, PolicyContext(make_cluster(2, 1), None), {}).parameters_in_force()
    assert live["prices"] == "online"

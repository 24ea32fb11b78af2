"""Layouts that `rolling` holds while nothing happens, beside a twin that plans every slot."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from shadowprice.core.events import JobsArrived, SlotBegan, SlotEnded
from shadowprice.core.policy import PolicyContext
from shadowprice.core.specs import ClusterSpec
from shadowprice.core.utility import Constant
from shadowprice.engine import Engine
from shadowprice.policies.choice import PolicyChoice
from shadowprice.policies.registry import make_policy
from shadowprice.policies.rolling.open_jobs import OpenJobs
from shadowprice.policies.rolling.parameters import RollingParameters
from shadowprice.policies.rolling.planner import Planner
from shadowprice.policies.rolling.policy import RollingPolicy
from shadowprice.policies.rolling.prices import DemandPrices, ServerPools
from shadowprice.policies.rolling.quotas import build_quotas
from shadowprice.simulator.scenario import Scenario, run_policy
from shadowprice.traces.generator import GeneratorOptions, generate, paper_cluster
from tests.support.workloads import make_cluster, make_job


def crowded(seed: int) -> Scenario:
    """Return jobs that last many slots, on servers that they keep busy."""
    options = GeneratorOptions(preset="calibrated", jobs=30, slots=1200, slot_seconds=Fraction(60))
    document = paper_cluster(
        workers=3, parameter_servers=3, slot_seconds=Fraction(60), horizon=300, seed=seed
    )
    for server in document["servers"]:
        server["capacity"]["bandwidth"] = "30Gbps"
    on = ClusterSpec.model_validate(document).resolve("test")
    return Scenario(on, generate(options, seed=seed).to_jobs(on), 1200, seed)


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list of the slots in which promised jobs are planned."""
    slots: list[int] = []
    replan = Planner.replan

    def counted(self: Planner, state: object, slot: int, **options: bool) -> object:
        slots.append(slot)
        return replan(self, state, slot, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Planner, "replan", counted)
    return slots


def test_kept_layouts_earn_as_much(plans: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    earned, planned = [0.0, 0.0], [0, 0]
    for twin in (0, 1):
        if twin:
            monkeypatch.setattr(RollingPolicy, "hold", lambda *_: 0)
        for seed in range(4):
            plans.clear()
            earned[twin] += run_policy(crowded(seed), PolicyChoice("rolling")).summary[
                "total_utility"
            ]
            planned[twin] += len(set(plans))
    assert planned[0] < planned[1] / 2
    assert earned[0] >= 0.97 * earned[1]


def test_a_slot_that_yields_less_than_planned_is_followed_by_a_plan(plans: list[int]) -> None:
    cluster = make_cluster(1, 1, horizon=300)
    single_job = make_job(cluster, "one", epochs=40, chunks=1, minibatches=10)
    engine = Engine(cluster, make_policy("rolling", PolicyContext(cluster), {"evidence": 1e6}))
    engine.handle(JobsArrived(0, (single_job,)))
    for slot in range(20):
        engine.handle(SlotBegan(slot))
        gain = single_job.gain(engine.running["one"].total_workers)
        engine.handle(SlotEnded(slot, {"one": gain // 2 if slot == 12 else gain}))
    assert engine.jobs["one"].promise is not None
    assert [slot for slot in plans if slot > 5] == [13]


def test_slots_are_held_until_progress_falls_behind(plans: list[int]) -> None:
    cluster = make_cluster(1, 1, horizon=300)
    single_job = make_job(cluster, "one", epochs=40, chunks=1, minibatches=10)
    engine = Engine(cluster, make_policy("rolling", PolicyContext(cluster), {"evidence": 1e6}))
    engine.handle(JobsArrived(0, (single_job,)))
    gain = 0
    for slot in range(6):
        engine.handle(SlotBegan(slot))
        gain = single_job.gain(engine.running["one"].total_workers)
        engine.handle(SlotEnded(slot, {"one": gain}))
    plans.clear()
    assert engine.pass_quiet_slots({"one": gain}, 4) == 4
    # The slot before yielded what was planned. The next one doesn't, so the one after is planned.
    assert engine.pass_quiet_slots({"one": gain // 2}, 4) == 1
    assert engine.pass_quiet_slots({"one": gain}, 4) == 0
    assert not plans
    engine.handle(SlotBegan(11))
    assert plans == [11]


def test_costs_follow_new_jobs_and_lost_servers() -> None:
    cluster = make_cluster(2, 2, horizon=60)
    pools, quotas = ServerPools(cluster), build_quotas(cluster, enabled=False)
    prices = DemandPrices(cluster, pools, quotas, RollingParameters(prices="given", price=1.0))
    jobs, slot = OpenJobs(cluster, None, quotas), 0
    first = jobs.add(make_job(cluster, "first"))
    before = prices.costs(slot, jobs.arrays)[first]
    second = jobs.add(make_job(cluster, "second"))
    assert prices.costs(slot, jobs.arrays)[second].tolist() == before.tolist()
    pools.mark(0, is_up=False)  # the same demand is a larger share of fewer servers
    assert prices.costs(slot, jobs.arrays)[first, 0] > before[0] > 0.0
    fresh = DemandPrices(cluster, pools, quotas, RollingParameters(prices="given", price=1.0))
    for compute in ("costs", "weights"):
        cached, expected = (getattr(each, compute)(slot, jobs.arrays) for each in (prices, fresh))
        assert cached.tobytes() == expected.tobytes()


def test_prices_of_held_slots_are_those_of_each_slot() -> None:
    cluster = make_cluster(2, 2, horizon=60)
    prices = DemandPrices(
        cluster,
        ServerPools(cluster),
        build_quotas(cluster, enabled=True),
        RollingParameters(),
    )
    slots = range(150, 350)
    for arrivals in range(3):
        for index in range(40):
            job = make_job(cluster, f"{arrivals}-{index}", epochs=index + 1)
            prices.add_arrival(job, 100 + index + arrivals)
        # A cached price stays in force in its slot while few jobs arrive.
        prices.price(200)
        prices.add_arrival(make_job(cluster, f"{arrivals}", utility=Constant(1e6), epochs=900), 150)
        each = np.concatenate([prices.posted_in(range(slot, slot + 1)) for slot in slots])
        assert each.any()
        assert prices.posted_in(slots).tobytes() == each.tobytes()

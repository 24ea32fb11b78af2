"""Advice is true: with the change, a new run admits the job; with 1 % less, it doesn't."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from shadowprice.core.errors import InputError
from shadowprice.core.policy import Status
from shadowprice.engine.validation import never_fits
from shadowprice.policies.registry import policies
from shadowprice.results.advice import Advice
from shadowprice.simulator.advice import advise, advise_together
from tests.support.advice_cases import (
    Case,
    check_advice,
    positions_by_status,
    random_entry,
    random_servers,
    random_tight_entry,
    random_tight_servers,
    refused_positions,
    resolve_jobs,
)
from tests.support.astraea_cases import shared_cluster
from tests.support.examples import sample

SEEDS = st.integers(0, 2**32 - 1)
SETTINGS: list[tuple[str, Mapping[str, Any]]] = [
    ("oasis", {"prices": "offline"}),
    ("oasis", {"prices": "online"}),
    ("oasis", {"prices": "online", "lower": "clearing"}),
    ("pdors", {"prices": "online"}),
    ("pdors", {"prices": "offline", "lower": "clearing"}),
    ("rrh", {}),
    ("rrh", {"threshold": "3"}),
    ("elasticflow", {}),
    ("rolling", {}),
]
TENANTS = {"a": {"worker": 4, "ps": 2}, "b": {"worker": 2, "ps": 1}}


def case_of(policy: str, settings: Mapping[str, Any], seed: int) -> Case:
    """Return a policy with up to ten jobs on a small cluster."""
    rng = np.random.default_rng(seed)
    on = random_servers(rng)
    drawn = [random_entry(rng, f"job-{index}") for index in range(int(rng.integers(2, 11)))]
    entries = [entry for entry in drawn if never_fits(resolve_jobs(on, [entry])[0], on) is None]
    return Case(policy, settings, on, entries, seed=seed)


def hold(case: Case, most: int = 2, positions: Sequence[int] | None = None) -> list[Advice]:
    """Check all advice on the first refused jobs of a case, or on the named jobs; return it."""
    given: list[Advice] = []
    if positions is None:
        positions = refused_positions(case.run(), case.entries)[:most]
    for position in positions:
        job_advice = case.advise(position)
        for advice, admitted, minimal in check_advice(case, position, job_advice):
            assert admitted, (position, advice)
            assert minimal, (position, advice)
            given.append(advice)
        for way in job_advice.ineffective[:3]:
            assert not case.admitted(position, way.key, way.up_to)
    return given


@pytest.mark.extended
@pytest.mark.parametrize(("policy", "settings"), SETTINGS, ids=str)
@given(seed=SEEDS)
@hypothesis_settings(max_examples=2, deadline=None)
def test_advice_admits_when_the_file_is_changed_and_run_again(
    policy: str, settings: Mapping[str, Any], seed: int
) -> None:
    hold(case_of(policy, settings, seed))


def test_without_refused_jobs_there_is_no_advice() -> None:
    for policy, settings in (("rrh", {}), ("oasis", {"prices": "online"})):
        case = case_of(policy, settings, 0)
        assert advise_together(case.scenario(), case.choice, {}) == []


@pytest.mark.parametrize("seed", [1066, 1107])
def test_changes_reported_as_useless_are_even_if_they_move_the_constants(seed: int) -> None:
    """Refused with the minimum of everything at the run's prices, admitted with less of one."""
    hold(case_of("oasis", {"prices": "offline"}, seed))


TOGETHER: list[tuple[str, Mapping[str, Any]]] = [
    ("oasis", {"prices": "offline"}),
    ("oasis", {"prices": "given", "worker": {"L": 0.001, "U": {"gpu": 50}}, "split": "half"}),
    ("pdors", {"prices": "offline", "lower": "clearing"}),
    ("rrh", {}),
    ("oasis", {"prices": "online"}),  # its refusals leave traces: one run for each
]


@pytest.mark.extended
@pytest.mark.parametrize(("policy", "settings"), TOGETHER, ids=str)
def test_advice_on_several_jobs_at_once_is_that_on_each(
    policy: str, settings: Mapping[str, Any]
) -> None:
    several = 0
    for seed in range(12):
        case = case_of(policy, settings, seed)
        if policy == "oasis" and settings["prices"] == "given":
            case = replace(case, entries=[entry for entry in case.entries if "ps" not in entry])
        positions = refused_positions(case.run(), case.entries)
        entries = {position: case.entries[position] for position in positions}
        if not entries:
            continue
        together = advise_together(case.scenario(), case.choice, entries)
        assert together == [case.advise(position) for position in positions], seed
        several += len(positions) > 1
    assert several >= 2, "too few jobs are refused"


def shared_entry(rng: np.random.Generator, name: str) -> dict[str, Any]:
    """Return a job that takes units of servers, of one of two tenants."""
    value = float(np.round(10 ** rng.uniform(0, 2), 2))
    return {
        "name": name,
        "tenant": "a" if rng.random() < 0.6 else "b",
        "arrival": f"{int(rng.integers(0, 5))} slots",
        "epochs": int(rng.integers(1, 14)),
        "chunks": int(rng.integers(1, 5)),
        "minibatch_time": "1h",
        "gradient": "225GB",
        "worker": {"worker": 1, "bandwidth": "1Gbps"},
        "ps": {"ps": 1, "bandwidth": f"{int(rng.integers(1, 4))}Gbps"},
        "internal_bandwidth": "unlimited",
        "utility": [
            {"kind": "linear", "value": value, "slope": -round(value / 12, 3)},
            {"kind": "deadline", "value": value, "by": f"{int(rng.integers(2, 9))} slots"},
        ][int(rng.integers(2))],
    }


@pytest.mark.parametrize("policy", ["astraea", "batchsche", "gandiva_fair", "hived"])
@given(seed=SEEDS)
@hypothesis_settings(max_examples=2, deadline=None)
def test_advice_where_places_are_shared(policy: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    entries = [shared_entry(rng, f"job-{index}") for index in range(7)]
    on = shared_cluster(3, TENANTS, horizon=8)
    entries = [entry for entry in entries if never_fits(resolve_jobs(on, [entry])[0], on) is None]
    until = 20 if policy in ("astraea", "batchsche") else None
    hold(Case(policy, {}, on, entries, until=until), most=1)


def tight_case(policy: str, seed: int) -> Case:
    """Return jobs that almost fill empty servers, or don't fit together."""
    rng = np.random.default_rng(seed)
    on = random_tight_servers(rng)
    drawn = [random_tight_entry(rng, f"job-{index}") for index in range(8)]
    entries = [
        entry
        for entry in drawn
        if never_fits(resolve_jobs(on, [entry])[0], on, local_free=True) is None
    ]
    return Case(policy, {}, on, entries, seed=seed)


def awkward_case(policy: str, seed: int) -> Case:
    """Return jobs of two tenants, some of which request gangs that no server holds."""
    rng = np.random.default_rng(seed)
    on = shared_cluster(3, TENANTS, horizon=8)
    entries = []
    for index in range(7):
        one = shared_entry(rng, f"job-{index}")
        kind = int(rng.integers(4))
        if kind < 2:
            one["worker"]["worker"] = 2  # a worker takes one unit
        entries.append(one)
    entries = [entry for entry in entries if never_fits(resolve_jobs(on, [entry])[0], on) is None]
    return Case(policy, {}, on, entries, until=20 if policy in TENANTS_PRICED else None)


TENANTS_PRICED = ("astraea", "batchsche")
TENANTS_SHARING = ("gandiva_fair", "hived")


@pytest.mark.parametrize(
    "policy", [name for name, info in policies().items() if not info.knows_all_jobs]
)
def test_every_refusal_has_true_advice_or_none_exists(policy: str) -> None:
    kinds = {"oasis": lambda name, seed: case_of(name, {}, seed)}
    kinds |= dict.fromkeys((*TENANTS_PRICED, *TENANTS_SHARING), awkward_case)
    refused = advised = 0
    for seed in sample(range(20)):
        case = kinds.get(policy, tight_case)(policy, seed)
        for position in refused_positions(case.run(), case.entries)[:1]:
            job_advice = case.advise(position)
            assert job_advice.held
            assert job_advice.advice or job_advice.ineffective, (seed, position)
            refused += 1
        advised += len(hold(case, most=1))
        if refused >= 2 and advised:
            return
    pytest.fail(f"{refused} refused, {advised} changes advised: the jobs are too easy, or too hard")


@pytest.mark.extended
def test_a_job_that_runs_on_spare_capacity_and_is_abandoned_was_not_admitted() -> None:
    """``rolling`` runs jobs without a promise, and may abandon them later."""
    given_up = held = 0
    for seed in sample(range(8)):
        case = case_of("rolling", {}, seed)
        engine = case.run()
        dropped = positions_by_status(engine, case.entries, Status.DROPPED)[:1]
        given_up += len(dropped)
        # Abandoned jobs get advice too, and no advised job is abandoned.
        held += len(hold(case, positions=[*dropped, *refused_positions(engine, case.entries)[:1]]))
        if given_up and held >= 6:
            return
    pytest.fail(f"{given_up} given up, {held} changes advised: the jobs are too easy, or too hard")


@pytest.mark.parametrize("prices", ["online", "offline"])
@given(seed=SEEDS)
@hypothesis_settings(max_examples=2, deadline=None)
def test_advice_on_bags(prices: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    on = random_servers(rng)
    entries = [
        {
            "name": f"bag-{index}",
            "arrival": f"{int(rng.integers(0, 4))} slots",
            "worker": {"gpu": 1},
            "utility": {"kind": "constant", "value": round(float(rng.uniform(0.001, 10)), 4)},
            "deadline": f"{int(rng.integers(1, 6))} slots",
            "miss_probability": 0.05,
            "tasks": [
                {
                    "count": int(rng.integers(1, 9)),
                    "duration": {
                        "kind": "pareto",
                        "shape": 2.5,
                        "mean": f"{int(rng.integers(5, 30))}min",
                    },
                }
            ],
        }
        for index in range(5)
    ]
    hold(Case("oasis", {"prices": prices}, on, entries), most=1)


def crowded(policy: str, settings: Mapping[str, Any] | None = None) -> Case:
    """Return two jobs that each need all of one server, the second for less."""
    on = random_servers(np.random.default_rng(3), horizon=6)
    wide = {
        "epochs": 20,
        "chunks": 4,
        "minibatches": 30,
        "minibatch_time": "2s",
        "worker": {"gpu": 1, "cpu": 2, "memory": "8GiB"},
        "workers": {"min": 4, "max": 4},
    }
    at_once = {"kind": "deadline", "by": "0 slots"}
    places = on.servers - 1
    first = [
        {**wide, "name": f"first-{index}", "utility": {**at_once, "value": 50}}
        for index in range(places)
    ]
    second = {**wide, "name": "second", "utility": {**at_once, "value": 5}}
    return Case(policy, settings or {}, on, [*first, second])


def test_the_optimum_is_solved_again_for_every_change() -> None:
    case = crowded("optimum")
    position = len(case.entries) - 1
    assert refused_positions(case.run(), case.entries) == [position]
    job_advice = case.advise(position)
    assert job_advice.advice
    for advice, admitted, minimal in check_advice(case, position, job_advice):
        assert admitted, advice
        assert minimal, advice
        assert advice.verified == "run"


def test_a_later_arrival_is_reported_though_the_last_slot_would_not_do() -> None:
    """If every change is run, a kind of change is tried although its largest change is refused."""
    case = crowded("rolling")
    at_the_end = [
        {**entry, "name": f"late-{index}", "arrival": "3 slots"}
        for index, entry in enumerate(case.entries[:-1])
    ]
    case = replace(case, entries=[*at_the_end, *case.entries], until=4)
    position = len(case.entries) - 1
    job_advice = case.advise(position)
    found = {advice.key: advice for advice in job_advice.advice}
    assert found["arrival"].after == "1 slot"
    assert not case.admitted(position, "arrival", "3 slots")
    hold(case, positions=[position])


def test_nothing_is_tried_that_comes_too_late_for_any_server() -> None:
    case = crowded("rolling")
    long = {**case.entries[-1], "epochs": 3 * case.entries[-1]["epochs"]}
    case = replace(case, entries=[*case.entries[:-1], long], until=5)
    assert case.scenario().jobs[-1].min_slots_colocated == 3
    ineffective = {way.key: way.up_to for way in case.advise(len(case.entries) - 1).ineffective}
    assert ineffective["arrival"] == "2 slots"


def test_a_later_deadline_and_a_later_arrival_are_reported_in_slots() -> None:
    case = crowded("oasis", {"prices": "online"})
    position = len(case.entries) - 1
    # Worth more than 22.5, the price that the first jobs teach.
    case.entries[position] = {
        **case.entries[position],
        "utility": {"kind": "deadline", "by": "0 slots", "value": 30},
    }
    assert refused_positions(case.run(), case.entries) == [position]
    found = {advice.key: advice for advice in case.advise(position).advice}
    # One slot at full width beside it; the first jobs use three slots.
    assert found["arrival"].before == "0 slots"
    assert found["arrival"].verified == "quoted"
    assert found["utility.by"].completion == int(found["utility.by"].after.split()[0])
    assert found["utility.by"].change.endswith("later")
    record = case.advise(position).record()
    assert {entry["key"] for entry in record["advice"]} == found.keys()


def test_ways_that_cost_too_many_runs_are_left_out_and_named() -> None:
    case = crowded("oasis", {"prices": "offline"})
    position = len(case.entries) - 1
    job_advice = case.advise(position, max_arrivals=0)
    assert not job_advice.advice
    assert "utility.value" in job_advice.left_out


def test_a_job_that_is_admitted_needs_no_advice() -> None:
    case = crowded("oasis", {"prices": "online"})
    with pytest.raises(InputError, match="is admitted when the run is repeated"):
        case.advise(0)
    scenario = replace(case.scenario(), cluster=random_servers(np.random.default_rng(3), horizon=9))
    assert advise(scenario, case.choice, len(case.entries) - 1, case.entries[-1])

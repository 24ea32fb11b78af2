"""Deciding arrivals without an engine equals a run with one, whatever is cached."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from shadowprice.core.events import Commit, Decided, Decision, DriverEvent, Reject
from shadowprice.core.job import Job
from shadowprice.core.utility import utility_value
from shadowprice.policies.choice import PolicyChoice
from shadowprice.policies.pricing.admission import DecisionInputs, PricedAdmission, Shortfall
from shadowprice.policies.pricing.constants import PriceConstants
from shadowprice.results.observer import Observer
from shadowprice.simulator.advice.retracing import ArrivalReplay, DecisionCache
from shadowprice.simulator.driver import Simulation
from shadowprice.simulator.scenario import Scenario
from tests.support.advice_cases import (
    random_entry,
    random_servers,
    random_tight_entry,
    random_tight_servers,
    resolve_jobs,
)
from tests.support.examples import example_count

SETTINGS: list[tuple[str, Mapping[str, Any]]] = [
    ("oasis", {"prices": "offline"}),
    ("oasis", {"prices": "offline", "gap": 0}),
    ("oasis", {"prices": "offline", "lower": "theory"}),
    ("oasis", {"prices": "online"}),
    (
        "oasis",
        {
            "prices": "given",
            "worker": {"L": 0.001, "U": {"gpu": 50}},
            "ps": {"L": 0.001, "U": {"cpu": 9}},
        },
    ),
    ("oasis", {"prices": "online", "chunks": "literal"}),
    ("oasis", {"prices": "online", "empty": "admits"}),
    ("oasis", {"prices": "offline", "empty": "admits"}),
    ("pdors", {"prices": "online"}),
    ("pdors", {"prices": "offline"}),
    ("pdors", {"prices": "offline", "empty": "admits"}),
]


class _Decisions(Observer):
    """Keeps what was decided about each job first."""

    def __init__(self) -> None:
        self.first: dict[str, Decision] = {}

    def on_event(self, event: DriverEvent, commands: Any) -> None:
        del event
        for command in commands:
            if isinstance(command, Decided):
                self.first.setdefault(command.decision.job, command.decision)


def describe_decision(decision: Decision) -> object:
    """Return the parts of a decision that matter:

    reasons are left out if they weren't requested.
    """
    if isinstance(decision, Commit):
        parts = decision.schedule
        return parts.rows(), decision.utility, decision.cost
    assert isinstance(decision, Reject)
    return "refused"


def by_engine(scenario: Scenario, name: str, settings: Mapping[str, Any]) -> dict[str, object]:
    policy = PolicyChoice(name, settings).build(scenario.context(explained=False))
    seen = _Decisions()
    Simulation(scenario.cluster, scenario.jobs, policy, until=scenario.until).run([seen])
    return {job: describe_decision(decision) for job, decision in seen.first.items()}


def by_arrivals(
    scenario: Scenario,
    name: str,
    settings: Mapping[str, Any],
    known: DecisionCache,
    at: int,
    changed: Job | None,
) -> dict[str, object]:
    jobs = list(scenario.jobs)
    if changed is not None:
        jobs[at] = changed
    policy = PolicyChoice(name, settings).build(
        replace(scenario, jobs=jobs).context(explained=False)
    )
    assert isinstance(policy, PricedAdmission)
    course = ArrivalReplay(scenario, policy, known, at)
    return {
        jobs[position].name: describe_decision(decision)
        for position, decision in course.run(changed)
        if decision is not None
    }


def drawn(seed: int) -> tuple[Scenario, list[dict[str, Any]]]:
    rng = np.random.default_rng(seed)
    tight = bool(rng.random() < 0.3)
    on = random_tight_servers(rng) if tight else random_servers(rng)
    if tight:
        entries = [random_tight_entry(rng, f"job-{index}") for index in range(10)]
    else:
        entries = [
            random_entry(rng, f"job-{index}", 14) for index in range(int(rng.integers(4, 22)))
        ]
    until = 14 if rng.random() < 0.4 else None
    return Scenario(on, resolve_jobs(on, entries), until=until), entries


@pytest.mark.extended
@pytest.mark.parametrize(("name", "settings"), SETTINGS, ids=str)
@given(seed=st.integers(0, 2**32 - 1))
@hypothesis_settings(max_examples=4, deadline=None)
def test_arrivals_alone_are_decided_as_in_a_run(
    name: str, settings: Mapping[str, Any], seed: int
) -> None:
    scenario, entries = drawn(seed)
    known = DecisionCache(scenario)
    rng = np.random.default_rng(seed)
    for at in rng.permutation(len(entries))[:3].tolist():
        # Changes of all sizes move constants by a little and by a lot; one cache serves them all.
        for factor in (0.9, 1.01, 1.02, 30.0, 0.01):
            twin = dict(entries[at])
            key = "value" if "value" in twin["utility"] else "scale"
            twin["utility"] = twin["utility"] | {key: twin["utility"][key] * factor}
            if "slope" in twin["utility"]:
                twin["utility"]["slope"] *= factor
            if factor == 1.02:
                twin["arrival"] = f"{int(rng.integers(0, 12))} slots"
            (changed,) = resolve_jobs(scenario.cluster, [twin])
            jobs = list(scenario.jobs)
            jobs[at] = changed
            whole = by_engine(replace(scenario, jobs=jobs), name, settings)
            mine = by_arrivals(scenario, name, settings, known, at, changed)
            # The engine itself refuses what never fits; jobs behind the end never arrive.
            assert {job: whole[job] for job in mine} == mine
            assert {job for job, what in whole.items() if what != "refused"} <= mine.keys()


@given(seed=st.integers(0, 2**32 - 1))
@hypothesis_settings(max_examples=example_count(30), deadline=None)
def test_no_schedule_is_cheaper_than_the_factor_between_terms_says(seed: int) -> None:
    """Against Monte Carlo: prices at random loads, and the best of random schedules."""
    rng = np.random.default_rng(seed)
    resources = 3

    def terms(near: DecisionInputs | None) -> DecisionInputs:
        lower = rng.normal() if near is None else near.constants[0].ln_lower + rng.normal() / 5
        upper = lower + rng.exponential(4, resources)
        if near is not None:
            upper = np.maximum(near.constants[0].ln_upper + rng.normal(0, 0.3, resources), lower)
        upper = np.where(rng.random(resources) < 0.2, -math.inf, upper)
        return DecisionInputs([PriceConstants(lower, upper)])

    then = terms(None)
    now = terms(then)
    loads = rng.random((40, resources))

    def prices(at: DecisionInputs) -> np.ndarray[Any, Any]:
        (constants,) = at.constants
        free = np.isneginf(constants.ln_upper)
        ln_upper = np.where(free, 0.0, constants.ln_upper)
        result = np.exp(constants.ln_lower + loads * (ln_upper - constants.ln_lower))
        return np.where(free, 0.0, result)

    requested = rng.random((40, resources))
    before, after = (requested * prices(then)).sum(axis=1), (requested * prices(now)).sum(axis=1)
    ratio = math.exp(now.ln_cheapest(then))
    assert (after >= ratio * before * (1 - 1e-12)).all()
    worth = rng.exponential(before.mean(), 40)
    short = Shortfall(float(worth.max()), float((worth - before).max()))
    if short.remains(now.ln_cheapest(then)):
        assert (worth - after).max() < 0


def test_a_refusal_proves_nothing_where_it_cannot() -> None:
    then = DecisionInputs([PriceConstants(-2.0, np.array([1.0, -np.inf]))])
    assert then.ln_cheapest(then) == 0.0
    assert Shortfall(1.0, -1e-3).remains(0.0)
    assert not Shortfall(1.0, -1e-9).remains(0.0), "as close as rounding"
    assert not Shortfall(1.0, -1e-3).remains(-0.1)
    assert Shortfall(1.0, -math.inf).remains(0.0)
    assert not Shortfall(1.0, -math.inf).remains(-1e-9), "too dear for numbers, maybe"
    free = DecisionInputs([PriceConstants(-2.0, np.array([-np.inf, -np.inf]))])
    assert free.ln_cheapest(then) == -math.inf
    assert then.ln_cheapest(free) == 0.0, "what was free costs as much or more"
    assert DecisionInputs(then.constants, divided=True).ln_cheapest(then) == -math.inf
    unknown = DecisionInputs([PriceConstants(-math.inf, np.array([1.0, -np.inf]))])
    assert unknown.ln_cheapest(then) == then.ln_cheapest(unknown) == -math.inf


def test_most_refusals_are_not_decided_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The purpose: the second run of the same kind calls the policy rarely."""
    weighed = 0
    original = PricedAdmission.weigh

    def counted(*args: Any, **named: Any) -> Any:
        nonlocal weighed
        weighed += 1
        return original(*args, **named)

    monkeypatch.setattr(PricedAdmission, "weigh", counted)
    rng = np.random.default_rng(7)
    on = random_servers(rng)
    entries = [random_entry(rng, f"job-{index}", 10) for index in range(60)]
    scenario = Scenario(on, resolve_jobs(on, entries), until=14)
    settings: Mapping[str, Any] = {"prices": "offline"}
    decided = by_engine(scenario, "oasis", settings)
    at = max(range(60), key=lambda one: scenario.jobs[one].arrival)
    assert decided[entries[at]["name"]] == "refused"
    assert utility_value(scenario.jobs[at].utility, 1) >= 0
    known = DecisionCache(scenario)
    weighed = 0
    by_arrivals(scenario, "oasis", settings, known, at, scenario.jobs[at])
    first, weighed = weighed, 0
    by_arrivals(scenario, "oasis", settings, known, at, scenario.jobs[at])
    assert weighed == 1, "all but the job that may change is known"
    assert first > 20

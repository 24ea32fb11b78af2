"""A quote is the later decision, and quotes change no later decision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from shadowprice.core.cluster import Cluster
from shadowprice.core.errors import ShadowpriceError
from shadowprice.core.events import (
    Command,
    Commit,
    Decided,
    Decision,
    DriverEvent,
    Drop,
    JobsArrived,
    Place,
    Promise,
    Queue,
    Reject,
)
from shadowprice.core.job import Job
from shadowprice.core.policy import PolicyContext
from shadowprice.core.quote import Quote, QuoteAnswer
from shadowprice.core.utility import Constant, Sigmoid
from shadowprice.engine import Engine
from shadowprice.policies.registry import make_policy
from shadowprice.results.observer import Observer
from shadowprice.simulator.driver import Incident, Simulation
from tests.support import bag_cases
from tests.support.astraea_cases import random_jobs, shared_cluster
from tests.support.examples import example_count
from tests.support.policies import EarliestPlanner
from tests.support.policy_runs import random_world
from tests.support.workloads import make_cluster, make_job

SEEDS = st.integers(0, 2**32 - 1)
SERVERS: Sequence[tuple[str, Mapping[str, Any]]] = (
    ("oasis", {"prices": "offline"}),
    ("oasis", {"prices": "online"}),
    ("oasis", {"prices": "online", "lower": "clearing", "price_scale": "0.5"}),
    ("oasis", {"prices": "online", "chunks": "literal"}),
    ("pdors", {"prices": "online"}),
    ("pdors", {"prices": "offline", "lower": "clearing"}),
    ("fifo", {}),
    ("fifo", {"backfill": "3"}),
    ("drf", {}),
    ("dorm", {}),
    ("backfill", {}),
    ("srtf", {}),
    ("las", {}),
    ("rolling", {}),
    ("rolling", {"standby": "false"}),
    ("rrh", {}),
    ("rrh", {"threshold": "5"}),
    ("elasticflow", {}),
)
PLACES: Sequence[tuple[str, Mapping[str, Any]]] = (
    ("astraea", {}),
    ("astraea", {"theta": "online"}),
    ("batchsche", {}),
    ("gandiva_fair", {}),
    ("hived", {}),
)


class Asker(Observer):
    """Requests quotes for the next job before every arrival, and for others, and keeps the answers.

    Parameters
    ----------
    seed : int
        Seed of the draws.
    together : bool
        Whether the policy considers the arrivals of a slot together, the densest first.
    """

    def __init__(self, seed: int, *, together: bool) -> None:
        self.rng = np.random.default_rng(seed)
        self.together = together
        self.quotes: dict[str, Quote] = {}
        self.skipped = False

    def before_event(self, engine: Engine, event: DriverEvent) -> None:
        if not isinstance(event, JobsArrived):
            return
        if engine.ledger.start != event.slot:
            self.skipped = True  # the engine moves on to the slot with the event itself
            return
        for job in event.jobs:
            for factor in self.rng.uniform(0.1, 10.0, 2):
                other = replace(job, utility=Constant(100.0 * float(factor)), name="another")
                engine.quote(other, explained=bool(self.rng.integers(2)))
            explained = bool(self.rng.integers(2))
            quote = engine.quote(job, explained=explained)
            # Later ones are decided at other prices. If the arrivals of a slot are considered
            # together, so is every one that doesn't come alone.
            if job is event.jobs[0] and not (self.together and len(event.jobs) > 1):
                self.quotes[job.name] = quote


class Words(Observer):
    """Keeps every decision in order, and the first one on every job."""

    def __init__(self) -> None:
        self.all: list[tuple[int, Decision]] = []
        self.first: dict[str, Decision] = {}

    def on_event(self, event: DriverEvent, commands: Sequence[Command]) -> None:
        for command in commands:
            if isinstance(command, Decided):
                decision = command.decision
                self.all.append((command.slot, decision))
                if isinstance(decision, Commit | Promise | Place | Queue | Reject):
                    self.first.setdefault(decision.job, decision)


def compare(
    name: str,
    settings: Mapping[str, Any],
    cluster: Cluster,
    jobs: list[Job],
    incidents: Sequence[Incident],
    seed: int,
) -> None:
    """Run with and without quotes, and compare every quote with the decision."""
    outcomes = []
    for asker in (None, Asker(seed, together=name == "rolling")):
        policy = make_policy(name, PolicyContext(cluster, jobs, None, seed), settings)
        words = Words()
        observers: list[Observer] = [words] if asker is None else [asker, words]
        simulation = Simulation(cluster, jobs, policy, incidents=incidents)
        engine = simulation.run(observers)
        outcomes.append((repr(words.all), engine.state_digest(), policy.parameters_in_force()))
    assert outcomes[0] == outcomes[1]
    assert asker is not None
    assert asker.quotes or asker.skipped or asker.together
    for job_name, quote in asker.quotes.items():
        decided = Quote.of(words.first[job_name], quote.slot)
        assert quote.answer is decided.answer
        assert quote.message == decided.message
        if quote.answer is QuoteAnswer.ADMITTED:
            assert quote == decided
        elif quote.refusal is not None:
            assert quote.refusal == decided.refusal


@pytest.mark.parametrize(("name", "settings"), SERVERS, ids=str)
@given(seed=SEEDS)
@hypothesis_settings(max_examples=example_count(8), deadline=None)
def test_quotes_come_true_and_leave_no_trace(
    name: str, settings: Mapping[str, Any], seed: int
) -> None:
    compare(name, settings, *random_world(seed, both=False), seed)


@pytest.mark.parametrize(("name", "settings"), PLACES, ids=str)
@given(seed=SEEDS)
@hypothesis_settings(max_examples=example_count(8), deadline=None)
def test_quotes_of_policies_that_count_places(
    name: str, settings: Mapping[str, Any], seed: int
) -> None:
    on = shared_cluster(3, {"a": {"worker": 4, "ps": 2}, "b": {"worker": 2, "ps": 1}})
    compare(name, settings, on, random_jobs(on, 10, seed), [], seed)


@pytest.mark.parametrize(
    ("policy", "parameters"),
    [("oasis", {"prices": "online"}), ("oasis", {"prices": "offline"}), ("rolling", {})],
    ids=str,
)
@given(seed=SEEDS)
@hypothesis_settings(max_examples=example_count(8), deadline=None)
def test_quotes_of_bags(policy: str, parameters: dict[str, str], seed: int) -> None:
    rng = np.random.default_rng(seed)
    on = bag_cases.place_cluster(2, 3)
    jobs = [
        bag_cases.build_bag(
            on,
            bag_cases.pareto(int(rng.integers(1, 5)), 2.0, float(rng.uniform(0.3, 1.5))),
            name=f"bag-{index}",
            arrival=int(rng.integers(0, 4)),
            deadline=float(rng.integers(2, 8)),
            utility=Sigmoid(float(rng.uniform(1, 100)), 1.0, 3.0),
        )
        for index in range(8)
    ]
    compare(policy, parameters, on, jobs, [], seed)


def test_questions_that_have_no_answer() -> None:
    cluster = make_cluster()
    silent = Engine(cluster, EarliestPlanner())
    with pytest.raises(ShadowpriceError, match="gives no quotes"):
        silent.quote(make_job(cluster))
    policy = make_policy("fifo", PolicyContext(cluster), {})
    engine = Engine(cluster, policy)
    with pytest.raises(ShadowpriceError, match="arrives in slot 3"):
        engine.quote(make_job(cluster, arrival=3))
    engine.handle(JobsArrived(0, (make_job(cluster),)))
    with pytest.raises(ShadowpriceError, match="has arrived already"):
        engine.quote(make_job(cluster))


def test_the_engine_s_own_refusals_are_quoted() -> None:
    cluster = make_cluster()
    engine = Engine(cluster, make_policy("fifo", PolicyContext(cluster), {}))
    huge = make_job(cluster, worker_amounts={"gpu": 99_000})
    quote = engine.quote(huge)
    assert not quote.admitted
    assert quote.refusal is not None
    assert quote.answer is QuoteAnswer.REFUSED
    assert not engine.jobs
    with pytest.raises(TypeError, match="not an answer to an arrival"):
        Quote.of(Drop("huge", quote.refusal), 0)

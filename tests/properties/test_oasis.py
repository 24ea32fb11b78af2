"""Invariants of OASiS in any market: monotone payoffs, one ledger, sound constants."""

from __future__ import annotations

import math
import pickle
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice.core.arrays import Flags
from shadowprice.core.cluster import Cluster
from shadowprice.core.events import Commit, Decision, PolicyEvent
from shadowprice.core.job import Job
from shadowprice.core.ledger import Ledger, LedgerView
from shadowprice.core.policy import Policy, PolicyContext, Status, View
from shadowprice.core.schedule import Schedule
from shadowprice.engine import Engine
from shadowprice.kernels.slots.groups import find_groups
from shadowprice.policies.oasis.policy import OasisPolicy
from shadowprice.policies.pricing.board import PriceBoard
from shadowprice.policies.pricing.constants import (
    Carries,
    ConstantsLearner,
    PriceConstants,
    PricePool,
)
from shadowprice.policies.registry import make_policy
from shadowprice.results.observer import Observer
from shadowprice.simulator.driver import Simulation
from tests.support.examples import example_count, sample
from tests.support.oasis_cases import Market, random_case
from tests.support.policy_runs import random_world, run_policy
from tests.support.slot_groups import check_groups
from tests.support.workloads import make_cluster, random_job

SEEDS = st.integers(0, 2**32 - 1)
FACTORS = st.floats(1e-3, 1.0)


def payoff(market: Market, seed_case: tuple[Market, Job, int]) -> float:
    _, job, remaining = seed_case
    offer = market.priced(job, remaining).best()
    return -math.inf if offer is None else offer.payoff


def not_below(after: float, before: float) -> bool:
    return after >= before - 1e-9 * max(1.0, abs(before))


@settings(deadline=None, derandomize=True, max_examples=example_count(80))
@given(SEEDS, FACTORS, FACTORS)
def test_payoff_never_falls_when_prices_fall(seed: int, factor: float, upper: float) -> None:
    case = random_case(seed)
    assert not_below(payoff(case[0].with_prices(factor, upper), case), payoff(case[0], case))


@settings(deadline=None, derandomize=True, max_examples=example_count(80))
@given(SEEDS, st.integers(0, 10**6))
def test_payoff_never_falls_when_capacity_is_added(seed: int, draw: int) -> None:
    case = random_case(seed)
    market = case[0]
    rng = np.random.default_rng(draw)
    on = market.on
    larger = on.capacity.copy()
    # Servers of both roles are split within each kind of equal servers; changing one would change
    # the split.
    single = [index for index, role in enumerate(on.roles) if role.value != "any"]
    row, column = int(rng.choice(single)), int(rng.integers(len(on.resources)))
    if 0 < larger[row, column] < 2**62:
        larger[row, column] += int(rng.integers(1, larger[row, column] + 1))
    assert not_below(
        payoff(market.on_cluster(replace(on, capacity=larger)), case),
        payoff(market.on_cluster(on), case),
    )


@settings(deadline=None, derandomize=True, max_examples=example_count(60))
@given(SEEDS, st.integers(0, 10**6))
def test_payoff_never_falls_when_a_server_is_added(seed: int, draw: int) -> None:
    case = random_case(seed)
    market = case[0]
    on = market.on
    # Servers of both roles are split by their number; add one that carries a single role.
    twin = draw % sum(role.value != "any" for role in on.roles)
    on_larger = Cluster(
        on.slot_seconds,
        on.horizon,
        on.resources,
        on.dimensions,
        (*on.names, "new"),
        (*on.roles, on.roles[twin]),
        np.vstack([on.capacity, on.capacity[twin]]),
    )
    assert not_below(
        payoff(market.on_cluster(on_larger, extra=1), case), payoff(market.on_cluster(on), case)
    )


@settings(deadline=None, derandomize=True, max_examples=example_count(60))
@given(SEEDS)
def test_payoff_never_falls_when_a_reservation_is_given_back(seed: int) -> None:
    case = random_case(seed)
    market = case[0]
    before = payoff(market, case)
    for name in sorted(market.ledger.reservations)[::2]:
        market.ledger.release(name)
    assert not_below(payoff(market, case), before)


class Auditor(Observer):
    """After every event, computes the view's prices again and compares."""

    def __init__(self, policy: OasisPolicy) -> None:
        self.policy = policy
        self.checks = 0

    def on_slot(self, engine: Engine, slot: int) -> None:
        ledger = engine.view.ledger
        planner = self.policy._planner
        planner.follow(ledger)
        for board in planner.boards:
            fresh = PriceBoard(engine.cluster, board.pool, board.constants, engine.cluster.horizon)
            fresh.follow(ledger)
            kept, new = board.window(4), fresh.window(4)
            for t in range(4):
                kept_row, new_row = kept.row_of[t], new.row_of[t]
                everyone = np.arange(len(board.servers))
                mine = find_groups(kept, np.full_like(everyone, kept_row), everyone)
                theirs = find_groups(new, np.full_like(everyone, new_row), everyone)
                for part in ("members", "first"):
                    assert np.array_equal(
                        getattr(kept, part)[kept_row][mine], getattr(new, part)[new_row][theirs]
                    )
                for part in ("price", "free"):
                    assert np.array_equal(
                        getattr(kept, part)[kept_row][:, mine],
                        getattr(new, part)[new_row][:, theirs],
                    )
                self.checks += 1


@settings(deadline=None, derandomize=True, max_examples=example_count(25))
@given(SEEDS, st.sampled_from(["offline", "online"]))
def test_the_boards_equal_the_ledger(seed: int, prices: str) -> None:
    cluster, jobs, incidents = random_world(seed)
    policy = make_policy("oasis", PolicyContext(cluster, jobs), {"prices": prices})
    assert isinstance(policy, OasisPolicy)
    auditor = Auditor(policy)
    Simulation(cluster, jobs, policy, incidents=incidents).run([auditor])
    assert auditor.checks or not jobs


class RandomLedger:
    """A ledger under random operations, and two pools' boards that follow it."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.horizon = 5
        self.names = iter(range(10**6))
        self.change_cluster(int(self.rng.integers(1, 5)), int(self.rng.integers(0, 60)), None)

    def change_cluster(self, large: int, small: int, ledger: Ledger | None) -> None:
        """Begin with a cluster, or switch to it with servers that keep nothing."""
        self.on = make_cluster(large, small, both=3, gpus=6, horizon=self.horizon)
        if ledger is None:
            self.ledger = Ledger(self.on, self.horizon)
        else:
            for name in list(ledger.reservations):
                ledger.release(name)
            rows = np.full(len(ledger.capacity), -1)
            ledger.replace_contents(ledger.for_changed_cluster(self.on, rows, ()))
        first = self.rng.random(self.on.servers) < 0.7
        self.boards = [self.board(members) for members in (first, ~first)]

    def board(self, members: Flags) -> PriceBoard:
        low, high = -2.0, self.rng.uniform(0, 3, len(self.on.resources))
        constants = PriceConstants(low, high)
        return PriceBoard(self.on, PricePool.of(self.on, members), constants, self.horizon)

    def reserve(self) -> str | None:
        """Reserve something that fits; return the name of its job."""
        rng, ledger = self.rng, self.ledger
        demand = self.on.demand({"cpu": 1000 * int(rng.integers(1, 3))})
        room = (ledger.capacity - ledger.used) // np.where(demand > 0, demand, 1)
        fits = np.where(demand > 0, room, 10**6).min(axis=2) > 0
        width = rng.choice([0.05, 0.1, 0.9])
        chosen = fits & (rng.random(fits.shape) < width) & (rng.random((len(fits), 1)) < 0.7)
        if rng.random() < 0.5:  # the same servers in every slot
            chosen[:] = fits.all(axis=0) & chosen.any(axis=0)
        slots, servers = np.nonzero(chosen)
        if not len(slots):
            return None
        name, ones = f"job-{next(self.names)}", np.ones(len(slots), np.int64)
        plan = Schedule.from_arrays(slots + ledger.start, servers, ones, 0 * ones)
        ledger.reserve(name, plan, demand, None)
        return name

    def step(self) -> None:
        """Run one random operation, and perhaps its inverse."""
        rng, ledger = self.rng, self.ledger
        undone = rng.random() < 0.3
        name = str(rng.choice(sorted(ledger.reservations) or ["none"]))
        match int(rng.integers(0, 12)):
            case 0 | 1 | 2 | 3 | 4:
                reserved = self.reserve()
                if undone and reserved is not None:
                    ledger.undo_reserve(reserved)
            case 5 | 6:
                before = ledger.reservations.get(name)
                released = ledger.release(name)
                if undone and before is not None:
                    ledger.undo_release(name, before, released)
            case 7:
                moved = ledger.advance(ledger.start + int(rng.integers(0, 3)))
                if undone:
                    self.reserve_and_undo()
                    ledger.undo_advance(moved)
            case 8:
                server = int(rng.integers(0, self.on.servers))
                for each in ledger.lose(server):
                    ledger.release(each)
            case 9:
                ledger.restore(int(rng.integers(0, self.on.servers)))
            case 10:
                ledger.raise_versions(int(rng.integers(0, 3)))
                self.boards = pickle.loads(pickle.dumps(self.boards))
            case _ if undone:
                self.change_cluster(int(rng.integers(1, 5)), int(rng.integers(0, 60)), ledger)
            case _:
                board = self.boards[0]
                board.set_constants(self.board(board.pool.members).constants, LedgerView(ledger))

    def reserve_and_undo(self) -> None:
        name = self.reserve()
        if name is not None:
            self.ledger.undo_reserve(name)

    def check(self, board: PriceBoard) -> None:
        """Let a board follow the ledger, and compare each slot with its servers."""
        ledger = self.ledger
        board.follow(LedgerView(ledger))
        mine = board.servers
        low = np.full(len(self.on.resources), board.constants.ln_lower)
        lost = (ledger.capacity[mine] == 0).all(axis=1)
        for t in range(self.horizon):
            check_groups(
                board.window(self.horizon), t, ledger.used[t, mine], self.on.capacity[mine], lost,
                low, board.constants.ln_upper,
            )  # fmt: skip


@settings(deadline=None, derandomize=True, max_examples=example_count(60))
@given(SEEDS)
def test_boards_show_every_server_after_any_operations(seed: int) -> None:
    world = RandomLedger(seed)
    for _ in range(60):
        world.step()
        often, rarely = world.boards
        if world.rng.random() < 0.8:
            world.check(often)
        if world.rng.random() < 0.1:
            world.check(rarely)
    for board in world.boards:
        world.check(board)


def test_the_scarcest_resource_counts_reservations_that_are_new_to_the_board() -> None:
    cluster = make_cluster(40, 0, gpus=60, horizon=3)
    ledger = Ledger(cluster, 3)
    # More groups of equal servers than a board has space for at first.
    servers = np.arange(cluster.servers)
    plan = Schedule.from_arrays(0 * servers, servers, 1 + servers, 0 * servers)
    ledger.reserve("a", plan, cluster.demand({"gpu": 1000}), None)
    everyone = np.ones(cluster.servers, dtype=np.bool_)
    constants = PriceConstants(-2.0, np.ones(len(cluster.resources)))
    worker = cluster.demand({"gpu": 2000})
    job = replace(random_job(cluster, np.random.default_rng(0), "b"), worker=worker)
    board = PriceBoard(cluster, PricePool.of(cluster, everyone), constants, 3)
    column, room = board.scarcest(job, ps=False, ledger=LedgerView(ledger), slots=1)
    assert cluster.resources[column] == "gpu"
    assert room == sum((60 - taken) // 2 for taken in range(1, 41))


class Ear:
    """A policy that resumes from another one's decisions."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.capabilities = policy.capabilities
        self.decisions: list[str] = []

    def decide(self, view: View, event: PolicyEvent) -> Iterator[Decision]:
        for decision in self.policy.decide(view, event):
            plan = decision.schedule.rows() if isinstance(decision, Commit) else None
            self.decisions.append(f"{decision} {plan}")
            yield decision

    def resume(self, view: View) -> None:
        self.policy.resume(view)

    def parameters_in_force(self) -> Mapping[str, object]:
        return self.policy.parameters_in_force()


@settings(deadline=None, derandomize=True, max_examples=example_count(40))
@given(SEEDS, st.sampled_from(["offline", "online"]), st.sampled_from(["exact", "literal"]))
def test_every_admitted_job_has_a_positive_payoff_and_completes_when_promised(
    seed: int, prices: str, chunks: str
) -> None:
    engine = run_policy(
        "oasis", seed, {"prices": prices, "chunks": chunks}, incidents=False, until=14
    )
    assert not engine.open_jobs  # an admitted plan is kept to the end
    for record in engine.jobs.values():
        if record.status is Status.FINISHED and chunks == "exact":
            assert record.completion == record.plan.completion
        elif record.status is Status.FINISHED:  # whole chunks reserve more than the work needs
            assert record.completion is not None
            assert record.completion <= record.plan.completion
        else:
            assert record.status is Status.REFUSED
            assert record.refusal is not None


@settings(deadline=None, derandomize=True, max_examples=example_count(40))
@given(SEEDS)
def test_servers_lost_and_back_leave_no_job_without_an_answer(seed: int) -> None:
    engine = run_policy("oasis", seed, {})
    assert not engine.open_jobs
    for record in engine.jobs.values():
        assert record.status.value in ("finished", "refused", "dropped", "cancelled")
        if record.status in (Status.REFUSED, Status.DROPPED):
            assert record.refusal is not None
            assert record.refusal.message


def test_two_runs_take_the_same_decisions() -> None:
    for seed in sample(range(8)):
        logs = []
        for _ in range(2):
            cluster, jobs, incidents = random_world(seed)
            ear = Ear(make_policy("oasis", PolicyContext(cluster, jobs), {"prices": "online"}))
            engine = Simulation(cluster, jobs, ear, incidents=incidents).run()
            without_ids = [re.sub(r" at 0x\w+", "", line) for line in ear.decisions]
            logs.append((without_ids, engine.state_digest()))
        assert logs[0] == logs[1]


@settings(deadline=None, derandomize=True, max_examples=example_count(50))
@given(SEEDS, st.integers(1, 12), st.booleans())
def test_constants_learnt_from_all_jobs_are_the_offline_ones(
    seed: int, count: int, bounded: bool
) -> None:
    rng = np.random.default_rng(seed)
    cluster = make_cluster(2, 2)
    jobs = [random_job(cluster, rng, f"job-{index}") for index in range(count)]
    until = 30 if bounded else None
    carried: tuple[Carries, ...] = ("workers", "ps", "both")
    for members, carries in zip(
        (cluster.hosts_workers, cluster.hosts_ps, ~cluster.hosts_ps), carried, strict=True
    ):
        pool = PricePool.of(cluster, members)
        at_once = ConstantsLearner(pool, carries, cluster.horizon, until)
        at_once.learn(jobs)
        one_by_one = ConstantsLearner(pool, carries, cluster.horizon, until)
        for at in rng.permutation(count):
            before = one_by_one.constants()
            changed = one_by_one.learn([jobs[at]])
            after = one_by_one.constants()
            assert changed == (
                before.ln_lower != after.ln_lower or list(before.ln_upper) != list(after.ln_upper)
            )
        assert one_by_one.constants().ln_lower == at_once.constants().ln_lower
        assert list(one_by_one.constants().ln_upper) == list(at_once.constants().ln_upper)

"""The tables of a run agree with records that are kept slot by slot."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice.core import bounds
from shadowprice.core.amounts import MILLI, UNLIMITED, Dimension
from shadowprice.core.bounds import InputLimit
from shadowprice.core.cluster import Cluster
from shadowprice.core.errors import InputError
from shadowprice.core.events import Commit, Completed, Decided, DriverEvent, Reject, SlotEnded
from shadowprice.core.job import Job
from shadowprice.core.policy import PolicyContext
from shadowprice.engine import Engine
from shadowprice.policies.registry import make_policy
from shadowprice.results import tables
from shadowprice.results.metrics import latency, summarise
from shadowprice.results.observer import Observer
from shadowprice.results.recorder import HeatBins, Recorder
from shadowprice.results.run_directory import RunData
from shadowprice.results.tables import plain
from shadowprice.simulator.driver import Simulation
from shadowprice.simulator.scenario import Scenario, record_run
from tests.support.audited_runs import SEEDS, random_world
from tests.support.examples import example_count
from tests.support.flat_rate import FlatPricePolicy
from tests.support.policies import RandomPolicy
from tests.support.workloads import make_cluster, make_job


class Account(Observer):
    """Events, slot by slot, recorded in full."""

    def __init__(self, cluster: Cluster) -> None:
        self.on = cluster
        self.rows: list[tuple[int, str, int, int, int]] = []
        self.capacity: dict[int, np.ndarray] = {}
        self.used: dict[int, np.ndarray] = {}
        self.waiting: dict[int, int] = {}
        self.earned: dict[int, float] = {}
        self.decided_jobs: list[str] = []
        self.prices: dict[int, np.ndarray] = {}
        self.policy: FlatPricePolicy | None = None

    def on_event(self, event: DriverEvent, commands: list[object]) -> None:  # type: ignore[override]
        for command in commands:
            if isinstance(command, Completed):
                self.earned[command.slot] = self.earned.get(command.slot, 0.0) + command.utility
            if isinstance(command, Decided) and isinstance(command.decision, Commit | Reject):
                self.decided_jobs.append(command.decision.job)
        if isinstance(event, SlotEnded):
            self.last = event.slot

    def on_slot(self, engine: Engine, slot: int) -> None:
        for name, placement in engine.running.items():
            rows = zip(placement.servers, placement.workers, placement.ps, strict=True)
            self.rows += [(slot, name, *row) for row in rows]
        self.capacity[slot] = engine.ledger.capacity.copy()
        self.used[slot] = engine.ledger.used[0].copy()
        self.waiting[slot] = len(engine.open_jobs) - len(engine.running)
        if self.policy is not None:
            self.prices[slot] = self.policy.slot_prices(engine.view)


def recorded(seed: int, kind: str) -> tuple[Cluster, list[Job], Account, RunData]:
    cluster, jobs, incidents, _ = random_world(seed)
    account = Account(cluster)
    policy = FlatPricePolicy(0.5) if kind == "planner" else RandomPolicy(seed)
    account.policy = policy if isinstance(policy, FlatPricePolicy) else None
    scenario = Scenario(cluster, jobs, until=60, incidents=incidents)
    return cluster, jobs, account, record_run(scenario, kind, policy, observers=[account])


@settings(deadline=None, derandomize=True, max_examples=example_count(40))
@given(SEEDS, st.sampled_from(["planner", "reactive"]))
def test_tables_agree_with_the_account(seed: int, kind: str) -> None:
    on, jobs, account, run = recorded(seed, kind)
    order = {job.name: index for index, job in enumerate(jobs)}
    expected = sorted(account.rows, key=lambda row: (row[0], order[row[1]], row[2]))
    assert run.allocations.rows() == expected
    for slot, running, queue in run.slots.select("slot", "running", "queue").rows():
        names = {name for at, name, *_ in account.rows if at == slot}
        assert running == len(names)
        assert queue == account.waiting.get(slot, 0)
    limited = on.capacity < UNLIMITED
    for index, resource in enumerate(on.resources):
        unit = MILLI if on.dimensions[index] is Dimension.COUNT else 1
        table = run.slots.select("slot", f"used_{resource}", f"total_{resource}").rows()
        for slot, used, total in table:
            if slot in account.used:
                column = limited[:, index]
                assert used == account.used[slot][column, index].sum() / unit
                assert total == account.capacity[slot][column, index].sum() / unit
    earned = dict(run.slots.select("slot", "utility").rows())
    assert {slot: value for slot, value in earned.items() if value} == pytest.approx(
        {slot: value for slot, value in account.earned.items() if value}
    )
    by_job = dict.fromkeys(order, 0)
    for _, name, _, workers, _ in account.rows:
        by_job[name] += workers
    assert dict(run.jobs.select("job", "worker_slots").rows()) == by_job


@settings(deadline=None, derandomize=True, max_examples=example_count(25))
@given(SEEDS)
def test_heat_agrees_with_the_account(seed: int) -> None:
    on, _, account, run = recorded(seed, "planner")
    first = run.slots.item(0, "slot") if len(run.slots) else 0
    share = run.heat["share"].to_numpy().reshape(-1, on.servers)
    price = run.heat["price"].to_numpy().reshape(-1, on.servers)
    for slot, used in account.used.items():
        full = np.where(on.capacity > 0, used / np.maximum(on.capacity, 1), 0.0).max(axis=1)
        assert share[slot - first] == pytest.approx(full, abs=1e-6)
        assert price[slot - first] == pytest.approx(account.prices[slot].sum(axis=1), rel=1e-5)
        row = run.slots.row(slot - first, named=True)
        for index, resource in enumerate(on.resources):
            owners = account.capacity[slot][:, index] > 0
            mean = account.prices[slot][owners, index].mean() if owners.any() else 0.0
            assert row[f"price_{resource}"] == pytest.approx(mean)


@settings(deadline=None, derandomize=True, max_examples=example_count(25))
@given(SEEDS)
def test_summary_counts_every_job_once(seed: int) -> None:
    _, jobs, account, run = recorded(seed, "reactive")
    summary = run.summary
    ends = ("finished", "refused", "dropped", "cancelled", "unfinished", "not_arrived")
    assert sum(summary[end] for end in ends) == len(jobs) == summary["jobs"]
    assert summary["total_utility"] == pytest.approx(sum(account.earned.values()))
    done = run.jobs.filter(pl.col("outcome") == "finished")
    spans = [c - a + 1 for c, a in done.select("completion", "arrival").rows()]
    if spans:
        assert summary["jct"]["mean"] == pytest.approx(sum(spans) / len(spans))
        assert summary["jct"]["median"] == pytest.approx(float(np.median(spans)))


def test_a_planner_gives_reason_and_resource(tmp_path: object) -> None:
    del tmp_path
    _, _, account, run = recorded(3, "planner")
    lines = list(run.decisions(True))
    assert [line["job"] for line in lines] == account.decided_jobs
    for line in lines:
        assert list(line)[:8] == [
            "job",
            "slot",
            "outcome",
            "reason",
            "payoff",
            "utility",
            "cost",
            "completion",
        ]
        if line["outcome"] == "admitted":
            assert line["payoff"] == pytest.approx(line["utility"] - line["cost"])
            assert line["plan"][-1][0] == line["completion"]
        else:
            assert line["reason"] == line["refusal"]["code"]
            assert "plan" not in line
    assert all("plan" not in line for line in run.decisions(False))


def test_a_run_of_nothing_has_empty_tables() -> None:
    cluster, _, _, _ = random_world(0)
    recorder = Recorder(cluster, [], FlatPricePolicy())
    assert len(recorder.segments().jobs) == 0
    run = record_run(Scenario(cluster, []), "flat-rate", FlatPricePolicy())
    assert len(run.slots) == len(run.jobs) == len(run.allocations) == 0
    assert run.summary["jct"]["mean"] is None
    assert run.summary["makespan"] is None


def test_rows_of_what_ran_are_bounded_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = recorded(5, "wanderer")[3].allocations.height
    assert rows > 10
    for most in (rows, rows - 1):
        monkeypatch.setattr(bounds, "ROWS", InputLimit("rows", most, "rows of what ran"))
        if most == rows:
            assert recorded(5, "wanderer")[3].allocations.height == rows
        else:
            with pytest.raises(InputError, match=r"the run, slot .* exceeds the limit of"):
                recorded(5, "wanderer")


def test_rows_of_quiet_slots_are_limited_in_the_same_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = make_cluster()
    jobs = [make_job(cluster, "long", epochs=300), make_job(cluster, "late", arrival=50)]
    monkeypatch.setattr(bounds, "ROWS", InputLimit("rows", 163, "rows of what ran"))
    messages = []
    for takes_quiet_slots in (True, False):
        policy = make_policy("fifo", PolicyContext(cluster), {})
        recorder = Recorder(cluster, jobs, policy)
        assert recorder.takes_quiet_slots
        recorder.takes_quiet_slots = takes_quiet_slots
        with pytest.raises(InputError) as error:
            Simulation(cluster, jobs, policy).run([recorder])
        messages.append(str(error.value))
    assert messages[0] == messages[1]
    assert "slot 40: 164 exceeds" in messages[0]


def test_bins_average_neighbours_once_there_are_too_many() -> None:
    bins = HeatBins(2, maximum=4)
    for slot in range(100, 110):
        bins.add(range(slot, slot + 1), np.array([[float(slot), 1.0]]))
    assert bins.slots_per_bin == 4
    assert bins.means()[:3, 0].tolist() == [101.5, 105.5, 108.5]
    assert bins.means()[:3, 1].tolist() == [1.0, 1.0, 1.0]
    assert np.isnan(bins.means()[3]).all()


@settings(deadline=None, derandomize=True, max_examples=example_count(30))
@given(st.lists(st.integers(0, 200), min_size=1, unique=True), st.integers(2, 9))
def test_bins_lose_no_slot(slots: list[int], most: int) -> None:
    bins, slots = HeatBins(1, maximum=most), sorted(slots)
    for slot in slots:
        bins.add(range(slot, slot + 1), np.array([[float(slot)]]))
    means, width = bins.means()[:, 0], bins.slots_per_bin
    groups: dict[int, list[int]] = {}
    for slot in slots:
        groups.setdefault((slot - slots[0]) // width, []).append(slot)
    assert max(groups) < most
    for at, members in groups.items():
        assert means[at] == pytest.approx(sum(members) / len(members))


@settings(deadline=None, derandomize=True, max_examples=example_count(30))
@given(st.lists(st.integers(1, 30), min_size=1, max_size=9), st.integers(2, 9), st.integers(0, 9))
def test_bins_of_many_slots_equal_those_of_single_ones(
    lengths: list[int], most: int, seed: int
) -> None:
    rows = np.random.default_rng(seed).random((sum(lengths), 2))
    together, single, start = HeatBins(2, maximum=most), HeatBins(2, maximum=most), 7
    for length in lengths:
        slots = range(start, start + length)
        together.add(slots, rows[slots.start - 7 : slots.stop - 7])
        for slot in slots:
            single.add(range(slot, slot + 1), rows[slot - 7 : slot - 6])
        start += length
    assert together.slots_per_bin == single.slots_per_bin
    assert together.means().tobytes() == single.means().tobytes()


def test_latency_and_plain_values() -> None:
    assert latency([]) == {"decisions": 0}
    latencies = latency([0.001 * index for index in range(1, 101)])
    assert latencies["max"] == pytest.approx(0.1)
    assert latencies["p50"] == pytest.approx(0.0505)
    assert plain({"a": np.int64(3), "b": (np.float64(0.5), math.inf, math.nan)}) == {
        "a": 3,
        "b": [0.5, "inf", None],
    }


def test_summary_of_made_up_tables() -> None:
    jobs = pl.DataFrame(
        {
            "outcome": ["finished", "finished", "refused", "waiting", "not arrived"],
            "class": ["a", "a", "b", "b", "a"],
            "arrival": [0, 2, 2, 3, 9],
            "submitted": [0.0, 1.5, 2.0, 3.0, 9.0],
            "completion": [4, 3, None, None, None],
            "jct": [5.0, 2.5, None, None, None],
            "utility": [5.0, 2.0, 0.0, 0.0, 0.0],
            "value": [8.0, 2.0, 1.0, 1.0, 50.0],
            "target": [3.0, 2.0, None, 4.0, 1.0],
            "late": [1.0, -1.0, None, None, None],
            "reason": [None, None, "price", None, None],
            "worker_slots": [10, 4, 0, 0, 0],
            "restarts": [3, 0, 0, 1, 0],
            "lost_gpu_hours": [1.5, 0.0, 0.0, 0.5, 0.0],
            "finish_time_fairness": [0.5, 1.5, None, None, None],
        }
    )
    # Two GPUs of four in slots 0 to 4, then a wait for an incident in slot 7.
    slots = pl.DataFrame(
        {
            "slot": list(range(8)),
            "running": [1] * 5 + [0] * 3,
            "used_gpu": [2.0] * 5 + [0.0] * 3,
            "total_gpu": [4.0] * 8,
        }
    )
    summary = summarise(jobs, slots)
    assert summary["end"] == 5
    # Up to slot 5 the refused job waited 3 slots, and the waiting one 2.
    assert summary["jct"] == pytest.approx(
        {"mean": 3.75, "median": 3.75, "p90": 4.75, "p99": 4.975, "restricted_mean": 12.5 / 4}
    )
    assert summary["makespan"] == 5
    assert summary["met_target"] == {"met": 1, "of": 3, "share": 1 / 3}
    assert summary["utilisation"] == {"gpu": 0.5}
    assert summary["refusals"] == {"price": 1}
    assert summary["admitted"] == 3
    assert summary["unfinished"] == 1
    assert (summary["restarts"], summary["lost_gpu_hours"]) == (4, 2.0)
    assert summary["abandoned_work"] == 0.0
    assert summary["finish_time_fairness"] == {"mean": 1.0, "p99": 1.49, "worst": 1.5}
    assert (summary["jobs"], summary["arrived"], summary["not_arrived"]) == (5, 4, 1)
    assert summary["value"] == 12.0
    assert summary["late"]["a"]["median"] == 0.0  # type: ignore[index]
    assert (summary["late"]["b"]["jobs"], summary["late"]["b"]["met"]) == (1, 0)  # type: ignore[index]


@pytest.mark.parametrize("most", [1, 7, 20])
def test_a_heat_map_made_in_pieces_is_the_same(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    whole = [recorded(seed, "reactive")[3] for seed in range(1, 6)]
    assert any(run.allocations.height > 2 * most for run in whole)
    monkeypatch.setattr(tables, "_BLOCK_ROWS", most)
    for seed, run in enumerate(whole, 1):
        assert recorded(seed, "reactive")[3].heat.equals(run.heat)

"""One slot of a run, its jobs, and two runs compared, against observations during the run."""

from __future__ import annotations

import fnmatch
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import polars as pl
import pytest

from shadowprice.core.amounts import UNLIMITED
from shadowprice.core.errors import InputError
from shadowprice.engine import Engine
from shadowprice.policies.choice import PolicyChoice
from shadowprice.results.difference import _describe_change, diff_runs
from shadowprice.results.listing import (
    SlotRange,
    filter_jobs,
    parse_slot,
    select_columns,
    sort_jobs,
)
from shadowprice.results.observer import Observer
from shadowprice.results.run_directory import RunData
from shadowprice.results.slot_snapshot import SlotSnapshot, parse_demand, slot_snapshot_of
from shadowprice.simulator.scenario import Scenario, record_run
from tests.oracles.name_lists import expand_name_list
from tests.support.examples import sample
from tests.support.policy_runs import random_world


@dataclass
class Seen(Observer):
    """Placements, observed in the engine while it ran."""

    slots: dict[int, dict[str, Any]] = field(default_factory=dict)

    def on_slot(self, engine: Engine, slot: int) -> None:
        self.slots[slot] = {
            "running": dict(engine.running),
            "open": list(engine.open_jobs),
            "lost": set(engine.lost),
            "used": engine.ledger.used[0].copy(),
        }


def watched(policy: str, seed: int, **settings: Any) -> tuple[RunData, Seen]:
    cluster, jobs, happened = random_world(seed)
    scenario = Scenario(cluster, jobs, until=40, seed=seed, incidents=happened)
    seen = Seen()
    built = PolicyChoice(policy, settings).build(scenario.context())
    return record_run(scenario, policy, built, observers=[seen]), seen


@pytest.mark.parametrize("policy", ["fifo", "drf", "oasis"])
@pytest.mark.parametrize("seed", sample(range(6)))
def test_a_moment_is_what_the_engine_held(policy: str, seed: int) -> None:
    run, seen = watched(policy, seed)
    names = run.server_names
    resources = list(run.info["cluster"]["resources"])
    capacity = random_world(seed)[0].capacity
    for slot in run.slots["slot"].to_list():
        moment = slot_snapshot_of(run, slot)
        # Slots that the driver skipped were empty.
        live = seen.slots.get(slot, {"running": {}, "open": [], "lost": None, "used": None})
        assert set(moment.jobs["job"]) == set(live["open"])
        running = moment.jobs.filter(pl.col("state") == "running")
        assert set(running["job"]) == set(live["running"])
        for row in running.iter_rows(named=True):
            placement = live["running"][row["job"]]
            assert (row["workers"], row["ps"]) == (placement.total_workers, placement.total_ps)
            there = zip(placement.servers, placement.workers, placement.ps, strict=True)
            assert _standing(row["servers"]) == {names[at]: (w, ps) for at, w, ps in there}
            before = [at for at in seen.slots if at < slot and row["job"] in _ran(seen, at)]
            assert row["ran"] == len(before)
            assert row["since"] == slot or row["job"] in _ran(seen, row["since"])
            assert row["job"] not in _ran(seen, row["since"] - 1)
        for row in moment.jobs.filter(pl.col("state") != "running").iter_rows(named=True):
            later = [at for at in seen.slots if at > slot and row["job"] in _ran(seen, at)]
            assert row["next"] == min(later, default=None)
            assert row["reason"]
        if live["used"] is not None:
            _check_servers(moment, live, resources, capacity)


def _standing(message: str) -> dict[str, tuple[int, int]]:
    """Return the listed workers and parameter servers of each server."""
    standing: dict[str, tuple[int, int]] = {}
    for names, workers, ps in re.findall(r"(\S+)(?: x(\d+))?(?: \+(\d+)ps)?(?: |$)", message):
        standing |= {name: (int(workers or 0), int(ps or 0)) for name in expand_name_list(names)}
    return standing


def _ran(seen: Seen, slot: int) -> dict[str, Any]:
    return seen.slots.get(slot, {"running": {}})["running"]  # type: ignore[no-any-return]


def _check_servers(
    moment: SlotSnapshot, live: dict[str, Any], resources: list[str], capacity
) -> None:  # type: ignore[no-untyped-def]
    used = live["used"]
    for index, row in enumerate(moment.servers.iter_rows(named=True)):
        assert (row["state"] == "lost") == (index in live["lost"])
        for column, resource in enumerate(resources):
            held, most = int(used[index, column]), int(capacity[index, column])
            if not 0 < most < UNLIMITED or index in live["lost"]:
                continue
            unit = 1000 if moment.info["cluster"]["resources"][resource] == "count" else 1
            assert row[f"used_{resource}"] * unit == pytest.approx(held)
            assert row[f"total_{resource}"] * unit == pytest.approx(most)
        if row["state"] in {"mixed", "full"}:
            full = any(
                0 < capacity[index, c] < UNLIMITED and used[index, c] == capacity[index, c]
                for c in range(len(resources))
            )
            assert (row["state"] == "full") == full
        elif row["state"] == "idle":
            assert not used[index].any()


def test_a_slot_outside_the_run_is_refused() -> None:
    run, _ = watched("fifo", 1)
    with pytest.raises(InputError, match=r"slot 4000 is not in this run; it has slots \d+ to \d+"):
        slot_snapshot_of(run, 4000)


def test_amounts_and_names_are_read_back() -> None:
    assert parse_demand("gpu 2, memory 16GiB") == {"gpu": 2000, "memory": 16 * 2**30}
    assert parse_demand(None) == {}


@pytest.mark.parametrize(
    ("wanted", "keeps"),
    [
        ({"patterns": {"job": ["job-1*"]}}, lambda row: fnmatch.fnmatch(row["job"], "job-1*")),
        ({"patterns": {"job": ["*1*2*", "job-3"]}}, lambda row: row["job"] in {"job-12", "job-3"}),
        ({"outcomes": ["finished"]}, lambda row: row["outcome"] == "finished"),
        (
            {"outcomes": ["cancelled", "refused"]},
            lambda row: row["outcome"] in {"cancelled", "refused"},
        ),
        ({"patterns": {"class": ["dead*"]}}, lambda row: row["class"] == "deadline"),
        ({"patterns": {"tenant": ["*"]}}, lambda row: row["tenant"] is not None),
        ({"ranges": {"arrival": SlotRange(2, 4)}}, lambda row: 2 <= row["arrival"] <= 4),
        (
            {"ranges": {"completion": SlotRange(None, 7)}},
            lambda row: row["completion"] is not None and row["completion"] <= 7,
        ),
        ({"late": True}, lambda row: row["late"] is not None and row["late"] > 0),
        ({"late": False}, lambda row: row["late"] is not None and row["late"] <= 0),
        (
            {"outcomes": ["finished"], "ranges": {"start": SlotRange(3)}},
            lambda row: row["outcome"] == "finished" and row["start"] >= 3,
        ),
    ],
)
def test_a_selection_is_the_filter_that_it_represents(wanted: dict[str, Any], keeps) -> None:  # type: ignore[no-untyped-def]
    run, _ = watched("fifo", 14)
    assert filter_jobs(run.jobs, **wanted).to_dicts() == [
        row for row in run.jobs.to_dicts() if keeps(row)
    ]


def test_ranges_columns_and_orders() -> None:
    assert SlotRange.parse("10..50", 600.0, "x") == SlotRange(10, 50)
    assert SlotRange.parse("..2h", 600.0, "x") == SlotRange(None, 12)
    assert SlotRange.parse("7", 600.0, "x") == SlotRange(7, 7)
    # The float 0.1 is above 1/10.
    assert SlotRange.parse("1s..", 0.1, "x") == SlotRange(10, None)
    assert parse_slot("0.3s", 0.1, "x") == 3
    for wrong in ("a..b", "5..2", "1..2..3", "-1"):
        with pytest.raises(InputError, match="x: "):
            SlotRange.parse(wrong, 600.0, "x")
    run, _ = watched("fifo", 14)
    with pytest.raises(InputError, match="did you mean 'utility'"):
        select_columns(run.jobs, ["utlity"])
    with pytest.raises(InputError, match="did you mean 'finished'"):
        filter_jobs(run.jobs, outcomes=["finishd"])
    by = sort_jobs(run.jobs, ["-utility", "arrival"])
    keys = [(-row["utility"], row["arrival"]) for row in by.to_dicts()]
    assert keys == sorted(keys)


@pytest.mark.parametrize("seed", sample(range(5)))
def test_a_difference_adds_up(seed: int) -> None:
    first, second = watched("fifo", seed)[0], watched("drf", seed)[0]
    result = diff_runs(first, second)
    rows = {row["job"]: row for row in result.jobs.to_dicts()}
    other = {row["job"]: row for row in second.jobs.to_dicts()}
    for a in first.jobs.to_dicts():
        b = other[a["job"]]
        same = all(a[name] == b[name] for name in ("outcome", "completion", "utility"))
        assert (a["job"] in rows) == (not same)
        if not same:
            assert rows[a["job"]]["gain"] == b["utility"] - a["utility"]
            assert rows[a["job"]]["why"]
    totals = [run.summary["total_utility"] for run in (first, second)]
    assert result.jobs["gain"].sum() == pytest.approx(totals[1] - totals[0])
    assert result.outcomes["gain"].sum() == pytest.approx(totals[1] - totals[0])
    pairs = Counter((a["outcome"], other[a["job"]]["outcome"]) for a in first.jobs.to_dicts())
    assert {row[:2]: row[2] for row in result.outcomes.rows()} == pairs
    assert result.jobs["gain"].abs().is_sorted(descending=True)
    assert result.remarks == []


def test_a_change_to_one_worker_is_singular() -> None:
    a = {"outcome": "finished", "start": 0, "completion": 1, "worker_slots": 4, "active": 2}
    b = a | {"completion": 3, "worker_slots": 4, "active": 4}
    assert _describe_change(a, b, ("fifo", "drf")) == (
        "ran with 1 worker rather than 2: done 2 slots later"
    )


def test_a_run_does_not_differ_from_itself_and_other_worlds_are_reported() -> None:
    run, _ = watched("fifo", 3)
    assert diff_runs(run, run).jobs.is_empty()
    remarks = diff_runs(run, watched("fifo", 5)[0]).remarks
    assert "the runs differ in their seed" in remarks
    assert "the runs differ in their cluster" in remarks

"""Costs of runs, against a count of every slot and server."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shadowprice.core.amounts import UNLIMITED
from shadowprice.core.specs import ClusterSpec, validate
from shadowprice.engine import Engine
from shadowprice.policies.choice import PolicyChoice
from shadowprice.results.job_history import history_lines, read_job_history
from shadowprice.results.observer import Observer
from shadowprice.results.report.number_format import format_number
from shadowprice.results.report.page import render_report
from shadowprice.results.report.section_job_histories import histories_data
from shadowprice.results.run_directory import write_run
from shadowprice.simulator.scenario import Scenario, record_run
from tests.support.examples import sample
from tests.support.policy_runs import random_world


class Meter(Observer):
    """Adds up placements, slot by slot."""

    def __init__(self, on: Any) -> None:
        self.on = on
        self.used: dict[str, float] = {}
        self.occupied = 0.0
        self.there: dict[int, float] = {}

    def on_slot(self, engine: Engine, slot: int) -> None:
        hours = float(self.on.slot_seconds) / 3600
        busy = set()
        for name, placement in engine.running.items():
            job = engine.jobs[name].job
            for server, workers, ps in zip(
                placement.servers, placement.workers, placement.ps, strict=True
            ):
                busy.add(server)
                shares = []
                for column, most in enumerate(self.on.capacity[server].tolist()):
                    if 0 < most < UNLIMITED:
                        need = workers * int(job.worker[column])
                        need += 0 if job.ps is None else ps * int(job.ps[column])
                        shares.append(need / most)
                self.used[name] = self.used.get(name, 0.0) + max(shares) * hours * float(
                    self.on.costs[server]
                )
        self.occupied += hours * sum(float(self.on.costs[server]) for server in busy)
        up = set(range(self.on.servers)) - engine.lost
        self.there[slot] = hours * sum(float(self.on.costs[server]) for server in up)


@pytest.mark.parametrize("policy", ["fifo", "oasis"])
@pytest.mark.parametrize("seed", sample(range(8)))
def test_a_run_costs_what_its_slots_cost(policy: str, seed: int) -> None:
    cluster, jobs, happened = random_world(seed)
    cluster = replace(cluster, costs=np.random.default_rng(seed).uniform(0, 9, cluster.servers))
    scenario = Scenario(cluster, jobs, until=40, seed=seed, incidents=happened)
    meter = Meter(cluster)
    run = record_run(
        scenario, policy, PolicyChoice(policy).build(scenario.context()), observers=[meter]
    )
    money = run.summary["money"]
    costs = dict(run.jobs.select("job", "cost").rows())
    for name, cost in costs.items():
        assert cost == pytest.approx(meter.used.get(name, 0.0))
    assert money["used"] == pytest.approx(sum(meter.used.values()))
    assert money["occupied"] == pytest.approx(meter.occupied)
    first = min(job.arrival for job in jobs)
    span = range(first, run.summary["end"])
    if all(slot in meter.there for slot in span):  # the driver skipped no idle slot
        assert money["whole"] == pytest.approx(sum(meter.there[slot] for slot in span))
    if money["used"]:
        per = run.summary["total_utility"] / money["used"]
        assert money["utility_per_used"] == pytest.approx(per)
    assert run.info["cluster"]["costs_per_hour"] == cluster.costs.tolist()


def test_a_run_without_prices_shows_no_money() -> None:
    cluster, jobs, _ = random_world(1)
    scenario = Scenario(cluster, jobs, until=40)
    run = record_run(scenario, "fifo", PolicyChoice("fifo").build(scenario.context()))
    assert "money" not in run.summary
    assert "cost" not in run.jobs.columns
    assert "cost of what jobs used" not in render_report(run)
    assert "money" not in histories_data(run, run.jobs, {})["jobs"]


def test_pages_and_histories_show_costs_of_jobs_and_the_cluster(tmp_path: Path) -> None:
    cluster, jobs, _ = random_world(1)
    cluster = replace(cluster, costs=np.arange(1.0, cluster.servers + 1.0))
    scenario = Scenario(cluster, jobs, until=40)
    run = record_run(scenario, "fifo", PolicyChoice("fifo").build(scenario.context()))
    page, histories = render_report(run), histories_data(run, run.jobs, {})
    money = run.summary["money"]
    for name in ("used", "whole"):
        assert format_number(money[name]) in page
    assert "cost of what jobs used" in page
    assert histories["jobs"]["money"] == pytest.approx(run.jobs["cost"].to_list(), rel=1e-5)
    headings = {column["key"]: column["heading"] for column in histories["columns"]}
    assert headings["money"] == "cost"
    job = max(run.jobs.rows(named=True), key=lambda row: row["cost"])["job"]
    write_run(run, tmp_path)
    lines = history_lines(read_job_history(tmp_path, job), None)
    assert any(" of the servers' cost" in line for _, line in lines)


def test_prices_are_read_from_the_cluster_file() -> None:
    document: dict[str, Any] = {
        "slot": "1h",
        "servers": [
            {"name": "old", "count": 2, "capacity": {"gpu/k80": 4}, "cost": 0.9},
            {"name": "new", "capacity": {"gpu/v100": 8}, "cost": 12},
            {"name": "net", "capacity": {"cpu": 8}},
        ],
    }
    spec, _ = validate(ClusterSpec, document, "c")
    assert spec is not None
    resolved = spec.resolve("c").costs
    assert resolved is not None
    assert resolved.tolist() == [0.9, 0.9, 12.0, 0.0]
    for wrong in (-1, float("inf"), 1e13, "dear"):
        document["servers"][0]["cost"] = wrong
        spec, faults = validate(ClusterSpec, document, "c")
        assert spec is None
        assert "cost" in str(faults[0])

"""The page's account of co-located slots, against the allocations themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest

from shadowprice.core.policy import PolicyContext
from shadowprice.policies.registry import make_policy
from shadowprice.results.report import section_colocation
from shadowprice.results.report.page import render_report
from shadowprice.results.report.section_colocation import colocation, shares, slots_of_jobs
from shadowprice.results.run_directory import RunData
from shadowprice.simulator.scenario import Scenario, record_run
from tests.support.pdors_cases import build_pool, random_two_rate_job
from tests.support.report_pages import check_page, page_data, simulated_run


def pdors_run() -> RunData:
    rng = np.random.default_rng(2)
    on = build_pool([(3, 6, 6), (2, 6, 4), (2, 3, 5)], horizon=12)
    jobs = [random_two_rate_job(on, rng, f"job-{index}", latest=9) for index in range(14)]
    policy = make_policy("pdors", PolicyContext(on, jobs, 16), {})
    return record_run(Scenario(on, jobs, until=16), "pdors", policy)


def test_shares_are_those_of_the_allocations() -> None:
    run = pdors_run()
    slots = slots_of_jobs(run)
    counted: dict[str, list[bool]] = {}
    seen: dict[tuple[str, int], int] = {}
    for slot, name in run.allocations.select("slot", "job").iter_rows():
        seen[name, slot] = seen.get((name, slot), 0) + 1
    for (name, _), machines in seen.items():
        counted.setdefault(name, []).append(machines == 1)
    found = {row["job"]: row for row in shares(slots).iter_rows(named=True)}
    assert found.keys() == counted.keys()
    for name, alone in counted.items():
        assert found[name]["slots"] == len(alone)
        assert found[name]["share"] == np.mean(alone)
    assert 0 < slots["colocated"].sum() < len(slots)


def test_the_drawing_covers_every_slot_once() -> None:
    run = pdors_run()
    text = colocation(run)
    assert text is not None
    (drawing,) = [block for block in page_data(text) if block.get("kind") == "gantt"]
    drawn: dict[tuple[str, str], int] = {}
    for bar in drawing["bars"]:
        name = drawing["rows"][bar["row"]].rpartition(" ")[0]
        key = name, bar["style"]
        drawn[key] = drawn.get(key, 0) + bar["to"] - bar["from"]
    slots = slots_of_jobs(run)
    for (name, colocated), frame in slots.group_by("job", "colocated"):
        assert drawn.pop((str(name), "colocated" if colocated else "spread")) == len(frame)
    assert not drawn
    share = float(slots["colocated"].cast(pl.Float64).mean())  # type: ignore[arg-type]
    assert f"{share:.1%} of all running slots on one server" in text
    check_page(render_report(run))


def test_separate_servers_need_no_message() -> None:
    assert colocation(simulated_run()) == ""


def test_where_nothing_was_to_be_chosen_slots_are_not_gone_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(run: RunData) -> pl.DataFrame:
        raise AssertionError(f"{len(run.allocations)} rows were grouped by slot")

    monkeypatch.setattr(section_colocation, "slots_of_jobs", refuse)
    run = simulated_run()
    alone = replace(run, allocations=run.allocations.with_columns(server=0, workers=1, ps=0))
    assert colocation(alone) == ""
    # With parameter servers beside workers, or jobs on two servers, it reads the rows.
    choices: tuple[dict[str, Any], ...] = ({"ps": 1}, {"server": pl.int_range(pl.len())})
    for changed in choices:
        other = replace(run, allocations=alone.allocations.with_columns(**changed))
        with pytest.raises(AssertionError, match="rows were grouped"):
            colocation(other)

"""Job histories on a run's page, against the run's own tables and ``explain``."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from shadowprice.core.events import ServerBack, ServerLost
from shadowprice.core.policy import PolicyContext
from shadowprice.core.utility import Sigmoid
from shadowprice.policies.registry import make_policy
from shadowprice.results.job_history import history_lines, read_job_history
from shadowprice.results.report import inline_assets
from shadowprice.results.report.page import render_report
from shadowprice.results.report.section_job_histories import (
    MAX_CHARS,
    _run_placements,
    histories_block,
)
from shadowprice.results.run_directory import RunData, read_run, write_run
from shadowprice.results.slot_snapshot import slot_snapshot_of
from shadowprice.simulator.driver import Incident
from shadowprice.simulator.scenario import Scenario, record_run
from tests.support.astraea_cases import random_jobs, shared_cluster
from tests.support.report_pages import check_page, flat_run, planned_run, promised_run, unpack_data
from tests.support.workloads import make_cluster, make_job


def histories_of(run: RunData, budget: int = MAX_CHARS) -> dict[str, Any]:
    value: Any = unpack_data(histories_block(run, budget)[0])
    assert isinstance(value, dict)
    return value


def test_a_run_read_from_disk_gives_the_histories_of_the_run_in_memory(tmp_path: Path) -> None:
    run = planned_run()
    write_run(run, tmp_path)
    assert list(read_run(tmp_path).decisions(True)) == list(run.decisions(True))
    assert histories_of(read_run(tmp_path)) == histories_of(run)
    assert slot_snapshot_of(read_run(tmp_path), 5).record() == slot_snapshot_of(run, 5).record()


def test_a_promise_that_is_lost_and_given_again_is_reported_as_that(tmp_path: Path) -> None:
    cluster = make_cluster(2, 1, horizon=40)
    work = [make_job(cluster, "long", chunks=4, epochs=3, utility=Sigmoid(50.0, 0.2, 30.0))]
    policy = make_policy("rolling", PolicyContext(cluster, None, 60), {})
    incidents: list[Incident] = [ServerLost(1, name) for name in cluster.names]
    incidents += [ServerBack(4, name) for name in cluster.names]
    run = record_run(Scenario(cluster, work, until=60, incidents=incidents), "rolling", policy)
    promises = [(line["outcome"], line["promise"] is not None) for line in run.decisions(True)]
    assert promises == [("admitted", True), ("moved", False), ("moved", True)]
    write_run(run, tmp_path)
    labels = [label for label, _ in history_lines(read_job_history(tmp_path, "long"), None)]
    assert [labels.count(label) for label in ("admitted", "promise lost", "promised again")] == [
        1
    ] * 3
    assert "moved" not in labels


def test_slots_of_long_runs_are_exact() -> None:
    on = make_cluster(1, 1)
    jobs = [make_job(on, "first"), make_job(on, "late", arrival=1_234_567)]
    run = record_run(
        Scenario(on, jobs), "fifo", make_policy("fifo", PolicyContext(on, jobs, None), {})
    )
    shown = histories_of(run)
    for column in ("arrival", "start", "completion"):
        assert shown["jobs"][column] == run.jobs[column].to_list()
    assert shown["jobs"]["start"][1] >= 1_234_567


def test_a_job_that_had_not_arrived_is_reported_as_such() -> None:
    on = make_cluster(1, 1)
    jobs = [make_job(on, "first"), make_job(on, "later", arrival=9)]
    policy = make_policy("fifo", PolicyContext(on, jobs, 1), {})
    run = record_run(Scenario(on, jobs, until=1), "fifo", policy)
    facts = histories_of(run)["facts"]
    assert [lines[0] for lines in facts] == [["arrived", "in slot 0"], ["arrives", "in slot 9"]]


def test_the_first_waiting_job_is_not_admitted_twice(tmp_path: Path) -> None:
    on = shared_cluster()
    jobs = random_jobs(on, 6, seed=1)
    policy = make_policy("astraea", PolicyContext(on, jobs, None), {})
    run = record_run(Scenario(on, jobs), "astraea", policy)
    write_run(run, tmp_path)
    for name in run.jobs["job"]:
        labels = [label for label, _ in history_lines(read_job_history(tmp_path, name), None)]
        assert "queued" in labels
        assert "admitted again" not in labels
    assert "admitted" in labels


def rows_of(places: dict[str, list[int]]) -> list[tuple[int, ...]]:
    names = ("job", "server", "workers", "ps", "slot", "slots")
    return list(zip(*(places[name] for name in names), strict=True))


def placed(places: dict[str, list[int]]) -> Counter[tuple[int, int, int, int, int]]:
    """Return (job, slot, server, workers, ps) of placements, slot by slot."""
    return Counter(
        (job_, slot, server, workers, ps)
        for job_, server, workers, ps, first, slots in rows_of(places)
        for slot in range(first, first + slots)
    )


@pytest.mark.parametrize("run", [planned_run(), flat_run(9)], ids=["pdors", "flat"])
def test_placements_are_those_that_ran_and_those_that_were_planned(run: RunData) -> None:
    histories = histories_of(run)
    names = histories["jobs"]["job"]
    at = {name: row for row, name in enumerate(names)}
    assert names == run.jobs["job"].to_list()
    allocations = run.allocations.select("job", "slot", "server", "workers", "ps").rows()
    ran = Counter((at[name], *rest) for name, *rest in allocations)
    assert placed(histories["ran"]) == ran
    plans = {r["job"]: r["plan"] for r in run.decisions(True) if r.get("plan")}
    kept = placed(histories["plan"])
    assert any(plans.values())
    how = Counter(histories["jobs"]["planned"])
    for row, name in enumerate(names):
        plan = Counter(
            (row, slot, run.server_names.index(server), w, p)
            for slot, server, w, p in plans.get(name, [])
        )
        did = Counter({key: n for key, n in ran.items() if key[0] == row})
        stored = Counter({key: n for key, n in kept.items() if key[0] == row})
        match histories["jobs"]["planned"][row]:
            case 0:
                assert (plan, stored) == (Counter(), Counter())
            case 1:
                assert (plan, stored) == (did, Counter())
                assert plan
            case _:
                assert plan == stored
                assert plan != did
    assert how[1] > 0
    if run.policy == "pdors":
        assert how[2] > 0  # the lost server kept some from running as planned


@pytest.mark.parametrize("piece", [1, 7, 200_000])
def test_rows_are_ordered_by_job_and_joined(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = histories_of(planned_run())["ran"]
    monkeypatch.setattr("shadowprice.results.report.section_job_histories._PIECE_ROWS", piece)
    ran = histories_of(planned_run())["ran"]
    assert ran["job"] == sorted(ran["job"])
    ends = {(j, s, w, p, slot + n) for j, s, w, p, slot, n in rows_of(ran)}
    assert not any((j, s, w, p, slot) in ends for j, s, w, p, slot, _ in rows_of(ran))
    assert ran == whole


def test_a_job_of_a_million_slots_takes_the_page_no_more_memory_than_a_piece() -> None:
    """It took 115 bytes a slot; memory of numpy counts here."""
    run = planned_run()
    count = 1_000_000
    name = run.jobs.item(0, "job")
    one = {"job": [name], "server": [0], "workers": [1], "ps": [0]}
    schema = {key: run.allocations.schema[key] for key in one}
    rows = pl.DataFrame(one, schema=schema).sample(count, with_replacement=True)
    slots = pl.Series("slot", np.arange(count), dtype=run.allocations.schema["slot"])
    tracemalloc.start()
    ran = _run_placements(replace(run, allocations=rows.with_columns(slots)), [name])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert {key: column.tolist() for key, column in ran.items()} == {
        "job": [0], "server": [0], "workers": [1], "ps": [0], "slot": [0], "slots": [count]
    }  # fmt: skip
    assert peak < 30 * count


def test_the_page_shows_what_explain_prints(tmp_path: Path) -> None:
    run = planned_run()
    write_run(run, tmp_path)
    histories = histories_of(run)
    for name, facts in zip(histories["jobs"]["job"], histories["facts"], strict=True):
        lines = [
            [inline_assets.escape_invisible(part) for part in line]
            for line in history_lines(read_job_history(tmp_path, name), 0)
        ]
        assert facts == lines


def test_every_promise_is_in_the_history_in_its_order() -> None:
    run = promised_run()
    histories = histories_of(run)
    given: dict[str, list[tuple[int, int]]] = {}
    for record in run.decisions(False):
        if record.get("promise") is not None:
            given.setdefault(record["job"], []).append((record["slot"], record["promise"]))
    assert any(len({slot for _, slot in each}) > 1 for each in given.values())
    names = histories["jobs"]["job"]
    found: dict[str, list[tuple[int, int]]] = {}
    for at, *row in zip(
        *(histories["promises"][key] for key in ("job", "given", "slot")), strict=True
    ):
        found.setdefault(names[at], []).append((row[0], row[1]))
    assert found == given
    for name, facts in zip(names, histories["facts"], strict=True):
        lines = [text for label, text in facts if label == "promise"]
        assert lines == [f"complete by the end of slot {slot}" for _, slot in given.get(name, ())]


def test_the_end_of_a_plan_is_no_promise_beside_it() -> None:
    assert histories_of(planned_run())["promises"] is None


def test_histories_stay_within_their_budget_and_keep_the_most_valuable() -> None:
    run = flat_run(60)
    block, count = histories_block(run)
    assert count == 60
    small, fewer = histories_block(run, len(block) // 2)
    assert len(small) <= len(block) // 2
    assert 1 < fewer < 60
    unpacked: Any = unpack_data(small)
    assert unpacked["total"] == 60
    worth = run.jobs.sort("value", descending=True, maintain_order=True)["job"].head(fewer)
    assert sorted(unpacked["jobs"]["job"]) == sorted(worth)
    assert histories_block(run, 1)[1] == 1


def test_a_page_with_fewer_histories_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shadowprice.results.report.section_job_histories.MAX_HISTORIES", 4)
    text = render_report(flat_run(9))
    check_page(text)
    assert "This page has the histories of 4 of 9 jobs, those with the largest value." in text


def test_payments_are_summed_by_payee() -> None:
    from tests.support.report_pages import simulated_run

    run = simulated_run(jobs=2)
    lines = [
        {"job": "job-0", "slot": 1, "payer": "a", "payee": "b", "worker": 1.0, "ps": 0.5},
        {"job": "job-0", "slot": 2, "payer": "a", "payee": "b", "worker": 2.0, "ps": 0.0},
        {"job": "job-0", "slot": 2, "payer": "a", "payee": "a", "worker": 0.25, "ps": 0.0},
        {"job": "job-1", "slot": 2, "payer": "c", "payee": "a", "worker": 4.0, "ps": 0.0},
    ]
    paying = RunData(
        run.info, run.jobs, run.slots, run.allocations, run.heat, run.decisions, lambda: iter(lines)
    )
    assert histories_of(run)["payments"] is None
    paid = histories_of(paying)["payments"]
    assert list(zip(paid["job"], paid["payee"], paid["amount"], strict=True)) == [
        (0, "a", 0.25),
        (0, "b", 3.5),
        (1, "a", 4.0),
    ]

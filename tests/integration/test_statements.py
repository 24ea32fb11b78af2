"""Statements of accounts, from a run's files."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import polars as pl
import polars.testing
import pytest

from shadowprice.cli.main import main
from shadowprice.core.cluster import Cluster
from shadowprice.core.job import Job
from shadowprice.policies.choice import PolicyChoice
from shadowprice.results import accounts
from shadowprice.results.accounts import TenantAccounts, compute_tenant_accounts, timeline
from shadowprice.results.report.page import write_report
from shadowprice.results.report.sections import tenants
from shadowprice.results.run_directory import RunData, read_run, write_run
from shadowprice.simulator.scenario import Scenario, record_run
from tests.support.astraea_cases import (
    SETTINGS,
    example_cluster,
    example_jobs,
    random_jobs,
    shared_cluster,
)
from tests.support.report_pages import page_data

TENANTS = {"a": {"worker": 3, "ps": 2}, "b": {"worker": 4, "ps": 1}, "c": {"worker": 1, "ps": 1}}


def recorded(cluster: Cluster, jobs: list[Job], policy: str, **settings: object) -> RunData:
    scenario = Scenario(cluster, jobs)
    return record_run(scenario, policy, PolicyChoice(policy, settings).build(scenario.context()))


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cluster = example_cluster()
    folder = tmp_path_factory.mktemp("run")
    write_run(recorded(cluster, example_jobs(cluster), "astraea", **SETTINGS), folder)
    return folder


@pytest.fixture(scope="module")
def busy() -> tuple[RunData, TenantAccounts]:
    cluster = shared_cluster(4, TENANTS)
    run = recorded(cluster, random_jobs(cluster, 24, seed=5), "astraea")
    return run, compute_tenant_accounts(run)


def test_the_example_s_statement(example: Path) -> None:
    books = compute_tenant_accounts(read_run(example))
    u1, u2 = books.accounts["u1"], books.accounts["u2"]
    assert (u1.paid, u1.received, u1.to_itself) == (16_000_000, 8_000_000, 8_000_000)
    assert (u2.paid, u2.received, u2.to_itself) == (0, 8_000_000, 0)
    assert (u1.earned, u1.earned_own, u1.revenue) == (168.0, 86.0, 160.0)
    assert (u2.earned, u2.revenue) == (82.0, 90.0)
    # j12's three workers and parameter server over four slots: in slots 8 and 9 u1 has 2 of 6 idle
    # workers and 1 of 3 parameter servers, in slots 10 and 11 it has 4 of 6 and 2 of 3.
    assert u2.lent == pytest.approx({"ps": 2 * 2 / 3 + 2 * 1 / 3, "worker": 2 * 2 + 2 * 1})
    assert u1.borrowed == pytest.approx(u2.lent)
    assert u1.fairness == pytest.approx(160 / 250 / 0.5)
    assert books.fairness_variance == pytest.approx(0.28**2)


def test_all_accounts_balance(busy: tuple[RunData, TenantAccounts]) -> None:
    run, books = busy
    every = books.accounts.values()
    assert sum(a.paid for a in every) == sum(a.received for a in every) > 0
    lent: Counter[str] = Counter()
    borrowed: Counter[str] = Counter()
    for account in every:
        lent.update(account.lent)
        borrowed.update(account.borrowed)
    assert lent == pytest.approx(borrowed)
    assert sum(a.revenue for a in every) == pytest.approx(float(run.jobs["utility"].sum()))
    # Revenue weighted by shares of revenue: the ratios' weighted mean is one.
    weights = {"a": (3 / 8 + 2 / 4) / 2, "b": (4 / 8 + 1 / 4) / 2, "c": (1 / 8 + 1 / 4) / 2}
    assert sum(weights[a.tenant] * (a.fairness or 0) for a in every) == pytest.approx(1.0)


def test_the_timeline_adds_up_to_the_accounts(busy: tuple[RunData, TenantAccounts]) -> None:
    run, books = busy
    moves = timeline(run, books)
    for account in books.accounts.values():
        mine = moves.filter(pl.col("tenant") == account.tenant)
        assert mine["earned"].sum() == pytest.approx(account.earned)
        assert mine["paid"].sum() == pytest.approx((account.paid - account.to_itself) / 1e6)
        assert mine["received"].sum() == pytest.approx((account.received - account.to_itself) / 1e6)
        assert mine["lent"].sum() == pytest.approx(sum(account.lent.values()))
        assert mine["borrowed"].sum() == pytest.approx(sum(account.borrowed.values()))


def test_loans_are_the_same_slot_by_slot(
    busy: tuple[RunData, TenantAccounts], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, whole = busy
    monkeypatch.setattr(accounts, "_MAX_PARTS", 1)
    pieces = compute_tenant_accounts(run)
    assert len(whole.loans) > 1
    assert len(whole.loans_by_slot["slot"].unique()) > 1
    for name in ("loans", "loans_by_slot"):
        polars.testing.assert_frame_equal(getattr(pieces, name), getattr(whole, name))
    total = sum(sum(account.borrowed.values()) for account in whole.accounts.values())
    assert whole.loans_by_slot["borrowed"].sum() == pytest.approx(total)
    assert whole.loans_by_slot["lent"].sum() == pytest.approx(total)


def test_statements_command_prints_the_statement(
    example: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["statement", str(example), "-o", "json"]) == 0
    captured = json.loads(capsys.readouterr().out)
    assert [tenant["revenue"] for tenant in captured["tenants"]] == [160.0, 90.0]
    assert main(["statement", str(example), "--tenant", "u1", "-o", "json"]) == 0
    captured = json.loads(capsys.readouterr().out)
    assert {row["partner"]: row["paid"] for row in captured["partners"]} == {"u1": 8.0, "u2": 8.0}
    assert [job["paid"] for job in captured["jobs_of_tenant"]] == [0.0, 16.0]
    assert main(["statement", str(example), "--tenant", "u1"]) == 0
    assert "paid to itself" in capsys.readouterr().out
    assert main(["statement", str(example)]) == 0
    assert "fairness" in capsys.readouterr().out
    assert main(["statement", str(example), "--tenant", "u3"]) == 2
    assert "known: u1, u2" in capsys.readouterr().err


def test_a_policy_without_payments_has_statements_too(tmp_path: Path) -> None:
    cluster = shared_cluster(4, TENANTS)
    run = recorded(cluster, random_jobs(cluster, 12, seed=5), "hived")
    books = compute_tenant_accounts(run)
    assert not books.charged
    assert sum(a.revenue for a in books.accounts.values()) == pytest.approx(
        float(run.jobs["utility"].sum())
    )
    write_report(run, tmp_path / "report.html")
    assert "fairness ratio" in (tmp_path / "report.html").read_text("utf-8")


def test_merged_slots_of_a_long_run_begin_with_the_run() -> None:
    cluster = shared_cluster(4, TENANTS)
    early = random_jobs(cluster, 24, seed=5)
    late = [replace(job, name=f"late-{job.name}", arrival=job.arrival + 1500) for job in early]
    run = recorded(cluster, [*early, *late], "astraea")
    body = tenants(run)
    assert body is not None
    balance, places = (data for data in page_data(body) if "series" in data)
    size = places["x"]["step"]
    assert size >= 3
    first = int(run.slots["slot"][0])
    assert places["x"]["first"] == first  # means begin with their first slot
    assert balance["x"][0] == first + size - 1  # sums end with their last


def test_the_report_shows_balances(busy: tuple[RunData, TenantAccounts], tmp_path: Path) -> None:
    write_report(busy[0], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text("utf-8")
    assert "Received less paid, so far" in page
    assert "Places lent (above) and borrowed (below)" in page


def test_parameter_has_the_name_of_the_paper(capsys: pytest.CaptureFixture[str]) -> None:
    from shadowprice.cli.options import policy_settings
    from shadowprice.policies.registry import policy_info

    given = policy_settings(None, ["lambda=1"], [policy_info("astraea"), policy_info("hived")])
    assert given == {"astraea": {"lambda": "1"}, "hived": {}}
    assert main(["policies", "astraea"]) == 0
    assert "\nlambda " in capsys.readouterr().out

"""The experiment on misreports: each misreport, and its measurements."""

from __future__ import annotations

import polars as pl
import pytest

from shadowprice.core.utility import utility_value
from shadowprice.experiments import misreports
from shadowprice.experiments.framework import ExperimentSettings
from shadowprice.experiments.misreports import (
    LIAR,
    STRATEGIES,
    TENANTS,
    MisreportCase,
    build_cluster,
    draw_jobs,
)
from shadowprice.policies.choice import PolicyChoice

CLUSTER = build_cluster(shares=True)
JOBS = draw_jobs(3, 40, CLUSTER)


def test_tenants_draw_as_many_jobs_alike() -> None:
    counts = [sum(job.tenant == tenant for job in JOBS) for tenant in TENANTS]
    assert counts == [10] * len(TENANTS)
    assert [job.record() for job in draw_jobs(3, 40, CLUSTER)] == [job.record() for job in JOBS]


@pytest.mark.parametrize(
    ("kind", "size"), [(kind, sizes[-1]) for kind, (sizes, _) in STRATEGIES.items()]
)
def test_only_the_liar_lies(kind: str, size: int) -> None:
    report = MisreportCase(kind, size).apply(JOBS)
    stated = {job.name: job.record() for job in report.misreport.jobs}
    true = {job.name: job.record() for job in JOBS}
    others = {job.name for job in JOBS if job.tenant != LIAR}
    assert {name: stated[name] for name in others} == {name: true[name] for name in others}
    assert stated != true
    liars = {job.tenant for job in report.misreport.jobs} - set(TENANTS[1:])
    assert all(str(name).startswith(LIAR) for name in liars)
    assert (len(liars) > 1) == (kind == "accounts")


def test_inflated_values_and_parts_add_up() -> None:
    own = next(job for job in JOBS if job.tenant == LIAR and job.required >= 8)
    inflated = MisreportCase("inflate", 10).apply(JOBS).misreport.reported[own.name].jobs[0]
    assert utility_value(inflated.utility, 3) == pytest.approx(10 * utility_value(own.utility, 3))
    parts = MisreportCase("split", 8).apply(JOBS).misreport.reported[own.name].jobs
    assert len(parts) == 8
    worth = sum(utility_value(part.utility, 3) for part in parts)
    assert worth == pytest.approx(utility_value(own.utility, 3))
    assert sum(part.required for part in parts) >= own.required


@pytest.mark.parametrize("kind", ["cancel dense", "cancel poor"])
def test_shams_are_cancelled_before_they_can_complete(kind: str) -> None:
    report = MisreportCase(kind, 1000).apply(JOBS)
    shams = {job.name: job for job in report.misreport.jobs if job.name.endswith("+sham")}
    assert len(shams) == sum(job.tenant == LIAR for job in JOBS)
    assert {event.job: event.slot for event in report.incidents} == {
        name: job.arrival + 1 for name, job in shams.items()
    }


def test_slower_and_less_work_take_their_true_time() -> None:
    """A job that is alone completes at the same time, whatever it states."""
    completions = set()
    own = next(job for job in JOBS if job.tenant == LIAR)
    for case in (MisreportCase(), MisreportCase("less work", 4), MisreportCase("slower", 2)):
        row = misreports.run_misreport(PolicyChoice("rolling"), case, [own], CLUSTER)
        completions.add(round(row["liar"], 6))
    assert len(completions) == 1


@pytest.mark.extended
def test_gains_are_shares_of_what_honest_reports_earn(monkeypatch: pytest.MonkeyPatch) -> None:
    few = {kind: STRATEGIES[kind] for kind in ("inflate", "accounts")}
    monkeypatch.setattr(misreports, "STRATEGIES", few)
    tables = misreports.measure(ExperimentSettings(quick=True))
    summary, runs = tables["summary"], tables["runs"]
    assert set(summary["policy"]) == {choice.name for choice in misreports.POLICIES}
    assert (runs["liar"] + runs["others"] <= runs["value"] * (1 + 1e-9)).all()
    stated = runs.filter(policy="oasis", values="stated")
    honest, lying = (stated.filter(lie=kind)["liar"] for kind in ("", "inflate"))
    gain = summary.filter(policy="oasis", values="stated", lie="inflate")["gain"].item()
    assert gain == pytest.approx(sum(lying.to_list()) / sum(honest.to_list()) - 1)
    # Names of tenants don't matter to policies that don't know shares.
    named = pl.col("policy") != "astraea"
    renamed = summary.filter(named, lie="accounts", values="stated")
    assert renamed.select("gain", "loss").rows() == [(0.0, 0.0)] * 3
    # The unit of a tenant's values doesn't matter if they are relative.
    inflated = summary.filter(lie="inflate", values="relative")
    assert inflated.select("gain", "loss").rows() == [(0.0, 0.0)] * 4
    assert tables["honest"]["stated"].is_between(0, 1).all()

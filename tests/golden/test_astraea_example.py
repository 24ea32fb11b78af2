"""The worked example of Sections 4.2-4.4 of Astraea, at the level of a round."""

import itertools
import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from shadowprice.policies.astraea.market import GangAward, RoundMarket, UnitPool
from shadowprice.policies.astraea.prices import price_table
from shadowprice.policies.astraea.rounds import RoundCalendar
from shadowprice.policies.tenants.tenancy import MICRO, GangJob, workers_servable

EXAMPLE = json.loads(Path(__file__).with_name("astraea_example.json").read_text("utf-8"))
CLUSTER = EXAMPLE["cluster"]
TENANTS = list(CLUSTER["tenants"])
SERVERS = CLUSTER["servers"]


def job_of(row: dict[str, object], *, rigid: bool) -> GangJob:
    defaults = EXAMPLE["job_defaults"]
    most = int(row["chunks"])
    counts = np.arange(most if rigid else 1, most + 1)
    work = int(row["epochs"]) * most * int(row["minibatches"])
    spread, colocated = (
        np.array([-(-work // (Fraction(defaults[rate]) * n)) for n in counts.tolist()], np.int64)
        for rate in ("spread_minibatches_per_slot", "colocated_minibatches_per_slot")
    )
    utility = defaults["utility"]
    return GangJob(
        name=str(row["name"]),
        tenant=TENANTS.index(row["tenant"]),
        arrival=int(row["arrival"]),
        worker_type=0,
        ps_type=1,
        counts=counts,
        spread_slots=spread,
        colocated_slots=colocated,
        reach=workers_servable(CLUSTER["ps"], 1, 1, served=True),
        utility=lambda d: utility["value"] + utility["slope"] * d.astype(np.float64),
    )


def market(slots: int) -> RoundMarket:
    def places(kind: str) -> UnitPool:
        capacity = np.full(len(SERVERS), CLUSTER[kind])
        shares = np.array([CLUSTER["tenants"][name][kind] for name in TENANTS])
        theta = EXAMPLE["settings"]["theta"][kind]
        return UnitPool(capacity, shares, price_table(theta, int(capacity.sum())), slots)

    return RoundMarket([places("worker"), places("ps")])


def played(*, rigid: bool) -> tuple[list[list[GangAward]], list[str]]:
    waiting = [job_of(row, rigid=rigid) for row in EXAMPLE["jobs"]]
    rounds = []
    for start, end in EXAMPLE["rounds"]:
        awards = market(end - start).schedule(waiting)
        waiting = [job for job in waiting if job not in {award.job for award in awards}]
        rounds.append(awards)
    return rounds, [job.name for job in waiting]


def test_the_example_s_jobs_run_in_the_rounds_it_says() -> None:
    arrivals = {row["arrival"] for row in EXAMPLE["jobs"]}
    rounds = RoundCalendar(EXAMPLE["settings"]["lambda"], longest=300)
    turns = [turn for turn in itertools.islice(rounds, 4) if turn.collected > max(arrivals)]
    assert [[turn.start, turn.end] for turn in turns] == EXAMPLE["rounds"]


def test_the_example_s_placements_prices_and_incomes() -> None:
    (first, second), left = played(rigid=True)
    expected = EXAMPLE["own_share"] + EXAMPLE["borrowed"]
    assert [award.job.name for award in first] == [row["job"] for row in expected]
    for award, row in zip(first, expected, strict=True):
        gang, (begin, last) = award.gang, row["slots"]
        assert (gang.start + 8, gang.end + 8) == (begin, last + 1)
        for kind, on in (("workers", gang.workers_on), ("ps", gang.ps_on)):
            assert {SERVERS[s]: int(on[s]) for s in np.flatnonzero(on)} == row[kind]
        assert gang.value == row["ideal"] * MICRO
        assert gang.cost == row["cost"] * MICRO
    for award, row in zip(first[2:], EXAMPLE["borrowed"], strict=True):
        assert award.gang.payoff == row["payoff"] * MICRO
        assert award.gang.worker_prices.tolist() == [row["worker_price"] * MICRO] * 4
        assert award.gang.ps_prices.tolist() == [row["ps_price"] * MICRO] * 4
        assert award.income is not None
        income = sum(award.income.values()).sum(axis=0)
        assert dict(zip(TENANTS, (income / MICRO).tolist(), strict=True)) == row["income"]
    assert all(award.income is None for award in first[:2])
    assert second == []
    assert left == EXAMPLE["left_for_the_next_batch"]


def test_free_to_choose_its_workers_j12_stays_within_its_share() -> None:
    # After j11 and j21 as the example places them, two workers on one server beat the loan.
    round_ = market(4)
    jobs = {row["name"]: job_of(row, rigid=row["name"] != "j12") for row in EXAMPLE["jobs"]}
    for name in ("j11", "j21"):
        gang = round_.search(jobs[name], borrow=False)
        assert gang is not None
        round_.reserve(jobs[name], gang)
    gang = round_.search(jobs["j12"], borrow=False)
    row = EXAMPLE["elastic_j12"]
    assert gang is not None
    assert [gang.start + 8, gang.end + 7] == row["slots"]
    assert (gang.workers, gang.colocated) == (row["workers"], True)
    assert (gang.value, gang.cost) == (row["ideal"] * MICRO, row["cost"] * MICRO)
    assert gang.payoff == row["payoff"] * MICRO


def test_without_limits_no_tenant_borrows() -> None:
    # In the order of service, j12 comes before j21 and does even better: (9, 12], 92 - 3. Then j21
    # finds two used workers and one used server in (10, 12]: 92 - 2 * (2 + 1).
    (first, _), left = played(rigid=False)
    assert {award.job.name: award.gang.payoff // MICRO for award in first} == {
        "j11": 96,
        "j12": 89,
        "j21": 86,
    }
    assert all(award.income is None for award in first)
    assert left == ["j22"]


def test_a_steeper_report_pays_in_the_example() -> None:
    # Theorem 4 calls the algorithm strategy-proof. In its own example tenant u2 gains by saying
    # that waiting costs it 4 a slot, not 2: j21 then runs two slots earlier, which is free within
    # the share, and drives up the price that u1's j12 pays to u2.
    def outcome(slope: float) -> tuple[float, float]:
        rows = [job_of(row, rigid=True) for row in EXAMPLE["jobs"]]
        j21 = rows[2]
        rows[2] = GangJob(**(vars(j21) | {"utility": lambda d: 100 + slope * d.astype(np.float64)}))
        awards = {award.job.name: award for award in market(4).schedule(rows)}
        arrival = EXAMPLE["jobs"][2]["arrival"]
        completion = 8 + awards["j21"].gang.end - 1
        income = sum(
            float(sum(award.income.values())[:, 1].sum()) / MICRO
            for award in awards.values()
            if award.income is not None
        )
        return 100 - 2 * (completion - arrival), income

    honest, steep = outcome(-2.0), outcome(-4.0)
    assert honest == (82.0, 8.0)
    assert steep == (86.0, pytest.approx(12.0))


def test_alone_on_its_share_u2_would_have_done_better() -> None:
    # Batch sharing incentive, in utility: the price that j11 leaves delays j21 by two slots,
    # although both are within their shares.
    rows = [job_of(row, rigid=True) for row in EXAMPLE["jobs"] if row["tenant"] == "u2"]
    pooled = {award.job.name: award.gang for award in played(rigid=True)[0][0]}
    alone = {award.job.name: award.gang for award in market(4).schedule(rows)}
    assert (pooled["j21"].value, alone["j21"].value) == (92 * MICRO, 96 * MICRO)

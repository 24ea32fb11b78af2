from collections import Counter
from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice.kernels.market.gangs import divide
from shadowprice.policies.astraea.market import GangAward, RoundMarket, UnitPool
from shadowprice.policies.astraea.prices import min_thetas, price_table
from shadowprice.policies.tenants.tenancy import GangJob, workers_servable
from tests.support.examples import example_count, sample

PROPERTY = settings(max_examples=example_count(60), deadline=None, derandomize=True)


@PROPERTY
@given(
    st.lists(
        st.tuples(
            st.integers(0, 10**15),
            st.lists(st.integers(0, 2**27), min_size=3, max_size=3),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_a_payment_is_divided_to_the_last_unit(rows: list[tuple[int, list[int]]]) -> None:
    rows = [(amount if sum(owned) else 0, owned) for amount, owned in rows]
    amounts = np.array([amount for amount, _ in rows], np.int64)
    contributions = np.array([owned for _, owned in rows], np.int64)
    shares = divide(amounts, contributions)
    for (amount, owned), share in zip(rows, shares.tolist(), strict=True):
        assert sum(share) == amount
        for part, contribution in zip(share, owned, strict=True):
            if sum(owned):
                exact = Fraction(amount * contribution, sum(owned))
                assert part in {exact.__floor__(), exact.__floor__() + 1}
                assert contribution or not part


def test_units_left_over_go_to_the_largest_fractions_then_to_the_first() -> None:
    def of(amount: int, *owned: int) -> list[int]:
        return divide(np.array([amount]), np.array([owned]))[0].tolist()

    assert of(10, 1, 1, 1) == [4, 3, 3]
    assert of(11, 1, 1, 1) == [4, 4, 3]
    assert of(7, 1, 0, 3) == [2, 0, 5]
    assert of(5, 0, 0, 0) == [0, 0, 0]


def random_round(seed: int, kinds: int = 2) -> tuple[RoundMarket, list[GangJob]]:
    generator = np.random.default_rng(seed)
    slots, servers, tenants = 8, 5, 3

    def places(most: int) -> UnitPool:
        capacity = generator.integers(0, most + 1, servers)
        shares = generator.multinomial(capacity.sum(), np.full(tenants, 1 / tenants))
        return UnitPool(capacity, shares, price_table(40.0, int(capacity.sum())), slots)

    jobs = []
    for number in range(12):
        counts = np.arange(1, generator.integers(2, 7))
        work = Fraction(int(generator.integers(1, 20)))
        value, slope = generator.uniform(5, 100), generator.uniform(-4, 0)
        jobs.append(
            GangJob(
                name=f"job-{number}",
                tenant=int(generator.integers(tenants)),
                arrival=int(generator.integers(3)),
                worker_type=int(generator.integers(kinds)),
                ps_type=kinds + int(generator.integers(kinds)),
                counts=counts,
                spread_slots=np.array([-(-2 * work // n) for n in counts.tolist()], np.int64),
                colocated_slots=np.array([-(-work // n) for n in counts.tolist()], np.int64),
                reach=workers_servable(3, 2, 3, served=generator.random() < 0.8),
                utility=lambda d, value=value, slope=slope: value + slope * d,
            )
        )
    return RoundMarket([places(most) for most in (4, 2) for _ in range(kinds)]), jobs


@PROPERTY
@given(st.integers(0, 2**32 - 1))
def test_a_round_keeps_capacities_shares_and_books(seed: int) -> None:
    market, jobs = random_round(seed)
    before = [places.free.copy() for places in market.pools]
    awards = market.schedule(jobs)
    assert len({award.job.name for award in awards}) == len(awards)

    for kind, (places, was) in enumerate(zip(market.pools, before, strict=True)):
        used = np.zeros_like(places.free)
        own: Counter[tuple[int, int]] = Counter()
        for award in awards:
            job, gang = award.job, award.gang
            if kind not in {job.worker_type, job.ps_type}:
                continue
            used_on = gang.workers_on if kind == job.worker_type else gang.ps_on
            used[gang.start : gang.end] += used_on
            if award.income is None:
                for slot in range(gang.start, gang.end):
                    own[job.tenant, slot] += int(used_on.sum())
        assert (was - used == places.free).all()
        assert (places.free >= 0).all()
        assert all(count <= places.shares[tenant] for (tenant, _), count in own.items())

    for award in awards:
        check_award(award)


def check_award(award: GangAward) -> None:
    gang = award.gang
    assert gang.payoff > 0
    assert gang.value == award.job.values(8)[gang.end]
    if award.income is not None:
        worker_type, *ps_types = award.income
        assert (award.income[worker_type].sum(axis=1) == gang.worker_costs).all()
        assert (gang.ps > 0) == bool(ps_types)
        for kind in ps_types:
            assert (award.income[kind].sum(axis=1) == gang.ps_costs).all()
        assert all((income >= 0).all() for income in award.income.values())


def test_random_rounds_cover_loans_and_jobs_without_parameter_servers() -> None:
    awards = [award for seed in range(20) for award in play(seed)]
    assert sum(award.income is not None for award in awards) > 20
    assert sum(award.gang.cost > 0 for award in awards if award.income is not None) > 10
    assert {award.gang.colocated for award in awards} == {True, False}
    assert {award.gang.ps for award in awards} >= {0, 1, 2}


def play(seed: int) -> list[GangAward]:
    market, jobs = random_round(seed)
    return market.schedule(jobs)


def test_a_round_does_not_depend_on_the_order_of_its_jobs() -> None:
    for seed in sample(range(10)):
        market, jobs = random_round(seed)
        other, _ = random_round(seed)
        shuffled = [jobs[at] for at in np.random.default_rng(seed).permutation(len(jobs))]
        plain = [
            (award.job.name, award.gang.start, award.gang.cost) for award in market.schedule(jobs)
        ]
        mixed = [(a.job.name, a.gang.start, a.gang.cost) for a in other.schedule(shuffled)]
        assert plain == mixed


@PROPERTY
@given(st.integers(0, 2**32 - 1))
def test_theta_from_its_definition_prices_out_an_exhausted_cluster(seed: int) -> None:
    _, jobs = random_round(seed, kinds=1)
    worker, ps = min_thetas(jobs, max_workers=4)
    assert min(worker, ps) >= 2
    for job in jobs:
        for count, slots in zip(job.counts.tolist(), job.spread_slots.tolist(), strict=True):
            utility = float(job.utility(np.array([slots]))[0])
            assert utility <= (worker - 1) * count * slots * (1 + 1e-12)

"""Relative values: a factor of all of a tenant's values changes no decision."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from shadowprice.core.cluster import Cluster
from shadowprice.core.events import Completed
from shadowprice.core.job import Job
from shadowprice.core.policy import JobState, PolicyContext, Status
from shadowprice.core.relative_values import (
    DensestFirst,
    OpenValues,
    RelativeValues,
    SizedJob,
    ValueSum,
    is_relative,
    scale_utility,
    to_exact,
    utility_factor,
)
from shadowprice.core.specs.utilities import UtilitySpec, resolve_utility
from shadowprice.core.utility import FAMILIES, Constant, Power, Utility, utility_value
from shadowprice.engine.job_record import JobRecord
from shadowprice.policies.registry import make_policy
from shadowprice.simulator.driver import Incident, Simulation
from tests.support.examples import example_count
from tests.support.policy_cases import PLACE_COUNTING_POLICIES, EventRecorder, build_world

SEEDS = st.integers(0, 2**32 - 1)
FACTORS = st.floats(1e-3, 1e3)
PRICING = ("oasis", "pdors", "rolling", "astraea")
LIAR = "a"


def with_tenants(policy: str, jobs: Sequence[Job]) -> list[Job]:
    if policy in PLACE_COUNTING_POLICIES:
        return list(jobs)
    return [replace(job, tenant="ab"[index % 2]) for index, job in enumerate(jobs)]


def inflate(jobs: Sequence[Job], factor: float) -> list[Job]:
    return [
        replace(job, utility=job.utility.scaled(factor)) if job.tenant == LIAR else job
        for job in jobs
    ]


def decide(
    policy: str,
    cluster: Cluster,
    jobs: Sequence[Job],
    incidents: Sequence[Incident],
    *,
    relative: bool,
) -> tuple[list[str], dict[str, float]]:
    """Return all commands, and what jobs earned."""
    built = make_policy(policy, PolicyContext(cluster), {})
    seen = EventRecorder()
    Simulation(cluster, jobs, built, incidents=incidents, relative_values=relative).run([seen])
    commands = [command for answer in seen.commands for command in answer]
    earned = {
        command.job: command.utility for command in commands if isinstance(command, Completed)
    }
    decided = [
        replace(command, utility=0.0) if type(command) is Completed else command
        for command in commands
    ]
    return list(map(repr, decided)), earned


@pytest.mark.parametrize("policy", PRICING)
@given(seed=SEEDS, factor=FACTORS)
@settings(max_examples=example_count(12), deadline=None)
def test_multiplying_all_values_of_a_tenant_changes_no_decision(
    policy: str, seed: int, factor: float
) -> None:
    cluster, drawn, incidents = build_world(policy, seed)
    jobs = with_tenants(policy, drawn)
    honest, earned = decide(policy, cluster, jobs, incidents, relative=True)
    inflated, more = decide(policy, cluster, inflate(jobs, factor), incidents, relative=True)
    assert honest == inflated
    liars = {job.name for job in jobs if job.tenant == LIAR}
    assert more == {
        name: pytest.approx(utility * (factor if name in liars else 1.0))
        for name, utility in earned.items()
    }


@pytest.mark.parametrize("policy", PRICING)
def test_without_relative_values_the_same_lie_changes_decisions(policy: str) -> None:
    def is_changed(seed: int) -> bool:
        cluster, drawn, incidents = build_world(policy, seed)
        jobs = with_tenants(policy, drawn)
        honest, _ = decide(policy, cluster, jobs, incidents, relative=False)
        return honest != decide(policy, cluster, inflate(jobs, 1e3), incidents, relative=False)[0]

    assert any(is_changed(seed) for seed in range(10))


@pytest.mark.parametrize("policy", PRICING)
@given(seed=SEEDS)
@settings(max_examples=example_count(6), deadline=None)
def test_jobs_earn_what_their_tenant_stated(policy: str, seed: int) -> None:
    cluster, drawn, incidents = build_world(policy, seed)
    jobs = with_tenants(policy, drawn)
    seen = EventRecorder()
    built = make_policy(policy, PolicyContext(cluster), {})
    Simulation(cluster, jobs, built, incidents=incidents, relative_values=True).run([seen])
    by_name = {job.name: job for job in jobs}
    for answer in seen.commands:
        for command in answer:
            if isinstance(command, Completed):
                job = by_name[command.job]
                assert command.utility == utility_value(job.utility, command.slot - job.arrival)


# ------------------------------------------------------------------ which jobs count


def job_worth(like: Job, name: str, density: float, size: int = 1, **changes: Any) -> Job:
    """Return a job of a tenant with a value per GPU-hour, and a multiple of another job's work."""
    required = like.required * size
    job = replace(like, name=name, tenant=LIAR, required=required, **changes)
    hours = job.worker_slots * float(SLOT) / 3600
    return replace(job, utility=Constant(density * hours))


ON, _JOBS, _ = build_world("rolling", 0)
LIKE, SLOT = _JOBS[0], ON.slot_seconds


def following(states: Iterable[JobRecord] = ()) -> OpenValues:
    open_jobs = {state.job.name: state for state in states}
    return OpenValues(open_jobs, set(open_jobs))


def weigh(values: RelativeValues, job: Job, *open_jobs: tuple[Job, Status]) -> float:
    """Return the factor with which a job counts among other open jobs."""
    states = [JobRecord(other, index, status) for index, (other, status) in enumerate(open_jobs)]
    [weighed] = values.weigh([job], following(states), ON, slot=5)
    return utility_factor(weighed)


def test_a_first_job_counts_like_the_default_utility_whatever_it_states() -> None:
    for density in (1e-6, 1.0, 3.0, 1e6):
        assert weigh(RelativeValues(), job_worth(LIKE, "one", density)) == pytest.approx(
            1 / density
        )


def test_a_job_counts_relative_to_its_tenants_admitted_and_finished_jobs() -> None:
    past = job_worth(LIKE, "past", 2.0, 3)
    values = RelativeValues()
    values.finished[LIAR] = values.sum_with(past, ON, slot=5)
    job = job_worth(LIKE, "one", 10.0)
    admitted = job_worth(LIKE, "admitted", 4.0, 4), Status.ADMITTED
    mean = (2.0 * 3 + 4.0 * 4 + 10.0) / 8
    assert weigh(values, job, admitted) == pytest.approx(1 / mean)
    others = replace(admitted[0], tenant="b"), Status.ADMITTED
    assert weigh(RelativeValues(), job, others) == pytest.approx(1 / 10)


def test_after_a_long_history_a_job_counts_at_most_like_an_urgent_one() -> None:
    values = RelativeValues({LIAR: ValueSum(1e9, 1e9, 5)})
    for density in (17.0, 1e3, 1e6):
        assert weigh(values, job_worth(LIKE, "one", density)) == pytest.approx(16 / density)
    assert weigh(values, job_worth(LIKE, "one", 15.0)) == pytest.approx(1.0)


@given(st.floats(1e-9, 1e9), st.integers(1, 1000))
def test_a_job_that_waits_never_raises_what_others_count(density: float, size: int) -> None:
    values, job = RelativeValues({LIAR: ValueSum(10.0, 5.0, 5)}), job_worth(LIKE, "one", 3.0)
    waiting = job_worth(LIKE, "waiting", density, size), Status.QUEUED
    assert weigh(values, job, waiting) <= weigh(values, job) * (1 + 1e-6)


def test_of_jobs_that_arrive_together_denser_ones_count_more() -> None:
    jobs = [job_worth(LIKE, str(density), density) for density in (1.0, 2.0, 4.0, 8.0)]
    weighed = RelativeValues().weigh(jobs, following(), ON, slot=0)
    counted = [utility_value(job.utility, 0) for job in weighed]
    assert counted == sorted(counted)
    assert counted[0] < counted[-1]


def test_jobs_that_pay_or_state_no_utility_count_as_stated() -> None:
    paying = job_worth(LIKE, "one", 7.0, points=3.0)
    plain = job_worth(LIKE, "two", 7.0, has_default_utility=True)
    worthless = job_worth(LIKE, "three", 0.0)
    for job in (paying, plain, worthless):
        assert not is_relative(job)
        values = RelativeValues({LIAR: ValueSum(1.0, 1.0, 5)})
        assert weigh(values, job) == 1.0
        assert values.sum_with(job, ON, slot=5) == values.finished[LIAR]


NUMBER = st.sampled_from((0.0, 5e-324, 1e-310, 1e-199, 0.5, 2.0, 1e3, 1e12)) | st.floats(0.0, 1e12)
EXPONENT = st.sampled_from((0.0, 5e-324, 1e-9, 1e-4, 1e-3, 100.0)) | st.floats(0.0, 100.0)
FALL = NUMBER.map(lambda number: -number)
SLOTS = st.sampled_from((0, 1, 10**5)).map(lambda number: f"{number} slots")
PARAMETERS: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "constant": {"value": NUMBER},
    "sigmoid": {"value": NUMBER, "decay": NUMBER, "target": SLOTS},
    "reciprocal": {"value": NUMBER},
    "linear": {"value": NUMBER, "slope": FALL},
    "power": {"scale": NUMBER, "exponent": EXPONENT},
    "deadline": {"value": NUMBER, "by": SLOTS},
}
READ: TypeAdapter[Any] = TypeAdapter(UtilitySpec)


def draw_utility(draw: Callable[[Any], Any], kind: str) -> Utility:
    """Return a utility that a job file may state."""
    record = {name: draw(strategy) for name, strategy in PARAMETERS[kind].items()}
    try:
        spec = READ.validate_python({"kind": kind, **record})
    except ValidationError:
        assume(False)
    return resolve_utility(spec, Fraction(SLOT), Fraction(draw(st.sampled_from((0, 700)))))


@pytest.mark.parametrize("kind", FAMILIES)
@given(data=st.data())
@settings(max_examples=example_count(150), deadline=None)
def test_every_valid_utility_counts_with_a_finite_positive_factor(
    kind: str, data: st.DataObject
) -> None:
    utility = draw_utility(data.draw, kind)
    job = replace(LIKE, tenant=LIAR, utility=utility, required=data.draw(st.integers(1, 10**9)))
    sums = st.tuples(st.floats(1e-203, 1e15), st.floats(1e-9, 1e12))
    past = data.draw(st.none() | sums)
    values = RelativeValues({} if past is None else {LIAR: ValueSum(*past, 5)})
    [weighed] = values.weigh([job], following(), ON, slot=5)
    share = utility_factor(weighed)
    assert 0.0 < share < math.inf
    counted = utility_value(weighed.utility, 0)
    assert 0.0 <= counted < math.inf
    if is_relative(job):
        hours = job.worker_slots * float(SLOT) / 3600
        # A power that no float can scale becomes a constant: it falls no more.
        slack = 3.0 if isinstance(weighed.utility, Constant) and kind == "power" else 1.001
        best = utility_value(weighed.utility, job.min_slots_colocated - 1)
        assert best <= 16 * hours * slack
    else:
        assert counted <= 1e-200


def test_a_power_with_a_tiny_exponent_is_scaled() -> None:
    for exponent in (5e-324, 1e-9, 1e-4, 1e-3):
        for factor in (1e-200, 1e-3, 1e3, 1e200):
            scaled = Power(1e3, exponent).scaled(factor)
            for duration in (1, 100):
                stated = utility_value(Power(1e3, exponent), duration)
                assert utility_value(scaled, duration) == pytest.approx(factor * stated, rel=0.01)


def test_finished_jobs_are_forgotten() -> None:
    values = RelativeValues({LIAR: ValueSum(1e6, 1e3, 0)})
    assert values.finished[LIAR].aged(10 * ON.horizon, ON.horizon).gpu_hours < 10.0


def test_a_weighed_job_survives_its_record() -> None:
    [weighed] = RelativeValues().weigh([job_worth(LIKE, "one", 5.0)], following(), ON, slot=0)
    restored = Job.from_record(weighed.record())
    assert (restored.utility, restored.stated_utility) == (weighed.utility, weighed.stated_utility)
    assert "stated_utility" not in LIKE.record()


# ------------------------------------------------------------------ sums beside a naive twin


def weigh_naively(
    values: RelativeValues,
    jobs: Sequence[Job],
    states: Iterable[JobState],
    cluster: Cluster,
    slot: int,
) -> tuple[Job, ...]:
    """Weigh jobs by going through all open jobs, in fractions."""
    arriving = {job.name for job in jobs}
    others = [state for state in states if state.job.name not in arriving]

    def size(job: Job) -> tuple[Fraction, Fraction]:
        total = RelativeValues().sum_with(job, cluster, 0)
        return Fraction(total.value), Fraction(total.gpu_hours)

    weighed = []
    for job in jobs:
        if not is_relative(job):
            weighed.append(job)
            continue
        past = values.finished.get(job.tenant or "", ValueSum()).aged(slot, cluster.horizon)
        own = size(job)
        value, hours = Fraction(past.value) + own[0], Fraction(past.gpu_hours) + own[1]
        waiting = [other for other in jobs if other.name != job.name]
        for state in others:
            if state.status is not Status.ADMITTED:
                waiting.append(state.job)
            elif is_relative(state.job) and state.job.tenant == job.tenant:
                value, hours = value + size(state.job)[0], hours + size(state.job)[1]
        sizes = [
            size(entry) for entry in waiting if is_relative(entry) and entry.tenant == job.tenant
        ]
        for more, longer in sorted(sizes, key=lambda one: one[0] / one[1], reverse=True):
            if more * hours <= value * longer:
                break
            value, hours = value + more, hours + longer
        share = min(1.0 / float(value / hours), 16.0 * float(own[1]) / float(own[0]))
        weighed.append(scale_utility(job, share))
    return tuple(weighed)


def counted(jobs: Iterable[Job]) -> list[tuple[str, Utility, Utility | None]]:
    return [(job.name, job.utility, job.stated_utility) for job in jobs]


class Twin:
    """Weighs jobs both ways, and compares the results."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.compared = 0
        weigh = RelativeValues.weigh

        def weigh_twice(
            values: RelativeValues,
            jobs: Sequence[Job],
            sums: OpenValues,
            cluster: Cluster,
            slot: int,
        ) -> tuple[Job, ...]:
            weighed = weigh(values, jobs, sums, cluster, slot)
            naive = weigh_naively(values, jobs, sums._open_jobs.values(), cluster, slot)
            assert counted(weighed) == counted(naive)
            self.compared += len(jobs)
            return weighed

        monkeypatch.setattr(RelativeValues, "weigh", weigh_twice)


@pytest.mark.parametrize("policy", PRICING)
def test_sums_that_follow_the_engine_equal_those_over_all_open_jobs(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    twin = Twin(monkeypatch)
    for seed in range(example_count(12)):
        cluster, drawn, incidents = build_world(policy, seed)
        jobs = with_tenants(policy, drawn)
        built = make_policy(policy, PolicyContext(cluster), {})
        Simulation(cluster, jobs, built, incidents=incidents, relative_values=True).run()
    assert twin.compared > 20


DENSITY = st.sampled_from((1e-199, 0.5, 1.0, 1.0 + 2**-52, 3.0, 1e12)) | st.floats(1e-9, 1e9)


@given(data=st.data())
@settings(max_examples=example_count(150), deadline=None)
def test_jobs_that_change_at_random_weigh_like_all_open_jobs(data: st.DataObject) -> None:
    open_jobs: dict[str, JobRecord] = {}
    changed: set[str] = set()
    values = RelativeValues({LIAR: ValueSum(4.0, 3.0, 2)})
    sums = OpenValues(open_jobs, changed)
    names = [f"job-{number}" for number in range(12)]
    for slot in range(data.draw(st.integers(1, 8))):
        for name in data.draw(st.lists(st.sampled_from(names), max_size=12, unique=True)):
            changed.add(name)
            status = data.draw(st.sampled_from((Status.QUEUED, Status.ADMITTED, None)))
            if status is None:
                open_jobs.pop(name, None)
                continue
            job = job_worth(LIKE, name, data.draw(DENSITY), data.draw(st.integers(1, 5)))
            if data.draw(st.booleans()):
                job = replace(job, tenant="b")
            open_jobs[name] = JobRecord(job, len(open_jobs), status)
        arriving = data.draw(st.lists(st.sampled_from([*names, "x", "y"]), max_size=4, unique=True))
        jobs = [job_worth(LIKE, name, data.draw(DENSITY)) for name in arriving]
        weighed = values.weigh(jobs, sums, ON, slot)
        assert counted(weighed) == counted(
            weigh_naively(values, jobs, open_jobs.values(), ON, slot)
        )


@given(st.lists(st.tuples(DENSITY, st.floats(1e-6, 1e6)), max_size=40), st.data())
@settings(max_examples=example_count(150), deadline=None)
def test_blocks_of_jobs_sum_like_a_list(
    sizes: Sequence[tuple[float, float]], data: st.DataObject
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shadowprice.core.relative_values.MAX_BLOCK_JOBS", 3)
        ordered, jobs = DensestFirst(), list[SizedJob]()
        for number, (density, hours) in enumerate(sizes):
            job = SizedJob.of(f"job-{number}", density * hours, hours)
            ordered.add(job)
            jobs.append(job)
            if data.draw(st.integers(0, 3)) == 0:
                gone = jobs.pop(data.draw(st.integers(0, len(jobs) - 1)))
                ordered.remove(gone)
        value, hours = to_exact(data.draw(DENSITY)), to_exact(1.0)
        expected = value, hours
        for job in sorted(jobs, key=lambda job: Fraction(job.value, job.gpu_hours), reverse=True):
            if not job.raises_mean(*expected):
                break
            expected = expected[0] + job.value, expected[1] + job.gpu_hours
        assert ordered.add_while_raising(value, hours) == expected


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_exact_numbers_are_multiples_of_the_smallest_float(number: float) -> None:
    assert Fraction(to_exact(number), 2**1074) == Fraction(number)

"""Times on the clock in a file stay the same for any length of slots."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice.core.amounts import parse_duration
from shadowprice.core.errors import InputError
from shadowprice.core.job import Job
from shadowprice.core.moments import arrival_slot, deadline_in_slots
from shadowprice.core.specs import ClusterSpec, JobSpec, validate
from shadowprice.core.utility import utility_value
from tests.support.examples import example_count


def resolve(slot: str, **job: object) -> Job:
    cluster, faults = validate(
        ClusterSpec,
        {"slot": slot, "horizon": 50, "servers": [{"name": "g", "capacity": {"gpu": 8}}]},
        "c",
    )
    assert cluster is not None, faults
    record = {"name": "j", "worker": {"gpu": 1}} | job
    if "tasks" not in job:
        record["minibatch_time"] = "20min"
    spec, faults = validate(JobSpec, record, "j")
    assert spec is not None, faults
    return spec.resolve(cluster.resolve("c"))


@settings(deadline=None, derandomize=True, max_examples=example_count(200))
@given(
    slot=st.integers(1, 5000),
    submitted=st.integers(0, 20_000),
    allowed=st.integers(0, 40_000),
)
def test_a_deadline_on_the_clock_earns_exactly_when_the_completion_slot_ends_by_it(
    slot: int, submitted: int, allowed: int
) -> None:
    job = resolve(
        f"{slot}s",
        arrival=f"{submitted}s",
        utility={"kind": "deadline", "value": 5, "by": f"{allowed}s"},
    )
    assert (job.arrival - 1) * slot < submitted <= job.arrival * slot
    for completion in range(job.arrival, job.arrival + 6 + allowed // slot):
        in_time = (completion + 1) * slot <= submitted + allowed
        assert utility_value(job.utility, completion - job.arrival) == (5.0 if in_time else 0.0)


@settings(deadline=None, derandomize=True, max_examples=example_count(100))
@given(submitted=st.fractions(0, 50, max_denominator=60), slots=st.integers(0, 30))
def test_durations_in_slots_keep_the_papers_d(submitted: Fraction, slots: int) -> None:
    job = resolve(
        "20min",
        arrival=f"{float(submitted)!r} slots",
        utility={"kind": "deadline", "value": 5, "by": f"{slots} slots"},
    )
    worth = job.utility.values(np.arange(slots + 3))
    assert worth.tolist() == [5.0] * (slots + 1) + [0.0, 0.0]


def test_a_target_on_the_clock_is_where_half_of_the_value_is_left() -> None:
    sigmoid = {"kind": "sigmoid", "value": 60, "decay": 0.6}
    on_clock = resolve("20min", arrival="0s", utility=sigmoid | {"target": "3h"})
    in_slots = resolve("20min", arrival="0s", utility=sigmoid | {"target": "8 slots"})
    assert on_clock.utility == in_slots.utility  # slot 8 ends after 9 slots, which are 3 h
    assert utility_value(on_clock.utility, 8) == 30.0


@pytest.mark.parametrize(("by", "slots"), [("20min", 0), ("40min", 1), ("2h", 5), ("119min", 4)])
def test_a_job_of_so_many_slots_keeps_its_deadline_or_not(by: str, slots: int) -> None:
    job = resolve("20min", utility={"kind": "deadline", "value": 50, "by": by})
    assert utility_value(job.utility, slots) == 50.0
    assert utility_value(job.utility, slots + 1) == 0.0


def test_no_time_on_the_clock_is_not_no_slots() -> None:
    slot = Fraction(1200)
    assert deadline_in_slots(parse_duration("0 slots"), slot, Fraction(0)) == 0.0
    assert deadline_in_slots(parse_duration("0s"), slot, Fraction(0)) == -1.0
    assert arrival_slot(Fraction(5, 2)) == (3, Fraction(1, 2))
    assert arrival_slot(Fraction(3)) == (3, Fraction(0))


def test_a_bag_s_deadline_on_the_clock_runs_from_its_submission() -> None:
    bag = {
        "worker": {"gpu": 1},
        "tasks": [{"count": 2, "duration": {"kind": "exponential", "mean": "5min"}}],
        "miss_probability": 0.1,
        "arrival": "25min",
        "utility": {"kind": "constant", "value": 1},
    }
    # Submitted 15 minutes before its slot begins, so 60 of the 75 minutes are left then.
    for deadline, left in (("75min", 3.0), ("3 slots", 3.0), ("70min", 2.75)):
        job = resolve("20min", **bag, deadline=deadline)
        assert (job.arrival, job.before_arrival) == (2, 0.75)
        assert job.bag is not None
        assert job.bag.deadline == left
    with pytest.raises(InputError, match=r"but tasks\[0\] take more than 0s"):
        resolve("20min", **bag, deadline="15min")

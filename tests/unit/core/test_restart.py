"""Time lost when a placement changes: what a job declares, and what a slot then yields."""

from __future__ import annotations

import json
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowprice.core.errors import InputError
from shadowprice.core.job import MICRO, Job, StepModel
from shadowprice.core.schedule import Placement, Schedule
from shadowprice.core.specs import ClusterSpec, JobSpec
from tests.support.workloads import make_cluster, make_job


def spec(**changes: object) -> JobSpec:
    values = {
        "name": "a",
        "worker": {"gpu": 1},
        "minibatch_time": "1s",
        "minibatches": 100,
        "utility": {"kind": "constant", "value": 1},
    }
    return JobSpec.model_validate(values | changes)


def on(**changes: object) -> ClusterSpec:
    servers = [{"name": "gpu", "capacity": {"gpu": 8}}]
    return ClusterSpec.model_validate({"slot": "10min", "servers": servers} | changes)


def test_a_restart_takes_its_share_of_the_slot() -> None:
    made = make_job(make_cluster(), speed=StepModel(Fraction(2)), restart_seconds=Fraction(30))
    assert made.restart == Fraction(30, 600)
    # In millionths of a mini-batch: 300 a slot and worker, of which 285 are left.
    assert made.required == made.work * MICRO
    assert [made.gain(n) for n in (1, 3)] == [300 * MICRO, 900 * MICRO]
    assert [made.gain(n, moved=True) for n in (1, 3)] == [285 * MICRO, 855 * MICRO]
    assert made.gain(0, moved=True) == 0


def test_without_a_restart_nothing_changes() -> None:
    made = make_job(make_cluster())
    assert made.restart == 0
    assert made.required == 8
    assert made.moved_gains is made.gains


@given(st.integers(1, 10**7), st.fractions(0, 1, max_denominator=997))
def test_the_rest_of_a_gain_is_rounded_down(rate: int, share: Fraction) -> None:
    curve = {1: Fraction(rate, MICRO)}
    made = make_job(make_cluster(), speed=curve, chunks=1, restart_seconds=share * 600)
    exact = made.gain(1) * (1 - share)
    assert exact - 1 < made.gain(1, moved=True) <= exact


def test_the_cluster_gives_the_default_and_a_job_may_differ() -> None:
    resolved = on(restart="20s").resolve()
    assert resolved.restart_seconds == 20
    assert spec().resolve(resolved).restart == Fraction(20, 600)
    assert spec(restart="1min").resolve(resolved).restart == Fraction(60, 600)
    assert spec(restart="0.5 slots").resolve(resolved).restart == Fraction(1, 2)
    assert spec(restart="0s").resolve(resolved).restart == 0
    assert spec().resolve(on().resolve()).restart == 0


def test_a_restart_longer_than_a_slot_is_refused_with_its_place() -> None:
    with pytest.raises(InputError, match="cluster: restart: is longer than a slot; lower it"):
        on(restart="11min").resolve()
    with pytest.raises(InputError, match="restart: is longer than a slot"):
        spec(restart="11min").resolve(on().resolve())
    with pytest.raises(InputError, match="a restart of 601 s is longer than a slot of 600 s"):
        make_job(make_cluster(), restart_seconds=Fraction(601))


def test_a_bag_of_tasks_does_not_restart() -> None:
    with pytest.raises(ValueError, match="does not train; leave out restart"):
        JobSpec.model_validate(
            {
                "name": "a",
                "worker": {"gpu": 1},
                "tasks": [{"count": 2, "duration": {"kind": "pareto", "shape": 2, "mean": "1s"}}],
                "deadline": "1min",
                "miss_probability": 0.1,
                "restart": "1s",
                "utility": {"kind": "constant", "value": 1},
            }
        )


def test_a_record_keeps_the_restart_exactly() -> None:
    made = make_job(make_cluster(), restart_seconds=Fraction(1, 7))
    again = Job.from_record(json.loads(json.dumps(made.record())))
    assert again.restart == made.restart == Fraction(1, 4200)
    assert again.moved_gains.tolist() == made.moved_gains.tolist()


def test_where_a_plan_moves() -> None:
    plan = Schedule.of(
        [(3, 0, 1, 0), (4, 0, 1, 0), (5, 0, 2, 0), (7, 0, 2, 0), (8, 1, 2, 0), (9, 1, 2, 0)]
    )
    # Wider in 5, resumed in 7, elsewhere in 8.
    later = [False, True, True, True, False]
    assert plan.moved(None, ran=False).tolist() == [False, *later]
    assert plan.moved(None, ran=True).tolist() == [True, *later]
    assert plan.moved(Placement((0,), (1,), (0,)), ran=True).tolist() == [False, *later]
    assert plan.moved(Placement((0,), (2,), (0,)), ran=True).tolist() == [True, *later]
    assert not len(Schedule.of(()).moved(None, ran=True))
    assert plan.moved(None, ran=True).dtype == np.bool_

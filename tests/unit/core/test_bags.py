"""Bags of tasks in job files: what they say, and every way to say it wrong."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent

import pytest

from shadowprice.core.errors import InputError
from shadowprice.core.job import Job
from shadowprice.inputs import read_cluster, read_jobs

CLUSTER = """\
    slot: 1min
    horizon: 30
    servers:
      - {name: gpu, count: 3, role: worker, capacity: {gpu: 8}}
"""
BAG = """\
    jobs:
      - name: trials
        arrival: 90s
        tasks:
          - {count: 6, duration: {kind: pareto, shape: 2.0, mean: 2min}}
          - {count: 4, duration: {kind: log-normal, sigma: 1.0, median: 70s, minimum: 10s}}
          - {count: 2, duration: {kind: hyper-exponential, phases: [{share: 0.9, mean: 1min}, {share: 0.1, mean: 5min}]}}
          - {duration: {kind: exponential, mean: 1 slots}}
        deadline: 570s
        miss_probability: 0.05
        worker: {gpu: 1}
        utility: {kind: constant, value: 30}
"""  # noqa: E501 - a line of the file


def read(folder: Path, text: str) -> list[Job]:
    (folder / "c.yaml").write_text(dedent(CLUSTER), encoding="utf-8")
    (folder / "j.yaml").write_text(dedent(text), encoding="utf-8")
    return read_jobs(folder / "j.yaml", read_cluster(folder / "c.yaml"))


def test_a_bag(tmp_path: Path) -> None:
    (job,) = read(tmp_path, BAG)
    bag = job.bag
    assert bag is not None
    assert (job.arrival, job.required, bag.tasks) == (2, 13, 13)
    assert bag.deadline == pytest.approx(9.5)
    assert bag.slots == 10
    assert [group.law for group in bag.groups] == [
        "pareto",
        "log-normal",
        "hyper-exponential",
        "weibull",
    ]
    assert [group.mean for group in bag.groups] == pytest.approx(
        [120.0, 10.0 + 60.0 * 1.6487212707, 84.0, 60.0]
    )
    assert [group.shortest for group in bag.groups] == pytest.approx([60.0, 10.0, 0.0, 0.0])
    assert job.shortest_slots == 1
    assert bag.worker_slots == pytest.approx(6 * 2 + 4 * 108.92 / 60 + 2 * 1.4 + 1, rel=1e-4)


def test_a_bag_survives_its_record(tmp_path: Path) -> None:
    (job,) = read(tmp_path, BAG)
    again = Job.from_record(json.loads(json.dumps(job.record())))
    assert again.bag == job.bag
    assert again.record() == job.record()


@pytest.mark.parametrize(
    ("old", "new", "place", "told"),
    [
        ("deadline: 570s", "deadline: 570s\n        epochs: 3", "jobs[0]", "leave out epochs"),
        ("deadline: 570s", "workers: {min: 1}\n        deadline: 570s", "jobs[0]", "workers"),
        ("        deadline: 570s\n", "", "jobs[0]", "`deadline` is missing"),
        ("miss_probability: 0.05", "miss_probability: 1", "miss_probability", "outside (0, 1)"),
        ("shape: 2.0", "shape: 1", "tasks[0].duration.shape", "no mean"),
        ("mean: 2min}", "mean: 2min, minimum: 1min}", "tasks[0].duration", "one of mean"),
        ("share: 0.9", "share: 0.8", "tasks[2].duration", "sum to 0.9"),
        ("median: 70s", "median: 7s", "tasks[1].duration", "longer than the minimum"),
        ("570s", "50s", "deadline", "no number of copies helps"),
        ("exponential, mean: 1 slots", "exponential, maen: 1 slots", "maen", "'mean'"),
    ],
)
def test_what_is_wrong_is_told(tmp_path: Path, old: str, new: str, place: str, told: str) -> None:
    assert old in BAG
    with pytest.raises(InputError) as caught:
        read(tmp_path, BAG.replace(old, new))
    faults = caught.value.faults
    assert any(place in fault.place and told in str(fault) for fault in faults), str(caught.value)


def test_a_training_job_has_no_deadline_of_tasks(tmp_path: Path) -> None:
    training = """\
        jobs:
          - {name: a, minibatch_time: 1s, deadline: 5min, worker: {gpu: 1}, utility: {kind: constant, value: 1}}
    """  # noqa: E501 - a line of the file
    with pytest.raises(InputError, match="belongs to a bag of tasks"):
        read(tmp_path, training)


def test_a_bag_with_more_tasks_than_places_can_never_start(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"needs room for 31 workers, the empty cluster .* 24"):
        read(tmp_path, BAG.replace("count: 6", "count: 24"))

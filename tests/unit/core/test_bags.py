"""Bags of tasks in job files: valid entries, and every kind of error."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest

from shadowprice.core.errors import InputError
from shadowprice.core.job import Job
from shadowprice.distributions.empirical import build_distribution
from shadowprice.inputs import read_cluster, read_jobs
from shadowprice.inputs.cloning import read_cloning

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
    assert bag.deadline == pytest.approx(9.0)  # 9.5 slots from its submission
    assert bag.slots == 9
    assert [group.distribution.name for group in bag.groups] == [
        "pareto",
        "log-normal",
        "hyper-exponential",
        "weibull",
    ]
    assert [group.distribution.mean for group in bag.groups] == pytest.approx(
        [120.0, 10.0 + 60.0 * 1.6487212707, 84.0, 60.0]
    )
    assert [group.distribution.shortest for group in bag.groups] == pytest.approx(
        [60.0, 10.0, 0.0, 0.0]
    )
    assert job.shortest_slots == 1
    assert bag.worker_slots == pytest.approx(6 * 2 + 4 * 108.92 / 60 + 2 * 1.4 + 1, rel=1e-4)


def test_a_bag_survives_its_record(tmp_path: Path) -> None:
    (job,) = read(tmp_path, BAG)
    again = Job.from_record(json.loads(json.dumps(job.record())))
    assert again.bag == job.bag
    assert again.record() == job.record()


def test_durations_measured_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "times.csv").write_text("name,ms\nx,60000\nx,90000\nx,120000\nx,150000\n")
    distribution = "{kind: empirical, file: times.csv, column: ms, unit: ms, tail: none}"
    old = "{kind: pareto, shape: 2.0, mean: 2min}"
    (job,) = read(tmp_path, BAG.replace(old, distribution))
    assert job.bag is not None
    measured = job.bag.groups[0].distribution
    assert (measured.shortest, measured.mean) == pytest.approx((60.0, 105.0))
    # The journal carries the sample, so that a replay needs no file.
    (tmp_path / "times.csv").unlink()
    again = Job.from_record(json.loads(json.dumps(job.record())))
    assert again.bag == job.bag
    survival = build_distribution(again.bag.groups[0].distribution).survival(
        [59.0, 60.0, 100.0, 151.0]
    )
    assert survival.tolist() == pytest.approx([1.0, 0.75, 0.5, 0.0])
    with pytest.raises(InputError, match=r"tasks\[0\].duration: .*times.csv: no such"):
        read(tmp_path, BAG.replace(old, distribution))


DISTRIBUTIONS_OF_BOTH = [
    ("{kind: pareto, shape: 1.5, minimum: 4s}", ""),
    ("{kind: pareto, shape: 2, mean: 12s}", ""),
    ("{kind: weibull, shape: 0.7, mean: 9s, minimum: 500ms}", ""),
    ("{kind: exponential, mean: 9s}", ""),
    ("{kind: hyper-exponential, phases: [{share: 0.9, mean: 4s}, {share: 0.1, mean: 20s}]}", ""),
    ("{kind: log-normal, sigma: 1.0, median: 8s, minimum: 1s}", ""),
    ("{kind: log-normal, sigma: 0.5, mean: 8s}", ""),
    ("{kind: empirical, file: times.txt}", ""),
    ("{kind: paretto, shape: 2, mean: 12s}", "did you mean 'pareto'"),
    ("{shape: 2, mean: 12s}", "is missing"),
    ("{kind: pareto, shape: 1, mean: 12s}", "no mean"),
    ("{kind: pareto, shape: 2, mean: 0s}", "greater than 0"),
    ("{kind: pareto, shape: 2}", "one of mean and minimum"),
    ("{kind: pareto, shap: 2, mean: 12s}", "did you mean 'shape'"),
    ("{kind: weibull, shape: 1.5, mean: 9s}", "copies would not pay"),
    ("{kind: weibull, shape: 0.5, mean: 9s, minimum: 9s}", "longer than the minimum"),
    ("{kind: exponential, mean: 9}", "without a unit"),
    ("{kind: hyper-exponential, phases: [{share: 0.9, mean: 4s}]}", "sum to 0.9"),
    ("{kind: hyper-exponential, phases: []}", "expected 1 or more items, got 0"),
    ("{kind: log-normal, sigma: 1, median: 1s, minimum: 2s}", "longer than the minimum"),
    ("{kind: log-normal, sigma: 0, median: 1s}", "greater than 0"),
    ("{kind: empirical, file: none.txt}", "no such file"),
    ("{kind: empirical, file: times.txt, unit: slots}", "a unit of time, got slots"),
    ("{kind: empirical, file: few.txt}", "tail: none"),
]


@pytest.mark.parametrize(("distribution", "expected"), DISTRIBUTIONS_OF_BOTH)
def test_job_files_and_cloning_files_say_the_same_of_a_distribution(
    tmp_path: Path, distribution: str, expected: str
) -> None:
    sample = np.random.default_rng(1).pareto(2.0, 60) + 1.0
    (tmp_path / "times.txt").write_text("\n".join(map(str, sample)))
    (tmp_path / "few.txt").write_text("1\n2\n3\n")
    cloning = f"""\
machines: 200
deadline: 570s
miss_probability: 0.05
tasks:
  - {{count: 6, duration: {distribution}}}
"""
    (tmp_path / "k.yaml").write_text(cloning)
    bag = BAG.replace("{kind: pareto, shape: 2.0, mean: 2min}", distribution)
    if not expected:
        (job,) = read(tmp_path, bag)
        assert job.bag is not None
        assert (
            build_distribution(job.bag.groups[0].distribution)
            is read_cloning(tmp_path / "k.yaml").groups[0].duration
        )
        return
    said = []
    for reader in (lambda: read(tmp_path, bag), lambda: read_cloning(tmp_path / "k.yaml")):
        with pytest.raises(InputError) as caught:
            reader()
        faults = [fault for fault in caught.value.faults if "duration" in fault.location]
        assert expected in "; ".join(map(str, faults))
        said.append([(fault.message, fault.hint) for fault in faults])
    assert said[0] == said[1]


@pytest.mark.parametrize(
    ("old", "new", "place", "message"),
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
def test_what_is_wrong_is_reported(
    tmp_path: Path, old: str, new: str, place: str, message: str
) -> None:
    assert old in BAG
    with pytest.raises(InputError) as caught:
        read(tmp_path, BAG.replace(old, new))
    faults = caught.value.faults
    assert any(place in fault.location and message in str(fault) for fault in faults), str(
        caught.value
    )


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

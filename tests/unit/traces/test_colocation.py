"""The workload of PD-ORS's evaluation: its ranges, its two rates, its files."""

from __future__ import annotations

from dataclasses import fields
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from shadowprice.core.cluster import Cluster, Role
from shadowprice.core.errors import InputError
from shadowprice.core.specs import ClusterSpec
from shadowprice.core.utility import Reciprocal
from shadowprice.inputs.files import read_cluster, read_jobs
from shadowprice.traces.generator import GeneratorOptions, colocated_cluster, generate
from tests.support.trace_commands import run_trace_command

MINUTE = Fraction(60)


def cluster() -> Cluster:
    return ClusterSpec.model_validate(colocated_cluster(machines=6)).resolve()


def options(**changes: object) -> GeneratorOptions:
    values = {"preset": "pdors", "jobs": 400, "slots": 100, "slot_seconds": MINUTE}
    return GeneratorOptions(**(values | changes))  # type: ignore[arg-type]  # by name


def test_jobs_fill_the_ranges_of_the_thesis() -> None:
    jobs = generate(options(), seed=1).to_jobs(cluster())
    assert {job.epochs for job in jobs} <= set(range(50, 151))
    assert {job.max_workers for job in jobs} == set(range(5, 21))
    assert {job.minibatches for job in jobs} == set(range(20, 41))
    gigabits = [job.worker_bandwidth / 1e9 for job in jobs]
    assert 0.1 <= min(gigabits) < 0.3
    assert 3.8 < max(gigabits) <= 4
    offered = [job.ps_bandwidth / 1e9 for job in jobs]
    assert 4 <= min(offered) < 4.5
    assert 19.5 < max(offered) <= 20
    for part in ("worker", "ps"):
        demands = np.array([getattr(job, part) for job in jobs])
        assert set(demands[:, 0]) == {0, 1000, 2000, 3000, 4000}
        assert (demands[:, 1].min(), demands[:, 1].max()) == (2 * 10**9, 30 * 10**9)
        assert (demands[:, 2].min(), demands[:, 2].max()) == (4 * 10**9, 8 * 10**9)
    assert all(job.utility == Reciprocal(1.0) for job in jobs)
    assert all(0 <= job.arrival < 100 for job in jobs)
    assert all(job.internal_bandwidth == 40 * job.worker_bandwidth for job in jobs)


def test_rates_follow_from_step_times() -> None:
    for job in generate(options(jobs=20), seed=2).to_jobs(cluster()):
        seconds = Fraction(60 * 10**6)  # units of a slot over those of a mini-batch
        ratio = Fraction(int(job.internal_gains[0]), int(job.gains[0]))
        outside = float(seconds / int(job.gains[0]))
        assert outside == pytest.approx(job.step_seconds, rel=1e-6)
        # tau + 2 g / b on either side: the communication shrinks 40 times.
        inside = outside / float(ratio)
        communication = (outside - inside) / (1 - 1 / 40)
        assert 0.01 <= outside - communication <= 0.05 + 1e-6
        assert job.required == job.work * 10**6


def test_the_ratio_changes_no_draw_and_one_means_one_rate() -> None:
    many, none = (
        generate(options(internal_ratio=ratio), seed=3).to_jobs(cluster()) for ratio in (60, 1)
    )
    for job, same in zip(many, none, strict=True):
        assert job.two_rates
        assert not same.two_rates
        assert (job.epochs, job.arrival, job.step_seconds) == (
            same.epochs,
            same.arrival,
            same.step_seconds,
        )
        assert (job.worker == same.worker).all()
    with pytest.raises(InputError, match="never slows a job down"):
        options(internal_ratio=0.5)


def test_files_give_the_same_jobs(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run_trace_command(
        "generate", "--out", out, "--preset", "pdors", "--jobs", 30, "--workers", 6, "--slot", "60s"
    )
    on = read_cluster(out / "cluster.yaml")
    assert on.servers == 6
    assert set(on.roles) == {Role.ANY}
    read = read_jobs(out / "jobs.jsonl", on)
    drawn = generate(options(jobs=30, slots=300), seed=0).to_jobs(on)
    for job, same in zip(read, drawn, strict=True):
        for field in fields(job):
            one, other = getattr(job, field.name), getattr(same, field.name)
            assert np.array_equal(one, other), field.name

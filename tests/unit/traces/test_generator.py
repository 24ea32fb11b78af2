"""Generated workloads: the paper's ranges exactly, arrivals as bursty as Philly's."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice.core.errors import InputError
from shadowprice.core.specs import ClusterSpec, validate
from shadowprice.inputs.files import read_jobs
from shadowprice.traces.arrivals import (
    Burstiness,
    arrival_times,
    fano_factor,
    hourly_counts,
    interarrival_cv,
)
from shadowprice.traces.generator import (
    GeneratorOptions,
    generate,
    paper_cluster,
    slot_text,
    worker_seconds,
)
from tests.support.examples import example_count, sample


def test_the_paper_preset_fills_the_papers_ranges():
    workload = generate(GeneratorOptions(jobs=20_000, slots=300), seed=5)
    tau = workload.minibatch_time / 1200e9
    workers = [profile.worker for profile in workload.profiles]
    servers = [profile.ps for profile in workload.profiles]
    drawn = {
        "E": (workload.epochs, 50, 200),
        "N": (workload.chunks, 5, 100),
        "M": (workload.minibatches, 10, 100),
        "tau": (tau, 0.001, 0.1),
        "e": ([p.gradient / 1e6 for p in workload.profiles], 30, 575),
        "gpus": ([w.get("gpu", 0) / 1000 for w in workers], 0, 4),
        "b": ([w["bandwidth"] / 1e6 for w in workers], 100, 5000),
        "B": ([s["bandwidth"] / 1e6 for s in servers], 5000, 20_000),
        "value": (workload.value, 1, 100),
        "target": (workload.target, 1, 15),
    }
    for part in (workers, servers):
        name = "worker" if part is workers else "ps"
        drawn[f"{name} cpu"] = ([p["cpu"] / 1000 for p in part], 1, 10)
        drawn[f"{name} memory"] = ([p["memory"] / 1e9 for p in part], 2, 32)
        drawn[f"{name} storage"] = ([p["storage"] / 1e9 for p in part], 5, 10)
    for name, (listed, low, high) in drawn.items():
        values = np.asarray(listed, dtype=float)
        assert low - 1e-9 <= values.min() <= low + 0.01 * (high - low), name
        assert high - 0.01 * (high - low) <= values.max() <= high + 1e-9, name
        assert values.mean() == pytest.approx((low + high) / 2, rel=0.02), name
    # Reading 6: such jobs take hundreds of slots at full width.
    width = worker_seconds(workload) / 1200 / workload.chunks
    assert 230 < np.median(width) < 300
    assert (width <= 15).mean() < 0.03


def test_the_calibrated_preset_makes_the_median_job_feasible_and_changes_nothing_else():
    paper, calibrated = (
        generate(GeneratorOptions(preset=preset, jobs=5000), seed=2)
        for preset in ("paper", "calibrated")
    )
    width = worker_seconds(calibrated) / 1200 / calibrated.chunks
    assert np.median(width) <= 15
    for name in ("epochs", "chunks", "minibatches", "value", "decay", "target", "arrival"):
        assert np.array_equal(getattr(paper, name), getattr(calibrated, name)), name


def test_the_chunk_preset_reads_tau_as_the_time_of_a_chunk():
    """With slots of an hour most jobs can end near their targets; nothing else changes."""
    hour = Fraction(3600)
    paper, chunk = (
        generate(GeneratorOptions(preset=preset, jobs=5000, slot_seconds=hour), seed=2)
        for preset in ("paper", "chunk")
    )
    per_chunk = chunk.minibatch_time * chunk.minibatches
    assert np.abs(per_chunk - paper.minibatch_time).max() <= chunk.minibatches.max()  # rounding
    width = worker_seconds(chunk) / 3600 / chunk.chunks
    assert 5 < np.median(width) < 15
    for name in ("epochs", "chunks", "minibatches", "value", "decay", "target", "arrival"):
        assert np.array_equal(getattr(paper, name), getattr(chunk, name)), name


def test_generated_files_are_read_back(tmp_path):
    options = GeneratorOptions(jobs=50, slots=20, arrivals="bursty")
    workload = generate(options, seed=7)
    document = paper_cluster(workers=3, parameter_servers=2, seed=7)
    spec, faults = validate(ClusterSpec, document, "cluster")
    assert spec is not None, faults
    on = spec.resolve()
    workload.write(tmp_path / "jobs.jsonl")
    fast = workload.to_jobs(on)
    # The reader leaves out jobs that fit no server; two C4 hold no 100-worker job's servers.
    read = read_jobs(tmp_path / "jobs.jsonl", on, skip_invalid=True)
    by_name = {job.name: job.record() for job in fast}
    assert read
    assert all(by_name[job.name] == job.record() for job in read)
    assert all(0 <= job.arrival < 20 for job in fast)


def test_the_papers_cluster():
    document = paper_cluster(seed=3)
    workers = [s["capacity"] for s in document["servers"] if s["role"] == "worker"]
    servers = [s["capacity"] for s in document["servers"] if s["role"] == "ps"]
    assert (len(workers), len(servers)) == (50, 50)
    assert {c["gpu"] for c in workers} == {4, 16}
    assert all("gpu" not in c and c["cpu"] == 36 for c in servers)
    rates = [int(c["bandwidth"].removesuffix("Gbps")) for c in workers + servers]
    assert 20 <= min(rates) < 25
    assert 45 < max(rates) <= 50
    assert paper_cluster(seed=3) == document != paper_cluster(seed=4)
    assert (slot_text(Fraction(1200)), slot_text(Fraction("0.5"))) == ("20min", "0.5s")


def test_value_ranges_narrow_without_changing_other_draws():
    wide = generate(GeneratorOptions(jobs=100), seed=1)
    narrow = generate(GeneratorOptions(jobs=100, value=(75, 100)), seed=1)
    assert 75 <= narrow.value.min() < narrow.value.max() <= 100
    assert np.array_equal(np.argsort(wide.value), np.argsort(narrow.value))
    assert np.array_equal(wide.minibatch_time, narrow.minibatch_time)


@settings(deadline=None, max_examples=example_count(80), derandomize=True)
@given(
    pattern=st.sampled_from(["uniform", "poisson", "bursty"]),
    count=st.integers(1, 400),
    span=st.floats(10.0, 1e7),
    seed=st.integers(0, 5),
)
def test_arrivals_are_counted_ordered_and_within_the_span(pattern, count, span, seed):
    times = arrival_times(pattern, count, span, np.random.default_rng(seed))
    assert len(times) == count
    assert (np.diff(times) >= 0).all()
    assert times[0] >= 0
    assert times[-1] < span


def test_bursty_arrivals_look_like_philly_and_poisson_ones_do_not():
    """Philly: CV 12.4, hourly Fano 214; the median of ten seeds must come near both."""
    count, span = 52_826, 2548 * 3600.0
    cvs, fanos = [], []
    for seed in sample(range(10)):
        times = arrival_times("bursty", count, span, np.random.default_rng(seed))
        cvs.append(interarrival_cv(times))
        fanos.append(fano_factor(hourly_counts(times)))
    assert 10 < np.median(cvs) < 15
    assert 150 < np.median(fanos) < 290
    poisson = arrival_times("poisson", count, span, np.random.default_rng(0))
    assert interarrival_cv(poisson) == pytest.approx(1, abs=0.05)
    assert fano_factor(hourly_counts(poisson)) == pytest.approx(1, abs=0.1)


def test_burstiness_can_be_turned_off_part_by_part():
    flat = Burstiness(variance=0, persistence=0, quiet=0, daily=0, batch=1, spacing=0)
    times = arrival_times("bursty", 20_000, 1e7, np.random.default_rng(0), flat)
    assert interarrival_cv(times) == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"preset": "papers"}, "write paper or chunk or calibrated"),
        ({"jobs": 0}, "at least 1"),
        ({"arrival_share": 0}, "above 0 and at most 1"),
        ({"insensitive": 0.5, "sensitive": 0.6}, "at most 1 together"),
        ({"value": (5, 2)}, "a range of numbers"),
    ],
)
def test_wrong_options_say_what_to_write(values, message):
    with pytest.raises(InputError, match=message):
        GeneratorOptions(**values)


def test_wrong_arrivals_say_what_to_write():
    rng = np.random.default_rng(0)
    with pytest.raises(InputError, match="choose uniform, poisson or bursty"):
        arrival_times("google", 3, 1.0, rng)
    with pytest.raises(InputError, match="at least one job"):
        arrival_times("poisson", 0, 1.0, rng)
    with pytest.raises(InputError, match="bursty arrivals need"):
        Burstiness(batch=0.5)

"""Synthesis: GPU-time and the trace's values are kept, and files give the same jobs."""

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice.core.cluster import Cluster
from shadowprice.core.errors import InputError
from shadowprice.core.job import Job
from shadowprice.core.specs import ClusterSpec, validate
from shadowprice.core.utility import Constant, Deadline, Sigmoid
from shadowprice.inputs.files import read_jobs
from shadowprice.traces.generator import cluster_for, worker_seconds
from shadowprice.traces.records import SCHEMA, ImportTally, Trace, build_trace
from shadowprice.traces.synthesis import SynthesisOptions, load_jobs, synthesize
from shadowprice.traces.throughput import family_table, rate_at
from shadowprice.traces.workload import NANO, Workload
from tests.support.examples import example_count

SLOT = Fraction(1200)


def cluster(slot: str = "20min", **more: object) -> Cluster:
    document = {
        "slot": slot,
        "servers": [
            {
                "name": "gpu",
                "count": 40,
                "role": "worker",
                "capacity": {"gpu": 64, "cpu": 2048, "memory": "9TiB", "bandwidth": "999Gbps"},
            },
            {
                "name": "net",
                "count": 40,
                "role": "ps",
                "capacity": {"cpu": 512, "memory": "9TiB", "bandwidth": "999Gbps"},
            },
        ],
        **more,
    }
    spec, faults = validate(ClusterSpec, document, "cluster")
    assert spec is not None, faults
    return spec.resolve()


def trace(**columns: list[object]) -> Trace:
    count = len(next(iter(columns.values())))
    columns.setdefault("job", [f"j{index}" for index in range(count)])
    columns.setdefault("submit", [float(index) for index in range(count)])
    frame = pl.DataFrame(columns, schema_overrides={k: SCHEMA[k] for k in columns})
    return build_trace("test", frame, Path("test"), ImportTally(), absolute=False)


def family_of(workload: Workload, at: int) -> tuple[str, int]:
    model, batch = workload.labels[at]["family"].split("/")
    return model, int(batch)


rows = st.lists(
    st.tuples(
        st.sampled_from([0.1, 0.5, 1.0, 1.0, 2.0, 3.0, 8.0, 12.0, 32.0, 64.0, 128.0]),
        st.floats(1.0, 3e6),
        st.one_of(st.none(), st.integers(1, 20)),
    ),
    min_size=1,
    max_size=20,
)


@settings(deadline=None, max_examples=example_count(120), derandomize=True)
@given(
    rows=rows,
    seed=st.integers(0, 9),
    speed=st.sampled_from(["linear", "measured"]),
    elasticity=st.sampled_from([0.0, 1.0, 1.5, 4.0]),
    bandwidth=st.sampled_from(["100Mbps", "3Gbps", "10Gbps"]),
)
def test_gpu_time_is_conserved(rows, seed, speed, elasticity, bandwidth):
    gpus, durations, workers = zip(*rows, strict=True)
    given_trace = trace(gpus=list(gpus), duration=list(durations), workers=list(workers))
    options = SynthesisOptions(speed=speed, elasticity=elasticity, bandwidth=bandwidth)
    workload = synthesize(given_trace, SLOT, options, seed=seed)
    traced = [w or max(1, int(np.ceil(g))) for g, w in zip(gpus, workers, strict=True)]
    seconds = worker_seconds(workload)
    work = workload.work
    for index, profile in enumerate(workload.profiles):
        held = traced[index] * profile.worker.get("gpu", 0) / 1000
        assert gpus[index] - 1e-9 <= held <= gpus[index] + traced[index] / 1000 + 1e-9
        if profile.curve is not None:
            rate = profile.curve[traced[index]]
            # Within one mini-batch for each chunk: chunks are equal.
            most = int(workload.chunks[index])
            assert abs(work[index] - durations[index] * rate) <= most / 2 + 0.5 + 1e-6 * work[index]
        elif workload.minibatch_time[index] > 1:
            wanted = traced[index] * durations[index]
            # And the family's own speed is kept: the work is rounded to equal chunks, or by 1 %.
            step = profile.gradient * 16 / profile.worker["bandwidth"]
            step += 1 / family_table().by_model[family_of(workload, index)].curve[1]
            room = max(workload.chunks[index] / 2 + 0.5, 0.0102 * work[index])
            assert abs(work[index] - wanted / step) <= room
            assert abs(seconds[index] - wanted) <= work[index] / NANO
        else:
            # Shorter than one mini-batch of this family: one is made, and that is said.
            assert any("shorter than one mini-batch" in note for note in workload.notes)
            assert seconds[index] >= traced[index] * durations[index]
    assert (workload.min_workers >= 1).all()
    assert (workload.min_workers <= workload.max_workers).all()
    assert (workload.max_workers <= workload.chunks).all()
    if elasticity == 1.0 and speed == "linear":
        room = np.minimum(traced, workload.chunks)
        assert (workload.max_workers == room).all()
        assert (workload.min_workers == room).all()


@settings(deadline=None, max_examples=example_count(60), derandomize=True)
@given(
    iterations=st.lists(st.integers(1, 30_000_000), min_size=1, max_size=10),
    model=st.sampled_from([("bert", 64), ("vgg16", 256), ("LM", 5), ("deepspeech2", 32)]),
    gpus=st.sampled_from([1.0, 3.0, 8.0]),
)
def test_traced_iterations_are_kept_to_the_last(iterations, model, gpus):
    count = len(iterations)
    given_trace = trace(
        gpus=[gpus] * count,
        duration=[1000.0] * count,
        model=[model[0]] * count,
        batch_size=[model[1]] * count,
        iterations=iterations,
    )
    workload = synthesize(given_trace, SLOT)
    assert workload.work.tolist() == iterations
    family = family_table().by_model[model]
    for index, profile in enumerate(workload.profiles):
        assert profile.curve is not None
        assert profile.curve[int(gpus)] == rate_at(family.curve, int(gpus))
        assert workload.labels[index]["family"] == family.name
        assert workload.max_workers[index] == min(max(profile.curve), workload.chunks[index])


def test_a_deadline_is_met_exactly_when_the_job_ends_by_it():
    # Arrival at 100 s is slot 1; the deadline 5000 s holds slots up to 3 ([3600, 4800)).
    given_trace = trace(
        job=["zero", "a", "early"],
        submit=[0.0, 100.0, 100.0],
        gpus=[1.0] * 3,
        duration=[60.0] * 3,
        deadline=[None, 5000.0, 1300.0],
    )
    workload = synthesize(given_trace, SLOT)
    jobs = {job.name: job for job in workload.to_jobs(cluster())}
    assert isinstance(jobs["zero"].utility, Sigmoid)
    assert jobs["a"].arrival == 1
    assert isinstance(jobs["a"].utility, Deadline)
    assert jobs["a"].utility.by == pytest.approx(5000 / 1200 - 2)
    assert jobs["early"].utility.by == pytest.approx(
        1300 / 1200 - 2
    )  # kept by no slot, with a message
    assert any(note.startswith("1 deadline before the end") for note in workload.notes)
    assert workload.drawn[1:] == (
        "the utilities and targets of 1 job",
        "the values of deadlines of 2 jobs",
    )


def test_a_stretched_duration_is_a_target_on_the_clock():
    given_trace = trace(
        job=["zero", "long", "short"],
        submit=[0.0, 100.0, 1300.0],
        gpus=[1.0] * 3,
        duration=[50_000.0, 40_000.0, 30.0],
    )
    workload = synthesize(given_trace, SLOT, SynthesisOptions(stretch=1.0))
    targets = [job.utility.target for job in workload.to_jobs(cluster())]
    # 50,000 s and 40,100 s after the start of slot 0; the short one gets a slot of slack.
    assert targets == pytest.approx([50_000 / 1200 - 1, 40_100 / 1200 - 2, 1.0], abs=1e-9)


def test_gavel_jobs_without_durations_get_those_of_their_curve():
    given_trace = trace(
        submit=[0.0] * 3,
        gpus=[2.0, 8.0, 1.0],
        model=["LM", "Recommendation", "unheard-of"],
        batch_size=[5, 8192, None],
        iterations=[185_724, 28_415, 10],
    )
    workload = synthesize(given_trace, SLOT, SynthesisOptions(stretch=1.0, training="allreduce"))
    assert workload.names == ["j0", "j1"]
    assert any("without a duration or a known model" in note for note in workload.notes)
    assert workload.within is not None
    # 185.724 steps/s on two V100: 1,000 s, less than a slot, so the target is one slot.
    assert (workload.target[0], workload.within[0]) == (1.0, -1)
    # No curve on 8 GPUs: one GPU's step time and communication, shared by 8.
    assert workload.profiles[1].curve is None
    seconds = 28_415 * (1 / 2.84151 + 16 * 97.8e6 / 3e9)
    assert seconds / 8 > 2 * 1200
    assert workload.within[1] == pytest.approx(seconds / 8 * 1e9, rel=1e-3)
    assert worker_seconds(workload)[1] == pytest.approx(seconds, rel=1e-3)
    assert all(profile.ps is None for profile in workload.profiles)


def test_classes_follow_the_mix_and_their_decays():
    count = 4000
    workload = synthesize(trace(gpus=[1.0] * count, duration=[3600.0] * count), SLOT, seed=3)
    classes = np.array([label["class"] for label in workload.labels])
    for name, share, low, high in (
        ("time-insensitive", 0.10, 0.0, 0.0),
        ("time-sensitive", 0.55, 0.01, 1.0),
        ("time-critical", 0.35, 4.0, 6.0),
    ):
        of_class = classes == name
        assert of_class.mean() == pytest.approx(share, abs=0.03)
        assert low <= workload.decay[of_class].min()
        assert workload.decay[of_class].max() <= high
    assert 1 <= workload.value.min() < 5
    assert 96 < workload.value.max() <= 100
    assert workload.within is not None
    assert workload.within.min() >= 3600e9
    assert workload.within.max() <= 4 * 3600e9
    slots = synthesize(
        trace(gpus=[1.0] * count, duration=[3600.0] * count), SLOT, SynthesisOptions(target="slots")
    )
    assert 1.0 <= slots.target.min() < slots.target.max() <= 15.0


def test_the_seed_decides_everything():
    given_trace = trace(gpus=[1.0, 4.0], duration=[900.0, 90_000.0])
    one, same, other = (
        list(synthesize(given_trace, SLOT, seed=seed).to_records()) for seed in (1, 1, 2)
    )
    assert one == same
    assert one != other


def assert_same_jobs(workload: Workload, cluster: Cluster, path: Path) -> None:
    fast = workload.to_jobs(cluster)
    workload.write(path)
    read = read_jobs(path, cluster)
    assert [job.record() for job in fast] == [job.record() for job in read]


MIXED = {
    "submit": [0.0, 1200.0, 1200.5, 7e6 / 3],
    "gpus": [1.0, 0.46, 12.0, 64.0],
    "duration": [3.0, 1e6 / 7, 5000.0, 100_000.0],
    "cpus": [None, 6.0, 7.0, 960.0],
    "memory": [None, 12_345_678_901, 2**40, 10**12],
    "tenant": ["a", None, "b", "a"],
    "deadline": [None, None, 123_456.7, None],
}


@pytest.mark.parametrize("suffix", [".jsonl", ".yaml"])
@pytest.mark.parametrize("speed", ["linear", "measured"])
@pytest.mark.parametrize("training", ["ps", "allreduce"])
def test_a_written_job_file_gives_the_same_jobs(tmp_path, suffix, speed, training):
    options = SynthesisOptions(speed=speed, training=training)
    workload = synthesize(trace(**MIXED), SLOT, options)
    assert_same_jobs(workload, cluster(), tmp_path / f"jobs{suffix}")


@pytest.mark.parametrize("utility", ["default", "drawn"])
def test_a_job_file_of_jobs_that_state_nothing_gives_the_same_jobs(tmp_path, utility):
    workload = synthesize(trace(**MIXED), SLOT, SynthesisOptions(utility=utility))
    assert_same_jobs(workload, cluster(), tmp_path / "jobs.jsonl")
    jobs = workload.to_jobs(cluster())
    assert all(job.has_default_utility == (utility == "default") for job in jobs)


def test_jobs_of_a_clusters_own_log_stay_as_they_are():
    def own(seed: int) -> list[Job]:
        log = replace(trace(**MIXED), format="csv")
        return synthesize(log, SLOT, seed=seed).to_jobs(cluster())

    jobs = own(0)
    assert [job.worker_counts.tolist() for job in jobs] == [[1], [1], [12], [64]]
    assert all(job.all_reduce for job in jobs)
    hours = [3 / 3600, 0.46 * 1e6 / 7 / 3600, 12 * 5000 / 3600, 64 * 100_000 / 3600]
    for job, value, seconds in zip(jobs, hours, MIXED["duration"], strict=True):
        assert job.shortest_slots == -(-seconds // 1200)
        # The work is a whole number of slots.
        assert value <= job.utility.value <= value * -(-seconds // 1200) * 1200 / seconds + 1e-9
    due = MIXED["deadline"][2] - MIXED["submit"][2]
    assert [type(job.utility) for job in jobs] == [Constant, Constant, Deadline, Constant]
    assert jobs[2].utility.by == pytest.approx(due / 1200, abs=2.0)
    # The seed changes the drawn model of a job, and nothing that a policy uses.
    for one, other in zip(jobs, own(1), strict=True):
        assert one.utility == other.utility
        assert one.gains.tolist() == other.gains.tolist()
        assert one.required == other.required


def test_slots_of_fractional_seconds(tmp_path):
    workload = synthesize(trace(**MIXED), Fraction(1000, 3) / 10)
    with pytest.raises(InputError, match="were made for slots of"):
        workload.to_jobs(cluster())
    odd = synthesize(trace(**MIXED), Fraction("0.7"))
    assert_same_jobs(odd, cluster("700ms"), tmp_path / "jobs.jsonl")


def test_demands_that_the_cluster_does_not_count_are_dropped_with_a_note():
    bare = {
        "servers": [
            {"name": "g", "capacity": {"gpu": 64}},
        ]
    }
    workload = synthesize(trace(**MIXED), SLOT).fitted_to(cluster(**bare))
    assert any("the cluster has no cpu, memory" in note for note in workload.notes)
    jobs = workload.to_jobs(cluster(**bare))
    assert [job.worker.tolist() for job in jobs] == [[1000], [500], [1000], [1000]]
    with pytest.raises(InputError, match="no server of the cluster has a resource 'gpu'"):
        synthesize(trace(**MIXED), SLOT).fitted_to(
            cluster(servers=[{"name": "c", "capacity": {"cpu": 64}}])
        )


def test_places_and_tenants_of_an_astraea_cluster():
    places = {
        "servers": [{"name": "s", "count": 9, "capacity": {"worker": 8, "ps": 4}}],
        "tenants": [{"name": "x", "share": {"worker": 36}}, {"name": "y", "share": {"ps": 18}}],
    }
    workload = synthesize(trace(**MIXED), SLOT).fitted_to(cluster(**places))
    jobs = workload.to_jobs(cluster(**places))
    assert {job.tenant for job in jobs} == {"x", "y"}
    assert jobs[0].tenant == jobs[3].tenant
    assert all(job.worker.tolist() == [1000, 0] for job in jobs)
    assert all(job.ps is not None and job.ps.tolist() == [0, 1000] for job in jobs)


def test_cpu_jobs_are_dropped_by_default():
    mixed = trace(gpus=[0.0, 1.0], duration=[60.0, 60.0], cpus=[4.0, 4.0])
    dropped = synthesize(mixed, SLOT)
    assert dropped.names == ["j1"]
    assert dropped.notes[0].startswith("1 CPU job left out (")
    kept = synthesize(mixed, SLOT, SynthesisOptions(cpu_jobs="keep"))
    assert "gpu" not in kept.profiles[0].worker
    assert kept.profiles[0].worker["cpu"] == 4000
    with pytest.raises(InputError, match="no job is left"):
        synthesize(trace(gpus=[0.0], duration=[60.0]), SLOT)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"families": "h100"}, "families=h100: write a100 or v100"),
        ({"insensitive": 0.6}, "at most 1 together"),
        ({"stretch": 0.5}, "write 1 or more"),
        ({"elasticity": 0.5}, "write 0, or 1 to 64"),
    ],
)
def test_wrong_options_say_what_to_write(values, message):
    with pytest.raises(InputError, match=message):
        SynthesisOptions(**values)


def test_options_from_text():
    options = SynthesisOptions.from_text({"stretch": "2", "training": "allreduce"})
    assert options == SynthesisOptions(stretch=2.0, training="allreduce")
    with pytest.raises(InputError, match="stretch=wide: write a number"):
        SynthesisOptions.from_text({"stretch": "wide"})
    with pytest.raises(InputError, match="bandwidth=3: write a rate"):
        synthesize(trace(**MIXED), SLOT, SynthesisOptions(bandwidth="3"))


def test_a_cluster_is_sized_to_the_requested_gpu_time():
    count = 100
    even = trace(
        submit=[3600.0 * index for index in range(count)],
        gpus=[8.0] * count,
        duration=[7200.0] * count,
    )
    workload = synthesize(even, SLOT)
    # 100 jobs x 8 GPUs x 2 h in 99 h: 16.2 GPUs at a load of 1.
    document = cluster_for(workload)
    assert document["servers"][0]["count"] == 3
    assert cluster_for(workload, load=4.0)["servers"][0]["count"] == 1
    # A parameter server fits for each GPU: GPUs are scarce, not the servers.
    capacity = document["servers"][1]["capacity"]
    assert document["servers"][1]["count"] == 3
    assert capacity == {"cpu": 32, "memory": "128GiB", "bandwidth": "48Gbps"}
    spec, faults = validate(ClusterSpec, document, "cluster")
    assert spec is not None, faults
    assert len(workload.to_jobs(spec.resolve())) == count


def test_a_sized_cluster_holds_the_largest_worker():
    pods = trace(
        gpus=[16.0, 0.5],
        workers=[1, 1],
        duration=[7200.0] * 2,
        cpus=[300.0, 1.0],
        memory=[2**43, 2**30],
    )
    workload = synthesize(pods, SLOT, SynthesisOptions(bandwidth="10Gbps"))
    spec, faults = validate(ClusterSpec, cluster_for(workload), "cluster")
    assert spec is not None, faults
    on = spec.resolve()
    row = on.capacity[on.index["gpu-0"]]
    assert all((job.worker <= row).all() for job in workload.to_jobs(on))
    assert row[on.column["gpu"]] == 16_000
    assert row[on.column["bandwidth"]] == 160 * 10**9


def test_a_cluster_for_jobs_without_gpus_is_sized_to_their_core_time():
    count = 100
    cores = trace(
        submit=[3600.0 * index for index in range(count)],
        gpus=[0.0] * count,
        cpus=[32.0, 4.0] * (count // 2),
        duration=[86_400.0] * count,
    )
    workload = synthesize(cores, SLOT, SynthesisOptions(cpu_jobs="keep"))
    document = cluster_for(workload)
    # 50 jobs x 36 cores x 24 h in 99 h: 436 cores at a load of 1.
    assert document["servers"][0]["name"] == "cpu"
    assert document["servers"][0]["count"] == 7
    assert cluster_for(workload, load=4.0)["servers"][0]["count"] == 2
    spec, faults = validate(ClusterSpec, document, "cluster")
    assert spec is not None, faults
    on = spec.resolve()
    fitted = workload.fitted_to(on)
    jobs = fitted.to_jobs(on)
    assert fitted.notes == workload.notes
    # Cores are scarce: as many of the smallest workers fit as there are cores.
    smallest = min(jobs, key=lambda job: int(job.worker[on.column["cpu"]]))
    room = on.capacity[on.index["cpu-0"]] // np.maximum(smallest.worker, 1)
    assert room[smallest.worker > 0].min() == 64 // 4


@pytest.mark.traces
def test_the_whole_philly_trace_becomes_jobs(traces):
    spec = f"philly:{traces}/philly/philly.csv.gz"
    jobs, workload, read = load_jobs(spec, cluster(), seed=1)
    assert len(jobs) == read.jobs.height == 52_826
    seconds = worker_seconds(workload)
    gpus = np.array([p.worker["gpu"] for p in workload.profiles]) / 1000
    wanted = float((read.jobs["gpus"] * read.jobs["duration"]).sum())
    assert float((seconds * gpus).sum()) == pytest.approx(wanted, rel=1e-4)
    assert all(job.arrival <= later.arrival for job, later in pairwise(jobs))
    assert all(job.chunks >= job.max_workers for job in jobs)


@pytest.mark.traces
def test_elasticflow_values_are_used_unchanged(traces, tmp_path):
    spec = f"itp:{traces}/microsoft_itp_2021/elasticflow/cluster01.csv.gz?limit=200"
    on = cluster("5min")
    jobs, workload, read = load_jobs(spec, on)
    assert workload.work.tolist() == read.jobs["iterations"].to_list()
    assert all(isinstance(job.utility, Deadline) for job in jobs)
    for job, gpus, duration in zip(
        jobs, read.jobs["gpus"].to_list(), read.jobs["duration"].to_list(), strict=True
    ):
        slots = duration / 300
        assert job.required / job.gain(int(gpus)) == pytest.approx(slots, rel=2e-3)
    assert_same_jobs(workload, on, tmp_path / "jobs.jsonl")

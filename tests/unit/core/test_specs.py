import re
from datetime import UTC, datetime
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from shadowprice.core.errors import Fault, InputError
from shadowprice.core.policy import PolicyContext, Status
from shadowprice.core.refusal import RefusalReason
from shadowprice.core.specs import ClusterSpec, JobSpec, validate
from shadowprice.core.utility import Constant, Deadline, Sigmoid, Utility
from shadowprice.inputs import read_cluster, read_jobs, read_parameters
from shadowprice.policies.registry import make_policy, policies, policy_parameters
from shadowprice.simulator.driver import Simulation

CLUSTER = """\
    slot: 20min
    horizon: 30
    servers:
      - {name: gpu, count: 2, role: worker, capacity: {gpu: 8, memory: 244GiB, bandwidth: 25Gbps}}
      - {name: net, role: ps, capacity: {cpu: 16, memory: 122GiB}}
    tenants:
      - {name: vision, share: {gpu: 4}}
"""
JOB = """\
    jobs:
      - name: a
        tenant: vision
        arrival: 50min
        epochs: 100
        chunks: 20
        minibatches: 40
        minibatch_time: 1.2s
        gradient: 241MB
        worker: {gpu: 1, memory: 16GiB, bandwidth: 1Gbps}
        ps: {cpu: 4, memory: 16GiB, bandwidth: 10Gbps}
        utility: {kind: sigmoid, value: 50, decay: 0.5, target: 2h}
        workers: {min: 2, max: 16}
"""


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(dedent(text), encoding="utf-8")
    return path


def test_a_cluster_file(tmp_path: Path) -> None:
    cluster = read_cluster(write(tmp_path, "c.yaml", CLUSTER))
    assert cluster.names == ("gpu-0", "gpu-1", "net")
    assert cluster.resources == ("gpu", "memory", "bandwidth", "cpu")
    assert cluster.kinds.tolist() == [0, 0, 1]
    assert cluster.capacity[2].tolist() == [0, 122 * 2**30, 2**62, 16_000]
    assert cluster.hosts_workers.tolist() == [True, True, False]
    assert cluster.slot_seconds == 1200
    assert cluster.tenants[0].share == {"gpu": 4000}


def test_a_job_file(tmp_path: Path) -> None:
    cluster = read_cluster(write(tmp_path, "c.yaml", CLUSTER))
    (job,) = read_jobs(write(tmp_path, "j.yaml", JOB), cluster)
    assert job.arrival == 3  # inside slot 2, so it arrives in the next one
    assert job.worker_counts.tolist() == list(range(2, 17))
    # 2 h after 50 min end half-way through slot 8: d = 8.5 - 1 - 3.
    assert job.utility == Sigmoid(50, 0.5, 4.5)
    assert job.before_arrival == 0.5
    assert job.worker.tolist() == [1000, 16 * 2**30, 10**9, 0]


def test_json_lines_read_the_same(tmp_path: Path) -> None:
    cluster = read_cluster(write(tmp_path, "c.yaml", CLUSTER))
    line = (
        '{"name": "a", "chunks": 4, "worker": {"gpu": 1}, "throughput": {"1": 2.5, "4": 9},'
        ' "utility": {"kind": "constant", "value": 3}}'
    )
    (job,) = read_jobs(write(tmp_path, "j.jsonl", f"{line}\n\n"), cluster)
    assert job.worker_counts.tolist() == [1, 4]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            ("arrival: 50min", "arival: 50min"),
            r"jobs\[0\]\.arival: unknown key; did you mean 'arrival'",
        ),
        (
            ("arrival: 50min", "zzz: 1\n        arrival: 50min"),
            r"jobs\[0\]\.zzz: unknown key; known: name, tenant, arrival, .*, \.\.\.",
        ),
        (
            ("decay: 0.5", "decay: 0.5, zzz: 1"),
            r"utility\.zzz: unknown key; known: kind, value, dec",
        ),
        (("gpu: 1,", "gpu: 1x,"), r"jobs\[0\]\.worker\.gpu: .*unknown unit 'x'"),
        (("1.2s", "1.2"), "without a unit"),
        (("1.2s", "0s"), "greater than 0"),
        (("epochs: 100", "epochs: 0"), r"jobs\[0\]\.epochs: .*greater than 0"),
        (("decay: 0.5", "decay: -0.5"), r"utility\.decay"),
        (("kind: sigmoid", "kind: sigmoids"), "sigmoids"),
        (("tenant: vision", "tenant: visoin"), "unknown tenant 'visoin'; did you mean 'vision'"),
        (("bandwidth: 10Gbps", "bandwidth: 100Mbps"), r"raise ps\.bandwidth"),
        (
            ("memory: 16GiB, bandwidth: 1Gbps", "memory: 16, bandwidth: 1Gbps"),
            "memory is given as 16",
        ),
        (("max: 16", "max: 21"), r"workers\.max 21 is above chunks 20"),
        (("min: 2", "min: 17"), r"workers\.min 17 is above workers\.max 16"),
        (("gpu: 1,", "tpu: 1,"), "no server has 'tpu'"),
        (("gpu: 1,", "gpu: 9,"), "can never run here"),
        (("gradient: 241MB", "throughput: {1: 2}"), "takes the place of minibatch_time"),
        (("name: a", "name: ''"), r"jobs\[0\]\.name"),
        (("jobs:", "job:"), "begin it with `jobs:`"),
        (("minibatch_time: 1.2s", "internal_bandwidth: 40Gbps"), "how fast it trains is missing"),
        (("gradient: 241MB", "internal_bandwidth: 40Mbps"), "below worker.bandwidth"),
        (
            ("epochs: 100", "tasks: [3]"),
            r"tasks\[0\]: expected a mapping with the keys count, duration, got ",
        ),
        (
            ("epochs: 100", "labels: 3"),
            r"labels: expected a mapping, got a number; write \{team: vision\}",
        ),
        (
            ("epochs: 100", "run: 3"),
            r"run: expected a mapping with the keys command, .*\.\.\., got .*; write \{command: ",
        ),
        (("epochs: 100", "epochs: 100\n        epochs: 3"), "'epochs' is repeated"),
    ],
)
def test_errors_of_a_job_have_location_and_hint(
    tmp_path: Path, change: tuple[str, str], expected: str
) -> None:
    assert change[0] in JOB
    cluster = read_cluster(write(tmp_path, "c.yaml", CLUSTER))
    with pytest.raises(InputError, match=expected) as caught:
        read_jobs(write(tmp_path, "j.yaml", JOB.replace(*change)), cluster)
    assert "j.yaml" in str(caught.value)
    assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("slot: 20min", "slot: 3 slots"), "positive time"),
        (("slot: 20min", "slot: 20"), "without a unit"),
        (("role: ps", "role: server"), r"servers\[1\]\.role"),
        (("cpu: 16, memory: 122GiB", "cpu: 16, memory: 122"), "counted as count here"),
        (("cpu: 16, memory: 122GiB", "cpu: 0"), "needs some capacity"),
        (("count: 2", "count: 0"), r"servers\[0\]\.count"),
        (("name: net,", "name: gpu-0,"), "duplicate name 'gpu-0'"),
        (("share: {gpu: 4}", "share: {tpu: 4}"), "no server has this resource"),
        (("horizon: 30", "horizont: 30"), "did you mean 'horizon'"),
    ],
)
def test_faults_of_a_cluster(tmp_path: Path, change: tuple[str, str], expected: str) -> None:
    assert change[0] in CLUSTER
    with pytest.raises(InputError, match=expected):
        read_cluster(write(tmp_path, "c.yaml", CLUSTER.replace(*change)))


def test_all_faults_of_a_file_are_listed_and_nothing_is_taken(tmp_path: Path) -> None:
    cluster = read_cluster(write(tmp_path, "c.yaml", CLUSTER))
    good = JOB.replace("    jobs:\n", "").replace("name: a", "name: b")
    text = JOB.replace("1.2s", "1.2").replace("epochs: 100", "epochs: -1") + good + good
    path = write(tmp_path, "j.yaml", text)
    with pytest.raises(InputError) as caught:
        read_jobs(path, cluster)
    places = [fault.location for fault in caught.value.faults]
    assert [place.split(": ", 1)[1] for place in places] == [
        "jobs[0].epochs",
        "jobs[0].minibatch_time",
        "jobs[2].name",
    ]
    assert [job.name for job in read_jobs(path, cluster, skip_invalid=True)] == ["b"]


def test_files_that_are_no_text(tmp_path: Path) -> None:
    cases = {
        "empty.yaml": (b"", "empty"),
        "blank.yaml": (b" \n", "empty"),
        "binary.yaml": (b"slot\0\x01\x02", "binary"),
        "latin.yaml": ("slot: 20min # für\n".encode("latin-1"), "line 1.*not UTF-8"),
        "broken.yaml": (b"slot: [20min\n", "line 2.*not YAML"),
        "cut.yaml.gz": (b"\x1f\x8b\x08\x00truncated", "line 1: truncated gzip stream"),
        "packed.yaml": (b"\x1f\x8b\x09" + bytes(20), "line 1: corrupt gzip stream"),
    }
    for name, (data, expected) in cases.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(InputError, match=expected):
            read_cluster(tmp_path / name)
    with pytest.raises(InputError, match="no such file"):
        read_cluster(tmp_path / "absent.yaml")
    with pytest.raises(InputError, match="directory"):
        read_cluster(tmp_path)


def test_junk_without_line_ends_is_refused_before_it_is_read_whole(tmp_path: Path) -> None:
    cluster = read_cluster(write(tmp_path, "c.yaml", CLUSTER))
    (tmp_path / "junk.jsonl").write_bytes(b"x" * 3_000_000)
    with pytest.raises(InputError, match="exceeds the limit of 1,048,576 bytes of a line"):
        read_jobs(tmp_path / "junk.jsonl", cluster)
    (tmp_path / "lines.jsonl").write_bytes(b"junk\n" * 1000)
    with pytest.raises(InputError, match="has more problems") as caught:
        read_jobs(tmp_path / "lines.jsonl", cluster)
    assert "line 1," in str(caught.value)
    assert len(caught.value.faults) < 60


def test_priority_and_wall_time(tmp_path: Path) -> None:
    cluster = read_cluster(write(tmp_path, "c.yaml", CLUSTER))
    plain = read_jobs(write(tmp_path, "j.yaml", JOB), cluster)[0]
    assert (plain.priority, plain.walltime) == (0.0, None)
    stated = "        priority: -2.5\n        walltime: 50min\n"
    job = read_jobs(write(tmp_path, "j.yaml", JOB + stated), cluster)[0]
    assert (job.priority, job.walltime) == (-2.5, 3)  # slots of 20 min, the last begun
    again = type(job).from_record(job.record())
    assert (again.priority, again.walltime) == (-2.5, 3)
    for wrong, said in (
        ("        walltime: 0s\n", "greater than 0"),
        ("        walltime: 7\n", "walltime"),
        ("        priority: .nan\n", "priority"),
    ):
        with pytest.raises(InputError, match=said):
            read_jobs(write(tmp_path, "j.yaml", JOB + wrong), cluster)


def test_parameter_files(tmp_path: Path) -> None:
    assert read_parameters(write(tmp_path, "p.toml", "a = 1\n[worker]\nL = 0.5\n")) == {
        "a": 1,
        "worker": {"L": 0.5},
    }
    with pytest.raises(InputError, match="not TOML"):
        read_parameters(write(tmp_path, "p.toml", "a = = 1"))


def test_a_job_that_fits_only_where_local_traffic_is_free_is_read_and_judged_by_the_policy(
    tmp_path: Path,
) -> None:
    (tmp_path / "c.yaml").write_text(
        "slot: 1h\nhorizon: 16\n"
        "servers: [{name: s, capacity: {worker: 4, ps: 1}}]\n"
        "tenants: [{name: a, share: {worker: 4, ps: 1}}]\n"
    )
    # Four workers of 1 Gbit/s need two parameter servers of 2 Gbit/s by (6). On a single server,
    # one serves them all if local traffic costs nothing.
    (tmp_path / "j.yaml").write_text(
        "jobs:\n  - {name: a, tenant: a, chunks: 4, workers: {min: 4}, minibatch_time: 30min,"
        " gradient: 1GB, worker: {worker: 1, bandwidth: 1Gbps}, ps: {ps: 1, bandwidth: 2Gbps},"
        " internal_bandwidth: unlimited, utility: {kind: constant, value: 9}}\n"
    )
    on = read_cluster(tmp_path / "c.yaml")
    (one,) = read_jobs(tmp_path / "j.yaml", on)
    assert one.ps_counts.tolist() == [2]
    ends = {}
    for name in ("astraea", "fifo"):
        policy = make_policy(name, PolicyContext(on, [one], 16), {})
        ends[name] = Simulation(on, [one], policy, until=16).run().jobs["a"]
    assert ends["astraea"].status is Status.FINISHED
    assert ends["fifo"].refusal is not None
    assert ends["fifo"].refusal.reason is RefusalReason.NEVER_FITS


def test_a_cluster_without_servers_is_reported(tmp_path: Path) -> None:
    empty = write(tmp_path, "c.yaml", "slot: 20min\nhorizon: 30\nservers: []\n")
    with pytest.raises(
        InputError, match=r"c\.yaml: servers: expected 1 or more items, got 0; add one$"
    ):
        read_cluster(empty)


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        ("name: net", "name: ..", "servers[1].name"),
        ("name: gpu, count: 2", "name: .", "servers[0].name"),
        ("name: vision", "name: ..", "tenants[0].name"),
        ("name: net", 'name: "a\\nb"', "servers[1].name"),
    ],
)
def test_names_that_no_address_can_hold_are_refused(
    tmp_path: Path, old: str, new: str, place: str
) -> None:
    with pytest.raises(InputError) as caught:
        read_cluster(write(tmp_path, "c.yaml", CLUSTER.replace(old, new)))
    [fault] = caught.value.faults
    assert place in fault.location
    assert ("can't be a segment of a URL path" in fault.message) == ('"' not in new)


def test_a_job_without_a_utility_has_the_default(tmp_path: Path) -> None:
    cluster = read_cluster(write(tmp_path, "c.yaml", CLUSTER))
    stated = "        utility: {kind: sigmoid, value: 50, decay: 0.5, target: 2h}\n"
    assert stated in JOB
    plain = JOB.replace(stated, "")

    def utility(more: str) -> tuple[Utility, float]:
        [job] = read_jobs(write(tmp_path, "j.yaml", plain + more), cluster)
        return job.utility, job.priority

    [job] = read_jobs(write(tmp_path, "j.yaml", plain), cluster)
    hours = job.required * 1200 / 3600  # worker-slots of 20 min, each with one GPU
    assert utility("") == (Constant(hours), 0.0)
    assert utility("        priority: 3\n") == (Constant(hours), 3.0)
    for name, multiple, number in (("low", 0.25, -1), ("high", 4, 1), ("urgent", 16, 2)):
        assert utility(f"        priority: {name}\n") == (Constant(multiple * hours), number)
    assert utility("        by: 2h\n")[0] == Deadline(hours, 4.5)
    for wrong, message in (
        ("        by: '18:00'\n", r"by: a simulation has no calendar; write .* such as 6h"),
        ("        by: 7\n", "by: 7 is a duration without a unit"),
        ("        by: '25:00'\n", "by: '25:00' is not a time"),
        ("        priority: top\n", "priority: expected low, normal, high, urgent or a number"),
        (stated + "        by: 2h\n", "`by` is the deadline of the default utility"),
        (stated + "        priority: low\n", "a named `priority` is a multiple"),
    ):
        with pytest.raises(InputError, match=message):
            read_jobs(write(tmp_path, "j.yaml", plain + wrong), cluster)


def test_a_deadline_on_the_clock_counts_from_the_submission(tmp_path: Path) -> None:
    cluster = read_cluster(write(tmp_path, "c.yaml", CLUSTER))
    record = {"name": "a", "minibatch_time": "1h", "worker": {"gpu": 1}}
    submitted = int(datetime(2026, 12, 1, 12, tzinfo=UTC).timestamp()) * 10**9
    for text in ("2026-12-01T14:00:00Z", "14:00Z"):
        spec = JobSpec.model_validate({**record, "by": text})
        assert spec.resolve(cluster, submitted=submitted).utility == Deadline(1.0, 5.0)
    late = JobSpec.model_validate({**record, "by": "2026-12-01T11:00:00Z"})
    with pytest.raises(InputError, match="has passed"):
        late.resolve(cluster, submitted=submitted)


def test_a_bag_without_a_utility_is_worth_its_gpu_hours() -> None:
    cluster = ClusterSpec.model_validate(
        {"slot": "1h", "horizon": 9, "servers": [{"name": "g", "capacity": {"gpu": 8}}]}
    ).resolve("c")
    bag = JobSpec.model_validate(
        {
            "name": "a",
            "tasks": [{"count": 3, "duration": {"kind": "exponential", "mean": "2h"}}],
            "deadline": "6h",
            "miss_probability": 0.1,
            "worker": {"gpu": 2},
        }
    )
    assert bag.resolve(cluster).utility == Constant(12.0)


def test_a_worker_count_in_two_spellings_is_refused() -> None:
    curve = {1: 10.0, "1": 20.0, 2: 30.0}
    with pytest.raises(ValueError, match="a worker count is repeated; give each worker count once"):
        JobSpec.model_validate({"name": "a", "steps": 5, "worker": {"gpu": 1}, "throughput": curve})
    single = JobSpec.model_validate(
        {"name": "a", "steps": 5, "worker": {"gpu": 1}, "throughput": {"1": 10.0, 2: 30.0}}
    )
    assert single.throughput == {1: 10.0, 2: 30.0}


@pytest.mark.parametrize(
    ("keys", "fault"),
    [
        ({"command": ["a"]}, "command: unknown key; write run: {command: [python, train.py]}"),
        ({"gpus": 2}, "gpus: unknown key; write worker: {gpu: 1}, the resources of one worker"),
        ({"replicas": 4}, "replicas: unknown key; write workers: {min: 1, max: 4}"),
        ({"image": "torch"}, "image: unknown key; it belongs in `run`"),
        (
            {"run": {"command": ["a"], "walltime": "1h"}},
            "run.walltime: unknown key; known: command",
        ),
        ({"workers": 4}, "got a number; write {min: 4, max: 4}"),
        ({"workers": "four"}, "got text; write {min: 1, max: 4}"),
        ({"worker": 1}, "worker: expected a mapping, got a number; write {gpu: 1}"),
        ({"run": "train.py"}, "got text; write {command: [python, train.py]}"),
    ],
)
def test_hints_give_the_spelling_for_keys_of_other_schedulers(
    keys: dict[str, Any], fault: str
) -> None:
    record = {"name": "a", "steps": 3, "minibatch_time": "1s", "worker": {"gpu": 1}} | keys
    _, faults = validate(JobSpec, record, "jobs[0]")
    assert any(fault in str(InputError(found)) for found in faults), faults


def test_hint_for_gpus_of_a_server_names_its_capacity() -> None:
    servers = [{"name": "a", "gpus": 8, "capacity": {"gpu": 8}}]
    _, faults = validate(ClusterSpec, {"slot": "1s", "servers": servers}, "c.yaml")
    assert faults == [
        Fault(
            "c.yaml: servers[0].gpus",
            "unknown key",
            "write capacity: {gpu: 8, cpu: 64, memory: 512GiB}",
        )
    ]


@pytest.mark.parametrize(
    ("policy", "settings", "message"),
    [
        ("dorm", {"gap": "2"}, "gap: must be less than 1, got '2'"),
        ("dorm", {"window": 0}, "window: must be at least 1, got 0"),
        ("fifo", {"workers": 0}, "workers: must be at least 1, got 0"),
        ("fifo", {"workers": "most"}, "workers: expected 'drawn', 'max', 'min' or an integer"),
        (
            "oasis",
            {"prices": "x"},
            "prices: expected 'auto', 'offline', 'online', 'given' or text that matches ^fixed:",
        ),
        ("oasis", {"restarts": "no"}, "restarts: expected 'counted' or 'ignored', got 'no'"),
        ("hived", {"opportunistic": "maybe"}, "opportunistic: expected true or false, got 'maybe'"),
        ("las", {"promote": float("inf")}, "promote: expected a finite number, got inf"),
        ("elasticflow", {"slots": 10**7}, "slots: must be at most 1,000,000, got 10000000"),
        ("gandiva_fair", {"speeds": {"a": {"b": -1}}}, "speeds.a.b: must be greater than 0"),
        ("astraea", {"lambd": 3}, "lambd: unknown key; did you mean 'lambda'?"),
    ],
)
def test_limits_of_parameters_are_in_our_words(
    policy: str, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError) as caught:
        policy_parameters(policy, settings)
    [fault] = caught.value.faults
    assert f"policy {policy}: {message}" in str(fault)


def test_no_message_has_the_wording_of_the_validation_library() -> None:
    values: list[Any] = [None, True, "x", "", -1, 0, 0.5, float("inf"), float("nan"), 10**30, "1s"]
    values += [[], ["a"], {}, {"a": 1}, {"a": {"b": -1}}, {"kind": "x"}, "a" * 3000]
    values += [{"kind": "sigmoid", "value": "x", "decay": -1, "target": -3}]
    models = {ClusterSpec, JobSpec, *(info.parameters for info in policies().values())}
    checked = 0
    for model in sorted(models, key=str):
        for name, field in model.model_fields.items():
            for value in values:
                try:
                    _, faults = validate(model, {field.alias or name: value}, "here")
                except InputError:
                    continue  # a number above all limits
                for fault in faults:
                    text = str(fault)
                    assert not re.search(r"should (be|have|match)|literal\[|constrained", text), (
                        text
                    )
                    checked += 1
    assert checked > 1000

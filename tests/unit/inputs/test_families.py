"""Curves of families: their users, their parts, and their errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shadowprice.core.cluster import Cluster
from shadowprice.core.errors import InputError
from shadowprice.core.job import Job
from shadowprice.inputs.families import parse_families
from shadowprice.inputs.files import read_cluster, read_jobs, read_records

LIBRARY = (
    "families:\n  resnet50: {throughput: {1: 1.5, 2: 2.5, 4: 4}, restart: 5s, measured: today}\n"
)
CLUSTER = "slot: 10s\nhorizon: 100\nservers: [{name: one, capacity: {cpu: 8}}]\n"


def _job(**changes: Any) -> str:
    stated = {
        "name": "new", "family": "resnet50", "chunks": 4, "minibatches": 10,
        "worker": "{cpu: 1}", "utility": "{kind: constant, value: 1}", **changes,
    }  # fmt: skip
    inner = ", ".join(f"{name}: {value}" for name, value in stated.items() if value is not None)
    return "{" + inner + "}"


def _read(folder: Path, job: str, head: str = "families: lib/families.yaml") -> tuple[Job, Cluster]:
    (folder / "lib").mkdir(exist_ok=True)
    (folder / "lib" / "families.yaml").write_text(LIBRARY)
    (folder / "cluster.yaml").write_text(CLUSTER)
    (folder / "jobs.yaml").write_text(f"{head}\njobs: [{job}]\n")
    cluster = read_cluster(folder / "cluster.yaml")
    (found,) = read_jobs(folder / "jobs.yaml", cluster)
    return found, cluster


def test_a_job_takes_its_familys_curve(tmp_path: Path) -> None:
    job, cluster = _read(tmp_path, _job())
    assert job.worker_counts.tolist() == [1, 2, 4]
    assert job.gains.tolist() == [15_000_000, 25_000_000, 40_000_000]
    assert job.restart * cluster.slot_seconds == 5
    ((_, record),) = read_records(tmp_path / "jobs.yaml")
    assert record["throughput"] == {"1": 1.5, "2": 2.5, "4": 4}
    assert record["family"] == "resnet50"


@pytest.mark.parametrize("work", [{"chunks": 3}, {"chunks": None, "minibatches": None, "steps": 9}])
def test_worker_counts_of_a_library_may_be_quoted(tmp_path: Path, work: dict[str, Any]) -> None:
    plain = "families: {resnet50: {throughput: {1: 7, 2: 9, 3: 8}}}"
    quoted = 'families: {"resnet50": {"throughput": {"1": 7, "2": 9, 3.0: 8}}}'
    job, _ = _read(tmp_path, _job(**work), plain)
    again, _ = _read(tmp_path, _job(**work), quoted)
    assert again.worker_counts.tolist() == job.worker_counts.tolist() == [1, 2, 3]
    assert again.gains.tolist() == job.gains.tolist()
    assert parse_families({"families": {"a": {"throughput": {"2": 9}}}}, "x") == {
        "a": {"throughput": {2: 9}}
    }
    with pytest.raises(InputError, match="2 workers or more"):
        _read(tmp_path, _job(chunks=1), 'families: {resnet50: {throughput: {"2": 9}}}')


def test_a_library_has_a_limit_of_its_own() -> None:
    families = {f"f{number}": {"throughput": {1: 1}} for number in range(10_001)}
    with pytest.raises(InputError, match="exceeds the limit of 10,000 families of a library"):
        parse_families({"families": families}, "lib.yaml")


def test_without_a_library_families_are_left_to_the_caller(tmp_path: Path) -> None:
    (tmp_path / "jobs.yaml").write_text(f"jobs: [{_job()}]\n")
    ((_, record),) = read_records(tmp_path / "jobs.yaml")
    assert record["family"] == "resnet50"
    assert "throughput" not in record


def test_a_job_s_own_speed_overrides_its_family(tmp_path: Path) -> None:
    job, cluster = _read(tmp_path, _job(restart="1s", chunks=3))
    assert job.worker_counts.tolist() == [1, 2]
    assert job.restart * cluster.slot_seconds == 1
    job, _ = _read(tmp_path, _job(throughput="{2: 9}"))
    assert job.worker_counts.tolist() == [2]
    job, _ = _read(tmp_path, _job(minibatch_time="2s"))
    assert job.worker_counts.tolist() == [1, 2, 3, 4]


def test_a_job_file_may_contain_its_library(tmp_path: Path) -> None:
    job, _ = _read(tmp_path, _job(), "families: {resnet50: {throughput: {2: 7}}}")
    assert job.worker_counts.tolist() == [2]


@pytest.mark.parametrize(
    ("job", "head", "message"),
    [
        (_job(family="resnet5"), "families: lib/families.yaml", "did you mean 'resnet50'?"),
        (_job(), "", "families: families.yaml"),
        (_job(family="[1]"), "families: lib/families.yaml", "unknown family"),
        (_job(), "families: nowhere.yaml", "nowhere.yaml"),
        (_job(), "families: {resnet50: {throughput: {}}}", "resnet50"),
        (_job(), "families: {resnet50: {throughput: {1: -2}}}", "resnet50"),
        (_job(), "families: {resnet50: {throughput: {1: 2}, speed: 3}}", "speed"),
        (_job(chunks=1), "families: {resnet50: {throughput: {2: 2}}}", "2 workers or more"),
        (_job(), 'families: {resnet50: {throughput: {2: 2, "2": 3}}}', "count is repeated"),
        (_job(), "libraries: x", "unknown key"),
    ],
)
def test_wrong_families_are_diagnosed(tmp_path: Path, job: str, head: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        _read(tmp_path, job, head)
    assert message in str(caught.value)
    assert "jobs.yaml" in str(caught.value) or "nowhere.yaml" in str(caught.value)

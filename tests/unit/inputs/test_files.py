"""Job files with several errors: all are listed, and only the jobs with errors are left out."""

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from shadowprice.core.errors import InputError
from shadowprice.core.specs import ClusterSpec
from shadowprice.inputs.files import MAX_FAULTS, read_jobs

CLUSTER = ClusterSpec.model_validate(
    {
        "slot": "20min",
        "servers": [{"name": "a", "capacity": {"gpu": 4}}],
        "tenants": [{"name": "vision"}],
    }
).resolve()


def job(name: str, **changes: Any) -> dict[str, Any]:
    return {
        "name": name,
        "chunks": 2,
        "minibatches": 10,
        "minibatch_time": "60s",
        "worker": {"gpu": 1},
        "utility": {"kind": "constant", "value": 1},
    } | changes


def written(path: Path, jobs: list[dict[str, Any]]) -> Path:
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(job) + "\n" for job in jobs))
    else:
        path.write_text(json.dumps({"jobs": jobs}))
    return path


def faults(path: Path) -> list[str]:
    with pytest.raises(InputError) as caught:
        read_jobs(path, CLUSTER)
    return [str(fault).removeprefix(f"{path}: ") for fault in caught.value.faults]


WRONG = {
    "shape": ({"minibatch_time": "-60s"}, "minibatch_time"),
    "reference": ({"tenant": "audio"}, "tenant"),
    "room": ({"worker": {"gpu": 9}}, "can never run here"),
}


@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize("name", ["jobs.yaml", "jobs.jsonl"])
def test_a_duplicate_name_is_reported_with_the_other_problems(tmp_path, name, kind):
    changes, message = WRONG[kind]
    path = written(tmp_path / name, [job("y"), job("y", **changes)])
    duplicate, other = faults(path)
    second = "line 2: name" if name.endswith(".jsonl") else "jobs[1].name"
    assert duplicate.startswith(f"{second}: duplicate job name 'y'; the name is taken by ")
    assert message in other
    # The other way around, the second is right except for its name.
    path = written(tmp_path / name, [job("y", **changes), job("y")])
    assert len(faults(path)) == 2
    [kept] = read_jobs(path, CLUSTER, skip_invalid=True)
    assert kept.worker.tolist() == CLUSTER.demand({"gpu": 1000}).tolist()


@pytest.mark.parametrize("name", ["jobs.yaml", "jobs.jsonl"])
def test_an_unknown_resource_is_reported_with_its_key(tmp_path, name):
    path = written(tmp_path / name, [job("a"), job("b", worker={"tpu": 1})])
    place = "line 2: worker.tpu" if name.endswith(".jsonl") else "jobs[1].worker.tpu"
    [diagnostics] = faults(path)
    assert diagnostics.startswith(f"{place}: no server has 'tpu'; the cluster's resources are ")


def test_skip_invalid_drops_only_invalid_jobs(tmp_path):
    wrong = [job(f"w{index}", tenant="audio") for index in range(3 * MAX_FAULTS)]
    path = written(tmp_path / "jobs.yaml", [job("first"), *wrong, job("last")])
    assert [job.name for job in read_jobs(path, CLUSTER, skip_invalid=True)] == ["first", "last"]
    diagnostics = faults(path)
    assert len(diagnostics) == MAX_FAULTS + 1
    assert diagnostics[-1].endswith(f"has more problems; the first {MAX_FAULTS} are listed")


@pytest.mark.parametrize("name", ["jobs.ndjson", "jobs.JSONL", "jobs.jsonl.txt"])
def test_names_of_files_with_one_job_a_line(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text("".join(json.dumps(job(name)) + "\n" for name in "ab"))
    assert [job.name for job in read_jobs(path, CLUSTER)] == ["a", "b"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[1]", "line 1: expected a mapping with the keys name"),
        (json.dumps(job("a", chunks=True)), "line 1: `chunks` is given a boolean"),
        (json.dumps(job("a", worker={"gpu": 9})), "line 1: job 'a' can never run here"),
        (json.dumps(job("a", tenant="audio")), "line 1: tenant: "),
        (json.dumps(job("a", chunks="x")), "line 1: chunks: expected an integer, got 'x'"),
    ],
)
def test_a_line_is_named_as_the_location(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "jobs.jsonl"
    path.write_text(f"{line}\n")
    [fault] = faults(path)
    assert fault.startswith(message)


def test_json_may_escape_characters_as_pairs(tmp_path: Path) -> None:
    """Python writes a character beyond 16 bits this way, which YAML refuses."""
    names = ["\U0001f600", "\\ud83d\\ude00", "\\\U0001f600", "\u00e9"]
    path = written(tmp_path / "jobs.json", [job(name) for name in names])
    assert "\\ud83d\\ude00" in path.read_text()
    assert [job.name for job in read_jobs(path, CLUSTER)] == names


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"jobs: []\n", "contains no job"),
        (b"- name: a\n", "contains no job list; begin it with `jobs:`"),
        (
            b"jobs: [1]\n---\njobs: [2]\n",
            "line 2, column 1: not YAML: expected a single document in the stream, but",
        ),
        (
            b'{"name": "a"}\n{"name": "b"}\n',
            "line 2, column 1: not YAML: did not find expected <document start>; give a file with",
        ),
        (b"jobs:\n- name: a\x1b\n", "line 2: not YAML: the character #x1b isn't allowed; remove"),
        ("jobs:\n- name: a\n".encode("utf-16"), "line 1: is UTF-16; save the file as UTF-8"),
        ("jobs:\n- name: a\n".encode("utf-16-be"), "line 1: is UTF-16; save the file as UTF-8"),
    ],
)
def test_a_file_other_than_a_job_file_is_named(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "jobs.yaml"
    path.write_bytes(content)
    [fault] = faults(path)
    assert fault.startswith(message)


@pytest.mark.parametrize("text", ["job,submit,duration,gpus\n1,0,60,1\n", "job;submit\n1;0\n"])
def test_a_table_of_jobs_is_a_trace(tmp_path: Path, text: str) -> None:
    path = tmp_path / "my jobs.csv"
    path.write_text(text)
    hint = f"read a table of jobs with --trace 'csv:{path}'"
    assert faults(path) == [f"contains no job list; {hint}"]


def test_a_tar_archive_is_named(tmp_path: Path) -> None:
    path = tmp_path / "jobs.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        archive.add(written(tmp_path / "jobs.yaml", [job("a")]), "jobs.yaml")
    assert faults(path) == ["is a tar archive; extract the file inside it"]

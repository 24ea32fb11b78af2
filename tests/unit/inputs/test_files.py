"""Job files with several faults: all are listed, and no more than their jobs left out."""

import json
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
    # The other way around the second is right but for its name.
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
    assert diagnostics[-1].endswith("and more; these come first")

"""Shared parts of executors: specifications, environments, progress reports, and the registry."""

from __future__ import annotations

import hashlib
import json
import math
import tomllib
from pathlib import Path
from typing import Any

import pytest

from shadowprice import jobs
from shadowprice.core.errors import InputError
from shadowprice.core.program import Program
from shadowprice.executors.contract import ExecutorOptions, GenerationSpec, ServerAllocation
from shadowprice.executors.processes import (
    build_environment,
    inherited_environment,
    list_processes,
)
from shadowprice.executors.progress import decode_report, read_progress
from shadowprice.executors.registry import (
    EXECUTORS,
    ExecutorInfo,
    MissingExecutorError,
    create_executor,
)
from tests.contract.conftest import EXECUTORS as TRIED

SPEC = GenerationSpec(
    command=17,
    job="../a job",
    generation=3,
    placement=(ServerAllocation("one", 2, 1), ServerAllocation("two", 1, 1)),
    program=Program(("python", "train.py"), {"KEY": "secret-key"}, "/srv", retries=2, grace=5.0),
    worker={"gpu": 1000},
    ps={"cpu": 2000},
    progress_url="http://127.0.0.1:8642/v1/jobs/x/progress",
    progress_token="secret-token",
    slot_end=1234.5,
    tenant="vision",
    devices={"one": ("0", "1")},
)


def test_every_executor_is_installable_tried_and_documented() -> None:
    root = Path(__file__).parents[3]
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    page = (root / "docs" / "executors.md").read_text(encoding="utf-8")
    tried = {one if isinstance(one, str) else one.values[0] for one in TRIED}
    for name, entry in EXECUTORS.items():
        assert not entry.needs or name in project["optional-dependencies"]
        assert name in tried, "tests/contract is what an executor has to hold"
        assert f"\n| `{name}`" in page


def test_a_specification_survives_json() -> None:
    assert GenerationSpec.from_record(json.loads(json.dumps(SPEC.record()))) == SPEC


def test_jobs_read_the_variables_that_executors_set(monkeypatch: pytest.MonkeyPatch) -> None:
    process = list_processes(SPEC)[4]
    variables = build_environment(
        SPEC, process, master_address="h", master_port=1, checkpoint_dir="/checkpoints"
    )
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    own = jobs.Job("../a job", 3, "ps", 1, 3, 2, Path("/checkpoints"), 1234.5)
    assert jobs.current() == own


def test_no_secret_is_shown() -> None:
    assert "secret" not in repr(SPEC)
    assert "secret" not in str(SPEC.program)


def test_processes_are_numbered_workers_first_in_the_order_of_the_placement() -> None:
    assert [(p.name, p.world_rank, p.server) for p in list_processes(SPEC)] == [
        ("worker-0", 0, "one"),
        ("worker-1", 1, "one"),
        ("worker-2", 2, "two"),
        ("ps-0", 3, "one"),
        ("ps-1", 4, "two"),
    ]


def test_the_environment_is_the_contracts() -> None:
    process = list_processes(SPEC)[4]
    variables = build_environment(
        SPEC, process, master_address="10.0.0.1", master_port=4000, checkpoint_dir="/c"
    )
    assert variables == {
        "SHADOWPRICE_JOB": "../a job",
        "SHADOWPRICE_GENERATION": "3",
        "SHADOWPRICE_RANK": "1",
        "SHADOWPRICE_ROLE": "ps",
        "SHADOWPRICE_WORKERS": "3",
        "SHADOWPRICE_PS": "2",
        "SHADOWPRICE_CHECKPOINT_DIR": "/c",
        "SHADOWPRICE_PROGRESS_URL": SPEC.progress_url,
        "SHADOWPRICE_PROGRESS_TOKEN": "secret-token",
        "SHADOWPRICE_SLOT_END": "1234.500",
        "PET_NNODES": "5",
        "PET_NODE_RANK": "4",
        "PET_NPROC_PER_NODE": "1",
        "PET_MASTER_ADDR": "10.0.0.1",
        "PET_MASTER_PORT": "4000",
        "PET_RDZV_ID": f"{hashlib.sha256(b'../a job').hexdigest()[:32]}-3",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "4000",
        "RANK": "4",
        "WORLD_SIZE": "5",
    }


@pytest.mark.parametrize(("devices", "message"), [(None, None), ((), ""), (("3", "5"), "3,5")])
def test_devices_are_set_if_there_are_any(
    devices: tuple[str, ...] | None, message: str | None
) -> None:
    variables = build_environment(
        SPEC,
        list_processes(SPEC)[0],
        master_address="a",
        master_port=1,
        checkpoint_dir="/c",
        devices=devices,
    )
    assert variables.get("CUDA_VISIBLE_DEVICES") == message


def test_a_service_keeps_its_own_variables_from_jobs() -> None:
    service = {"PATH": "/bin", "LC_ALL": "C", "DATABASE_URL": "x", "SHADOWPRICE_TOKEN": "y"}
    own = inherited_environment(SPEC, service)
    assert own == {"PATH": "/bin", "LC_ALL": "C", "KEY": "secret-key"}


@pytest.mark.parametrize(
    "metrics",
    [b'{"a": 1%s}' % (b"0" * 5_000), b'{"\xe9": 1, "a": "x"}', b'{"a": NaN}', b'{"a": 1e999}'],
)
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
def test_a_metric_that_cannot_be_decoded_costs_no_progress(metrics: bytes, bom: bytes) -> None:
    content = bom + b'{"generation": 2, "minibatches": 3, "metrics": %s}' % metrics
    report, _ = read_progress("job", decode_report(content), 7.0)
    assert report.progress == 3_000_000
    assert "a" not in report.metrics


def test_a_count_of_thousands_of_digits_is_refused() -> None:
    body = decode_report('{"generation": 2, "minibatches": 1%s}' % ("0" * 5_000))
    with pytest.raises(InputError, match="it is not a count"):
        read_progress("job", body, 7.0)


def test_progress_is_read_exactly() -> None:
    body = {"generation": 2, "minibatches": 0.1, "metrics": {"loss": 0.5, "nan": math.nan}}
    report, omitted = read_progress("job", body, 7.0)
    assert omitted == ()
    assert (report.job, report.generation, report.at) == ("job", 2, 7.0)
    assert report.progress == 100_000
    assert report.metrics == {"loss": 0.5}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (None, "not a JSON object"),
        ([1], "not a JSON object"),
        ({"generation": 1, "minibatch": 3}, "did you mean 'minibatches'"),
        ({"generation": 0, "minibatches": 3}, "not an integer of at least 1"),
        ({"generation": True, "minibatches": 3}, "not an integer of at least 1"),
        ({"generation": 1, "minibatches": -1}, "not a count"),
        ({"generation": 1, "minibatches": math.inf}, "not a count"),
        ({"generation": 1, "minibatches": 10**400}, "not a count"),
        ({"generation": 1, "minibatches": True}, "not a count"),
    ],
)
def test_a_wrong_report_says_what_is_wrong(body: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_progress("job", body, 0.0)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"metrics": [1]}, "not a mapping"),
        ({"metrics": {"a": "b", "loss": 0.5}}, "not a number"),
        ({"metrics": {"a": None, "loss": 0.5}}, "not a number"),
        ({"metrics": {"a": [1], "loss": 0.5}}, "not a number"),
        ({"metrics": {"": 1, "loss": 0.5}}, "not a valid metric name"),
        ({"metrics": {"\ud800": 1, "loss": 0.5}}, "not a valid metric name"),
        ({"metrics": {"\0": 1, "loss": 0.5}}, "not a valid metric name"),
        ({"metrics": {str(n): 1 for n in range(101)}}, "most"),
        ({"checkpoints": "yes", "metrics": {"loss": 0.5}}, "expected true or false"),
        ({"loss": 0.5, "metrics": {"loss": 0.5}}, "unknown field"),
    ],
)
def test_an_invalid_optional_part_costs_no_progress(part: dict[str, Any], message: str) -> None:
    body = {"generation": 1, "minibatches": 3, **part}
    report, omitted = read_progress("job", body, 0.0)
    assert report.progress == 3_000_000
    assert report.checkpoints is False
    assert report.metrics in ({"loss": 0.5}, {})
    assert message in str(InputError(omitted))


def test_an_unknown_executor_names_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean 'local'") as caught:
        create_executor("locl", ExecutorOptions("/nowhere"))
    assert caught.value.exit_code == 2


def test_a_missing_extra_names_what_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = ExecutorInfo("moon", "", "nowhere:Nothing", needs="no_such_package")
    monkeypatch.setitem(EXECUTORS, "moon", entry)  # type: ignore[arg-type]  # a dict
    with pytest.raises(MissingExecutorError, match=r"pip install 'shadowprice\[moon\]'") as caught:
        create_executor("moon", ExecutorOptions("/nowhere"))
    assert caught.value.exit_code == 2

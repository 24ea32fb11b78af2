"""The record of a job in the API server, without a server."""

from __future__ import annotations

import json
from pathlib import Path

from shadowprice.core.program import Program
from shadowprice.executors.contract import (
    UNCOMMANDED_STOP,
    GenerationSpec,
    Receipt,
    ServerAllocation,
)
from shadowprice.executors.generations.generation import GenerationDirectory
from shadowprice.executors.generations.outcome import ProcessExit
from shadowprice.executors.kubernetes.records import JobGenerations
from shadowprice.executors.kubernetes.session import KubernetesGeneration, PodProcess


def _order(identity: str) -> GenerationSpec:
    return GenerationSpec(
        7, "job", 1, (ServerAllocation("one", 1),), Program(("true",)), identity=identity
    )


def test_another_order_of_a_number_is_stale() -> None:
    record = JobGenerations("job")
    assert record.accept(_order("first"), {}, "") is Receipt.ACCEPTED
    assert record.accept(_order("first"), {}, "") is Receipt.DUPLICATE
    assert record.accept(_order("other"), {}, "") is Receipt.STALE
    assert record.accept(_order(""), {}, "") is Receipt.DUPLICATE  # it is empty
    del record.generations[1]  # removed: the fencing token stays
    assert record.accept(_order("other"), {}, "") is Receipt.DUPLICATE


def test_a_record_of_a_thousand_processes_fits_into_a_config_map() -> None:
    parts = [PodProcess(f"worker-{n}", "one", f"p-{n}") for n in range(1000)]
    for part in parts:
        part.end = ProcessExit(part.process, 1, 5.0, note="é" * 100)
        part.tail = ("x" * 200,) * 20
    record = JobGenerations("job")
    record.accept(_order("first"), {}, "")
    record.generations[1]["deciding"] = {part.process: part.exit_record() for part in parts}
    assert len(json.dumps(record.data(), ensure_ascii=False).encode()) < 1 << 20
    restored = PodProcess("worker-0", "one", "p-0")
    restored.load_exit_record(json.loads(record.data()["generations"])["1"]["deciding"]["worker-0"])
    assert restored.end == parts[0].end


def test_a_stored_generation_has_its_identity_and_unrequested_stop(
    tmp_path: Path,
) -> None:
    record = JobGenerations("job")
    record.accept(_order("first"), {}, "")
    assert record.stop(UNCOMMANDED_STOP, 1, 5.0) is Receipt.ACCEPTED
    item = {
        "data": record.data(),
        "metadata": dict.fromkeys(("name", "namespace", "labels", "resourceVersion"), ""),
    }
    entry = KubernetesGeneration("job", 1, GenerationDirectory(tmp_path))
    entry.load_state(JobGenerations.from_config_map(item).generations[1])
    assert entry.to_status().identity == "first"
    assert entry.stop_ordered

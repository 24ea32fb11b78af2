"""What the API server remembers of a job, without one."""

from __future__ import annotations

from pathlib import Path

from shadowprice.core.program import Program
from shadowprice.executors.contract import (
    UNCOMMANDED_STOP,
    GenerationSpec,
    Receipt,
    ServerAllocation,
)
from shadowprice.executors.generations.generation import GenerationDirectory
from shadowprice.executors.kubernetes.records import JobGenerations
from shadowprice.executors.kubernetes.tracked_generation import KubernetesGeneration


def _order(identity: str) -> GenerationSpec:
    return GenerationSpec(
        7, "job", 1, (ServerAllocation("one", 1),), Program(("true",)), identity=identity
    )


def test_another_order_of_a_number_is_stale() -> None:
    record = JobGenerations("job")
    assert record.accept(_order("first"), {}, "") is Receipt.ACCEPTED
    assert record.accept(_order("first"), {}, "") is Receipt.DUPLICATE
    assert record.accept(_order("other"), {}, "") is Receipt.STALE
    assert record.accept(_order(""), {}, "") is Receipt.DUPLICATE  # it says nothing
    del record.generations[1]  # forgotten: the fence is left
    assert record.accept(_order("other"), {}, "") is Receipt.DUPLICATE


def test_what_is_read_back_tells_its_identity_and_a_stop_that_nothing_requested(
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
    entry.load_state(JobGenerations.of(item).generations[1])
    assert entry.to_status().identity == "first"
    assert entry.stop_ordered

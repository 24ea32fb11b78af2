"""The garbage collector's thresholds during a run."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace

import pytest

import shadowprice
from shadowprice.core.collection import THRESHOLDS, few_collections
from shadowprice.core.errors import InputError

CLUSTER = {
    "slot": "1h",
    "horizon": 5,
    "servers": [{"name": "g", "count": 1, "capacity": {"gpu": 1}}],
}
JOB = {
    "name": "a",
    "chunks": 1,
    "minibatches": 1,
    "minibatch_time": "1h",
    "worker": {"gpu": 1},
    "utility": {"kind": "constant", "value": 1},
}


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def test_a_block_has_the_thresholds_of_the_command_line() -> None:
    gc.set_threshold(700, 10, 10)
    with few_collections():
        assert gc.get_threshold() == THRESHOLDS
    assert gc.get_threshold() == (700, 10, 10)


def test_a_program_that_collects_more_rarely_keeps_its_thresholds() -> None:
    gc.set_threshold(0, 15, 1_000)
    with few_collections():
        assert gc.get_threshold() == (0, 20, 1_000)
    assert gc.get_threshold() == (0, 15, 1_000)


def test_functions_of_the_python_api_collect_rarely() -> None:
    gc.set_threshold(700, 10, 10)
    seen: list[tuple[int, int, int]] = []

    def jobs() -> Iterator[dict[str, object]]:
        seen.append(gc.get_threshold())
        yield from ()

    for function in (shadowprice.simulate, shadowprice.compare, shadowprice.whatif):
        with pytest.raises(InputError):
            function({"servers": []}, jobs())
    assert seen == [THRESHOLDS] * 3
    assert gc.get_threshold() == (700, 10, 10)


def test_results_of_the_python_api_collect_rarely() -> None:
    seen: list[tuple[int, int, int]] = []

    def records(*_: object) -> Iterator[dict[str, object]]:
        seen.append(gc.get_threshold())
        yield {"job": "a", "slot": 0}

    result = shadowprice.simulate(CLUSTER, [JOB], policy="fifo")
    result = replace(result, run=replace(result.run, decisions=records, payments=records))
    gc.set_threshold(700, 10, 10)
    assert result.decisions["job"].to_list() == ["a"]
    assert result.payments is not None
    assert seen == [THRESHOLDS] * 2
    assert gc.get_threshold() == (700, 10, 10)

"""A thousand hostile inputs with their recorded results; see `tests.hostile.make_table`."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from tests.hostile import documents
from tests.hostile.case import Case
from tests.hostile.make_table import TABLE, gets
from tests.hostile.pool import Worker, good_runs, judge
from tests.support.examples import RUN_ALL


def table() -> list[dict[str, Any]]:
    with gzip.open(TABLE, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


@pytest.mark.extended
def test_hostile_inputs_give_the_recorded_results() -> None:
    records = table()
    assert len({json.dumps(Case.of(record).record()) for record in records}) >= 1000
    wrong = []
    with good_runs() as runs, Worker(runs) as worker:
        for record in records[:: 1 if RUN_ALL else 4]:
            answer = worker.ask(Case.of(record))
            # Times aren't asserted: a hang ends the worker, which is a result of its own.
            faults = judge(answer, seconds=float("inf"))
            if faults or gets(answer) != record["gets"]:
                wrong.append((record["words"], record["gets"], gets(answer), faults))
    assert not wrong, f"{len(wrong)} of {len(records)}: {wrong[:5]}"


@pytest.mark.extended
def test_started_services_are_stopped_and_failed_starts_reported() -> None:
    words = ("serve", "--cluster", "c.yaml", "--data", "kept", "--listen", "127.0.0.1:0")
    files: dict[str, Any] = {"c.yaml": documents.text_of(documents.CLUSTER)}
    with good_runs([]) as runs, Worker(runs) as worker:
        good = worker.ask(Case((*words, "--executor", "none", "--observe"), files))
        bad = worker.ask(Case(words, {**files, "kept/shadowprice.db": "x" * 5000}))
    assert good["status"] == 0, good["err"]
    assert "listening on" in good["out"]
    assert "kept/operator.token" in good["made"]
    assert bad["status"] in {1, 2}
    assert "error: " in bad["err"]
    assert not judge(bad, seconds=float("inf"))

"""How a generation ended, against the table of docs/executors.md, typed by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowprice.executors.generations.outcome import (
    GenerationOutcome,
    compute_outcome,
    has_outcome,
)

Exits = list[tuple[str, int]]
W0, W1, PS = "worker-0", "worker-1", "ps-0"


def judged(
    exits: Exits, workers: int = 2, *, tolerant: bool = True, **more: bool
) -> GenerationOutcome:
    fields = {"stopped": False, "from_outside": False} | more
    return compute_outcome(
        exits, workers, tolerant=tolerant, killed=frozenset(), notes={}, **fields
    )


@pytest.mark.parametrize(
    ("exits", "over", "ending", "process"),
    [
        ([(W1, 137)], False, None, None),
        ([(W1, 137), (W0, 0)], True, "done", W0),
        ([(W0, 137), (W1, 0)], True, "done", W1),
        ([(W0, 0), (W1, 137)], True, "done", W0),
        ([(W1, 137), (W0, 3)], True, "failed", W0),
        ([(PS, 9)], True, "failed", PS),
        ([(W1, 137), (PS, 9), (W0, 143)], True, "failed", PS),
        ([(PS, 0)], False, None, None),
    ],
)
def test_workers_that_are_tolerated_end_nothing_while_another_lives(
    exits: Exits, over: bool, ending: str | None, process: str | None
) -> None:
    assert has_outcome(exits, 2, tolerant=True) is over
    if over:
        result = judged(exits)
        assert (result.ending, result.process) == (ending, process)


def test_the_reason_names_workers_that_died_on_the_way() -> None:
    assert "worker-1 ended by SIGKILL, status 137" in judged([(W1, 137), (W0, 0)]).reason


def test_the_reason_of_what_is_done_names_what_was_left_running() -> None:
    notes = {W0: "it left much", W1: "it used more memory", PS: "it is none of a job's workers"}
    more = {"stopped": False, "from_outside": False, "killed": frozenset(), "notes": notes}
    exits = [(W1, 9), (W0, 0), (PS, 0)]
    result = compute_outcome(exits, 2, tolerant=True, **more)  # type: ignore[arg-type]  # by name
    assert result.reason == (
        "the remaining workers exited 0; earlier worker-1 exited 9; worker-0: it left much"
    )


def test_a_stop_counts_though_a_worker_died_before_it() -> None:
    exits = [(W1, 137), (W0, 143), (PS, 143)]
    assert judged(exits, stopped=True).ending == "stopped"
    assert judged(exits, stopped=True, tolerant=False).ending == "failed"
    assert judged(exits, from_outside=True).ending == "lost"
    assert judged([(W1, 137), (W0, 1)], stopped=True).ending == "failed"


@pytest.mark.parametrize(
    ("codes", "ending"), [((0, 0), "done"), ((0, 143), "lost"), ((143, 1), "lost")]
)
def test_a_failure_after_a_signal_from_outside_is_a_loss(
    codes: tuple[int, int], ending: str
) -> None:
    exits = list(zip((W0, W1), codes, strict=True))
    result = judged(exits, from_outside=True, tolerant=False)
    assert (result.ending, result.outside) == (ending, True)
    ordered = judged(exits, from_outside=True, stopped=True, tolerant=False)
    assert not ordered.outside
    if 1 in codes:
        assert ordered.ending == "failed"
        assert result.reason == (
            "it received a signal that the scheduler did not send; worker-1 exited 1"
        )


@given(st.permutations([W0, W1, PS]), st.lists(st.sampled_from([0, 1, 137, 143]), min_size=3))
def test_without_tolerance_the_first_that_exits_otherwise_decides(
    order: list[str], codes: list[int]
) -> None:
    exits = list(zip(order, codes, strict=False))
    for count in range(1, 4):
        seen = dict(exits[:count])
        well = [name for name in (W0, W1) if seen.get(name) == 0]
        bad = [name for name, code in exits[:count] if code]
        assert has_outcome(exits[:count], 2, tolerant=False) is (len(well) == 2 or bool(bad))
    result = judged(exits, tolerant=False)
    if len(well) == 2:
        assert (result.ending, result.process) == ("done", W0)
    else:
        assert (result.ending, result.process) == ("failed", bad[0])

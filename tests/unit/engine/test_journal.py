"""A journal, written out and read back, replays to the same state."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowprice.core.errors import InputError
from shadowprice.core.policy import Policy
from shadowprice.engine import Engine
from shadowprice.engine.journal import decode, encode, replay
from shadowprice.simulator.driver import Simulation
from shadowprice.simulator.execution import StragglingExecution
from shadowprice.simulator.journaling import JournalWriter
from tests.planners import EarliestPlanner, Wanderer
from tests.properties.test_engine import SEEDS, Auditor, world


def policy(seed: int, kind: str) -> Policy:
    return EarliestPlanner() if kind == "planner" else Wanderer(seed)


@settings(deadline=None, derandomize=True, max_examples=40)
@given(SEEDS, st.sampled_from(["planner", "reactive"]))
def test_lines_replay_to_the_same_state(seed: int, kind: str) -> None:
    on, jobs, incidents, _ = world(seed)
    auditor = Auditor(on, jobs)
    simulation = Simulation(
        on,
        jobs,
        policy(seed, kind),
        until=40,
        incidents=incidents,
        execution=StragglingExecution(0.1, seed),
    )
    engine = simulation.run([auditor])
    lines = [encode(event) for event in auditor.events]
    again = replay(map(decode, lines), Engine(on, policy(seed, kind), until=40))
    assert again.state_digest() == engine.state_digest()
    assert [encode(decode(line)) for line in lines] == lines
    cut = lines[: len(lines) // 2]
    assert replay(map(decode, cut), Engine(on, policy(seed, kind), until=40)).jobs.keys() <= (
        engine.jobs.keys()
    )


def test_the_writer_leaves_a_line_an_event(tmp_path: Path) -> None:
    on, jobs, incidents, _ = world(7)
    auditor = Auditor(on, jobs)
    with JournalWriter(tmp_path / "journal.jsonl") as writer:
        Simulation(on, jobs, EarliestPlanner(), incidents=incidents).run([auditor, writer])
    lines = (tmp_path / "journal.jsonl").read_text().splitlines()
    assert lines == [encode(event) for event in auditor.events]
    assert json.loads(lines[0])["event"] in {"JobsArrived", "ServerLost", "SlotBegan"}


@pytest.mark.parametrize(
    "line",
    [
        "",
        "{",
        "[]",
        "3",
        '{"slot": 3}',
        '{"event": "Nothing", "slot": 3}',
        '{"event": "SlotBegan"}',
        '{"event": "SlotBegan", "slot": 3, "more": 1}',
        '{"event": "JobsArrived", "slot": 3, "jobs": [{"name": "a"}]}',
    ],
)
def test_anything_else_is_refused_with_its_place(line: str) -> None:
    with pytest.raises(InputError, match=r"journal\.jsonl: line 4: is no event"):
        decode(line, "journal.jsonl: line 4")

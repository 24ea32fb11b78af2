"""Cost of a change of placement, as plain scripts measure it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shadowprice.jobs import changes
from shadowprice.jobs.changes import Change, record_leaving
from tests.support.waiting import WAIT_LIMIT_SECONDS, wait_until

PARTS = {"change_checkpoint", "change_away", "change_start", "change_first_step"}

SCRIPT = """
import time
from shadowprice import jobs

stop = jobs.StopSignal()
found = jobs.load()
step = found.step if found else 0
print("ready", flush=True)
while step < 2000:
    time.sleep(0.01)
    step += 1
    if step % 2 == 0:
        jobs.report(step, loss=1 / step)
    if stop:
        jobs.save(step, b"state")
        jobs.leave()
"""

OWN = """
import os, sys, time
from pathlib import Path
from shadowprice import jobs

stop = jobs.StopSignal()
mine = jobs.current().checkpoint_dir / "mine"
step = int(mine.read_text()) if mine.exists() else 0
jobs.record_restored(step)
print("ready", flush=True)
while step < 2000:
    time.sleep(0.01)
    step += 1
    jobs.report(step)
    if stop:
        mine.write_text(str(step))
        jobs.record_saved(step)
        jobs.leave()
"""


def test_the_beginning_of_a_process_is_known_to_a_tick_of_its_clock() -> None:
    script = "from shadowprice.jobs.changes import process_start_time; print(process_start_time())"
    tick = 1.0 / os.sysconf("SC_CLK_TCK")
    for _ in range(3):  # not at one fraction of a second by chance
        before = time.time()
        with subprocess.Popen(
            [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True
        ) as process:
            started = time.time()
            out, _ = process.communicate(timeout=WAIT_LIMIT_SECONDS)
        assert before - 2 * tick <= float(out) <= started + 2 * tick
        time.sleep(0.3)


class Clock:
    """A clock that is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        fake_time = SimpleNamespace(monotonic=lambda: self.now, time=lambda: self.now)
        monkeypatch.setattr(changes, "time", fake_time)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def reached(change: Change, clock: Clock, *marks: tuple[float, float]) -> None:
    for step, at in marks:
        clock.now = at
        change.reached(step)


def test_the_first_stretch_costs_what_its_steps_do_not(clock: Clock) -> None:
    change = Change(0.5, 2.0, 1.5, 10)
    # Three steps after 7 s, then two at a time, of a second each; one interval has a delay.
    marks = [(13, 107.0), (15, 109.0), (17, 111.0), (19, 133.0), (21, 135.0)]
    reached(change, clock, *marks)
    assert change.metrics() == {}
    reached(change, clock, (21, 136.0), (20, 136.5), (23, 137.0))  # an invalid count says nothing
    assert change.metrics() == {
        "change_checkpoint": 0.5,
        "change_away": 2.0,
        "change_start": 1.5,
        "change_first_step": pytest.approx(4.0),
    }
    reached(change, clock, (30, 500.0))  # it is known
    assert change.first == pytest.approx(4.0)


def test_a_first_stretch_that_was_fast_costs_nothing(clock: Clock) -> None:
    change = Change(0.0, 0.0, 0.0, 0)
    reached(change, clock, *((step, 100.0 + step + (step > 1)) for step in range(1, 7)))
    assert change.first == 0.0


def test_only_state_of_the_generation_before_is_a_change(tmp_path: Path) -> None:
    assert Change.measured(tmp_path, 1, 0).checkpoint is None
    record_leaving(tmp_path, 3, 40, 0.25)
    assert Change.measured(tmp_path, 4, 40).checkpoint == 0.25
    for generation, step in ((4, 39), (5, 40), (3, 40)):
        change = Change.measured(tmp_path, generation, step)
        assert (change.checkpoint, change.away) == (None, None)
        assert change.start > 0
    for damaged in (b"", b"[]", b"{}", b'{"generation": 3, "step": 40}', b"\xff"):
        (tmp_path / "left.json").write_bytes(damaged)
        assert Change.measured(tmp_path, 4, 40).checkpoint is None


def test_a_value_that_cannot_be_written_is_omitted(tmp_path: Path) -> None:
    record_leaving(tmp_path / "nowhere", 1, 1, 0.1)
    (tmp_path / "left.json").mkdir()
    record_leaving(tmp_path, 1, 1, 0.1)
    assert [path.name for path in tmp_path.iterdir()] == ["left.json"]


def generation(folder: Path, script: str, number: int) -> subprocess.Popen[str]:
    kept = {name: one for name, one in os.environ.items() if not name.startswith("SHADOWPRICE_")}
    variables = {
        "SHADOWPRICE_JOB": "job",
        "SHADOWPRICE_GENERATION": str(number),
        "SHADOWPRICE_CHECKPOINT_DIR": str(folder / "checkpoints"),
        "SHADOWPRICE_PROGRESS_FILE": str(folder / "progress.json"),
    }
    (folder / "checkpoints").mkdir(exist_ok=True)
    (folder / "progress.json").unlink(missing_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-c", script], env={**kept, **variables}, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def reports(folder: Path, enough: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Wait for a report, and return it."""
    report: dict[str, Any] = {}

    def is_enough() -> bool:
        try:
            report.update(json.loads((folder / "progress.json").read_bytes()))
        except FileNotFoundError:
            report.update(minibatches=0, metrics={})
        return enough(report)

    wait_until(is_enough, lambda: report)
    return report


def ended(process: subprocess.Popen[str], number: int) -> None:
    process.send_signal(number)
    process.communicate(timeout=WAIT_LIMIT_SECONDS)
    assert process.returncode == (143 if number == signal.SIGTERM else -number)


@pytest.mark.processes
@pytest.mark.parametrize("script", [SCRIPT, OWN], ids=["plain", "checkpoints-of-its-own"])
def test_a_plain_script_reports_the_cost_of_its_moves(tmp_path: Path, script: str) -> None:
    first = generation(tmp_path, script, 1)
    # Its first start costs no change, because nothing ran before.
    report = reports(tmp_path, lambda one: one["minibatches"] >= 30)
    assert not PARTS & report["metrics"].keys()
    ended(first, signal.SIGTERM)
    second = generation(tmp_path, script, 2)
    report = reports(tmp_path, lambda one: bool(PARTS & one["metrics"].keys()))
    assert report["metrics"].keys() >= PARTS
    assert all(0.0 <= report["metrics"][part] < 240.0 for part in PARTS)
    assert report["metrics"]["change_start"] > 0.0
    # It reports repeatedly, because only the newest report counts.
    later = reports(tmp_path, lambda one: one["minibatches"] > report["minibatches"] + 10)
    assert {name: later["metrics"][name] for name in PARTS} == {
        name: report["metrics"][name] for name in PARTS
    }
    ended(second, signal.SIGKILL)
    # A killed generation left nothing: the third one continues from the first one's state.
    third = generation(tmp_path, script, 3)
    report = reports(tmp_path, lambda one: one["minibatches"] >= later["minibatches"] + 30)
    assert not PARTS & report["metrics"].keys()
    ended(third, signal.SIGTERM)


@pytest.mark.processes
def test_a_scripts_own_report_has_priority(tmp_path: Path) -> None:
    script = SCRIPT.replace("loss=1 / step", "change_start=7.0")
    ended(generation(tmp_path, script, 1), signal.SIGTERM)
    second = generation(tmp_path, script, 2)
    report = reports(tmp_path, lambda one: "change_away" in one["metrics"])
    assert report["metrics"]["change_start"] == 7.0
    ended(second, signal.SIGTERM)

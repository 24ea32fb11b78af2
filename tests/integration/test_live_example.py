"""The example of a job that really trains, and of the service that runs it: `make live`."""

from __future__ import annotations

import asyncio
import importlib.util
import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from shadowprice import jobs
from shadowprice.executors.contract import (
    Ended,
    Ending,
    Executor,
    GenerationSpec,
    Progressed,
    ServerAllocation,
)
from tests.contract.harness import LocalHarness, ReportLog, eventually, spec
from tests.support.waiting import WAIT_LIMIT_SECONDS

ROOT = Path(__file__).parents[2]
TRAIN = ROOT / "examples" / "live" / "train.py"
ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="jobs run on Linux"),
]


def weights(folder: Path) -> tuple[int, list[np.ndarray]]:
    result = jobs.load(folder)
    assert result is not None
    with np.load(io.BytesIO(result.data)) as stored:
        return result.step, [stored[name] for name in stored.files]


def test_training_result_is_independent_of_moves(tmp_path: Path) -> None:
    """One worker all the time against one, three and two, stopped and killed in between."""
    words = (sys.executable, str(TRAIN), "--steps", "200", "--seed", "3")
    fixed, moved = tmp_path / "fixed", tmp_path / "moved"
    environment = {**os.environ, **ENVIRONMENT, "SHADOWPRICE_CHECKPOINT_DIR": str(fixed)}
    subprocess.run(
        words, env=environment, check=True, capture_output=True, timeout=WAIT_LIMIT_SECONDS
    )

    def generation(number: int, workers: int) -> GenerationSpec:
        return spec(
            "job",
            number,
            (*words, "--pace", "0.03"),
            ServerAllocation("one", workers),
            env=ENVIRONMENT,
            checkpoint_dir=str(moved),
        )

    async def scenario(harness: LocalHarness, executor: Executor, reports: ReportLog) -> None:
        async def step(least: int) -> None:
            while (jobs.load(moved) or jobs.Checkpoint(0, b"")).step < least:
                await asyncio.sleep(0.02)

        await executor.start(generation(1, 1))
        await step(50)
        await executor.stop(5, "job", 1)
        first = await reports.first(Ended, "job", 1)
        assert (first.ending, first.code) == (Ending.STOPPED, 143)
        await executor.start(generation(2, 3))
        # It measures and prints the cost of its moves.
        parts = {"change_checkpoint", "change_away", "change_start", "change_first_step"}
        await eventually(
            lambda: any(
                parts <= entry.metrics.keys() for entry in reports.matching(Progressed, "job", 2)
            ),
            lambda: reports.received,
        )
        await step(100)
        harness.kill_agent("job", 2)
        assert (await reports.first(Ended, "job", 2)).ending is Ending.LOST
        await executor.start(generation(3, 2))
        last = await reports.first(Ended, "job", 3)
        assert last.ending is Ending.DONE, last
        assert last.tail[-1].startswith("done: loss 0.0")

    LocalHarness(tmp_path / "executor", {"cgroup": "off"}).run(scenario)
    (step, alone), (same, several) = weights(fixed), weights(moved)
    assert step == same == 200
    for single, other in zip(alone, several, strict=True):
        np.testing.assert_allclose(other, single, rtol=1e-6, atol=1e-12)


@pytest.mark.extended
@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("fastapi", "uvicorn", "sqlalchemy")),
    reason="the extra `service` is not installed",
)
def test_make_live_shows_jobs_that_learn(tmp_path: Path) -> None:
    data = tmp_path / "live"
    done = subprocess.run(
        [sys.executable, "tools/live.py", "--data", data],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_LIMIT_SECONDS,
    )
    log = (tmp_path / "live.log").read_text()
    assert done.returncode == 0, done.stdout + done.stderr + log
    token = (data / "operator.token").read_text().strip()
    assert f"Token  {token}" in done.stdout
    assert token not in log
    output_lines = done.stdout.rpartition("\n\n")[2].splitlines()
    assert {line.split()[0] for line in output_lines} == {
        "spirals",
        "spirals-urgent",
        "letters",
        "letters-small",
    }
    assert all("% right" in line for line in output_lines)
    # Numbers of generations depend on the load: a job that reports late isn't moved.

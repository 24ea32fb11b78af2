"""The examples work as described: by hand, and on the local executor with a killed worker."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from shadowprice.executors.contract import Ended, Ending, Executor, Progressed, ServerAllocation
from tests.contract.harness import LocalHarness, ReportLog, eventually, spec

pytestmark = pytest.mark.train

EXAMPLES = Path(__file__).parents[3] / "examples" / "training"
SOURCES = str(Path(__file__).parents[3] / "src")


def worker(job: str, rank: int) -> int | None:
    """Return the process of a worker, once it exists."""
    wanted = {f"SHADOWPRICE_JOB={job}", "SHADOWPRICE_ROLE=worker", f"SHADOWPRICE_RANK={rank}"}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if wanted <= set((entry / "environ").read_text(errors="replace").split("\0")):
                return int(entry.name)
        except OSError:
            continue
    return None


@pytest.mark.extended
def test_factorisation_continues_without_a_worker_and_learns(tmp_path: Path) -> None:
    job = f"ratings-{os.getpid()}"
    words = (sys.executable, str(EXAMPLES / "factorisation.py"), "--epochs", "8")

    async def scenario(_: LocalHarness, executor: Executor, reports: ReportLog) -> None:
        order = spec(
            job,
            1,
            words,
            ServerAllocation("one", 2, 1),
            ServerAllocation("two", 1, 1),
            env={"PYTHONPATH": SOURCES, "OMP_NUM_THREADS": "1"},
            tolerates_workers=True,
        )
        await executor.start(order)
        await eventually(
            lambda: any(one.progress > 50e6 for one in reports.matching(Progressed, job))
        )
        result = worker(job, 1)
        assert result is not None
        os.kill(result, signal.SIGKILL)
        ended = await reports.first(Ended, job)
        assert (ended.ending, ended.code) == (Ending.DONE, 0), ended
        assert "worker-1 ended by SIGKILL" in ended.reason
        error = re.search(r"error ([\d.]+) on ratings held out", "\n".join(ended.tail))
        assert error is not None
        assert float(error[1]) < 0.4  # the noise is 0.3; an untrained model has 1.0
        last = reports.matching(Progressed, job)[-1]
        assert last.progress == 8 * 180 * 10**6
        assert {"minibatch_time", "gradient_bytes", "worker_bandwidth"} <= last.metrics.keys()

    LocalHarness(tmp_path / "executor", {"cgroup": "off"}).run(scenario)


def test_a_family_of_the_testbed_takes_a_step_by_hand(tmp_path: Path) -> None:
    # The smallest one completely; the others are tested where they train.
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed")
    words = [sys.executable, str(EXAMPLES / "families.py"), "--family", "inception-bn"]
    words += ["--images", "4", "--minibatch", "4"]
    environment = {**os.environ, "SHADOWPRICE_CHECKPOINT_DIR": str(tmp_path / "checkpoints")}
    said = subprocess.run(
        words,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert said.returncode == 0, said.stderr
    assert re.match(r"inception-bn +[\d.]+ MB +[\d.]+ s .* in 1 steps", said.stdout), said.stdout
    assert json.loads((tmp_path / "images" / "index.json").read_text())["chunks"][0][1] == 4

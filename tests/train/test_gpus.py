"""With real GPUs: the devices that the local executor assigns, and how workers use them."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from shadowprice.executors.contract import Ended, Ending, Executor, ServerAllocation
from tests.contract.harness import LocalHarness, ReportLog, spec
from tests.train.backends import ON_GPUS

pytestmark = [pytest.mark.train, ON_GPUS]

ROOT = Path(__file__).parents[2]
WORDS = (sys.executable, str(ROOT / "examples" / "training" / "digits.py"), "--epochs", "6")
MEMORY = 4 << 30


@pytest.mark.parametrize(
    ("workers", "share", "says"),
    [(1, 1000, ""), (2, 500, "has its own GPU (some share one)")],
)
def test_workers_learn_on_their_assigned_chunks(
    tmp_path: Path, workers: int, share: int, says: str
) -> None:
    async def scenario(_: LocalHarness, executor: Executor, reports: ReportLog) -> None:
        order = spec(
            "digits",
            1,
            WORDS,
            ServerAllocation("one", workers),
            env={"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
            worker={"gpu": share, "memory": MEMORY},
        )
        await executor.start(order)
        ended = await reports.first(Ended, "digits")
        assert ended.ending is Ending.DONE, ended
        said = (await executor.logs("digits")).text
        result = re.search(r"done: loss [\d.]+, ([\d.]+)% right", said)
        assert result, said
        assert float(result[1]) > 90.0
        assert says in said

    LocalHarness(tmp_path / "executor", {"cgroup": "off"}).run(scenario)

"""What only the Ray executor has to get right."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from shadowprice.executors.contract import Ended, Ending, Executor
from shadowprice.executors.generations.store import Store
from tests.contract.harness import LocalHarness, RayHarness, Told, ready, spec
from tests.rays import RayCluster

pytestmark = pytest.mark.ray


def test_damaged_records_on_a_node_are_a_loss_and_no_more(
    tmp_path: Path, ray_cluster: RayCluster
) -> None:
    harness = RayHarness(tmp_path / "executor", ray_cluster)

    async def scenario(own: LocalHarness, executor: Executor, told: Told) -> None:
        await executor.start(spec("damaged", 1, "(setsid sleep 600 &); echo ready; sleep 600"))
        await ready(executor, "damaged")
        plan = Store(own.path).generation("damaged", 1).plan()
        part = own.path / "nodes" / "parts" / plan["parts"][0]["actor"]
        supervisor = harness.part("damaged", 1)["supervisor"]
        (part / "state").write_bytes(b"\0" * 16_384)
        os.kill(supervisor, signal.SIGKILL)
        ended = await told.one(Ended, "damaged")
        assert ended.ending is Ending.LOST
        await executor.start(spec("damaged", 2, "true"))
        assert (await told.one(Ended, "damaged", 2)).ending is Ending.DONE

    harness.run(scenario)

"""An executor that observes jobs and records commands."""

from __future__ import annotations

from typing import Any

from shadowprice.executors.contract import (
    ExecutorCapabilities,
    GenerationSpec,
    ObservedJob,
    Receipt,
)
from tests.support.services import job
from tests.support.simulated_world import FakeExecutor, ManualClock, World

CLUSTER = {
    "slot": "1s",
    "horizon": 100,
    "tenants": [{"name": "red"}, {"name": "blue"}],
    "servers": [{"name": "g", "count": 2, "capacity": {"gpu": 2, "cpu": 8}}],
}


class RecordingExecutor(FakeExecutor):
    """Fake executor that observes the jobs in ``sees`` and records every command."""

    capabilities = ExecutorCapabilities(observes=True)

    def __init__(self) -> None:
        super().__init__(World(ManualClock()))
        self.orders: list[str] = []
        self.looks = 0
        self.sees: tuple[ObservedJob, ...] = ()

    async def observe(self) -> tuple[ObservedJob, ...]:
        self.looks += 1
        return self.sees

    async def start(self, spec: GenerationSpec) -> Receipt:
        self.orders.append(f"start {spec.job}")
        return Receipt.ACCEPTED

    async def stop(
        self, command: int, job: str, generation: int, grace: float | None = None
    ) -> Receipt:
        self.orders.append(f"stop {job}")
        return Receipt.ACCEPTED

    async def acknowledge_end(self, job: str, generation: int) -> None:
        self.orders.append(f"acknowledge_end {job}")

    async def delete_job_data(self, job: str) -> None:
        self.orders.append(f"delete_job_data {job}")


def short(name: str, **changes: Any) -> dict[str, Any]:
    utility = {"kind": "sigmoid", "value": 50, "decay": 0.01, "target": "600 slots"}
    run = {"command": ["train"]}
    return job(name, minibatches=2, minibatch_time="1s", utility=utility, run=run, **changes)

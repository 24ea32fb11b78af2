"""A durable engine on clocks that a test sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import select

from shadowprice.core.job import MICRO
from shadowprice.executors.contract import (
    Ended,
    Ending,
    Progressed,
    Started,
)
from shadowprice.policies.choice import PolicyChoice
from shadowprice.service.clock import SECOND, MonotonicWallClock
from shadowprice.service.state.durable_engine import DurableEngine
from shadowprice.service.state.durable_state import CommitResult
from shadowprice.service.state.operations import (
    SubmitJobs,
)
from shadowprice.service.state.report_operations import (
    RecordProgress,
    RecordReports,
)
from shadowprice.service.state.slot_operations import AdvanceResult, AdvanceSlots
from shadowprice.service.state.store_queries import list_events
from shadowprice.service.state.submission import read_submissions
from shadowprice.service.store import Store, tables
from tests.support.simulated_hours import CLUSTER, SLOT
from tests.support.simulated_world import ManualClock


class EngineBench:
    """A durable engine on clocks that a test sets."""

    def __init__(
        self, where: Path | str, policy: str | PolicyChoice = "oasis", *, virtual: bool = False
    ) -> None:
        self.clock = ManualClock()
        self.store = Store(str(where))
        self.store.open()
        self.choice = PolicyChoice(policy) if isinstance(policy, str) else policy
        self.virtual = virtual
        self.tenant: str | None = None
        self.recover()

    def recover(self) -> None:
        self.durable = DurableEngine(
            self.store, CLUSTER, self.choice, MonotonicWallClock(self.clock), virtual=self.virtual
        )

    def commit(self, operation: Any) -> CommitResult:
        outcome = self.durable.commit([operation])
        for answer in outcome.answers:
            error = answer.error if isinstance(answer, AdvanceResult) else answer
            if isinstance(error, BaseException):
                raise error
        return outcome

    def submit(self, name: str, **changes: Any) -> None:
        record = {
            "name": name,
            "chunks": 1,
            "minibatches": 60,
            "minibatch_time": "6s",
            "worker": {"gpu": 1, "cpu": 1},
            "utility": {"kind": "sigmoid", "value": 20, "decay": 0.1, "target": "20 slots"},
            "run": {"command": ["train"], "retries": 1},
            **changes,
        }
        result = read_submissions([record], CLUSTER, tenant=self.tenant, runs=True)
        self.commit(SubmitJobs(result, at_once=True))

    def build_submission(self, name: str, **changes: Any) -> SubmitJobs:
        """Return the submission of a job like the first one."""
        record = {**dict(self.durable.state.specs["first"]), "name": name, **changes}
        result = read_submissions([record], CLUSTER, tenant=None, runs=True)
        return SubmitJobs(result, at_once=True)

    def advance(self, slots: int = 1) -> None:
        for _ in range(slots):
            self.clock.advance(SLOT)
            self.commit(AdvanceSlots(self.virtual))

    def job_key(self, name: str) -> str:
        """Return the key of a job; a key is returned as it is."""
        with self.store.reading() as connection:
            table = tables.jobs
            named = select(table.c.key).where(table.c.name == name).order_by(table.c.id.desc())
            return connection.execute(named).scalars().first() or name

    def report_start(self, name: str) -> None:
        name = self.job_key(name)
        order = self.durable.state.desired[name]
        at = self.clock.wall() / SECOND
        self.commit(RecordReports([Started(order.id, name, order.generation, at)]))

    def lose_generation(self, name: str) -> None:
        """Lose a job's generation, and start the next one in the next slot."""
        name = self.job_key(name)
        generation = self.durable.state.desired[name].generation
        at = self.clock.wall() / SECOND
        self.commit(
            RecordReports([Ended(0, name, generation, at, Ending.LOST, None, "the node died")])
        )
        self.advance()
        assert self.durable.state.desired[name].generation == generation + 1

    def report_progress(self, name: str, minibatches: float) -> None:
        name = self.job_key(name)
        generation = self.durable.state.desired[name].generation
        report = Progressed(name, generation, int(minibatches * MICRO), {"loss": 0.5}, 0.0)
        self.commit(RecordProgress({name: report}, [report]))

    def event_kinds(self, name: str) -> list[str]:
        with self.store.reading() as connection:
            return [
                event.kind for event in list_events(connection, after=0, job=self.job_key(name))
            ]

"""Runs a workload on the live service in virtual time, for experiments.

The service is the real one, only its clock and executor are virtual; jobs are `VirtualJob`s. The
service's libraries are loaded only when it runs.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from shadowprice.core.job_keys import qualified_name
from shadowprice.core.relative_values import STATED
from shadowprice.executors.contract import StartRefused
from shadowprice.executors.virtual import (
    VirtualClock,
    VirtualExecutor,
    VirtualGeneration,
    VirtualJob,
    run_virtual,
)
from shadowprice.policies.choice import PolicyChoice

if TYPE_CHECKING:
    from shadowprice.service.virtual import VirtualService

_MEMORY: Final = Path("/dev/shm")
"""A file system in memory, on which a commit doesn't wait for a disk."""


@dataclass(frozen=True, slots=True)
class VirtualOutcome:
    """Result of a job; slots count from the start of the service."""

    state: str  # at the end
    utility: float  # earned; 0 if it didn't complete
    arrival: int | None
    completion: int | None
    first_promise: int | None  # promised when it was admitted
    generations: int
    done: float  # mini-batches that it computed
    lost: float  # mini-batches of `done` that no checkpoint kept
    reason: str = ""  # why it didn't complete
    has_learnt_margin: bool = False  # whether its first promise has a margin learnt from other jobs
    is_due: bool = True  # its first promise ended before the run did

    @property
    def kept(self) -> bool | None:
        """True if its first promise was kept; None if it had none, or it wasn't due yet."""
        if self.first_promise is None or not (self.is_due or self.state == "finished"):
            return None
        return self.state == "finished" and (self.completion or 0) <= self.first_promise


def run_live(
    cluster: Mapping[str, Any],
    jobs: Sequence[tuple[float, Mapping[str, Any], VirtualJob]],
    choice: PolicyChoice,
    seconds: float,
    *,
    settings: Mapping[str, Any] | None = None,
) -> dict[str, VirtualOutcome]:
    """Run jobs on the live service in virtual time, and return their results by name.

    ``cluster`` is the record of a cluster file. Each job has a submission time in seconds after the
    start, its stated record, and its real behaviour. The run ends after ``seconds`` at the latest,
    and jobs that are still open count as not completed. ``settings`` are further settings of the
    service.
    """
    from shadowprice.service.virtual import VirtualService  # noqa: PLC0415  # imports web libraries

    async def main(clock: VirtualClock) -> dict[str, VirtualOutcome]:
        loop = asyncio.get_running_loop()
        memory = _MEMORY if _MEMORY.is_dir() else None
        with tempfile.TemporaryDirectory(prefix="shadowprice-virtual-", dir=memory) as folder:
            keys = {str(record["name"]): submitted_key(record) for _, record, _ in jobs}
            executor = VirtualExecutor(
                clock, {submitted_key(record): job for _, record, job in jobs}
            )
            # Stated values count as they are, as in the simulations that runs are compared with.
            chosen = {"values": STATED, **(settings or {})}
            service = VirtualService(Path(folder), cluster, choice, clock, executor, chosen)
            await service.start()
            start = loop.time()
            for after, record, _ in sorted(jobs, key=lambda entry: entry[0]):
                await asyncio.sleep(max(0.0, start + after - loop.time()))
                await service.submit(record)
            slot = float(service.service.cluster.slot_seconds)
            await service.run_until_over(start + seconds - loop.time(), slot / 2)
            service.check()
            outcomes = {name: await _outcome(service, executor, key) for name, key in keys.items()}
            await service.stop()
            return outcomes

    return run_virtual(main)


def submitted_key(record: Mapping[str, Any]) -> str:
    """Return the key of a submitted job in the service: its name, qualified by its tenant."""
    return qualified_name(record.get("tenant"), str(record["name"]))


async def _outcome(service: VirtualService, executor: VirtualExecutor, key: str) -> VirtualOutcome:
    view = await service.view(key)
    now = asyncio.get_running_loop().time()
    generations = [
        generation
        for generation in executor.generations
        if generation.spec.job == key and not isinstance(generation.end, StartRefused)
    ]
    finished = view.state.value == "finished"
    return VirtualOutcome(
        view.state.value,
        float(view.utility or 0.0) if finished else 0.0,
        view.arrival,
        view.completion if finished else None,
        view.first_promise,
        len(generations),
        sum(_minibatches_done(generation, now) for generation in generations),
        sum(generation.lost_progress for generation in generations),
        "" if view.reason is None else str(view.reason.get("message", "")),
        service.has_learnt_margin(view),
        view.first_promise is None
        or view.first_promise < service.writer.published.servers.next_slot,
    )


def _minibatches_done(generation: VirtualGeneration, now: float) -> float:
    end = now if generation.ended_at is None else generation.ended_at
    return generation.progress_at(end) - generation.base

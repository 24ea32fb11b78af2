"""The registry of generations: the locks of jobs."""

from __future__ import annotations

import asyncio
import gc

from shadowprice.executors.generations.registry import GenerationRegistry, TrackedGeneration


def test_lock_of_a_job_is_passed_on_among_many_jobs() -> None:
    registry: GenerationRegistry[TrackedGeneration] = GenerationRegistry()
    holders, most = 0, 0

    async def hold(steps: int) -> None:
        nonlocal holders, most
        async with registry.job_lock("job"):
            holders += 1
            most = max(most, holders)
            for _ in range(steps):
                await asyncio.sleep(0)
            holders -= 1

    async def scenario() -> None:
        first, second = asyncio.create_task(hold(1)), asyncio.create_task(hold(5))
        while not first.done():
            await asyncio.sleep(0)
            # Runs between the release by the first and the acquisition by the second, too.
            for number in range(10_001):
                registry.job_lock(f"other-{number}")
            third = asyncio.create_task(hold(5))
        await asyncio.gather(second, third)

    asyncio.run(scenario())
    assert (holders, most) == (0, 1)


def test_locks_of_idle_jobs_are_forgotten() -> None:
    registry: GenerationRegistry[TrackedGeneration] = GenerationRegistry()
    for number in range(100):
        registry.job_lock(f"job-{number}")
    gc.collect()
    assert len(registry._locks) == 0

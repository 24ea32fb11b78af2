"""Random commands, restarts of the service and killed agents, with real processes.

Every process takes a lock of its job and records its generation. Whatever happens, no generation
starts twice, while another one has the lock, or after a newer one.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from shadowprice.executors.contract import Executor, GenerationPhase, Receipt
from tests.contract.harness import PATIENCE, LocalHarness, ReportLog, python, spec

pytestmark = pytest.mark.processes

JOB = """
import fcntl, os, random, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
said = os.open({path!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
lock = open({path!r} + ".lock", "w")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    os.write(said, b"two at once\\n")
os.write(said, os.environ["SHADOWPRICE_GENERATION"].encode() + b"\\n")
time.sleep(random.random())
sys.exit(random.choice((0, 1, 1)) if random.random() < 0.5 else time.sleep(600))
"""


def generations(path: Path) -> list[int]:
    """Return the generations that a job's processes recorded, in order."""
    said = path.read_text().splitlines() if path.exists() else []
    assert "two at once" not in said
    return [int(line) for line in said]


async def all_over(executor: Executor) -> None:
    """Stop everything, and wait for the reports of all ends."""
    for held in await executor.list():
        if held.end is None:
            await executor.stop(10_000, held.job, held.generation, 0.0)
    for _ in range(int(PATIENCE * 50)):
        if all(held.end is not None for held in await executor.list()):
            return
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("seed", [1, 2])
def test_no_generation_runs_twice_or_beside_another(
    harness: LocalHarness, tmp_path: Path, seed: int
) -> None:
    draw = random.Random(seed)
    files = {job: tmp_path / job for job in ("a", "b")}
    taken: set[tuple[str, int]] = set()
    newest = dict.fromkeys(files, 0)

    async def order(executor: Executor, command: int) -> None:
        job = draw.choice(sorted(files))
        number = max(1, newest[job] + draw.choice((-1, 0, 0, 0, 1, 1, 1, 2)))
        if draw.random() < 0.6:
            script = python(JOB.format(path=str(files[job])))
            copies = draw.choice((1, 1, 2))  # the same command may be under way twice
            received = await asyncio.gather(
                *(executor.start(spec(job, number, script, grace=5.0)) for _ in range(copies))
            )
            assert received.count(Receipt.ACCEPTED) <= 1
            if Receipt.ACCEPTED in received:
                assert number > newest[job]
                taken.add((job, number))
                newest[job] = number
        elif (await executor.stop(command, job, number)) is Receipt.ACCEPTED:
            newest[job] = max(newest[job], number)

    async def scenario(own: LocalHarness, executor: Executor, reports: ReportLog) -> None:
        await executor.close()
        await reports.end()
        for command in range(1, 8):
            executor = await own.open()
            reports = ReportLog(executor)
            for part in range(8):
                await order(executor, 100 * command + part)
                await asyncio.sleep(draw.choice((0.0, 0.0, 0.05, 0.3)))
                if draw.random() < 0.1:
                    running = [
                        entry
                        for entry in await executor.list()
                        if entry.phase is GenerationPhase.RUNNING
                    ]
                    for held in running[:1]:
                        own.kill_agent(held.job, held.generation)
            await executor.close()
            await reports.end()
        executor = await own.open()
        reports = ReportLog(executor)
        await all_over(executor)
        ended = {(held.job, held.generation) for held in await executor.list() if held.end}
        assert taken <= ended
        await executor.close()
        await reports.end()

    harness.run(scenario)
    assert taken
    for job, path in files.items():
        ran = generations(path)
        assert ran == sorted(set(ran))
        assert {(job, number) for number in ran} <= taken

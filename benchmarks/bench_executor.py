"""What running a generation costs: orders, supervisors, looking after them."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from pathlib import Path

from shadowprice.core.program import Program
from shadowprice.executors.contract import (
    Ended,
    ExecutorOptions,
    GenerationSpec,
    Report,
    ServerAllocation,
    ServerInfo,
    Started,
)
from shadowprice.executors.generations.store import GenerationStore
from shadowprice.executors.registry import create_executor


def field(process: int, name: str) -> int:
    """Return a number of a process: proportional memory in KiB, or CPU time in ticks."""
    if name == "pss":
        lines = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


async def measure(folder: Path, groups: str, count: int) -> None:
    executor = create_executor("local", ExecutorOptions(str(folder), settings={"cgroup": groups}))
    await executor.open()
    await executor.set_servers([ServerInfo("one", {"cpu": 1000 * count})])
    received: list[tuple[float, Report]] = []

    async def follow() -> None:
        async for report in executor.watch():
            received.append((time.monotonic(), report))  # noqa: PERF401  # one by one, as they come

    async def seen(kind: type[Started] | type[Ended]) -> None:
        while sum(isinstance(report, kind) for _, report in received) < count:
            await asyncio.sleep(0.02)

    following = asyncio.create_task(follow())
    ordered, answered = {}, []
    program = Program(("sleep", "600"))
    for number in range(count):
        began = ordered[str(number)] = time.monotonic()
        await executor.start(
            GenerationSpec(number, str(number), 1, (ServerAllocation("one", 1),), program)
        )
        answered.append(time.monotonic() - began)
    await seen(Started)
    begun = [at - ordered[one.job] for at, one in received if isinstance(one, Started)]
    agents = [one.state()["supervisor"] for _, _, one in GenerationStore(folder).live()]
    memory = statistics.mean(field(agent, "pss") for agent in agents)
    ticks = statistics.mean(field(agent, "cpu") for agent in agents)
    cpu, began = time.process_time(), time.monotonic()
    await asyncio.sleep(5.0)
    care = (time.process_time() - cpu) / (time.monotonic() - began)
    began = time.monotonic()
    for number in range(count):
        await executor.stop(number + count, str(number), 1)
    await seen(Ended)
    stopped = time.monotonic() - began
    await executor.close()
    await following
    print(
        f"{count:>5} generations, control groups {groups:<4}  "
        f"order answered {statistics.median(answered) * 1e3:6.1f} ms  "
        f"running after {statistics.median(begun):5.2f} s  "
        f"supervisor {memory / 1024:4.1f} MiB, {ticks * 10:3.0f} ms of CPU  "
        f"care {care:5.1%} of a core  all stopped {stopped:5.2f} s"
    )


def main() -> None:
    """Measure one generation and a hundred, with and without control groups."""
    for groups in ("off", "auto"):
        for count in (1, 100):
            with tempfile.TemporaryDirectory() as folder:
                asyncio.run(measure(Path(folder) / "executor", groups, count))


if __name__ == "__main__":
    main()

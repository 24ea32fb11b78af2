"""Cost of running generations on the local executor: commands, supervisors, polling."""

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
    """Return ``pss``, the proportional memory of a process in KiB, or its CPU time in ticks."""
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

    async def watch() -> None:
        async for report in executor.watch():
            received.append((time.monotonic(), report))  # noqa: PERF401  # each with its own time

    async def wait_for_reports(kind: type[Started] | type[Ended]) -> None:
        while sum(isinstance(report, kind) for _, report in received) < count:
            await asyncio.sleep(0.02)

    watching = asyncio.create_task(watch())
    sent, call_seconds = {}, []
    program = Program(("sleep", "600"))
    for number in range(count):
        began = sent[str(number)] = time.monotonic()
        await executor.start(
            GenerationSpec(number, str(number), 1, (ServerAllocation("one", 1),), program)
        )
        call_seconds.append(time.monotonic() - began)
    await wait_for_reports(Started)
    start_seconds = [
        at - sent[report.job] for at, report in received if isinstance(report, Started)
    ]
    supervisors = [record.state()["supervisor"] for _, _, record in GenerationStore(folder).live()]
    memory = statistics.mean(field(process, "pss") for process in supervisors)
    ticks = statistics.mean(field(process, "cpu") for process in supervisors)
    cpu, began = time.process_time(), time.monotonic()
    await asyncio.sleep(5.0)  # the executor only polls the generations
    polling = (time.process_time() - cpu) / (time.monotonic() - began)
    began = time.monotonic()
    for number in range(count):
        await executor.stop(number + count, str(number), 1)
    await wait_for_reports(Ended)
    stop_seconds = time.monotonic() - began
    await executor.close()
    await watching
    print(
        f"{count:>5} generations, control groups {groups:<4}  "
        f"start call {statistics.median(call_seconds) * 1e3:6.1f} ms  "
        f"running after {statistics.median(start_seconds):5.2f} s  "
        f"supervisor {memory / 1024:4.1f} MiB, {ticks * 10:3.0f} ms of CPU  "
        f"polling {polling:5.1%} of a core  all stopped after {stop_seconds:5.2f} s"
    )


def main() -> None:
    """Measure 1 and 100 generations, with and without control groups."""
    for groups in ("off", "auto"):
        for count in (1, 100):
            with tempfile.TemporaryDirectory() as folder:
                asyncio.run(measure(Path(folder) / "executor", groups, count))


if __name__ == "__main__":
    main()

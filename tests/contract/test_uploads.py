"""Contract of executors: files that a job gets from its submitter."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from shadowprice.executors.contract import Ended, Ending, Executor, StartRefused, UnpacksFiles
from tests.contract.harness import LocalHarness as Harness
from tests.contract.harness import ReportLog, spec
from tests.support.archives import END, member

pytestmark = pytest.mark.processes

CONTENT = (
    member("run me.sh", mode=0o755, content=b'#!/bin/sh\nread n <count\necho "$n:$(ls)"\n')
    + member("count", content=b"1\n")
    + END
)


def test_a_job_runs_in_the_files_of_its_archive_over_all_generations(
    harness: Harness, tmp_path: Path
) -> None:
    async def scenario(_: Harness, executor: Executor, reports: ReportLog) -> None:
        if not executor.capabilities.takes_uploads:
            pytest.skip("this executor takes no files")
        (tmp_path / "archive").write_bytes(CONTENT)
        command = '"./run me.sh"; echo 2 >count; echo >made'
        for job, generation, text in (
            ("job", 1, "1:count\nrun me.sh\n"),
            ("job", 2, "2:count\nmade\nrun me.sh\n"),
            ("other", 1, "1:count\nrun me.sh\n"),
        ):
            start = spec(job, generation, command, archive=str(tmp_path / "archive"))
            assert await executor.start(start) == "accepted"
            ended = await reports.first(Ended, job, generation)
            assert (ended.ending, ended.reason) == (Ending.DONE, ended.reason)
            assert (await executor.logs(job, generation)).text == text
            await executor.acknowledge_end(job, generation)
        for job in ("job", "other"):
            await executor.delete_job_data(job)

    harness.run(scenario)


@pytest.mark.parametrize("content", [None, b"no archive", CONTENT[:700]])
def test_an_archive_that_cannot_be_unpacked_refuses_the_generation(
    harness: Harness, tmp_path: Path, content: bytes | None
) -> None:
    async def scenario(_: Harness, executor: Executor, reports: ReportLog) -> None:
        if not executor.capabilities.takes_uploads:
            pytest.skip("this executor takes no files")
        if content is not None:
            (tmp_path / "archive").write_bytes(content)
        start = spec("job", 1, "echo never", archive=str(tmp_path / "archive"))
        assert await executor.start(start) == "accepted"
        refused = await reports.first(StartRefused, "job")
        word = "are missing" if content is None else "can't be unpacked"
        assert refused.reason.startswith(f"its files {word}")
        await executor.acknowledge_end("job", 1)
        # With the archive there, the next generation starts.
        (tmp_path / "archive").write_bytes(CONTENT)
        again = spec("job", 2, '"./run me.sh"', archive=str(tmp_path / "archive"))
        assert await executor.start(again) == "accepted"
        assert (await reports.first(Ended, "job", 2)).ending is Ending.DONE

    harness.run(scenario)


def test_unchanged_files_are_deleted_after_the_end(harness: Harness, tmp_path: Path) -> None:
    async def scenario(_: Harness, executor: Executor, reports: ReportLog) -> None:
        if not isinstance(executor, UnpacksFiles):
            pytest.skip("this executor takes no files")
        (tmp_path / "archive").write_bytes(CONTENT)
        wait = f"until [ -e {tmp_path}/go ]; do sleep 0.05; done"
        command = f"pwd >{tmp_path}/where; echo 2 >count; echo >made; {wait}"
        start = spec("job", 1, command, archive=str(tmp_path / "archive"))
        assert await executor.unpack(start) is None
        assert list(executor.unpacked()) == ["job"]
        assert await executor.start(start) == "accepted"
        while not (tmp_path / "where").exists() or not (tmp_path / "where").read_text():
            await asyncio.sleep(0.05)
        work = Path((tmp_path / "where").read_text().strip())
        await executor.release("job")  # it runs
        assert list(executor.unpacked()) == ["job"]
        (tmp_path / "go").touch()
        await reports.first(Ended, "job")
        assert {path.name for path in work.iterdir()} == {"count", "made", "run me.sh"}
        await executor.release("job")
        assert list(executor.unpacked()) == []
        assert {path.name for path in work.iterdir()} == {"count", "made"}

    harness.run(scenario)


def test_unpacked_files_without_a_record_are_listed_again(harness: Harness, tmp_path: Path) -> None:
    async def scenario(_: Harness, executor: Executor, reports: ReportLog) -> None:
        if not isinstance(executor, UnpacksFiles):
            pytest.skip("this executor takes no files")
        (tmp_path / "archive").write_bytes(CONTENT)
        command = f"pwd >{tmp_path}/where"
        start = spec("job", 1, command, archive=str(tmp_path / "archive"))
        assert await executor.unpack(start) is None
        executor._unpacked.remove("job")  # type: ignore[attr-defined]
        assert list(executor.unpacked()) == []
        assert await executor.start(start) == "accepted"
        assert list(executor.unpacked()) == ["job"]
        await reports.first(Ended, "job")
        await executor.release("job")
        assert list(Path((tmp_path / "where").read_text().strip()).iterdir()) == []

    harness.run(scenario)


def test_unpacking_leaves_the_default_threads_free(harness: Harness, tmp_path: Path) -> None:
    """Archives that can't be read yet don't stop other jobs."""

    async def scenario(_: Harness, executor: Executor, reports: ReportLog) -> None:
        if not executor.capabilities.takes_uploads:
            pytest.skip("this executor takes no files")
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
        os.mkfifo(tmp_path / "archive")
        slow = [
            asyncio.create_task(
                executor.start(spec(f"slow{n}", 1, "true", archive=str(tmp_path / "archive")))
            )
            for n in range(2)
        ]
        assert await executor.start(spec("other", 1, "true")) == "accepted"
        assert (await reports.first(Ended, "other")).ending is Ending.DONE
        assert not any(task.done() for task in slow)
        # Both wait for a writer of the pipe, which can't be read from its end.
        while not all(task.done() for task in slow):
            with suppress(OSError):
                os.close(os.open(tmp_path / "archive", os.O_WRONLY | os.O_NONBLOCK))
            await asyncio.sleep(0.05)
        for n in range(2):
            refused = await reports.first(StartRefused, f"slow{n}")
            assert refused.reason.startswith("its files can't be unpacked")

    harness.run(scenario)

"""Contract of executors: environment, devices and progress reports of jobs."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from shadowprice.executors.contract import (
    Ended,
    Executor,
    InvalidProgress,
    PollsProgress,
    Progressed,
    ServerAllocation,
    ServerSeen,
    Started,
    StartRefused,
)
from tests.contract.harness import POLITE, ReportLog, eventually, over, python, ready, spec
from tests.contract.harness import LocalHarness as Harness

pytestmark = pytest.mark.processes

# ------------------------------------------------------------------ what jobs are told


def test_environment_contains_only_the_contract_variables(harness: Harness) -> None:
    show = "import os,json,sys\njson.dump(dict(os.environ), sys.stdout)"

    async def scenario(own: Harness, executor: Executor, reports: ReportLog) -> None:
        order = spec(
            "job",
            7,
            python(show),
            ServerAllocation("one", 2),
            worker={"gpu": 1000},
            env={"KEY": "value"},
            progress_url="http://here",
            slot_end=12.0,
        )
        await executor.start(order)
        await reports.first(Ended, "job", 7)
        text = [(await executor.logs("job", 7, f"worker-{n}")).text for n in (0, 1)]
        one, two = (json.loads(each) for each in text)
        if not own.containers:  # a device plugin sets them there
            assert {one["CUDA_VISIBLE_DEVICES"], two["CUDA_VISIBLE_DEVICES"]} == {"0", "1"}
        assert one["MASTER_PORT"] == two["MASTER_PORT"] == one["PET_MASTER_PORT"]
        assert int(one["MASTER_PORT"]) > 1024
        assert Path(one["SHADOWPRICE_CHECKPOINT_DIR"]).is_dir()
        assert one["SHADOWPRICE_CHECKPOINT_DIR"].startswith(str(own.path))
        told_ = {name for name in one if name.startswith(("SHADOWPRICE_", "PET_"))}
        own_to_some = {f"SHADOWPRICE_{name}" for name in ("PROGRESS_FILE", "EXECUTION", "HOST")}
        assert told_ - own_to_some == {
            *(f"SHADOWPRICE_{name}" for name in ("JOB", "GENERATION", "RANK", "ROLE", "WORKERS")),
            *(f"SHADOWPRICE_{name}" for name in ("PS", "CHECKPOINT_DIR", "PROGRESS_URL")),
            *(f"SHADOWPRICE_{name}" for name in ("PROGRESS_TOKEN", "SLOT_END")),
            *(f"PET_{name}" for name in ("NNODES", "NODE_RANK", "NPROC_PER_NODE", "RDZV_ID")),
            *(f"PET_{name}" for name in ("MASTER_ADDR", "MASTER_PORT")),
        }
        wanted = {"KEY": "value", "RANK": "0", "WORLD_SIZE": "2", "SHADOWPRICE_GENERATION": "7"}
        assert wanted.items() <= one.items()

    harness.run(scenario)


def test_checkpoints_outlive_generations(harness: Harness) -> None:
    command = "cd $SHADOWPRICE_CHECKPOINT_DIR; cat c 2>/dev/null; echo $SHADOWPRICE_GENERATION > c"

    async def scenario(own: Harness, executor: Executor, reports: ReportLog) -> None:
        for generation in (1, 2):
            await executor.start(spec("job", generation, command))
            await reports.first(Ended, "job", generation)
        assert (await executor.logs("job", 2)).text == "1\n"
        await executor.delete_job_data("job")
        assert await executor.list() == ()
        with pytest.raises(KeyError):
            await executor.logs("job", 2)
        assert "checkpoints" not in {path.name for path in own.path.rglob("*")}

    harness.run(scenario)


def test_devices_are_assigned_once(harness: Harness) -> None:
    async def scenario(own: Harness, executor: Executor, reports: ReportLog) -> None:
        command = f"echo [$CUDA_VISIBLE_DEVICES]; {POLITE}"
        for job in ("a", "b"):
            await executor.start(spec(job, 1, command, worker={"gpu": 1000}))
            await ready(executor, job)
        said = {(await executor.logs(job)).text.split()[0] for job in ("a", "b")}
        assert own.containers or said == {"[0]", "[1]"}
        await executor.start(spec("c", 1, command, worker={"gpu": 500}))
        assert "no GPU with 0.5" in (await reports.first(StartRefused, "c")).reason
        await executor.stop(50, "a", 1)
        await reports.first(Ended, "a")
        await executor.start(spec("d", 1, command, worker={"gpu": 1000}))
        await ready(executor, "d")
        assert own.containers or (await executor.logs("d")).text.split()[0] == "[0]"
        await executor.start(spec("e", 1, command))
        await ready(executor, "e")
        assert (await executor.logs("e")).text.split()[0] == "[]"

    harness.run(scenario)


def test_progress_file_is_reported(harness: Harness, tmp_path: Path) -> None:
    tell = (
        'tell() { echo "{\\"generation\\": 1, \\"minibatches\\": $1, '
        '\\"metrics\\": {\\"loss\\": 0.5}}" > "$SHADOWPRICE_PROGRESS_FILE.new"; '
        'mv "$SHADOWPRICE_PROGRESS_FILE.new" "$SHADOWPRICE_PROGRESS_FILE"; }; '
        "await() { while [ ! -e $SHADOWPRICE_CHECKPOINT_DIR/$1 ]; do sleep 0.05; done; }; "
    )
    command = f'{tell} tell 10; await first; echo nonsense > "$SHADOWPRICE_PROGRESS_FILE"; '
    command += "sleep 1.2; tell 20; await second; tell 30; exit 0"

    async def scenario(_: Harness, executor: Executor, report_log: ReportLog) -> None:
        if not isinstance(executor, PollsProgress):
            pytest.skip("this executor reads no files")
        await executor.start(spec("job", 1, command, checkpoint_dir=str(tmp_path / "c")))
        for count, name in ((1, "first"), (2, "second")):
            await eventually(
                lambda count=count: len(report_log.matching(Progressed, "job")) == count
            )
            (tmp_path / "c" / name).touch()
        await report_log.first(Ended, "job")
        reports = report_log.matching(Progressed, "job")
        assert [report.progress for report in reports] == [10_000_000, 20_000_000, 30_000_000]
        assert reports[0].metrics == {"loss": 0.5}
        # The last report came before the end, however soon the end followed.
        kinds = [
            type(report)
            for report in report_log.received
            if not isinstance(report, ServerSeen | InvalidProgress)
        ]
        assert kinds == [Started, Progressed, Progressed, Progressed, Ended]

    harness.run(scenario)


INVALID_REPORTS = {
    "negative": (
        '{"generation": 1, "minibatches": -$i}',
        "progress.minibatches: it is not a count",
    ),
    "nan": ('{"generation": 1, "minibatches": NaN, "metrics": {"at": $i}}', "it is not a count"),
    "text": ('{"generation": 1, "minibatches": "$i"}', "it is not a count"),
    "key": ('{"generation": 1, "minibatch": $i}', "did you mean 'minibatches'?"),
    "syntax": ("[$i, 2", "is not JSON"),
}
"""Invalid contents of a progress file by job, each with a part of the reason."""


def test_invalid_reports_are_reported_once_per_job(harness: Harness) -> None:
    def command(content: str) -> str:
        content = content.replace('"', '\\"')
        return (
            "i=1; while true; do i=$((i + 1)); "
            f'echo "{content}" > "$SHADOWPRICE_PROGRESS_FILE.new"; '
            'mv "$SHADOWPRICE_PROGRESS_FILE.new" "$SHADOWPRICE_PROGRESS_FILE"; sleep 0.3; done'
        )

    async def scenario(_: Harness, executor: Executor, reports: ReportLog) -> None:
        if not isinstance(executor, PollsProgress):
            pytest.skip("this executor reads no files")
        for job, (content, _) in INVALID_REPORTS.items():
            await executor.start(spec(job, 1, command(content)))
        for job, (_, reason) in INVALID_REPORTS.items():
            report = await reports.first(InvalidProgress, job)
            assert reason in report.reason
        await asyncio.sleep(2.0)
        for job in INVALID_REPORTS:
            await executor.stop(5, job, 1)
            await reports.first(Ended, job)
            assert len(reports.matching(InvalidProgress, job)) == 1
            assert reports.matching(Progressed, job) == []

    harness.run(scenario)


def test_refused_reports_are_reported_after_invalid_metrics(harness: Harness) -> None:
    command = (
        'tell() { echo "{\\"generation\\": 1, $1}" > "$SHADOWPRICE_PROGRESS_FILE.new"; '
        'mv "$SHADOWPRICE_PROGRESS_FILE.new" "$SHADOWPRICE_PROGRESS_FILE"; sleep 0.3; }; '
        "i=0; while true; do i=$((i + 1)); if [ $i -lt 20 ]; then "
        'tell "\\"minibatches\\": $i, \\"metrics\\": {\\"loss\\": \\"high\\"}"; else '
        'tell "\\"minibatches\\": -$i"; fi; done'
    )

    async def scenario(_: Harness, executor: Executor, reports: ReportLog) -> None:
        if not isinstance(executor, PollsProgress):
            pytest.skip("this executor reads no files")
        await executor.start(spec("job", 1, command))
        await eventually(lambda: len(reports.matching(InvalidProgress, "job")) == 2)
        first, second = (report.reason for report in reports.matching(InvalidProgress, "job"))
        assert first == "left out: progress.metrics.'loss': 'high' is not a number"
        assert second.startswith("progress.minibatches: it is not a count")
        assert reports.matching(Progressed, "job")

    harness.run(scenario)


def test_a_poll_returns_the_reports_until_then(
    harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = (
        'tell() { echo "{\\"generation\\": 1, \\"minibatches\\": $1}" > '
        '"$SHADOWPRICE_PROGRESS_FILE.new"; '
        'mv "$SHADOWPRICE_PROGRESS_FILE.new" "$SHADOWPRICE_PROGRESS_FILE"; echo told $1; }; '
        "await() { while [ ! -e $SHADOWPRICE_CHECKPOINT_DIR/$1 ]; do sleep 0.05; done; }; "
        "await first; tell 7; await second; tell 9; sleep 600"
    )
    harness.blind(monkeypatch)

    async def scenario(_: Harness, executor: Executor, reports: ReportLog) -> None:
        if not isinstance(executor, PollsProgress):
            pytest.skip("this executor reads no files")
        assert list(await executor.progress()) == []
        for job in ("one", "two"):
            await executor.start(spec(job, 1, command, checkpoint_dir=str(tmp_path / job)))
            await reports.first(Started, job)
            (tmp_path / job / "first").touch()
            await ready(executor, job, word="told 7")
        seen = [(entry.job, entry.progress) for entry in await executor.progress()]
        assert sorted(seen) == [("one", 7_000_000), ("two", 7_000_000)]
        (tmp_path / "two" / "second").touch()
        await ready(executor, "two", word="told 9")
        (report,) = await executor.progress()  # once each
        assert (report.job, report.progress) == ("two", 9_000_000)
        assert list(await executor.progress()) == []
        assert [report for report in reports.received if isinstance(report, Progressed)] == []

    harness.run(scenario)


def test_unmanaged_jobs_are_observed(harness: Harness) -> None:
    async def scenario(own: Harness, executor: Executor, _: ReportLog) -> None:
        if not executor.capabilities.observes or own.containers:
            pytest.skip("this executor sees no processes of others")
        await executor.start(spec("ours", 1, POLITE))
        await ready(executor, "ours")
        variables = {"SHADOWPRICE_JOB": f"theirs {own.path}", "SHADOWPRICE_TENANT": "vision"}
        process = await asyncio.create_subprocess_exec(
            "/bin/sh",
            "-c",
            "sleep 600 & sleep 600",
            env={**os.environ, **variables},
            start_new_session=True,
        )
        try:
            found = {entry.job: entry for entry in await executor.observe()}
            assert found["ours"].placement == (ServerAllocation("one", 1),)
            theirs = found[f"theirs {own.path}"]
            assert theirs.tenant == "vision"
            assert sum(share.workers for share in theirs.placement) == 1
        finally:
            os.killpg(process.pid, 9)
            await over(process, "a job of others that was killed")

    harness.run(scenario)


def test_an_executor_that_was_never_opened_can_be_closed(harness: Harness) -> None:
    executor = harness.make()
    assert isinstance(executor, Executor)
    asyncio.run(executor.close())

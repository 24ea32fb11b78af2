"""Faults that only the local executor can have: this machine, its limits and its disk."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shadowprice.core.errors import InputError
from shadowprice.core.job_keys import key_digest
from shadowprice.executors.contract import (
    Ended,
    Ending,
    Executor,
    ExecutorError,
    ExecutorOptions,
    PollsProgress,
    Progressed,
    ServerAllocation,
    Started,
    StartRefused,
)
from shadowprice.executors.generations.disk import FileLock
from shadowprice.executors.generations.generation import GenerationDirectory, boot_id, start_time
from shadowprice.executors.generations.registry import TrackedGeneration
from shadowprice.executors.generations.store import GenerationStore
from shadowprice.executors.local import executor as module
from shadowprice.executors.local.executor import read_settings
from shadowprice.executors.registry import create_executor
from shadowprice.executors.supervision.children import AGENT
from tests.contract.harness import (
    PATIENCE,
    POLITE,
    LocalHarness,
    ReportLog,
    eventually,
    over,
    python,
    ready,
    spec,
)
from tests.support.waiting import WAIT_LIMIT_SECONDS

pytestmark = pytest.mark.processes


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalHarness]:
    if not sys.platform.startswith("linux"):
        pytest.skip("the local executor needs Linux")
    chosen = LocalHarness(tmp_path / "executor", {"cgroup": "off", "log_bytes": "100000"})
    yield chosen
    chosen.end()


def test_a_process_is_bound_to_the_cores_of_its_server(local: LocalHarness) -> None:
    show = python("import os; print(sorted(os.sched_getaffinity(0)))")
    cores = sorted(os.sched_getaffinity(0))

    async def scenario(_: LocalHarness, executor: Executor, reports: ReportLog) -> None:
        await executor.start(spec("one", 1, show, ServerAllocation("one", 2), worker={"cpu": 1000}))
        await executor.start(spec("two", 1, show, ServerAllocation("two", 1), worker={"cpu": 4000}))
        for job in ("one", "two"):
            await reports.first(Ended, job)
        said = [
            (await executor.logs(job, 1, process)).text
            for job, process in (("one", "worker-0"), ("one", "worker-1"), ("two", "worker-0"))
        ]
        assert all(len(eval(text)) == 1 for text in said)
        if len(cores) > 1:
            assert said[0] != said[1]

    local.run(scenario)


def test_memory_is_limited(local: LocalHarness) -> None:
    greedy = python("x = bytearray(300 << 20); print('had it')")

    async def scenario(_: LocalHarness, executor: Executor, reports: ReportLog) -> None:
        await executor.start(spec("small", 1, greedy, worker={"memory": 200 << 20}))
        await executor.start(spec("large", 1, greedy, worker={"memory": 600 << 20}))
        small = await reports.first(Ended, "small")
        assert (small.ending, small.tail[-1]) == (Ending.FAILED, "MemoryError")
        assert (await reports.first(Ended, "large")).ending is Ending.DONE

    local.run(scenario)


def test_abort_under_a_memory_limit_names_the_limit(local: LocalHarness) -> None:
    async def scenario(_: LocalHarness, executor: Executor, reports: ReportLog) -> None:
        await executor.start(spec("held", 1, "kill -ABRT $$", worker={"memory": 200 << 20}))
        await executor.start(spec("free", 1, "kill -ABRT $$"))
        await executor.start(spec("well", 1, "exit 3", worker={"memory": 200 << 20}))
        held = await reports.first(Ended, "held")
        assert "SIGABRT, status 134: its data memory is limited to 200 MiB" in held.reason
        assert (
            await reports.first(Ended, "free")
        ).reason == "worker-0 ended by SIGABRT, status 134"
        assert (await reports.first(Ended, "well")).reason == "worker-0 exited 3"

    local.run(scenario)


def test_accepted_generation_starts_after_a_restart(
    local: LocalHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(own: LocalHarness, executor: Executor, reports: ReportLog) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(module.LocalExecutor, "_launch", lambda *_: None)
            await executor.start(spec("job", 1, "echo once >> ../ran"))
            await executor.start(spec("stopped", 1, "echo never >> ../ran"))
            await executor.close()
            await reports.end()
        GenerationStore(own.path).stop(5, "stopped", 1, 0.0)
        executor = await own.open()
        reports = ReportLog(executor)
        assert (await reports.first(Ended, "job")).ending is Ending.DONE
        assert "stopped before it started" in (await reports.first(StartRefused, "stopped")).reason
        await executor.close()
        await reports.end()

    local.run(scenario)
    assert (local.path / "jobs" / key_digest("job") / "ran").read_text() == "once\n"
    assert not (local.path / "jobs" / key_digest("stopped") / "ran").exists()


def test_a_supervisor_that_a_signal_stopped_continues(local: LocalHarness) -> None:
    async def scenario(own: LocalHarness, executor: Executor, reports: ReportLog) -> None:
        own_end = "until [ -e ../go ]; do sleep 0.02; done"
        for job, script in (("ordered", POLITE), ("by-itself", own_end)):
            await executor.start(spec(job, 1, script))
            await reports.first(Started, job)
            os.kill(
                GenerationStore(own.path).generation(job, 1).state()["supervisor"], signal.SIGSTOP
            )
        await executor.stop(5, "ordered", 1)
        (own.path / "jobs" / key_digest("by-itself") / "go").touch()
        assert (await reports.first(Ended, "ordered")).ending is Ending.STOPPED
        assert (await reports.first(Ended, "by-itself")).ending is Ending.DONE

    local.run(scenario)


@pytest.mark.parametrize("code", [0, 1, 143])
def test_a_signal_to_the_supervisor_is_reported_with_the_end(
    local: LocalHarness, code: int
) -> None:
    """A machine that shuts down sends SIGTERM to all processes."""

    async def scenario(own: LocalHarness, executor: Executor, reports: ReportLog) -> None:
        await executor.start(spec("job", 1, POLITE.replace("exit 143", f"exit {code}")))
        await ready(executor, "job")
        supervisor = GenerationStore(own.path).generation("job", 1).state()["supervisor"]
        os.kill(supervisor, signal.SIGTERM)
        ended = await reports.first(Ended, "job")
        assert (ended.code, ended.from_outside) == (code, True)
        assert ended.ending is (Ending.LOST if code else Ending.DONE)

    local.run(scenario)


def test_surplus_supervisors_start_nothing(local: LocalHarness) -> None:
    agent = AGENT

    async def scenario(own: LocalHarness, executor: Executor, reports: ReportLog) -> None:
        await executor.start(spec("job", 1, f"echo once >> ../ran; {POLITE}"))
        path = GenerationStore(own.path).generation("job", 1).path
        several = [
            await asyncio.create_subprocess_exec(sys.executable, "-I", "-S", agent, path)
            for _ in range(4)
        ]
        # One of the five claims gets the generation, not necessarily the first.
        await ready(executor, "job")
        await executor.stop(5, "job", 1)
        await reports.first(Ended, "job")
        async with asyncio.timeout(PATIENCE):
            assert [await entry.wait() for entry in several] == [0] * 4
        late = await asyncio.create_subprocess_exec(sys.executable, "-I", "-S", agent, path)
        async with asyncio.timeout(PATIENCE):
            assert await late.wait() == 0

    local.run(scenario)
    assert (local.path / "jobs" / key_digest("job") / "ran").read_text() == "once\n"


def test_process_without_its_environment_ends_with_a_killed_supervisor(
    local: LocalHarness,
) -> None:
    async def scenario(own: LocalHarness, executor: Executor, reports: ReportLog) -> None:
        await executor.start(
            spec("job", 1, "env -i sleep 600 & echo $! > ../left; echo ready; wait")
        )
        await ready(executor, "job")
        left = int((own.path / "jobs" / key_digest("job") / "left").read_text())
        own.kill_agent("job", 1)
        assert (await reports.first(Ended, "job")).ending is Ending.LOST
        assert start_time(left) is None

    local.run(scenario)


def test_job_that_deletes_its_records_is_lost(local: LocalHarness) -> None:
    async def scenario(own: LocalHarness, executor: Executor, reports: ReportLog) -> None:
        script = "until [ -e go ]; do sleep 0.02; done; rm -rf ../generations; exec sleep 600"
        await executor.start(spec("job", 1, script))
        await reports.first(Started, "job")
        state = GenerationStore(own.path).generation("job", 1).state()
        (number, _) = state["processes"]["worker-0"]
        (own.path / "jobs" / key_digest("job") / "work" / "go").touch()
        ended = await reports.first(Ended, "job")
        assert (ended.ending, start_time(number)) == (Ending.LOST, None)
        assert "records were deleted" in ended.reason
        await executor.acknowledge_end("job", 1)
        await executor.start(spec("job", 2, "exit 0"))
        assert (await reports.first(Ended, "job", 2)).ending is Ending.DONE

    local.run(scenario)


def test_moved_directory_costs_no_running_generation(local: LocalHarness) -> None:
    async def scenario(own: LocalHarness, executor: Executor, reports: ReportLog) -> None:
        assert isinstance(executor, module.LocalExecutor)
        await executor.start(spec("job", 1, POLITE))
        await ready(executor, "job")
        (entry,) = executor._registry.unended
        aside = own.path.rename(own.path.with_name("aside"))
        own.path.mkdir()
        (own.path / "jobs").mkdir()
        executor._check_supervisor(entry)
        (own.path / "jobs").rmdir()
        own.path.rmdir()
        aside.rename(own.path)
        await executor.stop(5, "job", 1)
        assert (await reports.first(Ended, "job")).ending is Ending.STOPPED

    local.run(scenario)


def test_process_that_reuses_a_pid_is_not_killed(
    local: LocalHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart of the machine, recorded process numbers belong to other processes."""

    async def scenario(own: LocalHarness, executor: Executor, reports: ReportLog) -> None:
        await executor.start(spec("job", 1, "echo ready; exec sleep 600"))
        await ready(executor, "job")
        own.kill_agent("job", 1)
        await reports.first(Ended, "job")
        await executor.close()
        await reports.end()
        # The state that a crashed machine leaves: according to the disk, it runs.
        stranger = await asyncio.create_subprocess_exec("sleep", "600")
        generation: GenerationDirectory = GenerationStore(own.path).generation("job", 1)
        state = {**generation.state(), "phase": "running", "supervisor": stranger.pid}
        for other in ({"began": 1}, {"boot": "another"}):
            generation.write_state({**state, **other})
            generation.request_stop(hash(str(other)), 0.0, time.time())
            executor = await own.open()
            reports = ReportLog(executor)
            ended = await reports.first(Ended, "job")
            assert ended.ending is Ending.LOST
            assert ("machine was restarted" in ended.reason) == ("boot" in other)
            assert stranger.returncode is None
            await executor.close()
            await reports.end()
        stranger.kill()
        await over(stranger, "a stranger that was killed")

    local.run(scenario)


def test_supervisor_killed_before_the_first_poll_is_reported(tmp_path: Path) -> None:
    """The executor's state may be older than the supervisor."""
    executor = module.LocalExecutor(ExecutorOptions(str(tmp_path / "executor")))
    for name, other in (("killed", {}), ("restarted", {"boot": "another"})):
        state = {"phase": "running", "boot": boot_id(), "supervisor": 1, "began": 1, **other}
        generation = GenerationDirectory.create(tmp_path / name, {}, state)
        executor._check_supervisor(TrackedGeneration("job", 1, generation))
        assert name in generation.state()["reason"]


def test_a_claim_waits_for_the_executor_that_checks_the_generation(tmp_path: Path) -> None:
    state = {"phase": "accepted", "command": 1}
    generation = GenerationDirectory.create(tmp_path / "1", {}, state)
    checking = generation.try_lock()
    assert checking is not None
    waits = threading.Event()

    class Waiting(GenerationDirectory):
        def try_lock(self) -> FileLock | None:
            lock = super().try_lock()
            if lock is None:
                waits.set()
            return lock

    results: list[FileLock | None] = []
    supervisor = threading.Thread(
        target=lambda: results.append(Waiting(generation.path).claim({"supervisor": 1}))
    )
    supervisor.start()
    assert waits.wait(PATIENCE)
    checking.release()
    supervisor.join(PATIENCE)
    [claimed] = results
    assert claimed is not None
    assert Waiting(generation.path).claim({}) is None  # at once, because it is launching
    claimed.release()
    assert generation.state()["phase"] == "launching"


@pytest.mark.parametrize(
    ("phase", "boot", "reason"),
    [
        ("accepted", None, "its plan is damaged"),
        ("running", None, "its supervisor was killed"),
        ("running", "another", "this machine was restarted"),
    ],
)
def test_a_damaged_plan_blocks_no_recovery(
    tmp_path: Path,
    phase: str,
    boot: str | None,
    reason: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    executor = module.LocalExecutor(ExecutorOptions(str(tmp_path / "executor")))
    with subprocess.Popen(["sleep", "600"]) as process:
        processes = {"worker-0": [process.pid, start_time(process.pid)], "worker-1": [1, None]}
        state = {"phase": phase, "command": 1, "processes": processes}
        state |= {} if boot is None else {"boot": boot}
        generation = GenerationDirectory.create(tmp_path / "1", {"execution": "x"}, state)
        (tmp_path / "1" / "plan.json").write_bytes(b"{\0")
        entry = TrackedGeneration("job", 1, generation)
        if phase == "running" and boot is None:
            threading.Thread(target=process.wait).start()  # so that it is no zombie
        executor._check_supervisor(entry)
        executor._check_supervisor(entry)
        assert generation.state()["ending"] == "lost"
        assert generation.state()["reason"] == f"{reason}, and the generation with it"
        if phase == "running" and boot is None:
            assert process.wait(PATIENCE) == -signal.SIGKILL
        else:
            assert process.poll() is None
            process.kill()
    warnings = [entry.message for entry in caplog.records if "plan is damaged" in entry.message]
    assert len(warnings) == 1


def test_a_supervisor_that_cannot_start_is_a_health_error_until_it_does(
    local: LocalHarness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "CLAIM_TIMEOUT_SECONDS", 0.0)
    monkeypatch.setattr(module, "RESYNC_SECONDS", 0.05)

    async def scenario(own: LocalHarness, executor: Executor, reports: ReportLog) -> None:
        assert isinstance(executor, module.LocalExecutor)
        attempts: list[int] = []

        def fail(*_: object, **__: object) -> int:
            attempts.append(1)
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

        with monkeypatch.context() as patch:
            patch.setattr(os, "posix_spawn", fail)
            await executor.start(spec("job", 1, "true"))
            assert executor.health_error is not None
            assert executor.health_error.startswith(
                "failed to start the supervisor of generation 1 of 'job': "
            )
            assert executor.health_error.endswith(": Resource temporarily unavailable")
            await eventually(lambda: len(attempts) > 2)
        await reports.first(Ended, "job")
        assert executor.health_error is None

    local.run(scenario)
    assert sum("failed to start the supervisor" in entry.message for entry in caplog.records) == 1


def test_an_opening_that_is_cancelled_leaves_the_directory_free(
    local: LocalHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    acquire, began, go = FileLock.try_acquire, threading.Event(), threading.Event()

    def slowly(path: Path) -> FileLock | None:
        began.set()
        assert go.wait(PATIENCE)
        return acquire(path)

    async def scenario() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(FileLock, "try_acquire", slowly)
            opening = asyncio.create_task(local.make().open())
            await asyncio.to_thread(began.wait, PATIENCE)
            opening.cancel()
            go.set()
            with pytest.raises(asyncio.CancelledError):
                await opening
        executor = local.make()
        await executor.open()
        await executor.close()

    asyncio.run(scenario())


def test_a_directory_in_use_is_not_changed(local: LocalHarness) -> None:
    local.path.mkdir(mode=0o700)
    lock = FileLock.try_acquire(local.path)
    assert lock is not None
    with lock, pytest.raises(ExecutorError, match="is in use by another service"):
        asyncio.run(local.make().open())
    assert list(local.path.iterdir()) == []


def test_a_named_cgroup_that_cannot_be_used_is_refused(local: LocalHarness, tmp_path: Path) -> None:
    local.settings["cgroup"] = str(tmp_path / "no-cgroup")
    with pytest.raises(ExecutorError, match=r"cgroup=/.*/no-cgroup, but this user can't create"):
        asyncio.run(local.make().open())
    local.settings["cgroup"] = "off"
    executor = local.make()
    asyncio.run(executor.open())  # the refused one left no lock
    asyncio.run(executor.close())


def test_damaged_records_count_as_a_loss(local: LocalHarness) -> None:
    async def scenario(own: LocalHarness, executor: Executor, reports: ReportLog) -> None:
        await executor.start(spec("damaged", 1, "(setsid sleep 600 &); echo ready; sleep 600"))
        await executor.start(spec("sound", 1, POLITE))
        await ready(executor, "damaged")
        await ready(executor, "sound")
        state = GenerationStore(own.path).generation("damaged", 1).path / "state"
        supervisor = GenerationStore(own.path).generation("damaged", 1).state()["supervisor"]
        state.write_bytes(b"\0" * state.stat().st_size)
        await asyncio.sleep(1.5)
        assert not reports.matching(Ended, "damaged")  # its supervisor lives, so nothing is over
        os.kill(supervisor, 9)
        ended = await reports.first(Ended, "damaged")
        assert ended.ending is Ending.LOST
        assert "records were damaged" in ended.reason
        assert not [leftover for leftover in own.leftovers() if "sleep\x00600" in leftover]
        stop = GenerationStore(own.path).generation("sound", 1).path / "stop"
        stop.write_bytes(b"\0" * stop.stat().st_size)
        await executor.stop(5, "sound", 1)
        assert (await reports.first(Ended, "sound")).code == 143
        assert await executor.start(spec("damaged", 2, "true")) == "accepted"
        assert (await reports.first(Ended, "damaged", 2)).ending is Ending.DONE

    local.run(scenario)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", place],
        capture_output=True,
        check=False,
        timeout=60,
    )
    if mounted.returncode:
        pytest.skip("no disk of 600 kB can be mounted here: that is for root")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True, timeout=60)


def test_full_disk_loses_no_end_and_accepts_no_partial_command(small_disk: Path) -> None:
    local = LocalHarness(small_disk, {"cgroup": "off", "log_bytes": "100000000"})
    fill = "echo begun; head -c 2000000 /dev/zero; echo ready; while [ ! -e ../go ]; do sleep 0.05;"

    async def scenario(own: LocalHarness, executor: Executor, reports: ReportLog) -> None:
        await executor.start(spec("filling", 1, f"{fill} done; echo the end; exit 6"))
        await reports.first(Started, "filling")

        def full() -> bool:
            left = os.statvfs(small_disk)
            return left.f_bavail == 0

        await eventually(full)
        with pytest.raises(ExecutorError, match="No space left"):
            await executor.start(spec("another", 1, "true"))
        assert [held.job for held in await executor.list()] == ["filling"]
        (own.path / "jobs" / key_digest("filling") / "go").symlink_to("/")
        ended = await reports.first(Ended, "filling")
        assert (ended.ending, ended.code, ended.tail[-1]) == (Ending.FAILED, 6, "the end")
        await executor.acknowledge_end("filling", 1)
        await executor.delete_job_data("filling")
        assert not full()
        assert await executor.start(spec("another", 1, "true")) == "accepted"
        assert (await reports.first(Ended, "another")).ending is Ending.DONE

    local.run(scenario)


def test_a_job_outlives_the_process_of_the_service(local: LocalHarness) -> None:
    """The service is killed, not closed; another one finds the generation."""
    service = (
        "import asyncio, os, sys\nfrom pathlib import Path\n"
        "from tests.contract.harness import PATIENCE, POLITE, LocalHarness, ready, spec\n"
        "async def main():\n"
        f" executor = await LocalHarness(Path({str(local.path)!r}), {local.settings!r}).open()\n"
        " await executor.start(spec('job', 1, POLITE))\n"
        " await ready(executor, 'job')\n"
        " os.kill(os.getpid(), 9)\n"
        "asyncio.run(main())"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", service], cwd=root, check=False, timeout=WAIT_LIMIT_SECONDS
    )
    assert done.returncode == -9

    async def scenario(_: LocalHarness, executor: Executor, reports: ReportLog) -> None:
        started = await reports.first(Started, "job")
        assert not reports.matching(Ended, "job")
        await executor.stop(5, "job", 1)
        ended = await reports.first(Ended, "job")
        assert (ended.ending, ended.tail[-1]) == (Ending.STOPPED, "saved")
        assert ended.at > started.at

    local.run(scenario)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"memry": "off"}, "did you mean 'memory'"),
        ({"memory": "much"}, "'much' is not valid"),
        ({"cgroup": "here"}, "'here' is not valid"),
        ({"log_bytes": "many"}, "'many' is not valid"),
        ({"log_bytes": "9" * 30}, "is not valid"),
        ({"devices": "0,1,0"}, "names a device twice"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        create_executor("local", ExecutorOptions("/nowhere", settings=settings))


def test_named_devices_are_used(local: LocalHarness) -> None:
    assert read_settings({"devices": "GPU-a, GPU-b"}).devices == ("GPU-a", "GPU-b")
    local.settings["devices"] = "GPU-a,GPU-b"
    show = "echo $CUDA_VISIBLE_DEVICES"

    async def scenario(_: LocalHarness, executor: Executor, reports: ReportLog) -> None:
        order = spec("job", 1, show, ServerAllocation("one", 1), worker={"gpu": 2000})
        await executor.start(order)
        await reports.first(Ended, "job")
        assert (await executor.logs("job")).text == "GPU-a,GPU-b\n"
        await executor.start(spec("two", 1, show, ServerAllocation("two", 1), worker={"gpu": 1000}))
        assert "two has 0 GPUs on this machine" in (await reports.first(StartRefused, "two")).reason
        given = {"one": ("GPU-b",)}
        order = spec(
            "given", 1, show, ServerAllocation("one", 1), worker={"gpu": 1000}, devices=given
        )
        await executor.start(order)
        await reports.first(Ended, "given")
        assert (await executor.logs("given")).text == "GPU-b\n"

    local.run(scenario)


def test_unusable_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    executor = create_executor("local", ExecutorOptions(str(tmp_path / "file")))
    with pytest.raises(ExecutorError, match=r"/file: .*; check that it is a directory"):
        asyncio.run(executor.open())


def test_bell_that_was_restored_as_a_file_is_replaced(local: LocalHarness) -> None:
    local.path.mkdir(mode=0o700)
    (local.path / "bell").write_text("")

    async def scenario(own: LocalHarness, executor: Executor, reports: ReportLog) -> None:
        await executor.start(spec("job", 1, "exit 0"))
        assert (await reports.first(Ended, "job")).ending is Ending.DONE
        assert (own.path / "bell").is_fifo()

    local.run(scenario)


def test_cancelled_poll_loses_no_report(
    local: LocalHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RESYNC_SECONDS", 3600.0)  # no other process reads files
    slow = threading.Event()
    look = TrackedGeneration.poll_progress

    def slowly(self: TrackedGeneration) -> Progressed | None:
        result = look(self)
        if result is not None:
            slow.wait(PATIENCE)
        return result

    # The job reports while the executor knows it, so this report is read too.
    report = f"""import json, os, time
print("ready", flush=True)
while not os.path.exists({str(tmp_path / "go")!r}):
    time.sleep(0.02)
path = os.environ["SHADOWPRICE_PROGRESS_FILE"]
with open(path + ".new", "w") as file:
    json.dump({{"generation": 1, "minibatches": 7}}, file)
os.rename(path + ".new", path)
print("told", flush=True)
time.sleep(600)"""

    async def scenario(own: LocalHarness, executor: Executor, reports: ReportLog) -> None:
        assert isinstance(executor, PollsProgress)
        await executor.start(spec("job", 1, python(report)))
        await ready(executor, "job")
        await reports.first(Started, "job")
        (tmp_path / "go").touch()
        await ready(executor, "job", word="told")
        monkeypatch.setattr(TrackedGeneration, "poll_progress", slowly)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await executor.progress()
        slow.set()
        assert (await reports.first(Progressed, "job")).progress == 7_000_000
        assert await executor.progress() == []

    local.run(scenario)

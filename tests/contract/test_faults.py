"""Contract of executors: faults."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path

import pytest

from shadowprice.executors.contract import (
    Ended,
    Ending,
    Executor,
    Receipt,
    ServerAllocation,
    Started,
    StartRefused,
)
from shadowprice.executors.generations.generation import start_time
from shadowprice.executors.generations.outcome import ALL_WORKERS_SUCCEEDED
from tests.contract.harness import POLITE, ReportLog, eventually, python, ready, spec
from tests.contract.harness import LocalHarness as Harness

pytestmark = pytest.mark.processes

# ------------------------------------------------------------------ faults


def test_a_killed_agent_takes_its_generation_with_it_and_nothing_else(harness: Harness) -> None:
    async def scenario(own: Harness, executor: Executor, reports: ReportLog) -> None:
        command = "setsid sleep 600 & (sleep 600 &) ; echo ready; exec sleep 600"
        await executor.start(spec("victim", 1, command, ServerAllocation("one", 2)))
        await executor.start(spec("other", 1, POLITE))
        await ready(executor, "victim")
        await ready(executor, "other")
        own.kill_agent("victim", 1)
        ended = await reports.first(Ended, "victim")
        assert (ended.ending, ended.code) == (Ending.LOST, None)
        assert own.killed in ended.reason
        assert not [leftover for leftover in own.leftovers() if "sleep\x00600" in leftover]
        assert not reports.matching(Ended, "other")
        assert await executor.start(spec("victim", 2, "true")) == Receipt.ACCEPTED
        assert (await reports.first(Ended, "victim", 2)).ending is Ending.DONE

    harness.run(scenario)


def test_agent_killed_during_a_downtime_is_detected(harness: Harness) -> None:
    async def scenario(own: Harness, executor: Executor, reports: ReportLog) -> None:
        await executor.start(spec("job", 1, "echo ready; exec sleep 600"))
        await ready(executor, "job")
        await executor.close()
        await reports.end()
        own.kill_agent("job", 1)
        executor = await own.open()
        reports = ReportLog(executor)
        assert (await reports.first(Ended, "job")).ending is Ending.LOST
        await executor.close()
        await reports.end()

    harness.run(scenario)


# Worker 1 fails when a file asks for it. Worker 0 saves on SIGTERM, and then waits.
FAILS = (
    'cd "$SHADOWPRICE_CHECKPOINT_DIR"; wait_for() { until [ -e $1 ]; do sleep 0.05; done; }; '
    "if [ $RANK = 1 ]; then touch ready-1; wait_for fail; echo broken; exit 9; fi; "
    "trap 'touch told; wait_for go; exit 143' TERM; touch ready-0; "
    "while :; do sleep 0.05; done"
)


@pytest.mark.extended
@pytest.mark.parametrize("moment", ["before", "during", "after"])
def test_failure_during_a_service_kill_is_reported_as_a_failure(
    harness: Harness, moment: str
) -> None:
    """Kill the service before one of two workers fails, or once the other one is stopped.

    That one ends before the service is back, or after.
    """
    order = spec(
        "job", 1, FAILS, ServerAllocation("one", 1), ServerAllocation("two", 1), grace=120.0
    )

    async def scenario(own: Harness, executor: Executor, reports: ReportLog) -> None:
        await executor.close()
        await reports.end()

        def there(name: str) -> Path | None:
            # files that are unpacked meanwhile get their final name last
            with suppress(FileNotFoundError):
                return next(own.path.rglob(name), None)
            return None

        with own.served(order) as service:
            await eventually(lambda: bool(there("ready-0") and there("ready-1")))
            one = there("ready-1")
            assert one is not None
            assert service.poll() is None
            if moment != "before":
                one.with_name("fail").touch()
                await eventually(lambda: there("told") is not None)
        one.with_name("fail").touch()
        if moment != "during":
            one.with_name("go").touch()
            await asyncio.sleep(2.0)
        executor = await own.open()
        reports = ReportLog(executor)
        one.with_name("go").touch()
        ended = await reports.first(Ended, "job")
        assert (ended.ending, ended.code) == (Ending.FAILED, 9), ended
        assert ended.reason == "worker-1 exited 9"
        assert ended.tail == ("broken",)
        await executor.close()
        await reports.end()

    harness.run(scenario)


def test_lost_server_ends_its_generations(harness: Harness) -> None:
    async def scenario(own: Harness, executor: Executor, reports: ReportLog) -> None:
        both = (ServerAllocation("one", 1), ServerAllocation("two", 1))
        await executor.start(spec("across", 1, "echo ready; exec sleep 600", *both))
        await executor.start(spec("aside", 1, POLITE, ServerAllocation("one", 1)))
        await ready(executor, "across")
        await ready(executor, "aside")
        # on both: a generation that hasn't started everywhere is refused
        await reports.first(Started, "across")
        own.lose_server("two")
        assert (await reports.first(Ended, "across")).ending is Ending.LOST
        assert not reports.matching(Ended, "aside")

    harness.run(scenario)


@pytest.mark.parametrize(
    ("placement", "more", "reason"),
    [
        ((ServerAllocation("nowhere", 1),), {}, "nowhere"),
        ((ServerAllocation("one", 0, 1),), {}, "no worker"),
        ((), {}, "no worker"),
        ((ServerAllocation("two", 2),), {"worker": {"gpu": 1000}}, "two has 1 GPUs"),
        (
            (ServerAllocation("one", 1),),
            {"env": {"A": "b\0c"}},
            "run.env: it contains a null character",
        ),
    ],
)
def test_unstartable_generation_is_refused_with_a_reason(
    harness: Harness, placement: tuple[ServerAllocation, ...], more: dict[str, object], reason: str
) -> None:
    async def scenario(_: Harness, executor: Executor, reports: ReportLog) -> None:
        order = spec("job", 1, "true", ServerAllocation("one", 1), **more)  # type: ignore[arg-type]  # by name
        order = type(order)(**{**_fields(order), "placement": placement})
        assert await executor.start(order) == Receipt.ACCEPTED
        refused = await reports.first(StartRefused, "job")
        assert reason in refused.reason
        assert await executor.start(order) == Receipt.DUPLICATE
        assert not reports.matching(Started, "job")
        assert await executor.start(spec("job", 2, "true")) == Receipt.ACCEPTED
        await reports.first(Ended, "job", 2)

    harness.run(scenario)


def _fields(order: object) -> dict[str, object]:
    return {name: getattr(order, name) for name in order.__dataclass_fields__}  # type: ignore[attr-defined]  # a dataclass


@pytest.mark.parametrize("way", ["setsid", "daemon", "no environment"])
def test_daemonized_processes_end_with_their_job(
    harness: Harness, tmp_path: Path, way: str
) -> None:
    away = {
        "setsid": "setsid sleep 600 </dev/null >/dev/null 2>&1 & echo $! >",
        "daemon": "(setsid sh -c 'sleep 600 & echo $!' </dev/null 2>&1 &) >",
        "no environment": "env -i setsid sleep 600 </dev/null >/dev/null 2>&1 & echo $! >",
    }[way]
    pid = tmp_path / "pid"

    async def scenario(own: Harness, executor: Executor, reports: ReportLog) -> None:
        await executor.start(spec("job", 1, f"{away} {pid}; sleep 0.3; exit 0"))
        ended = await reports.first(Ended, "job")
        assert ended.ending is Ending.DONE
        if not own.containers:  # its number differs there, and nothing reads the remaining files
            assert "background processes (sleep) were stopped when" in ended.reason
            assert start_time(int(pid.read_text())) is None
        assert not [leftover for leftover in own.leftovers() if "sleep\x00600" in leftover]

    harness.run(scenario)


def test_child_that_ends_with_its_parent_is_not_reported_as_left_over(harness: Harness) -> None:
    helper = "import os,sys\nread, write = os.pipe()\nif os.fork() == 0:\n os.close(write)\n"
    helper += " os.read(read, 1)\n os._exit(0)\n"

    async def scenario(_: Harness, executor: Executor, reports: ReportLog) -> None:
        await executor.start(
            spec("job", 1, python(f"{helper}sys.exit(0)"), ServerAllocation("one", 2))
        )
        ended = await reports.first(Ended, "job")
        assert (ended.ending, ended.reason) == (Ending.DONE, ALL_WORKERS_SUCCEEDED)

    harness.run(scenario)


def test_a_fork_storm_is_ended(harness: Harness) -> None:
    # Without control groups, processes are searched one by one. One that forks faster escapes until
    # it ends by itself, and the generation isn't over before that.
    pause = 0.0 if harness.settings["cgroup"] == "auto" else 0.02
    storm = "import os,signal,time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    storm += "print('ready', flush=True)\nend = time.time() + 40\nwhile time.time() < end:\n"
    storm += f" time.sleep({pause})\n if os.fork():\n  os._exit(0)\n os.setsid()\n"

    async def scenario(_: Harness, executor: Executor, reports: ReportLog) -> None:
        await executor.start(
            spec("job", 1, python(f"import os\nif os.fork():\n os.wait()\n{storm}"))
        )
        await ready(executor, "job")
        await executor.stop(77, "job", 1, 0.3)
        await reports.first(Ended, "job")

    harness.run(scenario)


def test_log_size_is_limited_and_keeps_the_end(harness: Harness) -> None:
    flood = "import sys\nline = b'x' * 99 + b'\\n'\n"
    flood += "for _ in range(200000): sys.stdout.buffer.write(line)\nprint('the end')"

    async def scenario(own: Harness, executor: Executor, reports: ReportLog) -> None:
        await executor.start(spec("job", 1, python(flood)))
        ended = await reports.first(Ended, "job")
        assert ended.ending is Ending.DONE
        assert ended.tail[-1] == "the end"
        assert len(own.files()) <= 100_000
        last = await executor.logs("job", max_bytes=8)
        assert (last.text, last.end, last.complete) == ("the end\n", 20_000_008, True)
        first = await executor.logs("job", start=0, max_bytes=1000)
        assert first.start >= 20_000_008 - 100_000
        assert first.text
        text, place = "", 0
        for _ in range(100_000 // 30_000 + 2):  # more parts would never end
            piece = await executor.logs("job", start=place, max_bytes=30_000)
            text, place = text + piece.text, piece.end
            if piece.complete:
                break
        assert piece.complete
        assert len(text) == 20_000_008 - first.start
        assert text.endswith("x\nthe end\n")

    harness.run(scenario)


def test_secrets_are_in_no_log_and_in_no_report(harness: Harness) -> None:
    command = (
        "env; echo $SHADOWPRICE_PROGRESS_TOKEN >&2;"
        ' printf "%s" "${SHADOWPRICE_PROGRESS_TOKEN%????}"; sleep 0.3;'
        ' printf "%s\\n" "${SHADOWPRICE_PROGRESS_TOKEN#????????}"; exit 5'
    )

    async def scenario(own: Harness, executor: Executor, reports: ReportLog) -> None:
        secret = "s3cr3t-token"
        assert len(secret) == 12
        await executor.start(spec("job", 1, command, progress_token=secret))
        ended = await reports.first(Ended, "job")
        assert secret not in repr(reports.received) + repr(await executor.list())
        assert secret.encode() not in own.files()
        assert "SHADOWPRICE_PROGRESS_TOKEN=***" in (await executor.logs("job")).text
        assert ended.tail[-1] == "***"
        # Jobs don't get the service's own environment.
        os.environ["SHADOWPRICE_TOKEN"] = "operator"
        try:
            await executor.start(spec("two", 1, "env"))
        finally:
            del os.environ["SHADOWPRICE_TOKEN"]
        await reports.first(Ended, "two")
        assert "operator" not in (await executor.logs("two")).text
        await executor.acknowledge_end("job", 1)
        left = b"".join(path.read_bytes() for path in own.path.rglob("*") if path.is_file())
        assert secret.encode() not in left

    harness.run(scenario)


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "/", "..", "a\nb", "-rf", "é" * 200, "\udcff", "a b;'\"$(id)"]
)
def test_names_are_never_paths(harness: Harness, tmp_path: Path, name: str) -> None:
    before = sorted(tmp_path.iterdir())

    async def scenario(_: Harness, executor: Executor, reports: ReportLog) -> None:
        await executor.start(spec(name, 1, 'printf %s "$SHADOWPRICE_JOB"'))
        assert (await reports.first(Ended, name)).ending is Ending.DONE
        said = (await executor.logs(name)).text
        assert said == name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        with pytest.raises(KeyError):
            await executor.logs(name, 1, "../../lock")
        with pytest.raises(KeyError):
            await executor.logs("another")

    harness.run(scenario)
    assert sorted(tmp_path.iterdir()) == sorted({*before, tmp_path / "executor"})

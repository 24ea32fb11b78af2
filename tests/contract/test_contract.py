"""The executors' one suite: what the contract promises, and the faults it is for."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from shadowprice.executors.contract import (
    Ended,
    Ending,
    Executor,
    ExecutorError,
    ExecutorOptions,
    Phase,
    Progressed,
    Receipt,
    Refused,
    Share,
    Started,
)
from shadowprice.executors.local.generation import start_time
from shadowprice.executors.registry import create
from tests.contract.harness import LocalHarness as Harness
from tests.contract.harness import Told, eventually, python, spec

# Waits for SIGTERM and answers it as the contract asks.
POLITE = "trap 'echo saved; exit 143' TERM; echo ready; while :; do sleep 0.05; done"
STUBBORN = "trap 'echo no' TERM; echo ready; while :; do sleep 0.05; done"


async def ready(executor: Executor, job: str, generation: int = 1, word: str = "ready") -> None:
    """Wait until a job has set itself up and says so."""
    for _ in range(3000):
        try:
            if word in (await executor.logs(job, generation, start=0)).text:
                return
        except KeyError:
            pass
        await asyncio.sleep(0.02)
    raise AssertionError(f"{job} never said {word}")


# ------------------------------------------------------------------ plain lives


def test_a_job_that_exits_0_is_done(harness: Harness) -> None:
    async def scenario(_: Harness, executor: Executor, told: Told) -> None:
        assert await executor.start(spec("job", 1, "echo hello; echo err >&2")) == "accepted"
        started = await told.one(Started, "job")
        ended = await told.one(Ended, "job")
        assert (started.command, started.generation) == (10, 1)
        assert (ended.ending, ended.code, ended.forced) == (Ending.DONE, 0, False)
        assert ended.tail == ("hello", "err")
        assert started.at <= ended.at
        chunk = await executor.logs("job")
        assert (chunk.text, chunk.start, chunk.end) == ("hello\nerr\n", 0, 10)
        assert chunk.complete
        (held,) = await executor.list()
        assert (held.phase, held.end) == (Phase.ENDED, ended)
        await executor.forget("job", 1)
        assert await executor.list() == ()
        assert (await executor.logs("job")).text == "hello\nerr\n"

    harness.run(scenario)


def test_a_job_that_exits_otherwise_failed_and_its_last_lines_say_why(harness: Harness) -> None:
    async def scenario(_: Harness, executor: Executor, told: Told) -> None:
        await executor.start(spec("job", 1, "echo line one; echo 'no such file' >&2; exit 3"))
        ended = await told.one(Ended, "job")
        assert (ended.ending, ended.code) == (Ending.FAILED, 3)
        assert ended.tail[-1] == "no such file"
        assert ended.reason == "worker-0 exited 3"

    harness.run(scenario)


@pytest.mark.parametrize(
    ("command", "code", "word"),
    [("kill -SEGV $$", 139, "SIGSEGV"), ("kill -TERM $$", 143, "SIGTERM"), ("exit 143", 143, "")],
)
def test_death_by_a_signal_that_nobody_here_sent_is_a_failure(
    harness: Harness, command: str, code: int, word: str
) -> None:
    async def scenario(_: Harness, executor: Executor, told: Told) -> None:
        await executor.start(spec("job", 1, command))
        ended = await told.one(Ended, "job")
        assert (ended.ending, ended.code, ended.command) == (Ending.FAILED, code, 0)
        assert word in ended.reason

    harness.run(scenario)


@pytest.mark.parametrize(
    ("words", "directory", "reason"),
    [
        (("/no/such/program",), "", "cannot run /no/such/program: No such file"),
        (("/",), "", "cannot run /: Permission denied"),
        (("true",), "/no/such/place", "cannot run its directory /no/such/place: No such file"),
    ],
)
def test_a_program_that_cannot_be_run_failed_and_says_why(
    harness: Harness, words: tuple[str, ...], directory: str, reason: str
) -> None:
    async def scenario(_: Harness, executor: Executor, told: Told) -> None:
        await executor.start(spec("job", 1, words, directory=directory))
        ended = await told.one(Ended, "job")
        assert ended.ending is Ending.FAILED
        assert reason in ended.reason
        assert len(told.of(Started, "job")) == 1

    harness.run(scenario)


def test_all_workers_run_and_parameter_servers_end_with_them(harness: Harness) -> None:
    command = (
        'echo "$SHADOWPRICE_ROLE $SHADOWPRICE_RANK of $SHADOWPRICE_WORKERS+$SHADOWPRICE_PS,'
        ' $RANK of $WORLD_SIZE"; [ $SHADOWPRICE_ROLE = ps ] && exec sleep 600; exit 0'
    )

    async def scenario(_: Harness, executor: Executor, told: Told) -> None:
        await executor.start(spec("job", 1, command, Share("one", 1, 1), Share("two", 1, 0)))
        ended = await told.one(Ended, "job")
        assert (ended.ending, ended.code) == (Ending.DONE, 0)
        (held,) = await executor.list()
        assert held.processes == ("worker-0", "worker-1", "ps-0")
        said = [(await executor.logs("job", 1, name)).text for name in held.processes]
        assert said == [
            "worker 0 of 2+1, 0 of 3\n",
            "worker 1 of 2+1, 1 of 3\n",
            "ps 0 of 2+1, 2 of 3\n",
        ]

    harness.run(scenario)


def test_one_worker_that_fails_ends_the_generation(harness: Harness) -> None:
    command = "[ $RANK = 1 ] && { echo broken; exit 9; }; exec sleep 600"

    async def scenario(_: Harness, executor: Executor, told: Told) -> None:
        await executor.start(spec("job", 1, command, Share("one", 3)))
        ended = await told.one(Ended, "job")
        assert (ended.ending, ended.code, ended.tail) == (Ending.FAILED, 9, ("broken",))
        assert "worker-1" in ended.reason

    harness.run(scenario)


# ------------------------------------------------------------------ stopping


def test_a_stop_lets_a_job_save_and_is_acknowledged_by_its_end(harness: Harness) -> None:
    async def scenario(_: Harness, executor: Executor, told: Told) -> None:
        await executor.start(spec("job", 1, POLITE))
        await ready(executor, "job")
        assert await executor.stop(77, "job", 1) == Receipt.ACCEPTED
        ended = await told.one(Ended, "job")
        assert (ended.ending, ended.code, ended.command) == (Ending.STOPPED, 143, 77)
        assert not ended.forced
        assert ended.tail[-1] == "saved"

    harness.run(scenario)


def test_a_shell_that_dies_of_the_signal_leaves_its_child_the_grace(harness: Harness) -> None:
    child = (
        "import signal,sys,time\ndef save(*_):\n time.sleep(0.6); print('saved'); sys.exit(143)\n"
    )
    child += "signal.signal(signal.SIGTERM, save)\nprint('ready', flush=True)\ntime.sleep(600)"
    words = " ".join(f"'{word}'" for word in python(child.replace("'", '"')))

    async def scenario(_: Harness, executor: Executor, told: Told) -> None:
        await executor.start(spec("job", 1, f"{words} & wait"))
        await ready(executor, "job")
        await executor.stop(77, "job", 1)
        ended = await told.one(Ended, "job")
        assert (ended.ending, ended.forced) == (Ending.STOPPED, False)
        assert "saved" in (await executor.logs("job")).text

    harness.run(scenario)


def test_what_hangs_past_its_grace_is_killed(harness: Harness) -> None:
    async def scenario(_: Harness, executor: Executor, told: Told) -> None:
        await executor.start(spec("job", 1, STUBBORN, grace=0.5))
        await ready(executor, "job")
        await executor.stop(77, "job", 1)
        ended = await told.one(Ended, "job")
        assert (ended.ending, ended.code, ended.forced) == (Ending.STOPPED, 137, True)
        assert "after its grace" in ended.reason

    harness.run(scenario)


def test_a_later_order_may_shorten_the_grace_and_never_lengthen_it(harness: Harness) -> None:
    async def scenario(_: Harness, executor: Executor, told: Told) -> None:
        await executor.start(spec("job", 1, STUBBORN, grace=3000.0))
        await ready(executor, "job")
        assert await executor.stop(77, "job", 1) == Receipt.ACCEPTED
        assert await executor.stop(77, "job", 1, 0.0) == Receipt.DUPLICATE
        await ready(executor, "job", word="no")
        (held,) = await executor.list()
        assert held.phase is Phase.STOPPING
        assert await executor.stop(78, "job", 1, 0.2) == Receipt.ACCEPTED
        assert await executor.stop(79, "job", 1, 3000.0) == Receipt.ACCEPTED
        ended = await told.one(Ended, "job")
        assert (ended.command, ended.forced) == (79, True)

    harness.run(scenario)


@pytest.mark.parametrize(("code", "ending"), [(0, Ending.DONE), (1, Ending.FAILED)])
def test_the_answer_to_a_stop_counts(harness: Harness, code: int, ending: Ending) -> None:
    command = f"trap 'exit {code}' TERM; echo ready; while :; do sleep 0.05; done"

    async def scenario(_: Harness, executor: Executor, told: Told) -> None:
        await executor.start(spec("job", 1, command))
        await ready(executor, "job")
        await executor.stop(77, "job", 1)
        ended = await told.one(Ended, "job")
        assert (ended.ending, ended.code, ended.command) == (ending, code, 77)

    harness.run(scenario)


def test_a_stop_of_what_is_over_is_answered_by_its_end(harness: Harness) -> None:
    async def scenario(_: Harness, executor: Executor, told: Told) -> None:
        await executor.start(spec("job", 1, "true"))
        await told.one(Ended, "job")
        assert await executor.stop(77, "job", 1) == Receipt.ACCEPTED
        await eventually(lambda: len(told.of(Ended, "job")) == 2)
        again = told.of(Ended, "job")[1]
        assert (again.ending, again.command) == (Ending.DONE, 77)
        assert len(told.of(Started, "job")) == 1

    harness.run(scenario)


# ------------------------------------------------------------------ fencing


def test_a_start_that_comes_again_starts_nothing(harness: Harness, tmp_path: Path) -> None:
    ran = tmp_path / "ran"

    async def scenario(own: Harness, executor: Executor, told: Told) -> None:
        order = spec("job", 1, f"echo x >> {ran}; sleep 0.3")
        receipts = await asyncio.gather(*(executor.start(order) for _ in range(5)))
        assert sorted(receipts) == ["accepted", *["duplicate"] * 4]
        await told.one(Ended, "job")
        assert await executor.start(order) == Receipt.DUPLICATE
        await executor.forget("job", 1)
        assert await executor.start(order) == Receipt.DUPLICATE
        await executor.discard("job")
        assert await executor.start(order) == Receipt.DUPLICATE
        await executor.close()
        again = await own.open()
        assert await again.start(order) == Receipt.DUPLICATE
        assert await again.list() == ()
        await again.close()

    harness.run(scenario)
    assert ran.read_text() == "x\n"


def test_older_generations_are_stale_and_newer_ones_wait(harness: Harness) -> None:
    async def scenario(_: Harness, executor: Executor, told: Told) -> None:
        await executor.start(spec("job", 2, POLITE))
        assert await executor.start(spec("job", 1, POLITE)) == Receipt.STALE
        assert await executor.start(spec("job", 3, POLITE)) == Receipt.BUSY
        assert await executor.stop(5, "job", 1) == Receipt.STALE
        assert await executor.start(spec("other", 1, "true")) == Receipt.ACCEPTED
        await ready(executor, "job", 2)
        await executor.stop(25, "job", 2)
        await told.one(Ended, "job", 2)
        assert await executor.start(spec("job", 3, "true")) == Receipt.ACCEPTED
        await told.one(Ended, "job", 3)
        assert await executor.start(spec("job", 2, "true")) == Receipt.STALE
        kinds = [(type(one), one.generation) for one in told.reports if one.job == "job"]  # type: ignore[union-attr]  # no servers here
        assert kinds == [(Started, 2), (Ended, 2), (Started, 3), (Ended, 3)]

    harness.run(scenario)


def test_a_stop_that_overtakes_its_start_bars_it(harness: Harness, tmp_path: Path) -> None:
    async def scenario(_: Harness, executor: Executor, told: Told) -> None:
        await executor.start(spec("job", 1, POLITE))
        await ready(executor, "job")
        assert await executor.stop(30, "job", 2) == Receipt.ACCEPTED
        assert (await told.one(Refused, "job", 2)).command == 30
        assert await executor.start(spec("job", 2, f"touch {tmp_path}/no")) == Receipt.DUPLICATE
        assert await executor.start(spec("job", 3, "true")) == Receipt.BUSY  # 1 runs on
        assert await executor.stop(11, "job", 1) == Receipt.ACCEPTED
        assert (await told.one(Ended, "job", 1)).ending is Ending.STOPPED
        assert await executor.start(spec("job", 3, "true")) == Receipt.ACCEPTED
        await told.one(Ended, "job", 3)

    harness.run(scenario)
    assert not (tmp_path / "no").exists()


def test_a_stop_right_after_a_start_never_loses_the_job(harness: Harness) -> None:
    async def scenario(_: Harness, executor: Executor, told: Told) -> None:
        for number in range(8):
            job = f"job {number}"
            await executor.start(spec(job, 1, "sleep 600"))
            await asyncio.sleep(number * 0.02)
            await executor.stop(5, job, 1)
        ends = [f"job {number}" for number in range(8)]
        await eventually(
            lambda: all(told.of(Ended, job) or told.of(Refused, job) for job in ends),
            lambda: told.reports,
        )
        for job in ends:
            assert all(one.ending is Ending.STOPPED for one in told.of(Ended, job))

    harness.run(scenario)


# ------------------------------------------------------------------ the service comes and goes


def test_running_jobs_are_found_again_and_not_killed(harness: Harness) -> None:
    async def scenario(own: Harness, executor: Executor, told: Told) -> None:
        await executor.start(spec("job", 1, POLITE))
        await ready(executor, "job")
        started = await told.one(Started, "job")
        await executor.close()
        await told.end()
        for _ in range(2):
            executor = await own.open()
            (held,) = await executor.list()
            assert (held.job, held.phase, held.started) == ("job", Phase.RUNNING, started.at)
            assert held.placement == (Share("one", 1),)
            again = Told(executor)
            assert await again.one(Started, "job") == started
            if not again.of(Ended, "job") and _ == 1:
                await executor.stop(77, "job", 1)
                assert (await again.one(Ended, "job")).code == 143
            await executor.close()
            await again.end()

    harness.run(scenario)


def test_an_end_that_nobody_saw_is_told_until_it_is_forgotten(harness: Harness) -> None:
    async def scenario(own: Harness, executor: Executor, told: Told) -> None:
        await executor.start(spec("job", 1, "sleep 0.5; echo bye; exit 4"))
        await told.one(Started, "job")
        await executor.close()
        await told.end()
        await asyncio.sleep(1.0)
        for _ in range(2):
            executor = await own.open()
            told = Told(executor)
            ended = await told.one(Ended, "job")
            assert (ended.code, ended.tail) == (4, ("bye",))
            await executor.close()
            await told.end()
        executor = await own.open()
        await executor.forget("job", 1)
        await executor.close()
        executor = await own.open()
        assert await executor.list() == ()
        await executor.close()

    harness.run(scenario)


def test_only_one_service_uses_it_at_a_time(harness: Harness) -> None:
    async def scenario(own: Harness, executor: Executor, _: Told) -> None:
        with pytest.raises(ExecutorError, match="used by another service"):
            await own.open()
        await executor.close()
        again = await own.open()
        await again.close()

    harness.run(scenario)


# ------------------------------------------------------------------ faults


def test_a_killed_agent_takes_its_generation_with_it_and_nothing_else(harness: Harness) -> None:
    async def scenario(own: Harness, executor: Executor, told: Told) -> None:
        command = "setsid sleep 600 & (sleep 600 &) ; echo ready; exec sleep 600"
        await executor.start(spec("victim", 1, command, Share("one", 2)))
        await executor.start(spec("other", 1, POLITE))
        await ready(executor, "victim")
        await ready(executor, "other")
        own.kill_agent("victim", 1)
        ended = await told.one(Ended, "victim")
        assert (ended.ending, ended.code) == (Ending.LOST, None)
        assert "supervisor was killed" in ended.reason
        assert not [one for one in own.leftovers() if "sleep\x00600" in one]
        assert not told.of(Ended, "other")
        assert await executor.start(spec("victim", 2, "true")) == Receipt.ACCEPTED
        assert (await told.one(Ended, "victim", 2)).ending is Ending.DONE

    harness.run(scenario)


def test_an_agent_killed_while_the_service_is_away_is_found_out(harness: Harness) -> None:
    async def scenario(own: Harness, executor: Executor, told: Told) -> None:
        await executor.start(spec("job", 1, "echo ready; exec sleep 600"))
        await ready(executor, "job")
        await executor.close()
        await told.end()
        own.kill_agent("job", 1)
        executor = await own.open()
        told = Told(executor)
        assert (await told.one(Ended, "job")).ending is Ending.LOST
        await executor.close()
        await told.end()

    harness.run(scenario)


def test_a_lost_server_ends_what_ran_there(harness: Harness) -> None:
    async def scenario(own: Harness, executor: Executor, told: Told) -> None:
        both = (Share("one", 1), Share("two", 1))
        await executor.start(spec("across", 1, "echo ready; exec sleep 600", *both))
        await executor.start(spec("aside", 1, POLITE, Share("one", 1)))
        await ready(executor, "across")
        await ready(executor, "aside")
        own.lose_server("two")
        assert (await told.one(Ended, "across")).ending is Ending.LOST
        assert not told.of(Ended, "aside")

    harness.run(scenario)


@pytest.mark.parametrize(
    ("placement", "more", "reason"),
    [
        ((Share("nowhere", 1),), {}, "nowhere"),
        ((Share("one", 0, 1),), {}, "no worker"),
        ((), {}, "no worker"),
        ((Share("two", 2),), {"worker": {"gpu": 1000}}, "two has 1 GPUs"),
        ((Share("one", 1),), {"env": {"A": "b\0c"}}, "null character"),
    ],
)
def test_what_cannot_start_is_refused_with_a_reason(
    harness: Harness, placement: tuple[Share, ...], more: dict[str, object], reason: str
) -> None:
    async def scenario(_: Harness, executor: Executor, told: Told) -> None:
        order = spec("job", 1, "true", Share("one", 1), **more)  # type: ignore[arg-type]  # by name
        order = type(order)(**{**_fields(order), "placement": placement})
        assert await executor.start(order) == Receipt.ACCEPTED
        refused = await told.one(Refused, "job")
        assert reason in refused.reason
        assert await executor.start(order) == Receipt.DUPLICATE
        assert not told.of(Started, "job")
        assert await executor.start(spec("job", 2, "true")) == Receipt.ACCEPTED
        await told.one(Ended, "job", 2)

    harness.run(scenario)


def _fields(order: object) -> dict[str, object]:
    return {name: getattr(order, name) for name in order.__dataclass_fields__}  # type: ignore[attr-defined]  # a dataclass


@pytest.mark.parametrize("way", ["setsid", "daemon", "no environment"])
def test_what_forks_away_ends_with_its_job(harness: Harness, tmp_path: Path, way: str) -> None:
    away = {
        "setsid": "setsid sleep 600 </dev/null >/dev/null 2>&1 & echo $! >",
        "daemon": "(setsid sh -c 'sleep 600 & echo $!' </dev/null 2>&1 &) >",
        "no environment": "env -i setsid sleep 600 </dev/null >/dev/null 2>&1 & echo $! >",
    }[way]
    pid = tmp_path / "pid"

    async def scenario(_: Harness, executor: Executor, told: Told) -> None:
        await executor.start(spec("job", 1, f"{away} {pid}; sleep 0.3; exit 0"))
        ended = await told.one(Ended, "job")
        assert ended.ending is Ending.DONE
        assert start_time(int(pid.read_text())) is None

    harness.run(scenario)


def test_a_fork_storm_is_ended(harness: Harness) -> None:
    # Without control groups processes are looked for one by one: who forks faster gets away, until
    # it ends by itself; and the generation is not over before that.
    pause = 0.0 if harness.settings["cgroup"] == "auto" else 0.02
    storm = "import os,signal,time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    storm += "print('ready', flush=True)\nend = time.time() + 40\nwhile time.time() < end:\n"
    storm += f" time.sleep({pause})\n if os.fork():\n  os._exit(0)\n os.setsid()\n"

    async def scenario(_: Harness, executor: Executor, told: Told) -> None:
        await executor.start(
            spec("job", 1, python(f"import os\nif os.fork():\n os.wait()\n{storm}"))
        )
        await ready(executor, "job")
        await executor.stop(77, "job", 1, 0.3)
        await told.one(Ended, "job")

    harness.run(scenario)


def test_a_flood_of_output_is_bounded_and_keeps_its_end(harness: Harness) -> None:
    flood = "import sys\nline = b'x' * 99 + b'\\n'\n"
    flood += "for _ in range(200000): sys.stdout.buffer.write(line)\nprint('the end')"

    async def scenario(own: Harness, executor: Executor, told: Told) -> None:
        await executor.start(spec("job", 1, python(flood)))
        ended = await told.one(Ended, "job")
        assert ended.ending is Ending.DONE
        assert ended.tail[-1] == "the end"
        assert len(own.files()) <= 100_000
        last = await executor.logs("job", most=8)
        assert (last.text, last.end, last.complete) == ("the end\n", 20_000_008, True)
        first = await executor.logs("job", start=0, most=1000)
        assert first.start >= 20_000_008 - 100_000
        assert first.text
        text, place = "", 0
        while True:
            piece = await executor.logs("job", start=place, most=30_000)
            text, place = text + piece.text, piece.end
            if piece.complete:
                break
        assert len(text) == 20_000_008 - first.start
        assert text.endswith("x\nthe end\n")

    harness.run(scenario)


def test_secrets_are_in_no_log_and_in_no_report(harness: Harness) -> None:
    command = (
        "env; echo $SHADOWPRICE_PROGRESS_TOKEN >&2;"
        ' printf "%s" "${SHADOWPRICE_PROGRESS_TOKEN%????}"; sleep 0.3;'
        ' printf "%s\\n" "${SHADOWPRICE_PROGRESS_TOKEN#????????}"; exit 5'
    )

    async def scenario(own: Harness, executor: Executor, told: Told) -> None:
        secret = "s3cr3t-token"
        assert len(secret) == 12
        await executor.start(spec("job", 1, command, progress_token=secret))
        ended = await told.one(Ended, "job")
        assert secret not in repr(told.reports) + repr(await executor.list())
        assert secret.encode() not in own.files()
        assert "SHADOWPRICE_PROGRESS_TOKEN=***" in (await executor.logs("job")).text
        assert ended.tail[-1] == "***"
        # What the service itself was started with is not for jobs.
        os.environ["SHADOWPRICE_TOKEN"] = "operator"
        try:
            await executor.start(spec("two", 1, "env"))
        finally:
            del os.environ["SHADOWPRICE_TOKEN"]
        await told.one(Ended, "two")
        assert "operator" not in (await executor.logs("two")).text
        await executor.forget("job", 1)
        left = b"".join(one.read_bytes() for one in own.path.rglob("*") if one.is_file())
        assert secret.encode() not in left

    harness.run(scenario)


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "/", "..", "a\nb", "-rf", "é" * 200, "\udcff", "a b;'\"$(id)"]
)
def test_names_are_never_paths(harness: Harness, tmp_path: Path, name: str) -> None:
    before = sorted(tmp_path.iterdir())

    async def scenario(_: Harness, executor: Executor, told: Told) -> None:
        await executor.start(spec(name, 1, 'printf %s "$SHADOWPRICE_JOB"'))
        assert (await told.one(Ended, name)).ending is Ending.DONE
        said = (await executor.logs(name)).text
        assert said == name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        with pytest.raises(KeyError):
            await executor.logs(name, 1, "../../lock")
        with pytest.raises(KeyError):
            await executor.logs("another")

    harness.run(scenario)
    assert sorted(tmp_path.iterdir()) == sorted({*before, tmp_path / "executor"})


# ------------------------------------------------------------------ what jobs are told


def test_the_environment_is_the_contracts_and_no_more(harness: Harness) -> None:
    show = "import os,json,sys\njson.dump(dict(os.environ), sys.stdout)"

    async def scenario(own: Harness, executor: Executor, told: Told) -> None:
        order = spec(
            "job",
            7,
            python(show),
            Share("one", 2),
            worker={"gpu": 1000},
            env={"KEY": "value"},
            progress_url="http://here",
            slot_end=12.0,
        )
        await executor.start(order)
        await told.one(Ended, "job", 7)
        text = [(await executor.logs("job", 7, f"worker-{n}")).text for n in (0, 1)]
        one, two = (json.loads(each) for each in text)
        assert {one["CUDA_VISIBLE_DEVICES"], two["CUDA_VISIBLE_DEVICES"]} == {"0", "1"}
        assert one["MASTER_PORT"] == two["MASTER_PORT"] == one["PET_MASTER_PORT"]
        assert int(one["MASTER_PORT"]) > 1024
        assert Path(one["SHADOWPRICE_CHECKPOINT_DIR"]).is_dir()
        assert one["SHADOWPRICE_CHECKPOINT_DIR"].startswith(str(own.path))
        told_ = {name for name in one if name.startswith(("SHADOWPRICE_", "PET_"))}
        assert told_ - {"SHADOWPRICE_PROGRESS_FILE", "SHADOWPRICE_EXECUTION"} == {
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

    async def scenario(own: Harness, executor: Executor, told: Told) -> None:
        for generation in (1, 2):
            await executor.start(spec("job", generation, command))
            await told.one(Ended, "job", generation)
        assert (await executor.logs("job", 2)).text == "1\n"
        await executor.discard("job")
        assert await executor.list() == ()
        with pytest.raises(KeyError):
            await executor.logs("job", 2)
        assert "checkpoints" not in {path.name for path in own.path.rglob("*")}

    harness.run(scenario)


def test_devices_are_dealt_once(harness: Harness) -> None:
    async def scenario(_: Harness, executor: Executor, told: Told) -> None:
        command = f"echo [$CUDA_VISIBLE_DEVICES]; {POLITE}"
        for job in ("a", "b"):
            await executor.start(spec(job, 1, command, worker={"gpu": 1000}))
            await ready(executor, job)
        said = {(await executor.logs(job)).text.split()[0] for job in ("a", "b")}
        assert said == {"[0]", "[1]"}
        await executor.start(spec("c", 1, command, worker={"gpu": 500}))
        assert "no GPU with 0.5" in (await told.one(Refused, "c")).reason
        await executor.stop(50, "a", 1)
        await told.one(Ended, "a")
        await executor.start(spec("d", 1, command, worker={"gpu": 1000}))
        await ready(executor, "d")
        assert (await executor.logs("d")).text.split()[0] == "[0]"
        await executor.start(spec("e", 1, command))
        await ready(executor, "e")
        assert (await executor.logs("e")).text.split()[0] == "[]"

    harness.run(scenario)


def test_progress_may_be_told_by_file(harness: Harness) -> None:
    command = (
        'cd "$(dirname "$SHADOWPRICE_PROGRESS_FILE")"; for n in 10 20; do '
        'echo "{\\"generation\\": 1, \\"minibatches\\": $n, '
        '\\"metrics\\": {\\"loss\\": 0.5}}" > t; '
        'mv t "$SHADOWPRICE_PROGRESS_FILE"; sleep 1.5; done; '
        'echo nonsense > "$SHADOWPRICE_PROGRESS_FILE"; sleep 1.2; exit 0'
    )

    async def scenario(_: Harness, executor: Executor, told: Told) -> None:
        if not executor.capabilities.progress_files:
            pytest.skip("this executor reads no files")
        await executor.start(spec("job", 1, command))
        await told.one(Ended, "job")
        reports = told.of(Progressed, "job")
        assert [one.progress for one in reports] == [10_000_000, 20_000_000]
        assert reports[0].metrics == {"loss": 0.5}

    harness.run(scenario)


def test_what_others_run_is_observed(harness: Harness) -> None:
    async def scenario(own: Harness, executor: Executor, _: Told) -> None:
        if not executor.capabilities.observes:
            pytest.skip("this executor sees its own only")
        await executor.start(spec("ours", 1, POLITE))
        await ready(executor, "ours")
        told = {"SHADOWPRICE_JOB": f"theirs {own.path}", "SHADOWPRICE_TENANT": "vision"}
        process = await asyncio.create_subprocess_exec(
            "/bin/sh",
            "-c",
            "sleep 600 & sleep 600",
            env={**os.environ, **told},
            start_new_session=True,
        )
        try:
            found = {one.job: one for one in await executor.observe()}
            assert found["ours"].placement == (Share("one", 1),)
            theirs = found[f"theirs {own.path}"]
            assert theirs.tenant == "vision"
            assert sum(share.workers for share in theirs.placement) == 1
        finally:
            os.killpg(process.pid, 9)
            await process.wait()

    harness.run(scenario)


def test_an_executor_that_was_never_opened_can_be_closed(harness: Harness) -> None:
    executor = create("local", ExecutorOptions(str(harness.path)))
    assert isinstance(executor, Executor)
    asyncio.run(executor.close())

"""Contract of executors: how generations run and end, by themselves or by a command."""

from __future__ import annotations

import pytest

from shadowprice.executors.contract import (
    Ended,
    Ending,
    Executor,
    GenerationPhase,
    Receipt,
    ServerAllocation,
    Started,
)
from tests.contract.harness import POLITE, STUBBORN, ReportLog, eventually, python, ready, spec
from tests.contract.harness import LocalHarness as Harness

pytestmark = pytest.mark.processes

# ------------------------------------------------------------------ plain lives


def test_exit_0_completes_the_generation(harness: Harness) -> None:
    async def scenario(_: Harness, executor: Executor, reports: ReportLog) -> None:
        assert await executor.start(spec("job", 1, "echo hello; echo err >&2")) == "accepted"
        started = await reports.first(Started, "job")
        ended = await reports.first(Ended, "job")
        assert (started.command, started.generation) == (10, 1)
        assert (ended.ending, ended.code, ended.forced) == (Ending.DONE, 0, False)
        assert ended.tail == ("hello", "err")
        assert started.at <= ended.at
        chunk = await executor.logs("job")
        assert (chunk.text, chunk.start, chunk.end) == ("hello\nerr\n", 0, 10)
        assert chunk.complete
        (held,) = await executor.list()
        assert (held.phase, held.end) == (GenerationPhase.ENDED, ended)
        await executor.acknowledge_end("job", 1)
        assert await executor.list() == ()
        assert (await executor.logs("job")).text == "hello\nerr\n"

    harness.run(scenario)


def test_nonzero_exit_fails_with_the_last_log_lines(harness: Harness) -> None:
    async def scenario(_: Harness, executor: Executor, reports: ReportLog) -> None:
        await executor.start(spec("job", 1, "echo line one; echo 'no such file' >&2; exit 3"))
        ended = await reports.first(Ended, "job")
        assert (ended.ending, ended.code) == (Ending.FAILED, 3)
        assert ended.tail[-1] == "no such file"
        assert ended.reason == "worker-0 exited 3"

    harness.run(scenario)


@pytest.mark.parametrize(
    ("command", "code", "word"),
    [("kill -SEGV $$", 139, "SIGSEGV"), ("kill -TERM $$", 143, "SIGTERM"), ("exit 143", 143, "")],
)
def test_death_by_a_foreign_signal_is_a_failure(
    harness: Harness, command: str, code: int, word: str
) -> None:
    async def scenario(_: Harness, executor: Executor, reports: ReportLog) -> None:
        await executor.start(spec("job", 1, command))
        ended = await reports.first(Ended, "job")
        assert (ended.ending, ended.code, ended.command) == (Ending.FAILED, code, 0)
        assert word in ended.reason

    harness.run(scenario)


@pytest.mark.parametrize(
    ("words", "directory", "reason"),
    [
        (("/no/such/program",), "", "cannot run /no/such/program: No such file"),
        (("/",), "", "cannot run /: Permission denied"),
        (("true",), "/no/such/place", "cannot start in /no/such/place: No such file"),
    ],
)
def test_unexecutable_program_fails_with_a_reason(
    harness: Harness, words: tuple[str, ...], directory: str, reason: str
) -> None:
    if harness.containers and directory:
        pytest.skip("a container's directory is made where it is not")

    async def scenario(_: Harness, executor: Executor, reports: ReportLog) -> None:
        await executor.start(spec("job", 1, words, directory=directory))
        ended = await reports.first(Ended, "job")
        assert ended.ending is Ending.FAILED
        assert reason in ended.reason
        assert len(reports.matching(Started, "job")) == 1

    harness.run(scenario)


def test_all_workers_run_and_parameter_servers_end_with_them(harness: Harness) -> None:
    command = (
        'echo "$SHADOWPRICE_ROLE $SHADOWPRICE_RANK of $SHADOWPRICE_WORKERS+$SHADOWPRICE_PS,'
        ' $RANK of $WORLD_SIZE"; mark=$SHADOWPRICE_CHECKPOINT_DIR/ps;'
        " if [ $SHADOWPRICE_ROLE = ps ]; then touch $mark; exec sleep 600; fi;"
        " until [ -e $mark ]; do sleep 0.05; done"  # a stopped server has printed its line
    )

    async def scenario(_: Harness, executor: Executor, reports: ReportLog) -> None:
        await executor.start(
            spec("job", 1, command, ServerAllocation("one", 1, 1), ServerAllocation("two", 1, 0))
        )
        ended = await reports.first(Ended, "job")
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


def test_failed_worker_ends_the_generation(harness: Harness) -> None:
    command = "[ $RANK = 1 ] && { echo broken; exit 9; }; exec sleep 600"

    async def scenario(_: Harness, executor: Executor, reports: ReportLog) -> None:
        await executor.start(spec("job", 1, command, ServerAllocation("one", 3)))
        ended = await reports.first(Ended, "job")
        assert (ended.ending, ended.code, ended.tail) == (Ending.FAILED, 9, ("broken",))
        assert "worker-1" in ended.reason

    harness.run(scenario)


def test_tolerated_workers_may_die_while_another_runs(harness: Harness) -> None:
    gone = "$SHADOWPRICE_CHECKPOINT_DIR/gone"
    command = (
        "if [ $RANK = 1 ]; then echo dying; kill -KILL $$; fi; if [ $SHADOWPRICE_ROLE = ps ];"
        f" then sleep 1; touch {gone}; exec sleep 600; fi; until [ -e {gone} ]; do sleep 0.05; done"
    )

    async def scenario(_: Harness, executor: Executor, reports: ReportLog) -> None:
        shares = (ServerAllocation("one", 2, 1),)
        await executor.start(spec("job", 1, command, *shares, tolerates_workers=True))
        ended = await reports.first(Ended, "job")
        assert (ended.ending, ended.code) == (Ending.DONE, 0)
        assert "worker-1 ended by SIGKILL" in ended.reason

    harness.run(scenario)


@pytest.mark.parametrize(
    ("command", "process"),
    [
        (
            # The other one must end in an earlier second, because clusters report exits by the
            # second.
            (
                'cd "$SHADOWPRICE_CHECKPOINT_DIR"; [ $RANK = 1 ] && touch gone && exit 9; '
                "until [ -e gone ]; do sleep 0.1; done; sleep 1.5; exit 9"
            ),
            "worker-0",
        ),
        ("[ $SHADOWPRICE_ROLE = ps ] && exit 9; exec sleep 600", "ps-0"),
    ],
)
def test_death_of_the_last_worker_or_a_parameter_server_is_never_tolerated(
    harness: Harness, command: str, process: str
) -> None:
    async def scenario(_: Harness, executor: Executor, reports: ReportLog) -> None:
        ps = int(process == "ps-0")
        shares = (ServerAllocation("one", 2, ps),)
        await executor.start(spec("job", 1, command, *shares, tolerates_workers=True))
        ended = await reports.first(Ended, "job")
        assert (ended.ending, ended.code, ended.reason) == (Ending.FAILED, 9, f"{process} exited 9")

    harness.run(scenario)


def test_stop_is_acknowledged_after_a_tolerated_death(harness: Harness) -> None:
    command = f"if [ $RANK = 1 ]; then exit 9; fi; {POLITE}"

    async def scenario(_: Harness, executor: Executor, reports: ReportLog) -> None:
        shares = (ServerAllocation("one", 2),)
        await executor.start(spec("job", 1, command, *shares, tolerates_workers=True))
        await ready(executor, "job")
        await executor.stop(77, "job", 1)
        ended = await reports.first(Ended, "job")
        assert (ended.ending, ended.command) == (Ending.STOPPED, 77)

    harness.run(scenario)


# ------------------------------------------------------------------ stopping


def test_stop_lets_a_job_save_before_its_end_is_reported(harness: Harness) -> None:
    async def scenario(own: Harness, executor: Executor, reports: ReportLog) -> None:
        await executor.start(spec("job", 1, POLITE))
        await ready(executor, "job")
        assert await executor.stop(77, "job", 1) == Receipt.ACCEPTED
        ended = await reports.first(Ended, "job")
        assert (ended.ending, ended.command) == (Ending.STOPPED, 77)
        assert ended.code == 143 or (ended.code is None and not own.sees_exits)
        assert not ended.forced
        assert ended.tail[-1] == "saved"

    harness.run(scenario)


def test_child_of_a_terminated_shell_has_the_grace_period(harness: Harness) -> None:
    child = (
        "import signal,sys,time\ndef save(*_):\n time.sleep(0.6); print('saved'); sys.exit(143)\n"
    )
    child += "signal.signal(signal.SIGTERM, save)\nprint('ready', flush=True)\ntime.sleep(600)"
    words = " ".join(f"'{word}'" for word in python(child.replace("'", '"')))

    async def scenario(_: Harness, executor: Executor, reports: ReportLog) -> None:
        await executor.start(spec("job", 1, f"{words} & wait"))
        await ready(executor, "job")
        await executor.stop(77, "job", 1)
        ended = await reports.first(Ended, "job")
        assert (ended.ending, ended.forced) == (Ending.STOPPED, False)
        assert "saved" in (await executor.logs("job")).text

    harness.run(scenario)


def test_process_beyond_its_grace_period_is_killed(harness: Harness) -> None:
    async def scenario(own: Harness, executor: Executor, reports: ReportLog) -> None:
        await executor.start(spec("job", 1, STUBBORN, grace=0.5))
        await ready(executor, "job")
        await executor.stop(77, "job", 1)
        ended = await reports.first(Ended, "job")
        assert ended.ending is Ending.STOPPED
        if ended.code is not None or own.sees_exits:
            assert (ended.code, ended.forced) == (137, True)
            assert "within its grace period" in ended.reason

    harness.run(scenario)


def test_later_stop_may_only_shorten_the_grace_period(harness: Harness) -> None:
    if not harness.shortens:
        pytest.skip("what ends processes here counts a grace once")

    async def scenario(_: Harness, executor: Executor, reports: ReportLog) -> None:
        await executor.start(spec("job", 1, STUBBORN, grace=3000.0))
        await ready(executor, "job")
        assert await executor.stop(77, "job", 1) == Receipt.ACCEPTED
        assert await executor.stop(77, "job", 1, 0.0) == Receipt.DUPLICATE
        await ready(executor, "job", word="no")
        (held,) = await executor.list()
        assert held.phase is GenerationPhase.STOPPING
        assert await executor.stop(78, "job", 1, 0.2) == Receipt.ACCEPTED
        assert await executor.stop(79, "job", 1, 3000.0) == Receipt.ACCEPTED
        ended = await reports.first(Ended, "job")
        assert (ended.command, ended.forced) == (79, True)

    harness.run(scenario)


@pytest.mark.parametrize(("code", "ending"), [(0, Ending.DONE), (1, Ending.FAILED)])
def test_exit_status_after_a_stop_is_reported(harness: Harness, code: int, ending: Ending) -> None:
    command = f"trap 'exit {code}' TERM; echo ready; while :; do sleep 0.05; done"

    async def scenario(own: Harness, executor: Executor, reports: ReportLog) -> None:
        await executor.start(spec("job", 1, command))
        await ready(executor, "job")
        await executor.stop(77, "job", 1)
        ended = await reports.first(Ended, "job")
        if ended.code is not None or own.sees_exits:
            assert (ended.ending, ended.code) == (ending, code)
        assert ended.command == 77

    harness.run(scenario)


def test_stop_of_an_ended_generation_is_acknowledged_by_its_end(harness: Harness) -> None:
    async def scenario(_: Harness, executor: Executor, reports: ReportLog) -> None:
        await executor.start(spec("job", 1, "true"))
        await reports.first(Ended, "job")
        assert await executor.stop(77, "job", 1) == Receipt.ACCEPTED
        # The same end may be reported again meanwhile, because it isn't acknowledged.
        await eventually(lambda: reports.matching(Ended, "job")[-1].command == 77)
        assert {entry.ending for entry in reports.matching(Ended, "job")} == {Ending.DONE}
        first, *others = reports.matching(Started, "job")
        assert all(other == first for other in others)

    harness.run(scenario)

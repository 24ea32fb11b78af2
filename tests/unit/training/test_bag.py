"""Bags on real processes: which copies win, are killed or kept, and how often."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shadowprice import jobs
from shadowprice.training import TrainingError, bag
from shadowprice.training.bag.commits import ResultStore
from shadowprice.training.bag.running import BagRun
from tests.support import bag_functions as functions
from tests.support.waiting import WAIT_LIMIT_SECONDS, wait_until

pytestmark = pytest.mark.processes


def _alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except OSError:
        return False
    return state not in {b"Z", b"X"}


def _wait_for_end(process: int) -> None:
    wait_until(lambda: not _alive(process), lambda: f"process {process} is still alive")


def _run(function: Any, tasks: Any, processes: int = 2, **settings: Any) -> bag.BagResult:
    with bag.Workers(function, processes) as workers:
        return workers.run(tasks, **settings)


def test_results_come_in_the_order_of_the_tasks() -> None:
    seen: list[bag.Progress] = []
    outcome = _run(functions.square, range(7), progress=seen.append)
    assert outcome.results == [0, 1, 4, 9, 16, 25, 36]
    assert [one.ending for one in outcome.tries] == [bag.CopyEnding.WON] * 7
    assert seen[-1].done == 7
    assert seen[-1].copies == 0
    assert max(one.copies for one in seen) == 2
    assert [one.done for one in seen] == sorted(one.done for one in seen)


def test_processes_are_used_again_and_end_with_their_workers() -> None:
    with bag.Workers(functions.pid, 1) as workers:
        first = workers.run(range(3)).results
        second = workers.run(range(3)).results
        assert len({*first, *second}) == 1
        assert _alive(first[0])
    _wait_for_end(first[0])


def test_an_event_costs_the_running_tasks_only(monkeypatch: pytest.MonkeyPatch) -> None:
    # A pass over all tasks at every event would take time quadratic in their number.
    handle, entries = BagRun._handle_responses, []

    def counted(run: BagRun) -> None:
        entries.append(len(run._running))
        handle(run)

    monkeypatch.setattr(BagRun, "_handle_responses", counted)
    waiting: list[int] = []
    _run(functions.square, range(40), progress=lambda now: waiting.append(now.waiting))
    assert len(entries) >= 20
    assert max(entries) == 2
    assert (waiting[0], waiting[-1]) == (38, 0)
    assert waiting == sorted(waiting, reverse=True)


def test_nothing_to_do_is_done() -> None:
    assert _run(functions.square, []).results == []


def test_the_first_copy_to_end_wins_and_the_others_die_with_what_they_started(
    tmp_path: Path,
) -> None:
    outcome = _run(functions.slow_but_last, [(str(tmp_path), 2)], 3, copies=3)
    assert outcome.results == ["copy 2"]
    endings = sorted((one.copy, one.ending.value) for one in outcome.tries)
    assert endings == [(0, "cancelled"), (1, "cancelled"), (2, "won")]
    for number in (0, 1):
        _wait_for_end(int((tmp_path / f"copy-{number}").read_text()))
        _wait_for_end(int((tmp_path / f"child-{number}").read_text()))


def test_only_one_copy_gets_past_its_claim(tmp_path: Path) -> None:
    outcome = _run(functions.racing_side_effects, [str(tmp_path)] * 2, 6, copies=3)
    for task, token in enumerate(outcome.results):
        lines = (tmp_path / f"effects-{task}").read_text().splitlines()
        assert lines == [f"{token} {step}" for step in range(20)]
    assert len(set(outcome.results)) == 2


def test_a_holder_that_dies_passes_on_a_larger_token(tmp_path: Path) -> None:
    kept = tmp_path / "bag"
    outcome = _run(functions.dies_holding, [str(tmp_path)], 2, copies=2, retries=1, directory=kept)
    first, second = map(int, (tmp_path / "tokens").read_text().split())
    assert outcome.results == [second]
    assert second > first
    # And after a restart, larger still.
    (kept / "task-000000" / "result.pickle").unlink()
    (kept / "task-000000").rmdir()
    (tmp_path / "tokens").write_text("0\n")
    again = _run(functions.dies_holding, [str(tmp_path)], 1, directory=kept)
    assert again.results[0] > second


@pytest.mark.parametrize("processes", [1, 2])
def test_copies_that_a_claim_cancels_start_if_the_holder_dies(
    tmp_path: Path, processes: int
) -> None:
    outcome = _run(functions.dies_holding, [str(tmp_path)], processes, copies=2)
    tokens = [int(token) for token in (tmp_path / "tokens").read_text().split()]
    assert outcome.results == tokens[1:]


def test_a_copy_whose_turn_comes_during_a_claim_starts_if_the_holder_dies(tmp_path: Path) -> None:
    def progress(now: bag.Progress) -> None:
        if now.done:  # a process is free, but the waiting copy of task 0 can't start yet
            (tmp_path / "go").touch()

    outcome = _run(
        functions.first_dies_holding, [str(tmp_path)] * 2, 2, copies=[2, 1], progress=progress
    )
    assert outcome.results == [1, 0]


def test_a_task_fails_once_all_its_copies_have(tmp_path: Path) -> None:
    for processes in (1, 2):
        with pytest.raises(bag.TaskFailedError, match="task 0 failed 2 times") as caught:
            _run(functions.fails_after_its_claim, [0], processes, copies=2)
        assert caught.value.failures == 2


@pytest.mark.parametrize(
    ("way", "message"),
    [
        ("raise", "RuntimeError: the first never works"),
        ("kill", "died of SIGSEGV"),
        ("exit", "exited 7"),
        ("leave", "exited 0"),
    ],
)
def test_failures_are_tried_again_as_often_as_allowed(way: str, message: str) -> None:
    outcome = _run(functions.fails_first, [(way, 3), ("", 4)], retries=1)
    assert outcome.results == [3, 4]
    (failed,) = (one for one in outcome.tries if one.ending is bag.CopyEnding.FAILED)
    assert message in failed.reason
    with pytest.raises(bag.TaskFailedError, match="task 1 failed once") as caught:
        _run(functions.fails_first, [("", 3), (way, 4)])
    assert message in str(caught.value)


def test_a_death_is_noticed_though_what_was_forked_lives_on(tmp_path: Path) -> None:
    file = tmp_path / "child"
    # The child outlives the limit of a test: a bag that waited for its end of the pipe would hang.
    assert _run(functions.forks_and_dies_at_first, [str(file)], retries=1).results == [1]
    _wait_for_end(int(file.read_text()))


def test_a_process_that_dies_while_it_is_idle_is_no_tasks_failure() -> None:
    with bag.Workers(functions.pid, 1) as workers:
        (first,) = workers.run([0]).results
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: not Path(f"/proc/{first}").exists())  # a thread may still hold its pipe
        assert workers.run([0]).results != [first]


def test_a_failure_ends_no_task_of_which_another_copy_runs() -> None:
    assert _run(functions.fails_first, [("raise", 3)], copies=2).results == [3]


def test_other_workers_continue_on_request(tmp_path: Path) -> None:
    tasks = [(0, 0), (1, 9), (2, 0)]
    outcome = _run(functions.writes_files, tasks, keep_going=True, directory=tmp_path)
    assert dict(outcome.values) == {0: 0, 2: 2}
    assert list(outcome.failed) == [1]
    assert outcome.failed[1].failures == 1
    with pytest.raises(bag.TaskFailedError, match="no luck with 1"):
        _ = outcome.results


def test_files_of_winners_are_kept_whole_and_no_others(tmp_path: Path) -> None:
    tasks = [(0, 0), (1, 1)]
    kept = tmp_path / "bag"
    assert _run(functions.writes_files, tasks, retries=1, directory=kept).results == [0, 1]
    names = sorted(entry.name for entry in kept.iterdir())
    assert names == [".lock", "bag.json", "task-000000", "task-000001"]
    assert (kept / "task-000001" / "first.txt").read_text() == "1 by copy 1"
    assert (kept / "task-000001" / "second.txt").read_text() == "whole"


def test_an_interrupted_bag_continues(tmp_path: Path) -> None:
    tasks = [(0, 0), (1, 1), (2, 0)]
    with pytest.raises(bag.TaskFailedError):
        _run(functions.writes_files, tasks, 1, directory=tmp_path)
    assert [entry.name for entry in tmp_path.glob("task-*")] == ["task-000000"]
    outcome = _run(functions.writes_files, tasks, 1, retries=1, directory=tmp_path)
    assert outcome.results == [0, 1, 2]
    assert {one.task for one in outcome.tries} == {1, 2}
    again = _run(functions.writes_files, tasks, 1, directory=tmp_path)
    assert again.results == [0, 1, 2]
    assert not again.tries


def test_a_stored_result_may_be_removed_and_a_damaged_one_is_reported(tmp_path: Path) -> None:
    def results() -> list[int]:
        return list(_run(functions.square, [2, 3], directory=tmp_path).results)

    assert results() == [4, 9]
    kept = tmp_path / "task-000001" / "result.pickle"
    kept.with_name("model.bin").touch()
    kept.unlink()
    assert results() == [4, 9]
    assert not kept.with_name("model.bin").exists()  # its directory is the one that it wrote last
    kept.write_bytes(b"\x80")
    with pytest.raises(TrainingError, match="remove task-000001 to run that task again"):
        results()


def test_a_directory_is_of_one_bag(tmp_path: Path) -> None:
    kept = tmp_path / "bag"
    _run(functions.square, [1, 2], directory=kept)
    with pytest.raises(TrainingError, match="other tasks; give another"):
        _run(functions.square, [1, 3], directory=kept)
    with pytest.raises(TrainingError, match="another function"):
        _run(functions.pid, [1, 2], directory=kept)
    with pytest.raises(TrainingError, match="contains files, but no bag"):
        _run(functions.square, [1], directory=Path(__file__).parent)


_SETS = """
import sys
from shadowprice.training import bag
from tests.support import bag_functions

if __name__ == "__main__":
    words = frozenset(f"word-{number}" for number in range(20))
    tasks = [[words, {"of": {words, frozenset(sys.argv[2:])}}], b"\\x8f\\x91"]
    with bag.Workers(bag_functions.pid, 1) as workers:
        print(len(workers.run(tasks, directory=sys.argv[1]).tries))
"""


def test_a_bag_with_sets_continues_with_another_hash_seed(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(_SETS)
    root = Path(__file__).parents[3]

    def run(seed: int, *words: str) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {
            "PYTHONPATH": f"{root / 'src'}:{root}", "PYTHONHASHSEED": str(seed)
        }  # fmt: skip
        return subprocess.run(
            [sys.executable, str(script), str(tmp_path / "bag"), *words],
            env=environment, capture_output=True, text=True, check=False,
            timeout=WAIT_LIMIT_SECONDS,
        )  # fmt: skip

    first, second, third = run(1, "a", "b"), run(2, "b", "a"), run(3, "a", "c")
    assert (first.stdout, second.stdout) == ("2\n", "0\n"), first.stderr + second.stderr
    assert "contains a bag with another function or other tasks" in third.stderr


def test_a_task_that_cannot_be_identified_is_named(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"tasks\[1\]: can't be identified \(RecursionError"):
        _run(functions.square, [1, functions.InSet()], directory=tmp_path)


def test_a_directory_that_could_not_be_opened_is_not_locked(tmp_path: Path) -> None:
    _run(functions.square, [1], directory=tmp_path)
    (tmp_path / "token").write_text("?")
    with pytest.raises(TrainingError, match="token: expected an integer"):
        _run(functions.square, [1], directory=tmp_path)
    (tmp_path / "token").write_text("3")
    assert _run(functions.square, [1], directory=tmp_path).results == [1]


def test_a_file_open_for_writing_is_locked_as_nfs_requires(tmp_path: Path) -> None:
    store = ResultStore(tmp_path, functions.square, [1], [b"1"])
    try:
        assert fcntl.fcntl(store._lock, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR
    finally:
        store.close()


def test_a_bag_shows_that_its_job_can_be_moved_if_the_next_generation_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "_checkpoints", False)
    monkeypatch.setattr(jobs, "_change", None)
    told = {"JOB": "j", "GENERATION": "3", "ROLE": "worker", "RANK": "0"}
    told |= {"CHECKPOINT_DIR": str(tmp_path / "c"), "PROGRESS_FILE": str(tmp_path / "progress")}
    for name, value in told.items():
        monkeypatch.setenv(f"SHADOWPRICE_{name}", value)
    for directory, shown in ((tmp_path / "elsewhere", False), (tmp_path / "c" / "bag", True)):
        _run(functions.square, [1, 2], directory=directory)
        report = json.loads((tmp_path / "progress").read_bytes())
        assert (report["minibatches"], report["checkpoints"]) == (2, shown)


def test_wrong_arguments_are_reported_before_anything_runs() -> None:
    with pytest.raises(TrainingError, match="function: can't be pickled"):
        bag.Workers(lambda task: task, 1)
    for processes, message in (
        (0, "expected an integer from 1 to 4,096, got 0"),
        (2.5, "expected an integer, got 2.5"),
        ("3", "expected an integer, got '3'"),
    ):
        with pytest.raises(TrainingError, match=f"processes: {message}"):
            bag.Workers(functions.square, processes)  # type: ignore[arg-type]
    with bag.Workers(functions.square, 2) as workers:
        with pytest.raises(TrainingError, match=r"tasks\[1\]: can't be pickled"):
            workers.run([1, lambda: None])
        with pytest.raises(TrainingError, match="retries"):
            workers.run([1], retries=-1)
        for copies, message in (
            (0, "expected an integer from 1 to"),
            ("3", "expected an integer, got '3'"),
            ([1, 1], "expected a number, or one for each of 1 tasks, got 2"),
        ):
            with pytest.raises(TrainingError, match=f"copies: {message}"):
                workers.run([1], copies=copies)  # type: ignore[arg-type]


def test_a_result_that_cannot_be_sent_is_a_failure() -> None:
    with pytest.raises(bag.TaskFailedError, match="pickle"):
        _run(functions.unpicklable, [0])


@pytest.mark.parametrize(
    ("way", "message"),
    [
        ("unreadable", "its result can't be unpickled (ValueError: invalid literal"),
        ("removed", "it removed its attempt.directory"),
        ("taken", "it wrote result.pickle in attempt.directory"),
    ],
)
def test_a_result_that_cannot_be_kept_is_its_own_tasks_failure(
    tmp_path: Path, way: str, message: str
) -> None:
    outcome = _run(functions.spoils, ["", way, ""], keep_going=True, directory=tmp_path)
    assert dict(outcome.values) == {0: "", 2: ""}
    assert message in outcome.failed[1].reason
    assert not (tmp_path / "task-000001").exists()


_PROGRAM = """
import signal, sys, time
from shadowprice.training import bag
from tests.support import bag_functions

if __name__ == "__main__":
    with bag.Workers(bag_functions.waits, 2) as workers:
        workers.run([sys.argv[1]] * 2, directory=sys.argv[1] + "/bag")
"""


def _copies(folder: Path) -> list[int]:
    """Return the process numbers of both copies, or an empty list until both are written."""
    files = [folder / f"{task}.pid" for task in (0, 1)]
    texts = [file.read_text() for file in files if file.exists()]
    return [int(text) for text in texts] if len(texts) == 2 and all(texts) else []


@contextlib.contextmanager
def _program(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], list[int]]]:
    """Run a bag that never ends in a process of its own, and print its copies."""
    script = folder / "program.py"
    script.write_text(_PROGRAM)
    root = Path(__file__).parents[3]
    environment = os.environ | {"PYTHONPATH": f"{root / 'src'}:{root}"}
    with subprocess.Popen(
        [sys.executable, str(script), str(folder)], env=environment, stderr=subprocess.PIPE
    ) as program:
        try:
            copies = wait_until(lambda: program.poll() is not None or _copies(folder))
            assert isinstance(copies, list), "the program ended"
            yield program, copies
        finally:
            program.kill()


def test_ctrl_c_leaves_no_copy_behind(tmp_path: Path) -> None:
    with _program(tmp_path) as (program, copies):
        program.send_signal(signal.SIGINT)
        _, errors = program.communicate(timeout=WAIT_LIMIT_SECONDS)
        assert program.returncode != 0
        assert b"KeyboardInterrupt" in errors
        assert not any(map(_alive, copies))
        assert not (tmp_path / "bag" / ".copies").exists()


def test_copies_die_with_the_program_that_is_killed(tmp_path: Path) -> None:
    with _program(tmp_path) as (program, copies):
        program.kill()
        program.wait(WAIT_LIMIT_SECONDS)
        for copy in copies:
            _wait_for_end(copy)
        # Its directory is free again at once.
        with pytest.raises(TrainingError, match="another function"):
            _run(functions.square, [0], directory=tmp_path / "bag")


def test_two_bags_never_share_a_directory(tmp_path: Path) -> None:
    with _program(tmp_path), pytest.raises(TrainingError, match="in use by another process"):
        _run(functions.square, [0], directory=tmp_path / "bag")

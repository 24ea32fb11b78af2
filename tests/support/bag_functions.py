"""Functions that tests run as bags of tasks; worker processes import them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shadowprice.training import bag
from tests.support.waiting import wait_until


def _until(condition: Callable[[], bool], what: str) -> None:
    """Wait for other copies. The error of a failed copy names the condition."""
    wait_until(condition, lambda: f"never true: {what}")


def square(number: int) -> int:
    return number * number


class InSet:
    """A task that contains itself by a set, so that its elements have no order."""

    def __init__(self) -> None:
        self.own = {self}


def pid(_task: Any) -> int:
    return os.getpid()


def forks_and_dies_at_first(file: str) -> int:
    """Die in the first copy; leave a child process that inherits every open file, the pipe too."""
    if not bag.current().copy:
        child = os.fork()
        if not child:
            time.sleep(3600)
            os._exit(0)
        Path(file).write_text(str(child))
        os.kill(os.getpid(), signal.SIGKILL)
    return bag.current().copy


def slow_but_last(task: tuple[str, int]) -> str:
    """Write the process number; then block, unless this is copy number ``fast``."""
    folder, fast = task
    attempt = bag.current()
    Path(folder, f"copy-{attempt.copy}").write_text(str(os.getpid()))
    if attempt.copy != fast:
        child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
        written = Path(folder, f"writing-{attempt.copy}")
        written.write_text(str(child.pid))
        written.rename(Path(folder, f"child-{attempt.copy}"))  # complete, or missing
        time.sleep(600)
    others = Path(folder)
    _until(lambda: len(list(others.glob("child-*"))) >= fast, "all others are at it")
    return f"copy {attempt.copy}"


def racing_side_effects(folder: str) -> int:
    """Append to a shared file in many steps, so that concurrent writers would be seen."""
    attempt = bag.current()
    token = attempt.claim()
    with Path(folder, f"effects-{attempt.task}").open("a") as stream:
        for step in range(20):
            stream.write(f"{token} {step}\n")
            stream.flush()
            time.sleep(0.001)
    return token


def dies_holding(folder: str) -> int:
    """The first copy that gets the token dies of SIGKILL; the second one returns it."""
    attempt = bag.current()
    token = attempt.claim()
    with Path(folder, "tokens").open("a") as stream:
        stream.write(f"{token}\n")
    if len(Path(folder, "tokens").read_text().split()) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return token


def writes_files(task: tuple[int, int]) -> int:
    """Write one of two files; fail if the copy's number is below ``failing``."""
    number, failing = task
    attempt = bag.current()
    (attempt.directory / "first.txt").write_text(f"{number} by copy {attempt.copy}")
    if attempt.copy < failing:
        raise ValueError(f"no luck with {number}")
    (attempt.directory / "second.txt").write_text("whole")
    return number


def fails_first(task: tuple[str, int]) -> int:
    """Fail in the first copy, by an error, a signal or an exit."""
    way, value = task
    if bag.current().copy == 0:
        if way == "raise":
            raise RuntimeError("the first never works")
        if way == "kill":
            os.kill(os.getpid(), signal.SIGSEGV)
        if way == "exit":
            os._exit(7)
        if way == "leave":
            sys.exit(0)
    return value


def first_dies_holding(folder: str) -> int:
    """Die in the first copy of task 0 with its token, once ``go`` exists; return the copy's number.

    Task 1 ends while that copy has the token.
    """
    attempt = bag.current()
    if attempt.task:
        _until(Path(folder, "held").exists, "the other task is claimed")
        return attempt.copy
    attempt.claim()
    if not attempt.copy:
        Path(folder, "held").touch()
        _until(Path(folder, "go").exists, "the other task is done")
        os.kill(os.getpid(), signal.SIGKILL)
    return attempt.copy


def fails_after_its_claim(_task: Any) -> None:
    bag.current().claim()
    raise RuntimeError("it never works")


def unpicklable(_task: Any) -> Any:
    return lambda: None


def late(task: tuple[str, int]) -> int:
    """Block in the first copy of one task; return at once in all others."""
    folder, stuck = task
    attempt = bag.current()
    if (attempt.task, attempt.copy) == (stuck, 0):
        Path(folder, "stuck").touch()
        time.sleep(600)
    # No other copy may end before the blocked one runs.
    _until(Path(folder, "stuck").exists, "the copy that does not end has begun")
    return attempt.copy


def waits(folder: str) -> None:
    Path(folder, f"{bag.current().task}.pid").write_text(str(os.getpid()))
    time.sleep(600)


class Unreadable:
    """An object that can be pickled, but not unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("no number",)


def spoils(way: str) -> Any:
    """Leave an unusable result or directory."""
    if way == "unreadable":
        return Unreadable()
    if way == "removed":
        shutil.rmtree(bag.current().directory)
    if way == "taken":
        (bag.current().directory / "result.pickle").write_text("mine")
    return way

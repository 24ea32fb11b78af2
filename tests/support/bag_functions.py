"""What tests have bags run: functions that processes can import."""

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
    """Write down that it is here, then wait for ever unless it is copy number ``fast``."""
    folder, fast = task
    attempt = bag.current()
    Path(folder, f"copy-{attempt.copy}").write_text(str(os.getpid()))
    if attempt.copy != fast:
        child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
        written = Path(folder, f"writing-{attempt.copy}")
        written.write_text(str(child.pid))
        written.rename(Path(folder, f"child-{attempt.copy}"))  # there with what it says, or not
        time.sleep(600)
    others = Path(folder)
    _until(lambda: len(list(others.glob("child-*"))) >= fast, "all others are at it")
    return f"copy {attempt.copy}"


def racing_side_effects(folder: str) -> int:
    """Append to a file outside of the bag, in as many steps as would show two at it."""
    attempt = bag.current()
    token = attempt.claim()
    with Path(folder, f"effects-{attempt.task}").open("a") as stream:
        for step in range(20):
            stream.write(f"{token} {step}\n")
            stream.flush()
            time.sleep(0.001)
    return token


def dies_holding(folder: str) -> int:
    """Die of SIGKILL with the token, but for the second that gets it."""
    attempt = bag.current()
    token = attempt.claim()
    with Path(folder, "tokens").open("a") as stream:
        stream.write(f"{token}\n")
    if len(Path(folder, "tokens").read_text().split()) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return token


def writes_files(task: tuple[int, int]) -> int:
    """Write half of two files, and fail or go on, as the copy's number says."""
    number, failing = task
    attempt = bag.current()
    (attempt.directory / "first.txt").write_text(f"{number} by copy {attempt.copy}")
    if attempt.copy < failing:
        raise ValueError(f"no luck with {number}")
    (attempt.directory / "second.txt").write_text("whole")
    return number


def fails_first(task: tuple[str, int]) -> int:
    """Fail in some way in its first copy."""
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


def unpicklable(_task: Any) -> Any:
    return lambda: None


def late(task: tuple[str, int]) -> int:
    """Do not end in the first copy of one task, and at once in every other."""
    folder, stuck = task
    attempt = bag.current()
    if (attempt.task, attempt.copy) == (stuck, 0):
        Path(folder, "stuck").touch()
        time.sleep(600)
    # It runs: no other is the first to end.
    _until(Path(folder, "stuck").exists, "the copy that does not end has begun")
    return attempt.copy


def waits(folder: str) -> None:
    Path(folder, f"{bag.current().task}.pid").write_text(str(os.getpid()))
    time.sleep(600)


class Unreadable:
    """What can be pickled, and not unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("no number",)


def spoils(way: str) -> Any:
    """Leave a result, or a directory, that nothing can be done with."""
    if way == "unreadable":
        return Unreadable()
    if way == "removed":
        shutil.rmtree(bag.current().directory)
    if way == "taken":
        (bag.current().directory / "result.pickle").write_text("mine")
    return way

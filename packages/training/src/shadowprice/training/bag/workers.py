"""Runs bags of tasks in worker processes."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, Self

from shadowprice import jobs
from shadowprice.training.bag.commits import ResultStore
from shadowprice.training.bag.copies import CopyStrategy, StatedCopies
from shadowprice.training.bag.fork_server import start_fork_server
from shadowprice.training.bag.outcome import BagResult, Progress
from shadowprice.training.bag.running import BagRun, Pool
from shadowprice.training.errors import TrainingError, checked_integer

MAX_PROCESSES: Final = 4096  # maximum number of processes at once; each takes four file descriptors

MAX_RETRIES: Final = 10**9  # maximum number of retries of a task


class Workers:
    """A pool of processes for one function; bags of its tasks run on it one after the other.

    The processes come from a fork server, which has no threads. So the function, its tasks and its
    results must be picklable: use a module's function, not a lambda. A script must guard its own
    code with ``if __name__ == "__main__":``. ``processes`` is the maximum number at once. Raises
    `TrainingError` if it is out of range or the function can't be pickled.
    """

    def __init__(self, function: Callable[[Any], Any], processes: int) -> None:
        processes = checked_integer("processes", processes, 1, MAX_PROCESSES)
        self._function = function
        self._pool = Pool(_pickle(function, "function"), processes)
        start_fork_server(getattr(function, "__module__", None) or "__main__")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all processes."""
        self._pool.close()

    def run(
        self,
        tasks: Iterable[Any],
        *,
        copies: int | Sequence[int] | CopyStrategy = 1,
        deadline: float | None = None,
        retries: int = 0,
        keep_going: bool = False,
        directory: str | Path | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> BagResult:
        """Run the function over tasks, in copies.

        No copy outlives the call, even after an exception or Ctrl-C. Results committed to the
        directory remain, and the next run in the directory resumes from them.

        ``copies`` is the number of copies with which each task starts, or a planner that chooses
        it. ``deadline`` is in seconds from the moment when all processes are ready. A copy fails if
        it raises or its process dies. A task fails after more than ``retries`` failures, but not
        while another copy of it runs or waits. With ``keep_going``, the other tasks then continue;
        see `BagResult.failed`. ``directory`` is for results and files of finished tasks.
        ``progress`` is called when copies start or end.

        Raises `TrainingError` if an argument is invalid or the directory contains another bag, and
        `TaskFailedError` if a task failed, unless ``keep_going``. A planner may raise errors of its
        own.
        """
        task_list = list(tasks)
        retries = checked_integer("retries", retries, 0, MAX_RETRIES)
        payloads = [_pickle(task, f"tasks[{index}]") for index, task in enumerate(task_list)]
        store = None
        if directory is not None:
            store = ResultStore(Path(directory), self._function, task_list, payloads)
        try:
            finished = store.done() if store is not None else {}
            if directory is not None and _is_in_checkpoint_dir(Path(directory)):
                jobs.record_restored(len(finished))
            remaining = [task for task in range(len(task_list)) if task not in finished]
            planner = copies if isinstance(copies, CopyStrategy) else StatedCopies(copies)
            plan = planner.plan(len(task_list), remaining, self._pool.processes, deadline)
            run = BagRun(
                self._pool, plan, payloads, remaining, finished,
                retries=retries, keep_going=keep_going, store=store, progress=progress,
            )  # fmt: skip
            return run.finish()
        finally:
            if store is not None:
                store.close()


def _is_in_checkpoint_dir(directory: Path) -> bool:
    """Return whether a directory is in the job's checkpoint directory, which generations share."""
    return directory.resolve().is_relative_to(jobs.current().checkpoint_dir.resolve())


def _pickle(value: object, location: str) -> bytes:
    try:
        return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        raise TrainingError(
            f"{location}: can't be pickled ({error}); use plain values and a module's functions"
        ) from error

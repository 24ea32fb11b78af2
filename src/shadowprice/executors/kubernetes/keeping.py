"""What is kept on this machine of jobs: logs that were fetched, and nothing else."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from shadowprice.executors.contract import LogChunk
from shadowprice.executors.generations import logs
from shadowprice.executors.generations.disk import names
from shadowprice.executors.generations.store import KEPT, key_of

MOST: Final = 1 << 20
"""Bytes of a piece, at most."""


class Keeping:
    """The logs of jobs.

    Parameters
    ----------
    path : Path
        Where.
    """

    def __init__(self, path: Path) -> None:
        self._jobs = path / "jobs"

    def generation(self, job: str, number: int) -> Path:
        """Return the directory of a generation."""
        return self._jobs / key_of(job) / "generations" / str(number)

    def numbers(self, job: str) -> Sequence[int]:
        """Return the generations of a job that have a directory, the oldest first."""
        try:
            found = names(self._jobs / key_of(job) / "generations")
        except FileNotFoundError:
            return []
        return sorted(int(name) for name in found if name.isdecimal())

    def keep_newest(self, job: str) -> None:
        """Remove the logs of a job's oldest generations."""
        for old in self.numbers(job)[:-KEPT]:
            shutil.rmtree(self.generation(job, old), ignore_errors=True)

    def remove(self, job: str) -> None:
        """Remove the logs of a job."""
        shutil.rmtree(self._jobs / key_of(job), ignore_errors=True)

    def read(
        self,
        job: str,
        number: int,
        process: str,
        start: int | None,
        most: int,
        *,
        complete: bool,
    ) -> LogChunk:
        """Return a piece of a log; see `Executor.logs`.

        Parameters
        ----------
        job, number, process
            Which log.
        start : int or None
            First byte wanted; None for the last ``most``.
        most : int
            Most bytes wanted.
        complete : bool
            Whether nothing will be written any more.

        Raises
        ------
        KeyError
            If there is no such log.
        """
        folder = self.generation(job, number) / "logs"
        if process not in logs.names(folder):
            raise KeyError(f"{process} of generation {number}")
        most = max(1, min(most, MOST))
        begin, end, text = logs.read(folder, process, start, most, complete=complete)
        _, last, _ = logs.read(folder, process, None, 1, complete=True)
        return LogChunk(number, process, begin, end, text, complete and end >= last)

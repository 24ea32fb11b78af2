"""Files of jobs on this machine: only fetched logs."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from shadowprice.executors.generations.disk import names
from shadowprice.executors.generations.store import KEPT, key_of


class Keeping:
    """The fetched logs of jobs, in a directory."""

    def __init__(self, path: Path) -> None:
        self._jobs = path / "jobs"

    def logs(self, job: str, number: int) -> Path:
        """Return the log directory of a generation."""
        return self.generation(job, number) / "logs"

    def generation(self, job: str, number: int) -> Path:
        """Return the directory of a generation."""
        return self._jobs / key_of(job) / "generations" / str(number)

    def numbers(self, job: str) -> Sequence[int]:
        """Return the generations of a job that have a directory, oldest first."""
        try:
            entries = names(self._jobs / key_of(job) / "generations")
        except FileNotFoundError:
            return []
        return sorted(int(name) for name in entries if name.isdecimal())

    def prune(self, job: str) -> None:
        """Remove the logs of a job's oldest generations."""
        for old in self.numbers(job)[:-KEPT]:
            shutil.rmtree(self.generation(job, old), ignore_errors=True)

    def remove(self, job: str) -> None:
        """Remove the logs of a job."""
        shutil.rmtree(self._jobs / key_of(job), ignore_errors=True)

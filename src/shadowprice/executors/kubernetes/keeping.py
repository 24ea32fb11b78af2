"""Files of jobs on this machine: only fetched logs."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from shadowprice.core.job_keys import key_digest
from shadowprice.executors.generations.disk import list_names
from shadowprice.executors.generations.store import KEPT_LOG_GENERATIONS


class Keeping:
    """The fetched logs of jobs, in a directory."""

    def __init__(self, path: Path) -> None:
        self._jobs = path / "jobs"

    def logs(self, job: str, number: int) -> Path:
        """Return the log directory of a generation."""
        return self.generation(job, number) / "logs"

    def generation(self, job: str, number: int) -> Path:
        """Return the directory of a generation."""
        return self._jobs / key_digest(job) / "generations" / str(number)

    def numbers(self, job: str) -> Sequence[int]:
        """Return the generations of a job that have a directory, oldest first."""
        try:
            entries = list_names(self._jobs / key_digest(job) / "generations")
        except FileNotFoundError:
            return []
        return sorted(int(name) for name in entries if name.isdecimal())

    def prune(self, job: str) -> None:
        """Remove the logs of a job's oldest generations."""
        for old in self.numbers(job)[:-KEPT_LOG_GENERATIONS]:
            shutil.rmtree(self.generation(job, old), ignore_errors=True)

    def remove(self, job: str) -> None:
        """Remove the logs of a job."""
        shutil.rmtree(self._jobs / key_digest(job), ignore_errors=True)

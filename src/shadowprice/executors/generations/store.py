"""What an executor remembers of jobs and their generations, on disk: fences first.

    DIR/lock                          held by the executor in charge
    DIR/bell                          a pipe: supervisors say that something is new
    DIR/live/KEY.N                    generations that are not forgotten
    DIR/jobs/KEY/name                 the job's name; KEY is made of its digest
    DIR/jobs/KEY/fence                the newest generation, once its directory may be gone
    DIR/jobs/KEY/generations/N/       see `generation`
    DIR/jobs/KEY/checkpoints, work    where the job may leave files

A generation is taken when its directory gets its name, by one rename: before that nothing was
taken, after that everything is there. The greatest number is the job's fence. What runs it reads
the directory only; so whatever is killed between any two writes, a generation is launched once at
most.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from shadowprice.executors.contract import GenerationSpec, Receipt
from shadowprice.executors.generations.disk import StateFile, names, sync_directory, write_new
from shadowprice.executors.generations.generation import (
    ACCEPTED,
    OVER,
    REFUSED,
    Generation,
    differ,
)

FENCE_BYTES: Final = 64
KEPT: Final = 20
"""Generations of a job that are over and keep their logs."""


def key_of(job: str) -> str:
    """Return the name of a job's directory: no name of a job reaches a path."""
    return hashlib.sha256(job.encode("utf-8", "surrogatepass")).hexdigest()[:32]


class Store:
    """The executor's memory; one process uses it at a time, one call of a job after another.

    Parameters
    ----------
    path : Path
        Its directory, made where it is not.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._jobs = path / "jobs"
        self._live = path / "live"
        for directory in (path, self._jobs, self._live):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        sync_directory(path)

    # ------------------------------------------------------------------ looking

    def job(self, job: str) -> Path:
        """Return the directory of a job."""
        return self._jobs / key_of(job)

    def generation(self, job: str, number: int) -> Generation:
        """Return a generation, there or not."""
        return Generation(self.job(job) / "generations" / str(number))

    def generations(self, job: str) -> list[int]:
        """Return the generations of a job that are on disk, the oldest first."""
        try:
            found = names(self.job(job) / "generations")
        except FileNotFoundError:
            return []
        return sorted(int(name) for name in found if name.isdecimal())

    def fence(self, job: str) -> int:
        """Return the newest generation that was ever named of a job, 0 for none."""
        newest = max(self.generations(job), default=0)
        with contextlib.suppress(FileNotFoundError):
            newest = max(newest, StateFile(self.job(job) / "fence").read()["generation"])
        return newest

    def live(self) -> Iterator[tuple[str, int, Generation]]:
        """Yield every generation that is not forgotten: job, number and directory."""
        for name in sorted(names(self._live)):
            key, _, number = name.partition(".")
            path = self._jobs / key / "generations" / number
            try:
                job = (self._jobs / key / "name").read_bytes().decode("utf-8", "surrogatepass")
            except FileNotFoundError:
                job = ""
            if not job or not path.is_dir():  # its order never became durable
                (self._live / name).unlink()
                continue
            yield job, int(number), Generation(path)

    # ------------------------------------------------------------------ orders

    def accept(self, spec: GenerationSpec, plan: dict[str, Any], refusal: str = "") -> Receipt:
        """Take an order to start, as it is or as one that is refused.

        Parameters
        ----------
        spec : GenerationSpec
            The order.
        plan : mapping
            What its supervisor is to run.
        refusal : str
            Why it cannot be; then nothing will be run.
        """
        receipt = self.weigh(spec)
        if receipt is Receipt.ACCEPTED:
            state = self._state(spec.command, refusal)
            state["identity"] = spec.identity
            state["placement"] = [[one.server, one.workers, one.ps] for one in spec.placement]
            self._take(spec.job, spec.generation, {} if refusal else plan, state)
        return receipt

    def weigh(self, spec: GenerationSpec) -> Receipt:
        """Return what an order to start a generation would be answered; nothing changes."""
        job, generation = spec.job, spec.generation
        fence = self.fence(job)
        if generation < fence:
            return Receipt.STALE
        if generation == fence:
            return Receipt.STALE if self._is_another(spec) else Receipt.DUPLICATE
        if any(self._runs(job, one) for one in self.generations(job)):
            return Receipt.BUSY
        return Receipt.ACCEPTED

    def _is_another(self, spec: GenerationSpec) -> bool:
        """Whether the generation of an order's number is known to be that of another order."""
        held = self.generation(spec.job, spec.generation)
        try:
            return differ(held.state().get("identity"), spec.identity)
        except (FileNotFoundError, ValueError):  # only its number is left, or nothing whole
            return False

    def _runs(self, job: str, number: int) -> bool:
        """Whether a generation is not over; one that is forgotten is."""
        held = self.generation(job, number)
        entry = self._live / f"{held.path.parent.parent.name}.{number}"
        return entry.exists() and held.state()["phase"] not in OVER

    def stop(self, command: int, job: str, generation: int, grace: float) -> Receipt:
        """Take an order to stop; one that overtook its start bars that."""
        held = self.generation(job, generation)
        if held.path.is_dir():
            new = held.order_stop(command, grace, time.time())
            return Receipt.ACCEPTED if new else Receipt.DUPLICATE
        if generation <= self.fence(job):
            return Receipt.STALE
        self._take(job, generation, {}, self._state(command, "it was told to stop before it came"))
        self.generation(job, generation).order_stop(command, grace, time.time())
        return Receipt.ACCEPTED

    @staticmethod
    def _state(command: int, refusal: str) -> dict[str, Any]:
        now = time.time()
        phase = REFUSED if refusal else ACCEPTED
        return {"phase": phase, "command": command, "accepted": now, "at": now, "reason": refusal}

    def _take(self, job: str, number: int, plan: dict[str, Any], state: dict[str, Any]) -> None:
        directory = self.job(job)
        self._prepare(directory, job)
        new = directory / "generations" / ".new"
        if new.exists():
            shutil.rmtree(new)
        Generation.create(new, plan, state)
        entry = self._live / f"{directory.name}.{number}"
        entry.touch(mode=0o600)
        sync_directory(self._live)
        new.rename(directory / "generations" / str(number))
        sync_directory(directory / "generations")

    def _prepare(self, directory: Path, job: str) -> None:
        if (directory / "name").exists():
            (directory / "generations").mkdir(mode=0o700, exist_ok=True)
            return
        for folder in (directory, directory / "generations"):
            folder.mkdir(mode=0o700, exist_ok=True)
        write_new(directory / ".name", job.encode("utf-8", "surrogatepass"))
        (directory / ".name").rename(directory / "name")
        sync_directory(directory)
        sync_directory(self._jobs)

    # ------------------------------------------------------------------ forgetting

    def forget(self, job: str, number: int) -> bool:
        """Let go of a generation that is over; what it was told, secrets too, is removed."""
        held = self.generation(job, number)
        if not held.path.is_dir() or held.state()["phase"] not in OVER:
            return False
        (held.path / "plan.json").unlink(missing_ok=True)
        (self._live / f"{held.path.parent.parent.name}.{number}").unlink(missing_ok=True)
        for old in self.generations(job)[:-KEPT]:
            entry = self._live / f"{held.path.parent.parent.name}.{old}"
            if not entry.exists():
                shutil.rmtree(self.generation(job, old).path)
        return True

    def discard(self, job: str) -> bool:
        """Remove everything of a job that is over but its fence; whether it was over."""
        numbers = self.generations(job)
        if any(self._runs(job, one) for one in numbers):
            return False
        directory = self.job(job)
        if not directory.is_dir():
            return True
        fence = directory / "fence"
        StateFile.create(directory / ".fence", {"generation": self.fence(job)}, FENCE_BYTES)
        (directory / ".fence").rename(fence)
        sync_directory(directory)
        for number in numbers:
            (self._live / f"{directory.name}.{number}").unlink(missing_ok=True)
        for name in ("generations", "checkpoints", "work"):
            shutil.rmtree(directory / name, ignore_errors=True)
        return True

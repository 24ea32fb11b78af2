"""Durable commands and fences of jobs and their generations.

    DIR/                              locked by the executor that uses the store
    DIR/bell                          named pipe: supervisors notify of changes
    DIR/live/KEY.N                    exists until the end of generation N is acknowledged
    DIR/unpacked/KEY                  jobs whose archives were unpacked
    DIR/jobs/KEY/name                 the job's key in the service; KEY is its digest
    DIR/jobs/KEY/fence                newest generation, written before directories are deleted
    DIR/jobs/KEY/generations/N/       see `generation`
    DIR/jobs/KEY/checkpoints, work    directories for the job's files

A generation is accepted atomically, by renaming its complete directory. The greatest number is the
job's fence. Supervisors read only their generation's directory. So a generation is launched at most
once, even if processes are killed between any two writes.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from shadowprice.core.errors import InputError
from shadowprice.core.job_keys import key_digest
from shadowprice.executors.contract import GenerationSpec, Receipt, UnpackFailure
from shadowprice.executors.generations.disk import (
    StateFile,
    create_file,
    list_names,
    make_private,
    sync_directory,
)
from shadowprice.executors.generations.generation import (
    TERMINAL_PHASES,
    GenerationDirectory,
    Phase,
    identities_differ,
)
from shadowprice.uploads.unpacking import is_unpacked, remove_unchanged, remove_unpacked, unpack

FENCE_BYTES: Final = 64
KEPT_LOG_GENERATIONS: Final = 20  # number of a job's ended generations that keep their logs


def initial_state(command: int, refusal: str) -> dict[str, Any]:
    """Return the first state of a generation; it is refused if ``refusal`` isn't empty."""
    now = time.time()
    phase = Phase.REFUSED if refusal else Phase.ACCEPTED
    return {"phase": phase, "command": command, "accepted": now, "at": now, "reason": refusal}


def accepted_state(spec: GenerationSpec, refusal: str) -> dict[str, Any]:
    """Return the first state of a generation after its start command."""
    placement = [[share.server, share.workers, share.ps] for share in spec.placement]
    state = initial_state(spec.command, refusal)
    return {**state, "identity": spec.identity, "placement": placement}


class JobDirectories:
    """Directories of jobs and their generations below ``path``."""

    def __init__(self, path: Path) -> None:
        self._jobs = path / "jobs"

    def job(self, job: str) -> Path:
        """Return the directory of a job."""
        return self._jobs / key_digest(job)

    def generation(self, job: str, number: int) -> GenerationDirectory:
        """Return a generation, which need not exist."""
        return GenerationDirectory(self.job(job) / "generations" / str(number))

    def generations(self, job: str) -> list[int]:
        """Return the generations of a job that are on disk, oldest first."""
        try:
            entries = list_names(self.job(job) / "generations")
        except FileNotFoundError:
            return []
        return sorted(int(name) for name in entries if name.isdecimal())


class GenerationStore(JobDirectories):
    """Durable state of an executor; one process uses it, and calls for a job are serialized."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._live = path / "live"
        for directory in (path, self._jobs, self._live):
            make_private(directory)
        sync_directory(path)

    # ------------------------------------------------------------------ queries

    def fence(self, job: str) -> int:
        """Return the newest generation that any command named, 0 for none."""
        newest = max(self.generations(job), default=0)
        with contextlib.suppress(FileNotFoundError):
            newest = max(newest, StateFile(self.job(job) / "fence").read()["generation"])
        return newest

    def live(self) -> Iterator[tuple[str, int, GenerationDirectory]]:
        """Yield job, number and directory of every generation that isn't forgotten."""
        for name in sorted(list_names(self._live)):
            key, _, number = name.partition(".")
            path = self._jobs / key / "generations" / number
            try:
                job = (self._jobs / key / "name").read_bytes().decode("utf-8", "surrogatepass")
            except FileNotFoundError:
                job = ""
            if not job or not path.is_dir():  # its command never became durable
                (self._live / name).unlink()
                continue
            yield job, int(number), GenerationDirectory(path)

    # ------------------------------------------------------------------ commands

    def accept(self, spec: GenerationSpec, plan: dict[str, Any], refusal: str = "") -> Receipt:
        """Store a start command that `check_start` accepts, as refused if ``refusal`` is set."""
        receipt = self.check_start(spec)
        if receipt is Receipt.ACCEPTED:
            state = accepted_state(spec, refusal)
            self._make_durable(spec.job, spec.generation, {} if refusal else plan, state)
        return receipt

    def check_start(self, spec: GenerationSpec) -> Receipt:
        """Return the receipt for a start command without storing it."""
        job, generation = spec.job, spec.generation
        fence = self.fence(job)
        if generation < fence:
            return Receipt.STALE
        if generation == fence:
            return Receipt.STALE if self._has_other_identity(spec) else Receipt.DUPLICATE
        if any(self._runs(job, number) for number in self.generations(job)):
            return Receipt.BUSY
        return Receipt.ACCEPTED

    def _has_other_identity(self, spec: GenerationSpec) -> bool:
        """Return whether the stored generation of this number has another command's identity."""
        stored = self.generation(spec.job, spec.generation)
        try:
            return identities_differ(stored.state().get("identity"), spec.identity)
        except (FileNotFoundError, ValueError):  # only the fence is left, or the state is damaged
            return False

    def _runs(self, job: str, number: int) -> bool:
        """Return whether a generation hasn't ended; forgotten generations have."""
        stored = self.generation(job, number)
        return (
            self._live_file(job, number).exists() and stored.state()["phase"] not in TERMINAL_PHASES
        )

    def _live_file(self, job: str, number: int) -> Path:
        """Return the empty file that exists until a generation is forgotten."""
        return self._live / f"{key_digest(job)}.{number}"

    def stop(self, command: int, job: str, generation: int, grace: float) -> Receipt:
        """Store a stop command. If it precedes the start command, it bars the generation."""
        stored = self.generation(job, generation)
        if stored.path.is_dir():
            new = stored.request_stop(command, grace, time.time())
            return Receipt.ACCEPTED if new else Receipt.DUPLICATE
        if generation <= self.fence(job):  # it ended, and its directory was deleted
            return Receipt.STALE
        self._make_durable(
            job, generation, {}, initial_state(command, "it was stopped before it was submitted")
        )
        self.generation(job, generation).request_stop(command, grace, time.time())
        return Receipt.ACCEPTED

    def _make_durable(
        self, job: str, number: int, plan: dict[str, Any], state: dict[str, Any]
    ) -> None:
        """Make a generation durable; it exists from the rename on, complete and with a live file.

        `live` removes a live file whose generation doesn't exist.
        """
        directory = self.job(job)
        self._prepare(directory, job)
        new = directory / "generations" / ".new"
        _remove_tree(new)  # left by a process that was killed here
        GenerationDirectory.create(new, plan, state)
        self._live_file(job, number).touch(mode=0o600)
        sync_directory(self._live)
        new.rename(directory / "generations" / str(number))
        sync_directory(directory / "generations")

    def _prepare(self, directory: Path, job: str) -> None:
        if (directory / "name").exists():
            (directory / "generations").mkdir(mode=0o700, exist_ok=True)
            return
        for folder in (directory, directory / "generations"):
            folder.mkdir(mode=0o700, exist_ok=True)
        create_file(directory / ".name", job.encode("utf-8", "surrogatepass"))
        (directory / ".name").rename(directory / "name")
        sync_directory(directory)
        sync_directory(self._jobs)

    # ------------------------------------------------------------------ retention

    def acknowledge_end(self, job: str, number: int) -> bool:
        """Forget a generation if it has ended; return whether it has.

        Its plan is deleted, because it has secrets, and so are the job's oldest generations.
        """
        stored = self.generation(job, number)
        if not stored.path.is_dir() or stored.state()["phase"] not in TERMINAL_PHASES:
            return False
        (stored.path / "plan.json").unlink(missing_ok=True)
        self._live_file(job, number).unlink(missing_ok=True)
        for old in self.generations(job)[:-KEPT_LOG_GENERATIONS]:
            if not self._live_file(job, old).exists():
                _remove_tree(self.generation(job, old).path)
        return True

    def delete_job_data(self, job: str) -> bool:
        """Remove all files of a job except its fence; do nothing and return False if it runs."""
        numbers = self.generations(job)
        if any(self._runs(job, generation) for generation in numbers):
            return False
        directory = self.job(job)
        if not directory.is_dir():
            return True
        fence = directory / "fence"
        StateFile.create(directory / ".fence", {"generation": self.fence(job)}, FENCE_BYTES)
        (directory / ".fence").rename(fence)
        sync_directory(directory)
        for number in numbers:
            self._live_file(job, number).unlink(missing_ok=True)
        remove_unpacked(directory / "work")
        for name in ("work", "generations", "checkpoints"):
            _remove_tree(directory / name)
        return True


def _remove_tree(path: Path) -> None:
    """Remove a directory, if it exists, even if a job made directories in it read-only."""
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        return
    except PermissionError:
        path.chmod(0o700)
        for folder, names, _ in os.walk(path):
            for directory in (Path(folder, name) for name in names):
                if not directory.is_symlink():
                    directory.chmod(0o700)
        shutil.rmtree(path)


def is_filled(directory: Path, archive: str) -> bool:
    """Return whether a directory is filled with an archive."""
    try:
        return is_unpacked(Path(archive), directory)
    except OSError:  # `unpack_files` fails with the same error, and reports it
        return False


class UnpackedJobs:
    """Durable list of the jobs whose archives may be unpacked: a file for each in a directory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        make_private(path)
        self._records: dict[str, tuple[Path, Path]] = {}
        for name in list_names(path):
            try:
                job, archive, directory = json.loads((path / name).read_bytes())
            except ValueError:  # its file never became complete
                (path / name).unlink()
                continue
            self._records[job] = Path(archive), Path(directory)

    def jobs(self) -> Collection[str]:
        """Return the listed jobs."""
        return list(self._records)  # a copy, because other threads change the list

    def add(self, job: str, archive: str, directory: Path) -> None:
        """List a job, durably; its archive fills ``directory``."""
        if job in self._records:
            return
        record = json.dumps([job, archive, str(directory)])  # escapes all characters beyond ASCII
        create_file(self._file(job), record.encode())
        sync_directory(self._path)
        self._records[job] = Path(archive), directory

    def clean(self, job: str) -> None:
        """Delete the files that a job didn't change, and remove it from the list."""
        if job not in self._records:
            return
        archive, directory = self._records[job]
        with suppress(InputError):  # a damaged archive was never unpacked
            remove_unchanged(archive, directory)
        self.remove(job)

    def remove(self, job: str) -> None:
        """Remove a job from the list."""
        if self._records.pop(job, None) is not None:
            self._file(job).unlink(missing_ok=True)

    def _file(self, job: str) -> Path:
        return self._path / key_digest(job)


def unpack_files(
    archive: str, directory: Path, owner: tuple[int, int] | None = None
) -> UnpackFailure | None:
    """Fill a job's directory for ``owner`` unless it is filled; return the cause if that fails."""
    try:
        unpack(Path(archive), directory, owner)
    except FileNotFoundError:
        reason = "its files are missing; submit it again from its directory"
        # If the archive exists, something else deleted files of the directory meanwhile.
        return UnpackFailure(reason, lasting=not Path(archive).exists())
    except OSError as error:
        return UnpackFailure(f"its files can't be unpacked: {error.strerror}", lasting=False)
    except InputError as error:
        return UnpackFailure(f"its files can't be unpacked: {error}", lasting=True)
    return None

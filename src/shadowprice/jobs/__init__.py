"""What a job's own script may use: report progress, keep checkpoints, end when it is told to.

Standard library only, and of this package nothing else, so that importing it costs a job nothing;
everything here can be done without it (`docs/executors.md` says how). Outside of a scheduler it
works too: reports go nowhere, checkpoints into the working directory.

    from shadowprice import jobs

    stop = jobs.StopSignal()
    found = jobs.load()
    step = found.step if found else 0
    while step < steps:
        ...                                       # train
        step += 1
        jobs.report(step, loss=loss)
        if stop:
            jobs.save(step, data)
            jobs.leave()

A script that does so measures what moving it costs: how long it took to save, to come back, and to
be as fast again goes along with its reports (`changes`), and the scheduler plans with it.
"""

from __future__ import annotations

import atexit
import errno
import hashlib
import json
import os
import re
import signal
import struct
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

from shadowprice.jobs.changes import Change, note_leaving

STOPPED: Final = 143
"""Exit status of a job that saved and ended because it was told to."""

KEPT: Final = 2
"""Checkpoints kept: the newest, and the one before it should that be damaged."""

_DAMAGE: Final = {errno.EIO, errno.EBADMSG, getattr(errno, "EUCLEAN", errno.EIO)}
"""What a disk says that cannot read what it has."""

_HEADER: Final = struct.Struct("<8sQQ32s")
_MAGIC: Final = b"SPCHECK1"
_NAME: Final = re.compile(r"checkpoint-(\d{15})")
_TIMEOUT: Final = 5.0
_MOST: Final = 1e12
"""Mini-batches; more cannot be counted."""


@dataclass(frozen=True, slots=True)
class Job:
    """What this process was told, as `current` reads it.

    Parameters
    ----------
    name : str
        The job; empty outside of a scheduler.
    generation : int
        Which placement of the job this is, from 1 on; 0 outside.
    role : str
        ``worker`` or ``ps``.
    rank : int
        The number of this process among those of its role.
    workers, ps : int
        How many there are of each.
    checkpoint_dir : Path
        Where checkpoints are, the same in every generation.
    slot_end : float
        When the slot ends in which this generation began, seconds since 1970; 0 outside.
    """

    name: str
    generation: int
    role: str
    rank: int
    workers: int
    ps: int
    checkpoint_dir: Path
    slot_end: float

    @property
    def leads(self) -> bool:
        """Whether this is the process that reports and saves: worker 0."""
        return self.role == "worker" and self.rank == 0


def current() -> Job:
    """Return what this process was told, or what stands for it outside of a scheduler."""

    def told(name: str, otherwise: str) -> str:
        return os.environ.get(f"SHADOWPRICE_{name}", otherwise)

    return Job(
        name=told("JOB", ""),
        generation=int(told("GENERATION", "0")),
        role=told("ROLE", "worker"),
        rank=int(told("RANK", "0")),
        workers=int(told("WORKERS", "1")),
        ps=int(told("PS", "0")),
        checkpoint_dir=Path(told("CHECKPOINT_DIR", "checkpoints")),
        slot_end=float(told("SLOT_END", "0")),
    )


# ------------------------------------------------------------------ progress


def report(minibatches: float, **metrics: float) -> bool:
    """Report how far the job is; of processes that do not lead, nothing.

    Parameters
    ----------
    minibatches : float
        Mini-batches since the job's very beginning, over all its generations.
    **metrics : float
        What was measured: losses, accuracies.

    Returns
    -------
    bool
        Whether somebody took it. A report that is lost is no harm: the next one says more.
    """
    return current().leads and announce(minibatches, metrics)


def announce(minibatches: float, metrics: Mapping[str, float]) -> bool:
    """Report as `report` does, whatever this process is: one that outlives worker 0 may have to.

    Parameters
    ----------
    minibatches, metrics
        As in `report`.
    """
    job = current()
    if not job.generation:
        return False
    if not 0 <= float(minibatches) <= _MOST:
        _say_once(f"{minibatches:g} is no number of mini-batches: none that is not is reported")
        return False
    numbers = {name: float(value) for name, value in metrics.items()}
    if _change is not None:
        _change.reached(minibatches)
        numbers = {**_change.metrics(), **numbers}
    body = {
        "generation": job.generation,
        "minibatches": float(minibatches),
        "metrics": numbers,
        "checkpoints": _checkpoints,
    }
    content = json.dumps(body).encode()
    file = os.environ.get("SHADOWPRICE_PROGRESS_FILE")
    try:
        if file:
            _replace(Path(file), content, lasting=False)
            return True
        return _post(content)
    except OSError:
        return False


def _say_once(text: str) -> None:
    """Tell people something in the process's log, the first time only."""
    if not _said:
        _said.append(text)
        _say(text)


def _say(text: str) -> None:
    print(f"shadowprice: {text}", file=sys.stderr, flush=True)


_said: Final[list[str]] = []


def _post(content: bytes) -> bool:
    import urllib.request  # noqa: PLC0415  # as long to import as all else here

    address = os.environ.get("SHADOWPRICE_PROGRESS_URL", "")
    if not address.startswith(("http://", "https://")):
        return False
    headers = {
        "Authorization": f"Bearer {os.environ.get('SHADOWPRICE_PROGRESS_TOKEN', '')}",
        "Content-Type": "application/json",
    }
    request = urllib.request.Request(address, content, headers, method="POST")
    # No proxy: the token is for the service only.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=_TIMEOUT):
        return True


# ------------------------------------------------------------------ ending


class StopSignal:
    """True once the job was told to stop; from then on the grace runs.

    Made in the main thread, it takes SIGTERM over. Once the process ends, what comes is ignored:
    one that has done its work exits as it meant to, also if it is told to stop as it leaves.

    Attributes
    ----------
    since : float or None
        When it was told, by `time.monotonic`.
    """

    def __init__(self) -> None:
        self.since: float | None = None
        self._asked = threading.Event()
        signal.signal(signal.SIGTERM, self._ask)
        # Python gives signals back before it has taken everything down, and would die of this one.
        atexit.register(signal.signal, signal.SIGTERM, signal.SIG_IGN)

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        global _told  # noqa: PLW0603  # of the process, as signals are
        if self.since is None:
            self.since = time.monotonic()
            _told = self.since if _told is None else _told
        self._asked.set()

    def __bool__(self) -> bool:
        return self._asked.is_set()

    def wait(self, seconds: float) -> bool:
        """Sleep so long, or until the job is told to stop; whether it was."""
        return self._asked.wait(seconds)


def leave() -> NoReturn:
    """End as a job does that saved because it was told to stop."""
    sys.exit(STOPPED)


# ------------------------------------------------------------------ changes

_told: float | None = None
"""When a `StopSignal` was told, by `time.monotonic`."""

_change: Change | None = None
"""What is known of the change that this generation began with."""

_checkpoints = False
"""Whether this process has loaded, or looked for, a checkpoint: then its job can be moved."""


def note_saved(step: int) -> None:
    """Note that the job, told to stop, is on disk; `save` does so, for checkpoints of its own.

    Parameters
    ----------
    step : int
        The step after which it was saved.
    """
    job = current()
    if job.generation and _told is not None:
        note_leaving(job.checkpoint_dir, job.generation, step, time.monotonic() - _told)


def note_restored(step: int) -> None:
    """Note that training can go on; `load` does so, and the last to say it counts.

    Parameters
    ----------
    step : int
        The step from which it goes on; 0 where there was no checkpoint.
    """
    global _change, _checkpoints  # noqa: PLW0603  # of the process, which is of one generation
    _checkpoints = True
    job = current()
    if job.generation:
        _change = Change.measured(job.checkpoint_dir, job.generation, step)


def note_step(step: float) -> None:
    """Note that a step was done; `report` does so, which some call for few of them only.

    Parameters
    ----------
    step : float
        Steps since the job's very beginning.
    """
    if _change is not None:
        _change.reached(step)


# ------------------------------------------------------------------ checkpoints


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint as it was saved.

    Parameters
    ----------
    step : int
        The step after which it was.
    data : bytes
        What was saved.
    """

    step: int
    data: bytes


def save(step: int, data: bytes | memoryview, directory: Path | None = None) -> None:
    """Save a checkpoint: whole or not at all, and never the only one that is damaged.

    Parameters
    ----------
    step : int
        Steps done so far; among checkpoints the greatest counts.
    data : bytes or memoryview
        What `load` is to return; a view is written without being copied.
    directory : Path, optional
        Where; by default the job's own.

    Raises
    ------
    OSError
        If it cannot be written; the checkpoints before are untouched.
    """
    of_the_job = directory is None
    directory = directory or current().checkpoint_dir
    directory.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(data).digest()
    header = _HEADER.pack(_MAGIC, step, len(data), digest)
    for unfinished in directory.glob(".checkpoint-*"):  # of a process that was killed while saving
        unfinished.unlink(missing_ok=True)
    _replace(directory / f"checkpoint-{step:015d}", header, data, lasting=True)
    for later, path in list(_listed(directory)):
        # Passed over when this run began: it must not be counted among those that are kept.
        if later > step and _whole(path, later) is None:
            path.unlink(missing_ok=True)
    for _, old in list(_listed(directory))[KEPT:]:
        old.unlink(missing_ok=True)
    if of_the_job:
        note_saved(step)


def load(directory: Path | None = None) -> Checkpoint | None:
    """Return the newest whole checkpoint, None where there is none; damaged ones are passed over.

    Parameters
    ----------
    directory : Path, optional
        Where; by default the job's own.

    Raises
    ------
    OSError
        If one may not be read, or its storage is away.
    """
    found = next(saved(directory), None)
    if directory is None:
        note_restored(0 if found is None else found.step)
    return found


def saved(directory: Path | None = None) -> Iterator[Checkpoint]:
    """Yield the whole checkpoints that are kept, the newest first; damaged ones are passed over.

    Parameters
    ----------
    directory : Path, optional
        Where; by default the job's own.
    """
    for step, path in _listed(directory or current().checkpoint_dir):
        data = _whole(path, step)
        if data is not None:
            yield Checkpoint(step, data)
        elif path.exists():
            _say(f"{path} is damaged, and is passed over")


def _whole(path: Path, step: int) -> bytes | None:
    """Return what a checkpoint holds, None where it is damaged, or gone.

    One that may not be read, or whose storage is away, may be whole: whoever passed it over would
    do everything again.
    """
    try:
        content = path.read_bytes()
    except (FileNotFoundError, IsADirectoryError):
        return None
    except OSError as error:
        if error.errno in _DAMAGE:
            return None
        raise
    if len(content) < _HEADER.size:
        return None
    magic, written, length, digest = _HEADER.unpack_from(content)
    data = content[_HEADER.size :]
    whole = magic == _MAGIC and written == step and length == len(data)
    return data if whole and hashlib.sha256(data).digest() == digest else None


def _listed(directory: Path) -> Iterator[tuple[int, Path]]:
    """Yield the checkpoints of a directory, the newest first."""
    try:
        entries = sorted(directory.iterdir(), reverse=True)
    except FileNotFoundError:
        return
    for path in entries:
        match = _NAME.fullmatch(path.name)
        if match:
            yield int(match[1]), path


def _replace(path: Path, *content: bytes | memoryview, lasting: bool) -> None:
    """Put a file in the place of another, at once; if it is to last, it is on disk before."""
    new = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}")
    try:
        with new.open("wb") as stream:
            for piece in content:
                stream.write(piece)
            if lasting:
                stream.flush()
                os.fsync(stream.fileno())
        new.replace(path)
        if lasting:
            descriptor = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
    finally:
        new.unlink(missing_ok=True)

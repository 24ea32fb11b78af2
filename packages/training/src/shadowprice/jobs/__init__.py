"""Functions for a job's own script: report progress, keep checkpoints, end on SIGTERM.

The module needs only the standard library and nothing else of this package, so its import costs a
job nothing. A script can also follow the contract without it (`docs/executors.md`). Outside a
scheduler it works too: reports are dropped, and checkpoints go to the working directory.

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

In such a script, the module also measures the cost of a change of placement: the time to save, to
restart and to reach full speed (see `changes`). Reports include these measurements, and the
scheduler plans with them.
"""

from __future__ import annotations

import atexit
import errno
import hashlib
import json
import math
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
from typing import Any, Final, NoReturn

from shadowprice.jobs.changes import Change, record_leaving
from shadowprice.jobs.files import replace_file

STOPPED: Final = 143
"""Exit status of a job that saved a checkpoint and ended on SIGTERM."""

KEPT: Final = 2
"""Checkpoints kept: the newest, and the previous one in case the newest is damaged."""

_DAMAGE_ERRNOS: Final = {errno.EIO, errno.EBADMSG, getattr(errno, "EUCLEAN", errno.EIO)}
"""Error numbers of reads that fail because the disk's content is damaged."""

_HEADER: Final = struct.Struct("<8sQQ32s")  # of a checkpoint: magic, step, length, SHA-256
_MAGIC: Final = b"SPCHECK1"
_NAME: Final = re.compile(r"checkpoint-(\d{15})")  # step
_UNFINISHED: Final = re.compile(r"\.checkpoint-\d{15}\.(.+)\.(\d+)\.\d+")  # host and process
_ABANDONED_SECONDS: Final = 3600.0  # age of an unfinished file of another host
_POST_TIMEOUT_SECONDS: Final = 5.0
_MAX_MINIBATCHES: Final = 1e12  # of a report


@dataclass(frozen=True, slots=True)
class Job:
    """Identity of this process within its job, as `current` reads it from the environment.

    ``name`` is the job's name, and ``generation`` the number of its placement, from 1; they are
    empty and 0 outside a scheduler. ``role`` is ``worker`` or ``ps``, and ``rank`` this process's
    rank within its role. ``workers`` and ``ps`` are the number of processes of each role.
    ``checkpoint_dir`` is the same in every generation. ``slot_end`` is the end of the slot in which
    this generation began, in seconds since 1970; 0 outside a scheduler. If a launcher such as
    torchrun starts several processes in place of one, ``local_rank`` is their rank, else 0.
    """

    name: str
    generation: int
    role: str
    rank: int
    workers: int
    ps: int
    checkpoint_dir: Path
    slot_end: float
    local_rank: int = 0

    @property
    def leads(self) -> bool:
        """Whether this process reports and saves for the job: worker 0."""
        return self.role == "worker" and self.rank == 0 and self.local_rank == 0


def current() -> Job:
    """Return the identity of this process, or defaults outside a scheduler."""

    def variable(name: str, default: str) -> str:
        return os.environ.get(f"SHADOWPRICE_{name}", default)

    return Job(
        name=variable("JOB", ""),
        generation=int(variable("GENERATION", "0")),
        role=variable("ROLE", "worker"),
        rank=int(variable("RANK", "0")),
        workers=int(variable("WORKERS", "1")),
        ps=int(variable("PS", "0")),
        checkpoint_dir=Path(variable("CHECKPOINT_DIR", "checkpoints")),
        slot_end=float(variable("SLOT_END", "0")),
        local_rank=int(local) if (local := os.environ.get("LOCAL_RANK", "")).isdecimal() else 0,
    )


# ------------------------------------------------------------------ progress


def report(minibatches: float, /, **metrics: float) -> bool:
    """Report the progress of the job. Only the leading process (worker 0) sends it.

    ``minibatches`` counts from the job's very beginning, over all its generations. ``metrics`` are
    measured values: losses, accuracies. Returns whether the report was delivered. A lost report
    does no harm, because the next one replaces it.
    """
    return current().leads and announce(minibatches, metrics)


def announce(minibatches: float, metrics: Mapping[str, float]) -> bool:
    """Report progress, as `report`, from any process, such as a PS that outlives worker 0."""
    job = current()
    if not job.generation:
        return False
    try:
        done = float(minibatches)
    except Exception as error:  # the number's own type, such as a tensor, may raise anything
        _log_once("minibatches", f"the number of mini-batches is not reported: {error}")
        return False
    if not 0 <= done <= _MAX_MINIBATCHES:
        _log_once("minibatches", f"{done:g} is not a number of mini-batches, so it is not reported")
        return False
    numbers = _finite(metrics)
    if _change is not None:
        _change.reached(done)
        numbers = {**_change.metrics(), **numbers}
    body = {
        "generation": job.generation,
        "minibatches": done,
        "metrics": numbers,
        "checkpoints": _checkpoints,
    }
    content = json.dumps(body).encode()
    file = os.environ.get("SHADOWPRICE_PROGRESS_FILE")
    try:
        if file:
            replace_file(Path(file), content, durable=False)
            return True
        return _post(content)
    except OSError as error:
        status = getattr(error, "code", 0)  # of an HTTPError
        # Other errors, such as a service that restarts, may pass until the next report.
        if isinstance(status, int) and 400 <= status < 500:
            _log_once("refused", f"the service refused a report of progress: {error}")
        return False
    except ValueError as error:  # such as a line break in the token
        _log_once("invalid", f"progress is not reported: {error}")
        return False


def _finite(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the finite numbers among metrics; an invalid metric must not cost a report."""
    numbers = {}
    for name, value in metrics.items():
        try:
            number = float(value)
        except Exception as error:  # the metric's own type may raise anything
            _log_once("metric", f"the metric {name!r} is not reported: {error}")
            continue
        if math.isfinite(number):  # a diverged loss is valid, but JSON has no NaN
            numbers[name] = number
    return numbers


def _log_once(kind: str, text: str) -> None:
    """Write the first message of a kind to the process's log, and drop all later ones."""
    if kind not in _logged_kinds:
        _logged_kinds.add(kind)
        _log(text)


def _log(text: str) -> None:
    print(f"shadowprice: {text}", file=sys.stderr, flush=True)


_logged_kinds: Final[set[str]] = set()


def _post(content: bytes) -> bool:
    import http.client  # noqa: PLC0415  # their import takes as long as this whole module's
    import urllib.request  # noqa: PLC0415

    address = os.environ.get("SHADOWPRICE_PROGRESS_URL", "")
    if not address.startswith(("http://", "https://")):
        return False
    headers = {
        "Authorization": f"Bearer {os.environ.get('SHADOWPRICE_PROGRESS_TOKEN', '')}",
        "Content-Type": "application/json",
    }
    request = urllib.request.Request(address, content, headers, method="POST")
    # No proxy, because it would see the token, which is for the service only.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=_POST_TIMEOUT_SECONDS):
            return True
    except http.client.HTTPException as error:  # such as a proxy that doesn't speak HTTP
        raise OSError(f"the response is not valid HTTP: {error!r}") from error


# ------------------------------------------------------------------ ending


_MAX_SLEEP_SECONDS: Final = 0.1


class StopSignal:
    """True once the job received SIGTERM, when the grace period begins.

    Create it in the main thread: it installs the SIGTERM handler. A forked child gets the previous
    handler back, so that `terminate` ends it. A child of multiprocessing that imports the script
    again installs no handler. If there are several instances, SIGTERM reaches all of them. While
    the interpreter exits, SIGTERM is ignored, so that a process that has done its work keeps its
    own exit status. ``since`` is the time of SIGTERM by `time.monotonic`; None before.
    """

    _previous: Any
    _earlier: StopSignal | None  # the instance whose handler this one replaced

    def __init__(self) -> None:
        self.since: float | None = None
        # No `threading.Event`: its lock may be held by the code that the handler interrupts.
        self._stop_requested = False
        if _is_imported_by_child():
            return
        previous = signal.signal(signal.SIGTERM, self._on_sigterm)
        other = getattr(previous, "__self__", None)
        self._earlier = other if isinstance(other, StopSignal) else None
        self._previous = previous if self._earlier is None else self._earlier._previous
        self._process = os.getpid()
        self._masks = threading.local()
        os.register_at_fork(
            before=self._block, after_in_parent=self._unblock, after_in_child=self._restore
        )
        # Python restores default handlers before it has shut down; SIGTERM would kill it there.
        atexit.register(self._ignore)

    def _on_sigterm(self, _number: int, _frame: FrameType | None) -> None:
        global _stop_requested_at  # noqa: PLW0603  # of the process, as signals are
        if self.since is None:
            self.since = time.monotonic()
            _stop_requested_at = self.since if _stop_requested_at is None else _stop_requested_at
        self._stop_requested = True
        if self._earlier is not None:
            self._earlier._on_sigterm(_number, _frame)

    def _restore(self) -> None:
        """Restore the previous handler in a forked child, unless another one is installed."""
        if signal.getsignal(signal.SIGTERM) == self._on_sigterm:
            # A handler that wasn't installed from Python is None, and can't be restored.
            signal.signal(signal.SIGTERM, self._previous or signal.SIG_DFL)
        self._unblock()

    def _block(self) -> None:
        # A SIGTERM that reached the child before its handler is restored would be lost.
        self._masks.previous = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def _unblock(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._masks.previous)

    def _ignore(self) -> None:
        if os.getpid() == self._process:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def __bool__(self) -> bool:
        return self._stop_requested

    def wait(self, seconds: float) -> bool:
        """Sleep for some seconds, or until SIGTERM; return whether SIGTERM came."""
        deadline = time.monotonic() + seconds
        # A signal that comes just before a sleep doesn't interrupt the sleep, so no sleep is long.
        while not self._stop_requested and (remaining := deadline - time.monotonic()) > 0.0:
            time.sleep(min(remaining, _MAX_SLEEP_SECONDS))
        return self._stop_requested


def _is_imported_by_child() -> bool:
    """Return whether a child of multiprocessing (spawn, forkserver) imports the script now."""
    process = sys.modules.get("multiprocessing.process")
    return process is not None and getattr(process.current_process(), "_inheriting", False)


def leave() -> NoReturn:
    """Exit with the status of a job that saved a checkpoint because of SIGTERM."""
    sys.exit(STOPPED)


# ------------------------------------------------------------------ changes

_stop_requested_at: float | None = None  # monotonic, of the first `StopSignal` with SIGTERM

_change: Change | None = None  # the change that began this generation, if it is measured

_checkpoints = False  # whether this process loads checkpoints, so that its job can be moved


def record_saved(step: int) -> None:
    """Record that the state after a step is on disk, if SIGTERM came; `save` calls it.

    Processes other than worker 0 and parameter servers record nothing.
    """
    job = current()
    if job.generation and _stop_requested_at is not None and (job.leads or job.role == "ps"):
        record_leaving(
            job.checkpoint_dir, job.generation, step, time.monotonic() - _stop_requested_at
        )


def record_restored(step: int) -> None:
    """Record that training can continue from a step. `load` calls it; the last call counts."""
    global _change, _checkpoints  # noqa: PLW0603  # a process belongs to one generation
    _checkpoints = True
    job = current()
    if job.generation:
        _change = Change.measured(job.checkpoint_dir, job.generation, step)


def record_step(step: float) -> None:
    """Record that a number of steps, since the job's beginning, is done.

    It is for scripts that don't report every step.
    """
    if _change is not None:
        _change.reached(step)


# ------------------------------------------------------------------ checkpoints


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint as it was saved; ``step`` is the step after which it was saved."""

    step: int
    data: bytes


def save(step: int, data: bytes | memoryview, directory: Path | None = None) -> None:
    """Save a checkpoint atomically, and keep the previous one in case this one gets damaged.

    Every process may call it, but only worker 0 saves to the job's own directory, the default.
    There, checkpoints of greater steps are removed, because the job didn't continue from them.
    Several processes may save to one other directory. The checkpoint with the greatest ``step`` is
    the newest. A view is written without being copied. If this raises OSError, earlier checkpoints
    are untouched.
    """
    is_job_directory = directory is None
    if is_job_directory and not current().leads:
        return
    data = memoryview(data)
    if data.nbytes:  # to a view of bytes, because others count items; an empty one can't be cast
        data = data.cast("B")
    directory = directory or current().checkpoint_dir
    directory.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(data).digest()
    header = _HEADER.pack(_MAGIC, step, data.nbytes, digest)
    for unfinished in directory.glob(".checkpoint-*"):
        if _is_abandoned(unfinished):
            unfinished.unlink(missing_ok=True)
    replace_file(directory / f"checkpoint-{step:015d}", header, data, durable=True)
    if is_job_directory:
        remove_later(step, directory)
    # Greater steps don't count: if the job can't use them, it needs this one and its predecessor.
    up_to_step = [path for number, path in list(_list_checkpoints(directory)) if number <= step]
    for old in up_to_step[KEPT:]:
        old.unlink(missing_ok=True)
    if is_job_directory:
        record_saved(step)


def remove_later(step: int, directory: Path) -> None:
    """Remove the checkpoints of greater steps, which the job didn't continue from."""
    for later, path in list(_list_checkpoints(directory)):
        if later > step:
            path.unlink(missing_ok=True)


def load(directory: Path | None = None) -> Checkpoint | None:
    """Return the newest valid checkpoint, None without any. Damaged checkpoints are skipped.

    ``directory`` is by default the job's own. Raises OSError if a checkpoint may not be read, or
    its storage is unreachable.
    """
    checkpoint = next(saved(directory), None)
    if directory is None:
        record_restored(0 if checkpoint is None else checkpoint.step)
    return checkpoint


def saved(directory: Path | None = None) -> Iterator[Checkpoint]:
    """Yield the valid checkpoints of a directory, by default the job's own, the newest first."""
    for step, path in _list_checkpoints(directory or current().checkpoint_dir):
        data = _read_valid(path, step)
        if data is not None:
            yield Checkpoint(step, data)
        elif path.exists():
            _log(f"ignoring {path}: it is damaged")


def _read_valid(path: Path, step: int) -> bytes | None:
    """Return a checkpoint's data, None if it is damaged or gone; raise if it may be valid."""
    try:
        content = path.read_bytes()
    except (FileNotFoundError, IsADirectoryError):
        return None
    except OSError as error:
        if error.errno in _DAMAGE_ERRNOS:
            return None
        raise
    if len(content) < _HEADER.size:
        return None
    magic, written, length, digest = _HEADER.unpack_from(content)
    data = content[_HEADER.size :]
    valid = magic == _MAGIC and written == step and length == len(data)
    return data if valid and hashlib.sha256(data).digest() == digest else None


def _is_abandoned(path: Path) -> bool:
    """Return whether an unfinished file was left by a process that was killed while saving."""
    match = _UNFINISHED.fullmatch(path.name)
    try:
        if match and match[1] == os.uname().nodename:
            os.kill(int(match[2]), 0)
        # A living process may have the number of a dead one, so the age decides, too.
        return time.time() - path.stat().st_mtime > _ABANDONED_SECONDS
    except ProcessLookupError:
        return True
    except OSError:  # it was finished meanwhile, or its process belongs to another user
        return False


def _list_checkpoints(directory: Path) -> Iterator[tuple[int, Path]]:
    """Yield step and path of each checkpoint file in a directory, the newest first."""
    try:
        entries = sorted(directory.iterdir(), reverse=True)
    except FileNotFoundError:
        return
    for path in entries:
        match = _NAME.fullmatch(path.name)
        if match:
            yield int(match[1]), path

"""Checkpoints of torch objects: whole or not at all, by one process or by all of them.

They are `shadowprice.jobs` checkpoints (atomic, with a checksum, the one before is kept) whose data
is a state that `torch.save` wrote, and are read without running what they hold (`weights_only`).
Where every process keeps a piece of the state, the pieces are written first, each a checkpoint of
its own in ``piece-N``; the leader's, with their digests, is what makes the whole.
"""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from shadowprice import jobs
from shadowprice.training.errors import TrainingError
from shadowprice.training.generation import say, wait_for

State = Mapping[str, Any]

_PIECES = "_pieces"


@dataclass(frozen=True)
class Restored:
    """A checkpoint that was found.

    Parameters
    ----------
    step : int
        The step after which it was made.
    state : mapping
        What was saved.
    size : int
        Its bytes.
    """

    step: int
    state: dict[str, Any]
    size: int
    _digests: tuple[str, ...] = ()
    _directory: Path = field(default_factory=Path)

    @property
    def pieces(self) -> int:
        """How many pieces lie beside it."""
        return len(self._digests)

    def piece(self, number: int) -> dict[str, Any]:
        """Return what a piece holds.

        Raises
        ------
        OSError
            If it is not what it was when this checkpoint was found.
        """
        data = _piece(self._directory, number, self.step, self._digests[number])
        if data is None:
            raise OSError(f"piece {number} of the checkpoint of step {self.step} is damaged")
        return unpacked(data)


def packed(state: State, what: str = "a state") -> memoryview:
    """Return a state (tensors, numbers, strings, and mappings and sequences of them) as bytes.

    Parameters
    ----------
    state : mapping
        The state.
    what : str
        What errors call it.

    Raises
    ------
    TrainingError
        If it holds anything else, numpy's numbers for one: it could not be read again.
    """
    stream = io.BytesIO()
    try:
        torch.save(dict(state), stream)
        stream.seek(0)
        torch.load(stream, map_location="meta", weights_only=True)  # all but what tensors hold
    except (pickle.PickleError, AttributeError, TypeError) as error:
        # The line that names what it is comes after advice to read it nevertheless.
        said = next((one for one in str(error).splitlines() if "GLOBAL" in one), str(error))
        raise TrainingError(
            f"{what} is more than tensors, Python's own numbers, strings and mappings and "
            f"sequences of them, and could not be read again: {said.strip()}"
        ) from error
    return stream.getbuffer()


def unpacked(data: bytes) -> dict[str, Any]:
    """Return the state that `packed` took, its tensors on the CPU; nothing in it is run.

    Raises
    ------
    pickle.UnpicklingError
        If it holds anything but data.
    """
    state = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    if not isinstance(state, dict):
        raise pickle.UnpicklingError(f"a checkpoint of {type(state).__name__}, not of a mapping")
    return state


def save(
    step: int, state: State, directory: Path | None = None, *, digests: Sequence[str] = ()
) -> int:
    """Save a checkpoint, and return its size in bytes.

    Parameters
    ----------
    step : int
        Steps done.
    state : mapping
        What `load` is to return.
    directory : Path, optional
        Where; by default the job's own.
    digests : sequence of str, optional
        What `save_piece` returned, in order; every piece is on disk before.

    Raises
    ------
    OSError
        If it cannot be written; the checkpoints before are untouched.
    """
    data = packed({**state, _PIECES: list(digests)})
    jobs.save(step, data, directory)
    return len(data)


def save_piece(step: int, number: int, state: State, directory: Path | None = None) -> str:
    """Save this process's piece of a checkpoint that `save` will make whole; return its digest.

    Parameters
    ----------
    step : int
        Steps done.
    number : int
        Which piece: they count from 0 on.
    state : mapping
        What `Restored.piece` is to return.
    directory : Path, optional
        Where; by default the job's own.
    """
    data = packed(state)
    jobs.save(step, data, _folder(directory or jobs.current().checkpoint_dir, number))
    return hashlib.sha256(data).hexdigest()


def load(directory: Path | None = None) -> Restored | None:
    """Return the newest checkpoint that is whole, its pieces included; None where there is none.

    Parameters
    ----------
    directory : Path, optional
        Where; by default the job's own.
    """
    directory = directory or jobs.current().checkpoint_dir
    for found in jobs.saved(directory):
        restored = _restored(found, directory)
        if restored is not None:
            return restored
    return None


def load_together(directory: Path | None = None, group: Any = None) -> Restored | None:
    """Let the leader load, and give every process what it found: all go on from the same.

    The directory need not be reachable for the others, but for pieces.

    Parameters
    ----------
    directory : Path, optional
        Where; by default the job's own.
    group : process group, optional
        Over which it is sent: one that takes tensors of the CPU.
    """
    directory = directory or jobs.current().checkpoint_dir
    found = load(directory) if dist.get_rank() == 0 else None
    head = torch.tensor([-1 if found is None else found.step, 0], dtype=torch.int64)
    data = b""
    if found is not None:
        data = bytes(packed({**found.state, _PIECES: list(found._digests)}))
        head[1] = len(data)
    wait_for(dist.broadcast(head, 0, group=group, async_op=True))
    step, size = (int(one) for one in head)
    if step < 0:
        return None
    content = torch.frombuffer(bytearray(data or bytes(size)), dtype=torch.uint8)
    wait_for(dist.broadcast(content, 0, group=group, async_op=True))
    if found is not None:
        return found
    state = unpacked(content.numpy().tobytes())
    digests = tuple(state.pop(_PIECES))
    return Restored(step, state, size, digests, directory)


def _restored(found: jobs.Checkpoint, directory: Path) -> Restored | None:
    try:
        state = unpacked(found.data)
        digests = tuple(str(one) for one in state.pop(_PIECES))
    except Exception as error:  # whole, but of another making: reading it may raise anything
        reason = (str(error).splitlines() or [""])[0]
        say(f"the checkpoint of step {found.step} was not made here, and is left out: {reason}")
        return None
    for number, digest in enumerate(digests):
        if _piece(directory, number, found.step, digest) is None:
            say(f"the checkpoint of step {found.step} is left out: piece {number} is damaged")
            return None
    return Restored(found.step, state, len(found.data), digests, directory)


def _piece(directory: Path, number: int, step: int, digest: str) -> bytes | None:
    for found in jobs.saved(_folder(directory, number)):
        if found.step == step and hashlib.sha256(found.data).hexdigest() == digest:
            return found.data
    return None


def _folder(directory: Path, number: int) -> Path:
    return directory / f"piece-{number}"

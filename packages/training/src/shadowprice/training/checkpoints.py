"""Atomic checkpoints of torch objects, written by one process or in pieces by all of them.

They are `shadowprice.jobs` checkpoints: atomic, with a checksum, and the previous one is kept.
`torch.save` writes the content. Loading it never runs code (`weights_only`).

If the state is sharded, each process first writes its piece, as a separate checkpoint in
``piece-N``. The leader writes its checkpoint last, with the digests of all pieces.
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
from shadowprice.training.errors import TrainingError, first_line
from shadowprice.training.generation import say, wait_for

State = Mapping[str, Any]

_PIECES = "_pieces"  # key of the digests of all pieces in the leader's state


@dataclass(frozen=True)
class Restored:
    """A loaded checkpoint: the number of finished steps, the state, and the size in bytes."""

    step: int
    state: dict[str, Any]
    size: int
    _digests: tuple[str, ...] = ()
    _directory: Path = field(default_factory=Path)

    @property
    def pieces(self) -> int:
        """Number of pieces of the checkpoint."""
        return len(self._digests)

    def check_kind(self, kind: str) -> None:
        """Raise `TrainingError` if another kind of training saved this, according to its state."""
        saved = self.state.get("kind", "other code")
        if saved != kind:
            raise TrainingError(
                f"the checkpoint of step {self.step} was saved by {saved}, this is {kind}; "
                "restore the script, or submit a new job"
            )

    def piece(self, number: int) -> dict[str, Any]:
        """Return the state of a piece; raise OSError if it has changed since this was loaded."""
        data = _piece(self._directory, number, self.step, self._digests[number])
        if data is None:
            raise OSError(f"piece {number} of the checkpoint of step {self.step} is damaged")
        return deserialize(data)


def serialize(state: State, what: str = "a state") -> memoryview:
    """Serialize a state of tensors, numbers, strings, and mappings and sequences of them.

    ``what`` names the state in errors. Raises `TrainingError` if the state contains anything else,
    such as numpy scalars, which couldn't be loaded.
    """
    stream = io.BytesIO()
    try:
        torch.save(dict(state), stream)
        stream.seek(0)
        torch.load(stream, map_location="meta", weights_only=True)  # all but the tensors' data
    except (pickle.PickleError, AttributeError, TypeError) as error:
        # torch first advises to load without `weights_only`; a later line names the type.
        reason = next((line for line in str(error).splitlines() if "GLOBAL" in line), str(error))
        raise TrainingError(
            f"{what} can't be saved; use only tensors, Python numbers, strings, and mappings and "
            f"sequences of them: {reason.strip()}"
        ) from error
    return stream.getbuffer()


def deserialize(data: bytes) -> dict[str, Any]:
    """Deserialize the bytes from `serialize` on the CPU; raise `UnpicklingError` for any other."""
    state = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    if not isinstance(state, dict):
        raise pickle.UnpicklingError(f"expected a mapping, got {type(state).__name__}")
    return state


def save(
    step: int, state: State, directory: Path | None = None, *, digests: Sequence[str] = ()
) -> int:
    """Save a checkpoint after ``step`` steps, and return its size in bytes.

    ``directory`` is by default the job's checkpoint directory. ``digests`` are results of
    `save_piece` in order of their numbers; the pieces must be on disk. If this raises OSError,
    earlier checkpoints remain. Checkpoints of greater steps are removed, because the training
    didn't continue from them.
    """
    data = serialize({**state, _PIECES: list(digests)})
    jobs.save(step, data, directory)
    if directory is not None:  # `jobs.save` does this only in the job's own directory
        jobs.remove_later(step, directory)
    return len(data)


def save_piece(step: int, number: int, state: State, directory: Path | None = None) -> str:
    """Save this process's piece of a checkpoint, and return its digest for `save`.

    Pieces are numbered from 0. ``directory`` is that of the complete checkpoint, by default the
    job's checkpoint directory.
    """
    data = serialize(state)
    folder = _folder(directory or jobs.current().checkpoint_dir, number)
    jobs.save(step, data, folder)
    jobs.remove_later(step, folder)
    return hashlib.sha256(data).hexdigest()


def load(directory: Path | None = None, step: int | None = None) -> Restored | None:
    """Return the newest checkpoint, or that of ``step``, if it is valid and has all its pieces."""
    return _load(directory or jobs.current().checkpoint_dir, step)[0]


def load_and_broadcast(group: Any) -> Restored | None:
    """Load the job's newest checkpoint on the leader, and return it in all processes.

    Other processes read the checkpoint directory only for pieces. ``group`` must support CPU
    tensors.
    """
    directory = jobs.current().checkpoint_dir
    checkpoint, data = _load(directory) if dist.get_rank() == 0 else (None, b"")
    step = -1 if checkpoint is None else checkpoint.step
    head = torch.tensor([step, len(data)], dtype=torch.int64)
    wait_for(dist.broadcast(head, 0, group=group, async_op=True))
    step, size = (int(number) for number in head)
    if step < 0:
        return None
    content = torch.frombuffer(bytearray(data or bytes(size)), dtype=torch.uint8)
    wait_for(dist.broadcast(content, 0, group=group, async_op=True))
    if checkpoint is not None:
        return checkpoint
    state = deserialize(content.numpy().tobytes())
    digests = tuple(state.pop(_PIECES))
    return Restored(step, state, size, digests, directory)


def _load(directory: Path, step: int | None = None) -> tuple[Restored | None, bytes]:
    """Return the result of `load`, and the bytes of the checkpoint; empty if there is none."""
    for checkpoint in jobs.saved(directory):
        if step is None or checkpoint.step == step:
            restored = _restored(checkpoint, directory)
            if restored is not None:
                return restored, checkpoint.data
    return None, b""


def _restored(checkpoint: jobs.Checkpoint, directory: Path) -> Restored | None:
    try:
        state = deserialize(checkpoint.data)
        digests = tuple(str(value) for value in state.pop(_PIECES))
    except Exception as error:  # saved by other code: reading it may raise anything
        reason = first_line(error)
        say(f"ignoring the checkpoint of step {checkpoint.step}, saved by other code: {reason}")
        return None
    for number, digest in enumerate(digests):  # a checkpoint without all its pieces isn't valid
        if _piece(directory, number, checkpoint.step, digest) is None:
            say(f"ignoring the checkpoint of step {checkpoint.step}: piece {number} is damaged")
            return None
    return Restored(checkpoint.step, state, len(checkpoint.data), digests, directory)


def _piece(directory: Path, number: int, step: int, digest: str) -> bytes | None:
    for checkpoint in jobs.saved(_folder(directory, number)):
        if checkpoint.step == step and hashlib.sha256(checkpoint.data).hexdigest() == digest:
            return checkpoint.data
    return None


def _folder(directory: Path, number: int) -> Path:
    return directory / f"piece-{number}"

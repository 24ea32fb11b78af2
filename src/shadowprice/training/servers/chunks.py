"""The data set, in chunks on a storage: a directory, S3, HDFS, whatever fsspec reaches.

A data set is a folder with ``index.json``, which names its chunks with their samples, sizes and
digests, and the chunks: arrays by name, all with one row a sample, as `numpy.savez` writes them.
What is read is compared with the index, so that a chunk that is torn or changed is never trained
on; storages that fail or are slow are asked again.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from zipfile import BadZipFile

import fsspec
import numpy as np
from fsspec.registry import known_implementations
from numpy.typing import NDArray

from shadowprice.training.errors import TrainingError

Arrays = dict[str, NDArray[Any]]

INDEX: Final = "index.json"
INDEX_BYTES: Final = 64 << 20
"""Most bytes of an index."""

CHUNK_BYTES: Final = 4 << 30
"""Most bytes of a chunk."""

CHUNKS: Final = 1_000_000
"""Most chunks of a data set."""

_BY_JAVA: Final = ("hdfs", "viewfs")
"""What pyarrow reads by Hadoop's library, and so with a Java machine in this process."""

_DELAYS: Final = (0.1, 0.5, 2.0, 5.0)
"""Seconds to wait before a storage is asked again."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """One chunk of a data set, as its index has it.

    Parameters
    ----------
    file : str
        Its name in the folder.
    samples : int
        Its samples.
    size : int
        Bytes of the file.
    digest : str
        SHA-256 of the file, in hexadecimal.
    """

    file: str
    samples: int
    size: int
    digest: str


@dataclass(frozen=True, slots=True)
class DataSet:
    """A data set on a storage.

    Parameters
    ----------
    url : str
        Its folder, as fsspec writes it: a path, ``s3://...``, ``hdfs://...``.
    chunks : tuple of Chunk
        What its index names.
    options : mapping
        What fsspec is told beside the address: credentials, ports.
    """

    url: str
    chunks: tuple[Chunk, ...]
    options: Mapping[str, Any]

    @property
    def samples(self) -> int:
        """Samples of all chunks."""
        return sum(chunk.samples for chunk in self.chunks)

    def fetch(self, number: int) -> Arrays:
        """Return a chunk's arrays.

        Raises
        ------
        TrainingError
            If it is not there, or not what the index says, however often it is read.
        """
        chunk = self.chunks[number]
        what = f"{self.url}/{chunk.file}"

        def attempt() -> Arrays:
            content = _read(self.url, chunk.file, chunk.size, self.options)
            if len(content) != chunk.size or hashlib.sha256(content).hexdigest() != chunk.digest:
                raise OSError(f"it is not what {INDEX} says: torn, or changed since")
            try:
                return _unpacked(content, chunk.samples)
            except (ValueError, BadZipFile, KeyError) as error:
                raise TrainingError(f"chunk {what}: {error}") from error

        arrays: Arrays = _insistently(attempt, f"chunk {what}")
        return arrays


def write(url: str, arrays: Mapping[str, NDArray[Any]], samples: int, **options: Any) -> DataSet:
    """Write a data set in chunks; its index comes last, so that it is whole or not there.

    Parameters
    ----------
    url : str
        Its folder.
    arrays : mapping of str to array
        What a sample consists of, all with one row a sample.
    samples : int
        Samples of a chunk; the last may have fewer.
    **options
        What fsspec is told beside the address.

    Raises
    ------
    TrainingError
        If there is no sample, arrays do not have one row each or hold no numbers, or nothing that
        is installed reaches the storage.
    """
    try:
        arrays = {name: _numbers(name, array) for name, array in arrays.items()}
    except ValueError as error:
        raise TrainingError(f"data set {url}: {error}") from error
    counts = {len(array) for array in arrays.values()}
    if len(counts) != 1 or 0 in counts or samples < 1:
        raise TrainingError("a data set is arrays with one row a sample, and one sample at least")
    (count,) = counts
    system, folder = _storage(url, options)
    system.makedirs(folder, exist_ok=True)
    chunks = []
    for number, first in enumerate(range(0, count, samples)):
        stream = io.BytesIO()
        part = {name: array[first : first + samples] for name, array in arrays.items()}
        np.savez(stream, allow_pickle=False, **part)
        content = stream.getvalue()
        name = f"chunk-{number:06d}.npz"
        system.pipe_file(f"{folder}/{name}", content)
        rows = min(samples, count - first)
        chunks.append(Chunk(name, rows, len(content), hashlib.sha256(content).hexdigest()))
    index = {"chunks": [[one.file, one.samples, one.size, one.digest] for one in chunks]}
    system.pipe_file(f"{folder}/{INDEX}", json.dumps(index).encode())
    return DataSet(url, tuple(chunks), options)


def read(url: str, **options: Any) -> DataSet:
    """Read a data set's index.

    Parameters
    ----------
    url : str
        Its folder.
    **options
        What fsspec is told beside the address.

    Raises
    ------
    TrainingError
        If it is not there, says what cannot be, or nothing that is installed reaches it.
    """
    content = _insistently(
        lambda: _read(url, INDEX, INDEX_BYTES, options), f"data set {url}: its {INDEX}"
    )
    if len(content) > INDEX_BYTES:
        raise TrainingError(f"data set {url}: its {INDEX} is larger than {INDEX_BYTES:,} bytes")
    try:
        chunks = tuple(_chunk(*entry) for entry in json.loads(content)["chunks"])
        if not 1 <= len(chunks) <= CHUNKS:
            raise ValueError(f"it names {len(chunks):,} chunks; 1 to {CHUNKS:,} are possible")
    except (ValueError, TypeError, KeyError) as error:
        raise TrainingError(f"data set {url}: its {INDEX} cannot be read: {error}") from error
    return DataSet(url, chunks, options)


def _chunk(file: Any, samples: Any, size: Any, digest: Any) -> Chunk:
    if not isinstance(file, str) or "/" in file or file in {"", ".", ".."}:
        raise ValueError(f"{file!r} is no name of a file in its folder")
    for value, most in ((samples, 2**40), (size, CHUNK_BYTES)):
        if not isinstance(value, int) or not 1 <= value <= most:
            raise ValueError(f"{value!r} of {file} is no count from 1 to {most:,}")
    return Chunk(file, samples, size, str(digest))


def _read(url: str, name: str, most: int, options: Mapping[str, Any]) -> bytes:
    """Return a file, or of one that is longer than it may be, one byte more than that."""
    system, folder = _storage(url, options)
    with system.open(f"{folder}/{name}", "rb") as stream:
        content: bytes = stream.read(most + 1)
    return content


def _storage(url: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    """Return what reads and writes where an address leads, and the folder there.

    Raises
    ------
    TrainingError
        If nothing that is installed does: asking again would not help, as it does with a storage
        that is away.
    """
    if any(f"{one}://" in url for one in _BY_JAVA):
        _keep_signals()
    try:
        found: tuple[Any, str] = fsspec.core.url_to_fs(url, **options)
    except ImportError as error:
        # fsspec knows for each storage what it takes, the libraries that are no packages included.
        protocol = fsspec.utils.get_protocol(url)
        known = known_implementations.get(protocol, {})
        said = known.get("err", str(error))
        raise TrainingError(f"data set {url}: nothing here reads it: {said}") from error
    except ValueError as error:
        raise TrainingError(f"data set {url}: no such storage: {error}") from error
    return found


def _keep_signals() -> None:
    """Let Java leave signals alone, where pyarrow reads by Hadoop's library.

    Its own answer to SIGTERM would end the process at once, with the status of one that has saved.
    """
    given = os.environ.get("LIBHDFS_OPTS", "").split()
    if "-Xrs" not in given:
        os.environ["LIBHDFS_OPTS"] = " ".join([*given, "-Xrs"])


def _unpacked(content: bytes, samples: int) -> Arrays:
    with np.load(io.BytesIO(content), allow_pickle=False) as stored:
        arrays = {name: _numbers(name, stored[name]) for name in stored.files}
    if not arrays or any(len(array) != samples for array in arrays.values()):
        raise ValueError(f"its arrays do not have {samples} rows, as {INDEX} says")
    return arrays


def _numbers(name: str, array: Any) -> NDArray[Any]:
    """Return an array as torch takes it: numbers, in this machine's order of bytes.

    Raises
    ------
    ValueError
        If it holds anything else, has no rows, or a name that `numpy.savez` takes for itself.
    """
    found = np.asarray(array)
    if found.dtype.kind not in "biufc":
        raise ValueError(f"its array {name} is of {found.dtype}: write numbers, also for texts")
    if not found.ndim:
        raise ValueError(f"its array {name} has no rows")
    if name in {"file", "allow_pickle"}:
        raise ValueError(f"no array can be called {name}: give it another name")
    return found.astype(found.dtype.newbyteorder("="), copy=False)


def _insistently(attempt: Any, what: str) -> Any:
    """Return what an attempt returns; where it fails by the storage's fault, try again."""
    for delay in (*_DELAYS, None):
        try:
            return attempt()
        except TrainingError:
            raise
        except Exception as error:  # each storage raises its own
            if delay is None:
                said = str(error) or type(error).__name__
                raise TrainingError(f"{what} cannot be read: {said}") from error
            time.sleep(delay)
    raise AssertionError("unreachable")  # pragma: no cover

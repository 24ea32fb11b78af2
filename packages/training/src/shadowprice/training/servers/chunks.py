"""The data set, in chunks on any storage that fsspec supports: a directory, S3, HDFS.

A data set is a folder with chunks and ``index.json``. For each chunk, the index has the file name,
number of samples, size and digest. A chunk has named arrays with one row per sample, as
`numpy.savez` writes them. Every chunk is compared with the index when it is read, so a torn or
changed chunk never enters training. Failed reads are retried.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from zipfile import BadZipFile

import fsspec
import numpy as np
from fsspec.registry import known_implementations
from numpy.typing import NDArray

from shadowprice.training.errors import TrainingError
from shadowprice.training.servers.locality import Replica

Arrays = dict[str, NDArray[Any]]
Result = TypeVar("Result")

INDEX: Final = "index.json"
_PARTIAL_INDEX: Final = "index.json.part"  # while it is written

MAX_INDEX_BYTES: Final = 128 << 20
"""Limit of an index, in bytes; an index of `MAX_CHUNKS` chunks is smaller."""

MAX_CHUNK_BYTES: Final = 4 << 30
"""Limit of a chunk, in bytes."""

MAX_CHUNKS: Final = 1_000_000
"""Limit of the chunks of a data set."""

_MAX_CHUNK_SAMPLES: Final = 2**40  # limit of the samples of a chunk in an index
_MAX_ITEM_BYTES: Final = {"f": 8, "c": 16}  # of floating-point and complex types of torch
_JVM_PROTOCOLS: Final = ("hdfs", "viewfs")  # pyarrow starts a JVM with Hadoop's library
_WEBHDFS: Final = "webhdfs://"  # HDFS over HTTP, which reports the locations of chunks
_NO_RACK: Final = "/default-rack"  # rack of every host if HDFS doesn't know the racks
_BACKOFF_SECONDS: Final = (0.1, 0.5, 2.0, 5.0)  # before each retry of a read


@dataclass(frozen=True, slots=True)
class Chunk:
    """One chunk of a data set: file name in the folder, and its size and SHA-256."""

    file: str
    samples: int
    size: int
    digest: str


@dataclass(frozen=True, slots=True)
class DataSet:
    """A data set on a storage.

    ``url`` is its folder in fsspec's notation: a path, ``s3://...``, ``hdfs://...``. ``options``
    are fsspec's: credentials, ports. ``namenode`` is the address that reports the locations of
    chunks, for data on HDFS: ``webhdfs://name:9870``.
    """

    url: str
    chunks: tuple[Chunk, ...]
    options: Mapping[str, Any]
    namenode: str = ""

    @property
    def samples(self) -> int:
        """Number of samples in all chunks."""
        return sum(chunk.samples for chunk in self.chunks)

    def fetch(self, number: int) -> Arrays:
        """Return a chunk's arrays; raise `TrainingError` if it is missing or was changed."""
        chunk = self.chunks[number]
        name = f"chunk {self.url}/{chunk.file}"

        def attempt() -> Arrays:
            content = _read(self.url, chunk.file, chunk.size, self.options)
            if len(content) != chunk.size or hashlib.sha256(content).hexdigest() != chunk.digest:
                raise OSError(
                    f"its size or digest differs from {INDEX}: the file is torn, or was changed"
                )
            try:
                return _load_arrays(content, chunk.samples)
            except (ValueError, BadZipFile, KeyError) as error:
                raise TrainingError(f"{name}: {error}") from error

        return _with_retries(attempt, name)

    @property
    def has_locations(self) -> bool:
        """Whether the storage reports the locations of chunks."""
        return self.namenode != "" or self.url.startswith(_WEBHDFS)

    def locations(self, number: int) -> list[list[Replica]]:
        """Return the replicas of each block of a chunk, if the storage reports them."""
        if not self.has_locations:
            return []
        file = self.chunks[number].file

        def attempt() -> list[list[Replica]]:
            system, folder = _storage(self.url, self.options)
            if self.namenode:
                system, _ = _storage(self.namenode, {})
            # fsspec has no public method for this; its session has the credentials.
            response = system._call("GET_BLOCK_LOCATIONS", path=f"{folder}/{file}")
            blocks = response.json()["LocatedBlocks"]["locatedBlocks"]
            return [[_parse_replica(entry) for entry in block["locations"]] for block in blocks]

        return _with_retries(attempt, f"data set {self.url}: the location of {file}")


def write(url: str, arrays: Mapping[str, NDArray[Any]], samples: int, **options: Any) -> DataSet:
    """Write a new data set in chunks.

    The index appears last and complete. So readers see the whole data set or none, and the call can
    be repeated after a failure.

    Raise `TrainingError` if the folder already has a data set, or no installed package supports
    the storage. The same holds for arrays that are empty, differ in length or contain anything but
    numbers, and for more than `MAX_CHUNK_BYTES` per chunk or `MAX_CHUNKS` chunks.

    Parameters
    ----------
    url : str
        Folder of the data set.
    arrays : mapping of str to array
        Arrays by name, all with one row per sample.
    samples : int
        Samples per chunk; the last chunk may have fewer.
    **options
        Options of fsspec.
    """
    try:
        arrays = {name: _to_numeric(name, array) for name, array in arrays.items()}
    except ValueError as error:
        raise TrainingError(f"data set {url}: {error}") from error
    counts = {len(array) for array in arrays.values()}
    if len(counts) != 1 or 0 in counts or samples < 1:
        raise TrainingError(
            f"data set {url}: expected arrays of equal length with at least one row, and 1 or more "
            "samples per chunk"
        )
    (count,) = counts
    number_of_chunks = -(-count // samples)
    if number_of_chunks > MAX_CHUNKS:
        raise TrainingError(
            f"data set {url}: expected at most {MAX_CHUNKS:,} chunks, got {number_of_chunks:,}; "
            f"write {-(-count // MAX_CHUNKS):,} or more samples per chunk"
        )
    # The first chunk is one of the largest.
    _check_size(url, sum(array[:samples].nbytes for array in arrays.values()))
    system, folder = _storage(url, options)
    if system.exists(f"{folder}/{INDEX}"):
        # Replaced chunks would break readers of the old index, and unused chunks would remain.
        raise TrainingError(
            f"data set {url}: it already exists; choose another folder, or delete this one"
        )
    chunks = []
    for number, start in enumerate(range(0, count, samples)):
        stream = io.BytesIO()
        part = {name: array[start : start + samples] for name, array in arrays.items()}
        np.savez(stream, **part)  # type: ignore[arg-type]  # some versions have further arguments
        content = stream.getvalue()
        if not number:  # before anything is written
            _check_size(url, len(content))
            system.makedirs(folder, exist_ok=True)
        name = f"chunk-{number:06d}.npz"
        system.pipe_file(f"{folder}/{name}", content)
        rows = min(samples, count - start)
        chunks.append(Chunk(name, rows, len(content), hashlib.sha256(content).hexdigest()))
    index = {"chunks": [[entry.file, entry.samples, entry.size, entry.digest] for entry in chunks]}
    system.pipe_file(f"{folder}/{_PARTIAL_INDEX}", json.dumps(index).encode())
    system.mv(f"{folder}/{_PARTIAL_INDEX}", f"{folder}/{INDEX}")
    return DataSet(url, tuple(chunks), options)


def _check_size(url: str, size: int) -> None:
    if size > MAX_CHUNK_BYTES:
        raise TrainingError(
            f"data set {url}: expected at most {MAX_CHUNK_BYTES:,} bytes per chunk, got {size:,}; "
            "write fewer samples per chunk"
        )


def read(url: str, *, namenode: str = "", **options: Any) -> DataSet:
    """Read a data set's index.

    Raise `TrainingError` if the index is missing or invalid, no installed package supports the
    storage, or ``namenode`` isn't an address of HDFS over HTTP.

    Parameters
    ----------
    url : str
        Folder of the data set.
    namenode : str, optional
        Address of HDFS over HTTP, such as ``webhdfs://name:9870``, for a folder in ``hdfs://``. It
        reports the hosts that have a chunk, and workers on these hosts get it first. A folder in
        ``webhdfs://`` needs no other address.
    **options
        Options of fsspec.
    """
    if namenode and not namenode.startswith(_WEBHDFS):
        raise TrainingError(
            f"data set {url}: expected namenode {_WEBHDFS}HOST:PORT, got {namenode!r}"
        )
    content = _with_retries(
        lambda: _read(url, INDEX, MAX_INDEX_BYTES, options), f"data set {url}: its {INDEX}"
    )
    if len(content) > MAX_INDEX_BYTES:
        raise TrainingError(f"data set {url}: its {INDEX} is larger than {MAX_INDEX_BYTES:,} bytes")
    try:
        chunks = tuple(_parse_chunk(*entry) for entry in json.loads(content)["chunks"])
        if not 1 <= len(chunks) <= MAX_CHUNKS:
            raise ValueError(f"expected 1 to {MAX_CHUNKS:,} chunks, got {len(chunks):,}")
    except (ValueError, TypeError, KeyError) as error:
        raise TrainingError(f"data set {url}: its {INDEX} is invalid: {error}") from error
    return DataSet(url, chunks, options, namenode)


def _parse_chunk(file: Any, samples: Any, size: Any, digest: Any) -> Chunk:
    if not isinstance(file, str) or "/" in file or file in {"", ".", ".."}:
        raise ValueError(f"expected the name of a file in its folder, got {file!r}")
    for value, maximum in ((samples, _MAX_CHUNK_SAMPLES), (size, MAX_CHUNK_BYTES)):
        if not isinstance(value, int) or not 1 <= value <= maximum:
            raise ValueError(f"{file}: expected an integer from 1 to {maximum:,}, got {value!r}")
    return Chunk(file, samples, size, str(digest))


def _parse_replica(entry: Mapping[str, Any]) -> Replica:
    rack = str(entry["networkLocation"])
    return Replica(str(entry["hostName"]), str(entry["ipAddr"]), "" if rack == _NO_RACK else rack)


def _read(url: str, name: str, max_bytes: int, options: Mapping[str, Any]) -> bytes:
    """Return a file's content, truncated to one byte more than ``max_bytes``."""
    system, folder = _storage(url, options)
    with system.open(f"{folder}/{name}", "rb") as stream:
        content: bytes = stream.read(max_bytes + 1)
    return content


def _storage(url: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    """Return the file system of an address, and the folder in it.

    Raise `TrainingError`, which isn't retried, if no installed package supports the storage.
    """
    if any(f"{scheme}://" in url for scheme in _JVM_PROTOCOLS):
        _disable_jvm_signals()
    try:
        result: tuple[Any, str] = fsspec.core.url_to_fs(url, **options)
    except ImportError as error:
        # fsspec names the requirements of each storage, including libraries that aren't packages.
        protocol = fsspec.utils.get_protocol(url)
        implementation = known_implementations.get(protocol, {})
        reason = implementation.get("err", str(error))
        raise TrainingError(
            f"data set {url}: no installed package supports it: {reason}"
        ) from error
    except ValueError as error:
        raise TrainingError(f"data set {url}: unknown storage: {error}") from error
    return result


def _disable_jvm_signals() -> None:
    """Disable the signal handlers of Hadoop's JVM, which end the process on SIGTERM."""
    arguments = os.environ.get("LIBHDFS_OPTS", "").split()
    if "-Xrs" not in arguments:
        os.environ["LIBHDFS_OPTS"] = " ".join([*arguments, "-Xrs"])


def _load_arrays(content: bytes, samples: int) -> Arrays:
    with np.load(io.BytesIO(content), allow_pickle=False) as stored:
        arrays = {name: _to_numeric(name, stored[name]) for name in stored.files}
    if not arrays or any(len(array) != samples for array in arrays.values()):
        raise ValueError(f"expected arrays with {samples} rows, as in {INDEX}")
    return arrays


def _to_numeric(name: str, array: Any) -> NDArray[Any]:
    """Return an array of numbers in native byte order, as torch accepts it, or raise ValueError."""
    numbers = np.asarray(array)
    if numbers.dtype.kind not in "biufc":
        raise ValueError(f"array {name} has type {numbers.dtype}; encode it as numbers")
    if numbers.itemsize > _MAX_ITEM_BYTES.get(numbers.dtype.kind, numbers.itemsize):
        raise ValueError(
            f"array {name} has type {numbers.dtype}, which torch lacks; convert it to "
            f"{'float64' if numbers.dtype.kind == 'f' else 'complex128'}"
        )
    if not numbers.ndim:
        raise ValueError(f"array {name} has no rows")
    if name in {"file", "allow_pickle"}:
        raise ValueError(f"array name {name} is reserved by numpy.savez; rename the array")
    return numbers.astype(numbers.dtype.newbyteorder("="), copy=False)


def _with_retries(attempt: Callable[[], Result], name: str) -> Result:
    """Return the result of an attempt; retry failures of the storage with backoff."""
    for delay in (*_BACKOFF_SECONDS, None):
        try:
            return attempt()
        except TrainingError:
            raise
        except Exception as error:  # each storage raises errors of its own type
            if delay is None:
                reason = str(error) or type(error).__name__
                raise TrainingError(f"{name} can't be read: {reason}") from error
            time.sleep(delay)
    raise AssertionError("unreachable")  # pragma: no cover

"""Data sets in chunks: complete or refused, whatever the storage does, and read ahead of need."""

from __future__ import annotations

import concurrent.futures
import errno
import importlib
import importlib.util
import json
import signal
import sys
import threading
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fsspec")

from fsspec.implementations.local import LocalFileSystem

from shadowprice.training import TrainingError
from shadowprice.training.servers import chunks
from shadowprice.training.servers.worker import ChunkPrefetcher
from tests.train.storages import ObjectStore, store

__all__ = ["store"]

pytestmark = pytest.mark.train

ARRAYS = {"x": np.arange(14.0).reshape(7, 2), "y": np.arange(7)}


@pytest.fixture(params=["path", "file", "memory", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "s3":
        result: str = request.getfixturevalue("store").folder()
        return result
    where = {"path": f"{tmp_path}/set", "file": f"file://{tmp_path}/set"}
    return where.get(request.param, f"memory://{uuid.uuid4().hex}")


def test_chunks_come_back_as_they_were(url: str) -> None:
    written = chunks.write(url, ARRAYS, 3)
    data = chunks.read(url)
    assert data == written
    assert [chunk.samples for chunk in data.chunks] == [3, 3, 1]
    assert data.samples == 7
    parts = [data.fetch(number) for number in range(3)]
    for name, array in ARRAYS.items():
        assert np.array_equal(np.concatenate([part[name] for part in parts]), array)


def test_a_data_set_is_never_overwritten(url: str) -> None:
    written = chunks.write(url, ARRAYS, 3)
    with pytest.raises(TrainingError, match=rf"data set {url}: it already exists; choose another"):
        chunks.write(url, {"x": np.arange(4.0)}, 1)
    assert chunks.read(url) == written
    assert [len(written.fetch(number)["x"]) for number in range(3)] == [3, 3, 1]


def test_a_full_disk_leaves_no_torn_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    complete = LocalFileSystem.pipe_file

    def pipe_file(self: LocalFileSystem, path: str, value: bytes, mode: str = "overwrite") -> None:
        if "index" in path:
            complete(self, path, value[:10], mode)
            raise OSError(errno.ENOSPC, "no space left on device")
        complete(self, path, value, mode)

    folder = str(tmp_path / "set")
    with monkeypatch.context() as context:
        context.setattr(LocalFileSystem, "pipe_file", pipe_file)
        with pytest.raises(OSError, match="no space left"):
            chunks.write(folder, ARRAYS, 3)
    assert not (tmp_path / "set" / chunks.INDEX).exists()
    written = chunks.write(folder, ARRAYS, 3)
    assert chunks.read(folder) == written


def test_a_storage_other_than_hdfs_reports_no_locations(url: str) -> None:
    data = chunks.write(url, ARRAYS, 3)
    assert not data.has_locations
    assert data.locations(0) == []
    says = rf"data set {url}: expected namenode webhdfs://HOST:PORT, got 'http://name:9870'"
    with pytest.raises(TrainingError, match=says):
        chunks.read(url, namenode="http://name:9870")


class Faulty:
    """A storage that fails, or returns too little, a few times before it works."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, faults: list[str]) -> None:
        self.reads = 0
        self.faults = faults
        whole = chunks._read

        def read(*given: Any) -> bytes:
            self.reads += 1
            content = whole(*given)
            fault = self.faults.pop(0) if self.faults else ""
            if fault == "torn":
                return content[: len(content) // 2]
            if fault == "flipped":
                return content[:-1] + bytes([content[-1] ^ 1])
            if fault:
                raise ConnectionError(fault)
            return content

        monkeypatch.setattr(chunks, "_read", read)
        monkeypatch.setattr(chunks, "_BACKOFF_SECONDS", (0.0, 0.0, 0.0))


def test_a_storage_that_fails_is_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = chunks.write(str(tmp_path / "set"), ARRAYS, 3)
    storage = Faulty(monkeypatch, ["reset", "torn", "flipped"])
    assert np.array_equal(data.fetch(1)["y"], [3, 4, 5])
    assert storage.reads == 4


def test_incomplete_or_missing_chunks_are_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = chunks.write(str(tmp_path / "set"), ARRAYS, 3)
    Faulty(monkeypatch, ["torn"] * 4 + ["gone"] * 4)
    with pytest.raises(
        TrainingError, match=r"set/chunk-000002.npz can't be read: its size or digest"
    ):
        data.fetch(2)
    with pytest.raises(TrainingError, match="gone"):
        data.fetch(2)
    (tmp_path / "set" / "chunk-000000.npz").unlink()
    with pytest.raises(TrainingError, match=r"chunk-000000\.npz can't be read"):
        data.fetch(0)


def test_an_object_store_that_hangs_is_waited_for(store: ObjectStore) -> None:
    data = chunks.write(store.folder(), ARRAYS, 3)
    results: list[chunks.Arrays] = []
    store.signal(signal.SIGSTOP)
    fetching = threading.Thread(target=lambda: results.append(data.fetch(1)), daemon=True)
    try:
        fetching.start()
        fetching.join(1.5)
        assert not results
    finally:
        store.signal(signal.SIGCONT)
    fetching.join(60)
    assert np.array_equal(results[0]["y"], [3, 4, 5])


def test_foreign_objects_in_a_store_are_not_trained_on(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    import s3fs

    monkeypatch.setattr(chunks, "_BACKOFF_SECONDS", (0.0,))
    data = chunks.write(store.folder(), ARRAYS, 3)
    there = s3fs.S3FileSystem()
    whole = there.cat_file(f"{data.url}/chunk-000001.npz")
    there.pipe_file(f"{data.url}/chunk-000001.npz", whole[:-1] + bytes([whole[-1] ^ 1]))
    there.rm_file(f"{data.url}/chunk-000002.npz")
    assert np.array_equal(data.fetch(0)["y"], [0, 1, 2])
    with pytest.raises(TrainingError, match=r"chunk-000001\.npz can't be read: its size or digest"):
        data.fetch(1)
    with pytest.raises(TrainingError, match=r"chunk-000002\.npz can't be read"):
        data.fetch(2)
    with pytest.raises(TrainingError, match=r"nobucket/set: its index\.json can't be read"):
        chunks.read("s3://nobucket/set")


# hdfs-native replaces pyarrow wherever it is installed.
NO_HDFS = (
    ("pyarrow", "no installed package supports it: pyarrow and local java")
    if importlib.util.find_spec("hdfs_native") is None
    else (
        "hdfs_native",
        "no installed package supports it: Unable to load filesystem .*name='hdfs'",
    )
)


@pytest.mark.parametrize(
    ("url", "missing", "says"),
    [
        (
            "s3://bucket/set",
            "s3fs",
            "s3://bucket/set: no installed package supports it: Install s3fs",
        ),
        ("hdfs://name:8020/set", *NO_HDFS),
        ("nonsense://set", "", "unknown storage: Protocol not known: nonsense"),
    ],
)
def test_a_storage_without_its_library_is_refused_at_once_with_the_library(
    monkeypatch: pytest.MonkeyPatch, url: str, missing: str, says: str
) -> None:
    if missing:
        monkeypatch.setitem(sys.modules, missing, None)  # as without it
    # A class that was found before; as an attribute of fsspec, the module is hidden by a mapping.
    registered = importlib.import_module("fsspec.registry")._registry
    for kind in ("s3", "hdfs"):
        monkeypatch.delitem(registered, kind, raising=False)
    patched = "shadowprice.training.servers.chunks.time.sleep"
    monkeypatch.setattr(patched, lambda _: pytest.fail("it was asked again"))
    for attempt in (lambda: chunks.read(url), lambda: chunks.write(url, ARRAYS, 3)):
        with pytest.raises(TrainingError, match=says):
            attempt()


def test_objects_are_never_read(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="array x has type object; encode it"):
        chunks.write(str(tmp_path), {"x": np.array([{}], dtype=object)}, 1)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("{", "is invalid"),
        ("[]", "is invalid"),
        ({"chunks": []}, "expected 1 to 1,000,000 chunks, got 0"),
        ({"chunks": [["../x", 1, 1, ""]]}, "the name of a file in its folder, got '../x'"),
        ({"chunks": [["x", 0, 1, ""]]}, "x: expected an integer from 1"),
        ({"chunks": [["x", 1, 2**40, ""]]}, "an integer from 1 to 4,294,967,296, got"),
        ({"chunks": [["x", 1]]}, "is invalid"),
    ],
)
def test_an_impossible_index_is_refused(tmp_path: Path, index: Any, message: str) -> None:
    text = index if isinstance(index, str) else json.dumps(index)
    (tmp_path / chunks.INDEX).write_text(text)
    with pytest.raises(TrainingError, match=message):
        chunks.read(str(tmp_path))


def test_arrays_need_one_row_a_sample(tmp_path: Path) -> None:
    for arrays in ({}, {"x": np.ones(2), "y": np.ones(3)}, {"x": np.ones(0)}):
        with pytest.raises(TrainingError, match="arrays of equal length"):
            chunks.write(str(tmp_path), arrays, 2)


def test_samples_that_torch_refuses_are_refused_when_written(tmp_path: Path) -> None:
    for arrays, message in (
        ({"name": np.array(["a", "b"])}, "array name has type <U1; encode it"),
        ({"file": np.ones(2)}, "array name file is reserved"),
        ({"x": 3.0}, "array x has no rows"),
        ({"x": np.ones(2, np.longdouble)}, "array x has type float128, .*; convert it to float64"),
        ({"x": np.ones(2, np.clongdouble)}, "array x has type complex256, .* to complex128"),
    ):
        with pytest.raises(TrainingError, match=message):
            chunks.write(str(tmp_path), arrays, 2)  # type: ignore[arg-type]
    chunks.write(str(tmp_path), {"x": np.array([1, 258], dtype=">i4")}, 2)
    found = chunks.read(str(tmp_path)).fetch(0)["x"]
    assert (found.tolist(), found.dtype.isnative) == ([1, 258], True)


def test_unreadable_results_are_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = str(tmp_path / "set")
    rows = np.lib.stride_tricks.as_strided(np.zeros(1), (2**29 + 1,), (0,))  # takes no memory
    with pytest.raises(TrainingError, match="at most 4,294,967,296 bytes per chunk, got 4,294,967"):
        chunks.write(url, {"x": rows}, 2**30)
    with pytest.raises(TrainingError, match="1,000,000 chunks, got 1,000,001; write 2 or more"):
        chunks.write(url, {"x": np.zeros(1_000_001, np.uint8)}, 1)
    monkeypatch.setattr(chunks, "MAX_CHUNK_BYTES", 400)
    with pytest.raises(TrainingError, match="at most 400 bytes per chunk, got"):
        chunks.write(url, {"x": np.zeros(50)}, 50)
    assert not (tmp_path / "set").exists()
    assert len(chunks.write(url, {"x": np.zeros(50)}, 8).chunks) == 7


def test_a_chunk_has_the_arrays_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    savez = np.savez

    def as_in_numpy_2_0(file: Any, /, **arrays: Any) -> None:
        # It stores every keyword as an array, also `allow_pickle`, which is a name here.
        savez(file, names=np.array(list(arrays)), **arrays)

    monkeypatch.setattr(np, "savez", as_in_numpy_2_0)
    written = chunks.write(str(tmp_path), ARRAYS, 7)
    with np.load(tmp_path / written.chunks[0].file) as stored:
        assert stored["names"].tolist() == list(ARRAYS)


# ------------------------------------------------------------------ ahead of need


def test_prefetched_chunks_are_there_when_needed() -> None:
    begun, requested = threading.Event(), []

    def fetch(number: int) -> chunks.Arrays:
        requested.append(number)
        begun.set()
        return {"x": np.array([number])}

    fetcher = ChunkPrefetcher(fetch, keep=2)
    fetcher.want(5)
    assert begun.wait(10)
    concurrent.futures.wait([fetcher._futures[5]], timeout=10)
    assert fetcher._futures[5].done()
    assert fetcher.fetch(5)["x"] == 5
    fetcher.fetch(6)
    fetcher.fetch(7)  # 5 is released
    fetcher.fetch(7)
    assert requested == [5, 6, 7]
    fetcher.fetch(5)
    assert requested == [5, 6, 7, 5]


def test_a_failed_prefetch_is_repeated_when_needed() -> None:
    faults = [OSError("away for a while")]

    def fetch(number: int) -> chunks.Arrays:
        if faults:
            raise faults.pop()
        return {"x": np.array([number])}

    fetcher = ChunkPrefetcher(fetch)
    fetcher.prefetch_if_room(1)
    concurrent.futures.wait([fetcher._futures[1]], timeout=10)
    assert fetcher.fetch(1)["x"] == 1


def test_a_cache_of_one_chunk_fetches_each_once() -> None:
    requests = []

    def fetch(number: int) -> chunks.Arrays:
        requests.append(number)
        return {}

    fetcher = ChunkPrefetcher(fetch, keep=1)
    for number in range(3):
        fetcher.want(number)
        fetcher.prefetch_if_room(number + 1)
        fetcher.fetch(number)
    assert requests == [0, 1, 2]


def test_a_slow_chunk_is_waited_for_and_a_failed_one_tried_again() -> None:
    go = threading.Event()
    faults = [OSError("away")]

    def fetch(number: int) -> chunks.Arrays:
        assert go.wait(10)
        if faults:
            raise faults.pop()
        return {"x": np.array([number])}

    fetcher = ChunkPrefetcher(fetch)
    threading.Timer(0.05, go.set).start()
    with pytest.raises(OSError, match="away"):
        fetcher.fetch(1)
    assert fetcher.fetch(1)["x"] == 1


def test_a_stopped_job_does_not_wait_for_a_storage_that_hangs() -> None:
    go = threading.Event()

    def fetch(number: int) -> chunks.Arrays:
        assert go.wait(60)
        return {}

    with pytest.raises(SystemExit, match="143"):
        ChunkPrefetcher(fetch).fetch(1, stop=[1])
    go.set()

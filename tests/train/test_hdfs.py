"""Data sets on a real HDFS that the tests start, if ``make hdfs`` fetched it.

`SHADOWPRICE_TEST_HDFS` names others: one or more folders that fsspec reaches, separated by spaces,
such as ``webhdfs://namenode:9870/tmp/tests hdfs://namenode:8020/tmp/tests``.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("fsspec")

from tools import hdfs

from shadowprice import jobs
from shadowprice.training import TrainingError
from shadowprice.training.servers import chunks
from shadowprice.training.servers.locality import Replica
from shadowprice.training.servers.recipe import Settings
from tests.support.waiting import WAIT_LIMIT_SECONDS
from tests.train.servers import scripts
from tests.train.servers.generations import Generation
from tests.train.servers.threads import Threads
from tests.train.storages import ARROW

pytestmark = [pytest.mark.train, pytest.mark.extended]

KILLED = -signal.SIGKILL
FOLDERS = os.environ.get("SHADOWPRICE_TEST_HDFS", "").split()
ARRAYS = {"x": np.arange(14.0).reshape(7, 2), "y": np.arange(7)}


SPEAKS = {"webhdfs": "requests", "hdfs": "hdfs_native"}
"""Libraries for each kind of address."""


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[hdfs.Hdfs]:
    """A NameNode and a DataNode of this machine."""
    why = hdfs.missing()
    if why:
        pytest.skip(why)
    with hdfs.Hdfs(tmp_path_factory.mktemp("hdfs") / "hdfs") as begun:
        yield begun


@pytest.fixture(params=FOLDERS or list(SPEAKS))
def folder(request: pytest.FixtureRequest) -> str:
    """A new folder."""
    kind = request.param.partition(":")[0]
    if kind in SPEAKS and importlib.util.find_spec(SPEAKS[kind]) is None:
        pytest.skip(f"{SPEAKS[kind]} is not installed")
    given = request.param if FOLDERS else request.getfixturevalue("own").addresses[kind]
    return f"{given.rstrip('/')}/{uuid.uuid4().hex}"


def test_chunks_come_back_as_they_were(folder: str) -> None:
    written = chunks.write(folder, ARRAYS, 3)
    data = chunks.read(folder)
    assert data == written
    parts = [data.fetch(number) for number in range(3)]
    for name, array in ARRAYS.items():
        assert np.array_equal(np.concatenate([part[name] for part in parts]), array)


def test_foreign_files_are_not_trained_on(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "_BACKOFF_SECONDS", (0.0,))
    data = chunks.write(folder, ARRAYS, 3)
    there, path = importlib.import_module("fsspec.core").url_to_fs(folder)
    whole = there.cat_file(f"{path}/chunk-000001.npz")
    there.pipe_file(f"{path}/chunk-000001.npz", whole[:-1] + bytes([whole[-1] ^ 1]))
    there.rm(f"{path}/chunk-000002.npz")
    assert np.array_equal(data.fetch(0)["y"], [0, 1, 2])
    with pytest.raises(TrainingError, match=r"chunk-000001\.npz can't be read: its size or digest"):
        data.fetch(1)
    with pytest.raises(TrainingError, match=r"chunk-000002\.npz can't be read"):
        data.fetch(2)
    with pytest.raises(TrainingError, match=r"none: its index\.json can't be read"):
        chunks.read(f"{folder}/none")


def test_every_sample_counts_once_an_epoch_though_workers_die(folder: str, tmp_path: Path) -> None:
    """As from a directory and S3; processes are forked, and read HDFS there."""
    data = scripts.written(folder)

    def progress() -> int:
        path = tmp_path / "progress.json"
        return int(json.loads(path.read_text())["minibatches"]) if path.exists() else 0

    given: dict[str, Any] = {
        "data": data,
        "epochs": 3,
        "pace": 0.01,
        "result": str(tmp_path / "counts.npy"),
        "settings": {"save_every": 0.3, "report_every": 0.1},
    }
    first = Generation(tmp_path, scripts.count, 2, 1, 1, **given)
    first.until(lambda: progress() > 10)
    assert set(first.stop().values()) == {jobs.STOPPED}
    second = Generation(tmp_path, scripts.count, 3, 2, 2, **given)
    second.until(lambda: json.loads((tmp_path / "progress.json").read_text())["generation"] == 2)
    second.kill("worker-0")
    ended = second.ended()
    assert ended == {"worker-0": KILLED, "worker-1": 0, "worker-2": 0, "ps-0": 0, "ps-1": 0}
    assert np.load(tmp_path / "counts.npy").tolist() == [3.0] * scripts.SAMPLES


@pytest.mark.parametrize("kind", SPEAKS)
def test_hdfs_says_where_each_block_of_a_chunk_is(own: hdfs.Hdfs, kind: str) -> None:
    for name in {"webhdfs", kind}:
        pytest.importorskip(SPEAKS[name])
    folder = f"{own.addresses[kind]}/{uuid.uuid4().hex}"
    written = chunks.write(folder, {"x": np.zeros(400_000)}, 200_000)
    namenode = "" if kind == "webhdfs" else own.addresses["webhdfs"].removesuffix("/tests")
    data = chunks.read(folder, namenode=namenode)
    replica = Replica("127.0.0.1", "127.0.0.1", hdfs.RACK)
    assert [data.locations(number) for number in range(2)] == [[[replica]]] * 2
    assert written.has_locations == (kind == "webhdfs")
    # The same chunk in blocks of a megabyte.
    there, path = importlib.import_module("fsspec.core").url_to_fs(
        folder.replace(own.addresses[kind], own.addresses["webhdfs"])
    )
    file = f"{path}/chunk-000001.npz"
    how = {"overwrite": "true", "blocksize": 1 << 20}
    there._call("CREATE", "put", file, there.cat_file(file), **how)
    assert data.locations(1) == [[replica]] * 2
    assert np.array_equal(data.fetch(1)["x"], np.zeros(200_000))


@pytest.mark.parametrize(
    ("host", "rack", "distance"),
    [
        ("127.0.0.1", "", "local"),
        ("elsewhere", hdfs.RACK, "rack"),
        ("elsewhere", "/rack-2", "remote"),
        ("", "", "remote"),
    ],
)
def test_the_share_of_local_reads_is_measured(
    own: hdfs.Hdfs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    host: str,
    rack: str,
    distance: str,
) -> None:
    pytest.importorskip("requests")
    monkeypatch.setenv("SHADOWPRICE_CHECKPOINT_DIR", str(tmp_path))
    monkeypatch.setenv("SHADOWPRICE_HOST", host)
    monkeypatch.setenv("SHADOWPRICE_RACK", rack)
    recipe = scripts.counted(scripts.written(f"{own.addresses['webhdfs']}/{uuid.uuid4().hex}"), 2)
    threads = Threads(recipe, Settings(), 2, 1)
    count = len(recipe.data.chunks)
    until = time.monotonic() + WAIT_LIMIT_SECONDS
    while not all(map(threads.leader._localities.is_known, range(count))):
        assert time.monotonic() < until
        time.sleep(0.01)
    assert threads.run() == "done"
    reported = threads.leader.measured.metrics()
    wanted = {f"{name}_chunks": 0.0 for name in ("local", "rack", "remote")}
    wanted |= {f"{distance}_chunks": 2.0 * count, "local_share": float(distance == "local")}
    assert wanted.items() <= reported.items()
    assert threads.workers[0]._values.tolist() == [2.0] * scripts.SAMPLES


def test_pyarrow_does_the_same_by_hadoops_library(own: hdfs.Hdfs) -> None:
    """These tests again in a process of their own, because pyarrow loads a Java machine."""
    pytest.importorskip("pyarrow")
    if why := hdfs.library_missing():
        pytest.skip(why)
    variables = {**os.environ, **own.environment(), ARROW: "1"}
    variables["SHADOWPRICE_TEST_HDFS"] = own.addresses["hdfs"]
    chosen = "come_back or not_trained_on or once_an_epoch or saves_before or waited_for"
    words = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:rerunfailures"]
    words += ["-m", "train", "-k", chosen, __file__]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        cwd=Path(__file__).parents[2], env=variables, capture_output=True, text=True, check=False,
        timeout=400,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-2000:]
    assert "....." in ran.stdout, ran.stdout


SAVING = """
import signal, sys, time
sys.path[:0] = sys.argv[2:]
from tests.train.servers import scripts
from shadowprice.training.servers import chunks
def save(*_):
    print("saved", flush=True)
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
chunks.write(sys.argv[1], {"x": scripts.np.arange(3.0)}, 3)
print(chunks.read(sys.argv[1]).fetch(0)["x"].tolist(), flush=True)
time.sleep(300)
"""


def test_a_reader_of_hdfs_saves_before_it_leaves(folder: str) -> None:
    """Java handles SIGTERM too: it ends the process with the status of one that has saved."""
    words = [sys.executable, "-c", SAVING, folder, str(Path(__file__).parents[2])]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "[0.0, 1.0, 2.0]\n"
            process.terminate()
            assert process.stdout.read() == "saved\n"
            assert process.wait(60) == 143
        finally:
            process.kill()


@pytest.mark.parametrize("kind", ["hdfs"] if ARROW in os.environ else SPEAKS)
def test_a_storage_that_hangs_is_waited_for(own: hdfs.Hdfs, kind: str) -> None:
    if importlib.util.find_spec(SPEAKS[kind]) is None:
        pytest.skip(f"{SPEAKS[kind]} is not installed")
    data = chunks.write(f"{own.addresses[kind]}/{uuid.uuid4().hex}", ARRAYS, 3)
    results: list[Any] = []
    own.signal(signal.SIGSTOP)
    try:
        asking = threading.Thread(target=lambda: results.append(data.fetch(1)), daemon=True)
        asking.start()
        time.sleep(3.0)
        assert not results
    finally:
        own.signal(signal.SIGCONT)
    asking.join(120.0)
    assert np.array_equal(results[0]["y"], [3, 4, 5])

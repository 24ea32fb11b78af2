"""Trainings that Hugging Face's Trainer and Lightning lead, moved and uninterrupted."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from shadowprice.training import TrainingError
from shadowprice.training.callbacks import common
from shadowprice.training.callbacks.common import split_batch
from shadowprice.training.generation import nccl_here
from tests.train.forking import preload
from tests.train.generations import Job

pytestmark = pytest.mark.train

preload("tests.train.scripts.libraries")


def test_a_sealed_checkpoint_is_whole_until_a_byte_of_it_changes(tmp_path: Path) -> None:
    for step in (2, 10):
        folder = tmp_path / f"checkpoint-{step}"
        (folder / "parts").mkdir(parents=True)
        (folder / "a").write_bytes(b"a" * step)
        (folder / "parts" / "b").write_bytes(b"b")
        common.seal(folder)
    (tmp_path / "checkpoint-11").mkdir()  # interrupted while it was written
    assert common.latest_complete(tmp_path, "checkpoint-") == (10, tmp_path / "checkpoint-10")
    (tmp_path / "checkpoint-10" / "parts" / "b").write_bytes(b"c")
    assert common.latest_complete(tmp_path, "checkpoint-") == (2, tmp_path / "checkpoint-2")
    (tmp_path / "checkpoint-2" / "more").touch()
    assert common.latest_complete(tmp_path, "checkpoint-") is None
    assert common.latest_complete(tmp_path / "nowhere", "checkpoint-") is None


def steps_in(folder: Path, after: str) -> list[int]:
    return [number for number, _ in common.numbered(folder, "c-", after)]


def write(folder: Path, step: int, *, sealed: bool) -> Path:
    path = folder / f"c-{step}.ckpt"
    path.write_bytes(b"state %d" % step)
    if sealed:
        common.seal(path)
    return path


def test_pruning_keeps_complete_checkpoints_only(tmp_path: Path) -> None:
    """Two unsealed checkpoints of a killed run must not displace those that can be loaded."""
    write(tmp_path, 50, sealed=True)
    write(tmp_path, 100, sealed=True)
    write(tmp_path, 190, sealed=False)
    write(tmp_path, 200, sealed=False)
    write(tmp_path, 150, sealed=True)
    common.prune(tmp_path, 150, 2, "c-", ".ckpt")
    assert steps_in(tmp_path, ".ckpt") == steps_in(tmp_path, ".ckpt.seal") == [150, 100]
    write(tmp_path, 160, sealed=True).write_bytes(b"damaged")
    write(tmp_path, 170, sealed=False)
    write(tmp_path, 180, sealed=True)
    common._sealed_here.clear()  # as in the next generation
    common.prune(tmp_path, 180, 2, "c-", ".ckpt")
    assert steps_in(tmp_path, ".ckpt") == steps_in(tmp_path, ".ckpt.seal") == [180, 150]


def test_incomplete_checkpoints_after_the_restored_one_are_removed(tmp_path: Path) -> None:
    for step, sealed in ((50, False), (100, True), (190, False), (200, True)):
        (tmp_path / f"c-{step}").mkdir()
        (tmp_path / f"c-{step}" / "a").write_bytes(b"a")
        if sealed:
            common.seal(tmp_path / f"c-{step}")
    common.remove_incomplete(tmp_path, 100, "c-")
    assert steps_in(tmp_path, "") == [200, 100, 50]


def test_a_process_reads_a_complete_checkpoint_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, 7, sealed=True)
    past = path.stat().st_mtime - 60
    for file in (path, tmp_path / "c-7.ckpt.seal"):
        os.utime(file, (past, past))
    read: list[str] = []
    digest = hashlib.file_digest

    def counted(stream: Any, name: str) -> Any:
        read.append(stream.name)
        return digest(stream, name)

    monkeypatch.setattr(hashlib, "file_digest", counted)
    for _ in range(3):
        assert common.latest_complete(tmp_path, "c-", ".ckpt") == (7, path)
    assert len(read) == 1
    path.write_bytes(b"state 8")
    assert common.latest_complete(tmp_path, "c-", ".ckpt") is None


@pytest.mark.parametrize(
    ("batch", "largest", "workers", "expected"),
    [(64, 16, 1, (16, 4)), (64, 16, 4, (16, 1)), (12, 5, 2, (3, 2)), (7, 2, 1, (1, 7))],
)
def test_workers_share_a_minibatch(
    batch: int, largest: int, workers: int, expected: tuple[int, int]
) -> None:
    assert split_batch(batch, largest, workers) == expected


def test_a_minibatch_that_cannot_be_shared_is_refused() -> None:
    with pytest.raises(TrainingError, match="3 workers can't share a mini-batch of 64 evenly"):
        split_batch(64, 16, 3)
    with pytest.raises(TrainingError, match="batch, largest: expected 1 or more, got 0 and 16"):
        split_batch(0, 16, 3)


def at(job: Job) -> int:
    path = job.checkpoints / "done"
    return int(path.read_text() or 0) if path.exists() else 0


@pytest.mark.parametrize(
    ("library", "script", "words"),
    [
        ("transformers", "small_trainer.py", ()),
        ("lightning", "small_lightning.py", ()),
        ("lightning", "small_lightning.py", ("--two",)),
    ],
)
def test_a_training_that_is_moved_ends_as_one_that_was_left_alone(
    tmp_path: Path, library: str, script: str, words: tuple[str, ...]
) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    fixed = Job(tmp_path / "fixed", script, words)
    moved = Job(tmp_path / "moved", script, words)
    before, after = ("checkpoint-", "") if library == "transformers" else ("lightning-", ".ckpt")
    # Two checkpoints were interrupted when a generation was killed.
    cut_off = [moved.checkpoints / f"{before}{step}{after}" for step in (90, 91)]
    for path in cut_off:
        path.mkdir(parents=True)
    try:
        left = fixed.start(1)
        done = 0
        for workers, goal in ((1, 7), (2, 13)):
            if library == "lightning":  # in the middle of an epoch, even on a busy machine
                generation = moved.start(workers, "--stop-after", str(goal - done))
            else:
                generation = moved.start(workers, "--pace", "0.05")
                moved.until(lambda goal=goal: at(moved) >= goal)  # type: ignore[misc]
                generation.signal(signal.SIGTERM)
            assert generation.ended() == [143] * workers, generation.logs()
            newest = common.latest_complete(moved.checkpoints, before, after)
            assert newest is not None
            done = newest[0]
            assert not any(path.exists() for path in cut_off)
            assert done == (goal if library == "lightning" else at(moved))
            assert f"stopping: saved after step {done}" in generation.log()
            backend = "nccl" if nccl_here() else "gloo"
            many = f"{workers} workers, {backend}" if workers > 1 else "1 worker"
            assert f", {many}\n" in generation.log()
        moved.run(1)
        assert left.ended() == [0], left.log()
    finally:
        fixed.end()
        moved.end()
    expected, got = final(fixed), final(moved)
    assert got["final"] == pytest.approx(expected["final"], rel=1e-3, abs=1e-4)
    assert got.get("steps") == expected.get("steps")
    if "losses" in expected:  # the metric has four digits
        assert got["losses"] == pytest.approx(expected["losses"], abs=2e-3)
    document = json.loads((moved.folder / "progress.json").read_bytes())
    assert document["minibatches"] == 25
    assert document["generation"] == 3
    assert {"loss", "change_start"} <= document["metrics"].keys()


@pytest.mark.parametrize(
    ("library", "words", "message"),
    [
        (
            "trainer",
            ("--samples", "66"),
            "66 samples; expected a multiple of the mini-batch of 12; remove 6",
        ),
        ("trainer", ("--stream",), "the data set has no length"),
        ("lightning", ("--accumulate", "2"), "accumulate_grad_batches must be 1"),
        ("lightning", ("--limit", "3"), "limit_train_batches must be 1.0"),
    ],
)
def test_features_that_depend_on_the_workers_are_refused(
    tmp_path: Path, library: str, words: tuple[str, ...], message: str
) -> None:
    if importlib.util.find_spec("lightning" if library == "lightning" else "transformers") is None:
        pytest.skip(f"{library} is not installed")
    job = Job(tmp_path / "job", f"small_{library}.py", words=words)
    try:
        generation = job.start(1)
        assert generation.ended() == [1]
        assert message in generation.log()
    finally:
        job.end()


def final(job: Job) -> dict[str, Any]:
    return dict(json.loads((job.checkpoints / "final").read_text()))

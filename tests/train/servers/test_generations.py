"""Real processes that are killed at any moment, stopped, and restarted in other numbers."""

from __future__ import annotations

import json
import random
import shutil
import signal
import socket
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from shadowprice import jobs
from shadowprice.training import checkpoints
from shadowprice.training.generation import own_device
from shadowprice.training.servers.recipe import Settings
from shadowprice.training.servers.running import run
from tests.train.backends import BACKENDS, ON_GPUS
from tests.train.servers import scripts
from tests.train.servers.generations import Generation
from tests.train.storages import ObjectStore, store

__all__ = ["store"]

pytestmark = [pytest.mark.train, pytest.mark.long]

KILLED = -signal.SIGKILL


def progress(folder: Path) -> float:
    try:
        return float(json.loads((folder / "progress.json").read_text())["minibatches"])
    except FileNotFoundError:
        return 0.0


def own_name() -> str:
    """Return this machine's name if it resolves to loopback; tests stay there."""
    name = socket.gethostname()
    try:
        return name if socket.gethostbyname(name).startswith("127.") else "127.0.0.1"
    except OSError:
        return "127.0.0.1"


PACE_SECONDS = 60.0
"""Time of a mini-batch that is much longer than the end of a generation."""


@pytest.mark.extended
def test_a_worker_that_waits_for_its_pace_leaves_when_it_is_stopped(tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "data": scripts.written(tmp_path),
        "epochs": 1,
        "pace": 0.0,
        "result": str(tmp_path / "counts.npy"),
        "settings": {"report_every": 0.1, "pace": PACE_SECONDS},
    }
    generation = Generation(tmp_path, scripts.count, 1, 1, 1, **given)
    generation.until(lambda: progress(tmp_path) == 1)
    began = time.monotonic()
    assert set(generation.stop().values()) == {jobs.STOPPED}
    assert time.monotonic() - began < PACE_SECONDS
    saved = jobs.load(tmp_path / "checkpoints")
    assert saved is not None
    assert saved.step == 1


def test_a_backend_that_is_not_there_ends_every_process_at_once(tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "data": scripts.written(tmp_path),
        "epochs": 1,
        "pace": 0.0,
        "result": str(tmp_path / "counts.npy"),
        "settings": {"backend": "pigeons"},
    }
    generation = Generation(tmp_path, scripts.count, 2, 1, **given)
    assert set(generation.ended().values()) == {1}
    says = "backend 'pigeons' isn't available here; use gloo"
    assert generation.said().count(says) == 3


def test_a_server_ends_whole_though_its_threads_are_slow(tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "data": scripts.written(tmp_path),
        "epochs": 1,
        "pace": 0.0,
        "result": str(tmp_path / "counts.npy"),
        "settings": {},
    }
    generation = Generation(tmp_path, scripts.count_lingering, 1, 2, **given)
    assert set(generation.ended().values()) == {0}, generation.said()


def test_servers_restore_the_leaders_checkpoint_or_say_that_it_is_not_there(
    tmp_path: Path,
) -> None:
    given: dict[str, Any] = {
        "data": scripts.written(tmp_path),
        "epochs": 2,
        "pace": 0.05,
        "result": str(tmp_path / "counts.npy"),
        "settings": {"report_every": 0.05},
    }
    first = Generation(tmp_path, scripts.count, 1, 2, 1, **given)
    first.until(lambda: progress(tmp_path) > 1)
    assert set(first.stop().values()) == {jobs.STOPPED}, first.said()
    saved = checkpoints.load(tmp_path / "checkpoints")
    assert saved is not None
    other = str(tmp_path / "other")
    told = {"ps-1": {"SHADOWPRICE_CHECKPOINT_DIR": other}}
    second = Generation(tmp_path, scripts.count, 1, 2, 2, own_told=told, **given)
    assert second.ended()["ps-1"] == 1
    message = f"found no valid checkpoint of step {saved.step} in {other}, which the leading"
    assert message in second.said()
    # The leader's newest checkpoint isn't the newest one that the other server finds.
    shutil.copytree(tmp_path / "checkpoints", other)
    saved.state["assigner"]["committed"] += 1
    checkpoints.save(saved.step + 1, saved.state, tmp_path / "other")
    third = Generation(tmp_path, scripts.count, 1, 2, 3, own_told=told, **given)
    assert set(third.ended().values()) == {0}, third.said()
    assert (np.load(tmp_path / "counts.npy") == 2.0).all()


def test_servers_that_wait_for_a_worker_end_when_stopped_and_when_the_leader_is_lost(
    tmp_path: Path,
) -> None:
    given: dict[str, Any] = {
        "data": scripts.written(tmp_path),
        "epochs": 1,
        "pace": 0.2,
        "result": "",
        "settings": {"report_every": 0.05},
    }
    # No other process joins them.
    first = Generation(tmp_path, scripts.count, 1, 3, 1, absent=("worker-0",), **given)
    first.until((tmp_path / "progress.json").exists)
    assert set(first.stop().values()) == {jobs.STOPPED}, first.said()
    # One joined, and sends nothing more: they hang in gloo.
    second = Generation(tmp_path, scripts.count, 1, 3, 2, **given)
    second.until(lambda: progress(tmp_path) > 1)
    second.signal(signal.SIGSTOP, "worker-0")
    second.kill("ps-0")
    second.until(lambda: not second.processes["ps-1"].is_alive())
    second.until(lambda: not second.processes["ps-2"].is_alive())
    second.kill("worker-0")
    assert second.ended() == {"worker-0": KILLED, "ps-0": KILLED, "ps-1": 1, "ps-2": 1}
    assert "TrainingError: another process of the job is gone" in (
        (tmp_path / "ps-1.log").read_text()
    )


@pytest.mark.parametrize(
    ("storage", "backend"),
    [
        ("directory", "gloo"),
        ("s3", "gloo"),
        ("directory", "wired"),
        pytest.param("directory", "nccl", marks=ON_GPUS),
    ],
)
def test_every_sample_counts_once_an_epoch_through_kills_and_resizes(
    tmp_path: Path, storage: str, backend: str, request: pytest.FixtureRequest
) -> None:
    draw = random.Random(5)
    store: ObjectStore | None = None
    if storage == "s3":
        store = request.getfixturevalue("store")
    given: dict[str, Any] = {
        "variables": {} if store is None else store.environment,
        "data": scripts.written(tmp_path if store is None else store.folder()),
        "epochs": 4,
        "pace": 0.01,
        "result": str(tmp_path / "counts.npy"),
        "settings": {"save_every": 0.3, "report_every": 0.1, "backend": backend},
    }
    # Stopped as a scheduler does.
    first = Generation(tmp_path, scripts.count, 2, 1, 1, **given)
    first.until(lambda: progress(tmp_path) > 20)
    time.sleep(draw.uniform(0, 0.2))
    assert set(first.stop().values()) == {jobs.STOPPED}
    saved = jobs.load(tmp_path / "checkpoints")
    assert saved is not None
    assert saved.step == progress(tmp_path) > 20  # its progress was saved, to the last mini-batch
    # A worker is killed, and after a while all processes.
    second = Generation(tmp_path, scripts.count, 3, 2, 2, **given)
    second.until(lambda: progress(tmp_path) > saved.step + 5)
    second.kill(f"worker-{draw.randrange(3)}")
    at = progress(tmp_path)
    second.until(lambda: progress(tmp_path) > at + 12)
    time.sleep(draw.uniform(0, 0.3))
    second.kill()
    second.ended()
    # The last one loses its first worker, and all servers but one.
    third = Generation(tmp_path, scripts.count, 3, 2, 3, **given)
    third.until(lambda: json.loads((tmp_path / "progress.json").read_text())["generation"] == 3)
    time.sleep(draw.uniform(0, 0.3))
    third.kill("worker-0")
    ended = third.ended()
    assert ended == {"worker-0": KILLED, "worker-1": 0, "worker-2": 0, "ps-0": 0, "ps-1": 0}
    counts = np.load(tmp_path / "counts.npy")
    assert counts.tolist() == [4.0] * scripts.SAMPLES
    metrics = json.loads((tmp_path / "progress.json").read_text())["metrics"]
    assert metrics["gradient_bytes"] == 8 * scripts.SAMPLES
    assert metrics["minibatch_time"] >= 0.01
    assert metrics["worker_bandwidth"] > 0
    assert metrics["ps_bandwidth"] > 0


def moved_in_step(
    folder: Path, data: str, settings: dict[str, Any], **expected: Any
) -> dict[int, float]:
    """Return the losses of a run that is resized and killed, its model in ``result.pt``."""
    folder.mkdir()
    losses, result = str(folder / "losses"), str(folder / "result.pt")
    given = {"data": data, "losses": losses, "result": result, "settings": settings, **expected}
    first = Generation(folder, scripts.train, 3, 2, 1, pace=0.02, **given)
    first.until(lambda: progress(folder) >= 4)
    first.kill("worker-2")
    first.until(lambda: progress(folder) >= 9)
    assert first.stop() == {
        **dict.fromkeys(first.processes, jobs.STOPPED),
        "worker-2": KILLED,
    }
    # By name, worker 0 keeps the meeting point, as it does on several machines.
    second = Generation(folder, scripts.train, 2, 3, 2, address=own_name(), **given)
    assert set(second.ended().values()) == {0}
    return dict(json.loads(line) for line in Path(losses).read_text().splitlines())


def left_alone(data: str, settings: dict[str, Any], **expected: Any) -> tuple[list[float], Any]:
    """Return the losses of a run of one worker and one server, and its model."""
    curve: list[float] = []
    fixed = run(
        scripts.recipe(data, **expected),
        Settings(observe=lambda _, loss: curve.append(loss), **settings),
    )
    assert fixed is not None
    return curve, fixed.model


IN_STEP: dict[str, Any] = {
    "synchronous": True,
    "parts": 4,
    "save_every": 0.3,
    "report_every": 0.1,
}


@pytest.mark.parametrize("backend", BACKENDS)
def test_in_step_a_run_that_is_resized_and_killed_has_the_curve_of_one_that_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    data = scripts.written(tmp_path)
    # Batch normalisation and dropout see and draw the same, whichever worker computes a part.
    recipe: dict[str, Any] = {"epochs": 3, "minibatch": 12, "moody": True, "adam": True}
    monkeypatch.setenv("SHADOWPRICE_CHECKPOINT_DIR", str(tmp_path / "fixed"))
    curve, model = left_alone(data, IN_STEP, **recipe)
    folder = tmp_path / "resized"
    moved = moved_in_step(folder, data, {**IN_STEP, "backend": backend}, **recipe)
    metrics = json.loads((folder / "progress.json").read_text())["metrics"]
    # The cost of the change from the first to the second.
    assert metrics["change_checkpoint"] > 0
    assert {"change_away", "change_start", "change_first_step"} <= metrics.keys()
    assert np.allclose([moved[step] for step in range(len(curve))], curve, rtol=1e-6)
    state = torch.load(folder / "result.pt", weights_only=True, map_location=own_device())
    assert state.pop("minibatches") == len(curve)
    for name, value in model.state_dict().items():
        assert torch.allclose(state[name], value, rtol=1e-6, atol=1e-9), name


@pytest.mark.extended
def test_in_step_in_float32_a_run_that_is_resized_and_killed_differs_less_than_seeds_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = scripts.written(tmp_path)
    recipe: dict[str, Any] = {"epochs": 3, "minibatch": 12, "moody": True, "double": False}
    curves = []
    for seed in range(3):
        monkeypatch.setenv("SHADOWPRICE_CHECKPOINT_DIR", str(tmp_path / f"fixed-{seed}"))
        curves.append(np.array(left_alone(data, IN_STEP, seed=seed, **recipe)[0]))
    noise = min(np.abs(curves[a] - curves[b]).mean() for a, b in ((0, 1), (0, 2), (1, 2)))
    resized = moved_in_step(tmp_path / "resized", data, IN_STEP, **recipe)
    moved = np.array([resized[step] for step in range(len(curves[0]))])
    assert np.abs(moved - curves[0]).mean() < 0.1 * noise

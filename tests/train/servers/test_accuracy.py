"""Asynchronous training that is resized learns as well as at a fixed size, over seeds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from shadowprice.training.generation import own_device
from shadowprice.training.servers.recipe import Recipe, Settings
from tests.train.servers import scripts
from tests.train.servers.threads import Threads

pytestmark = pytest.mark.train

SEEDS = range(4)
SAMPLES, HELD = 600, 400


def accuracy(recipe: Recipe, plans: list[tuple[int, int]], held: dict[str, Any]) -> float:
    """Train through generations of workers and servers, resized after equal parts of the work."""
    works = sum(recipe.order().minibatches(recipe.minibatch)) * recipe.epochs
    for number, (workers, servers) in enumerate(plans, start=1):
        stop: list[int] = []
        until = works * number // len(plans)

        def observe(done: int, _: float, until: int = until, stop: list[int] = stop) -> None:
            if done + 1 >= until:
                stop.append(1)

        last = number == len(plans)
        settings = Settings() if last else Settings(observe=observe)
        threads = Threads(recipe, settings, workers, servers, stop=stop)
        assert threads.run() == ("done" if last else "stop")
    model = threads.workers[0].model.eval()
    with torch.no_grad():
        return float((model(held["x"]).argmax(dim=1) == held["y"]).double().mean())


def test_resized_at_every_quarter_it_is_as_accurate_as_at_a_fixed_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = scripts.written(tmp_path, SAMPLES + HELD, 50)
    whole = scripts.recipe(data, epochs=6)
    first = SAMPLES // 50
    held = {
        name: torch.cat(
            [
                torch.from_numpy(whole.data.fetch(number)[name]).to(own_device())
                for number in range(first, len(whole.data.chunks))
            ]
        )
        for name in ("x", "y")
    }
    found: dict[str, list[float]] = {"fixed": [], "resized": []}
    for seed in SEEDS:
        recipe = replace(whole, data=replace(whole.data, chunks=whole.data.chunks[:first]))
        recipe = replace(recipe, seed=seed)
        for name, plans in (("fixed", [(3, 2)]), ("resized", [(1, 1), (4, 2), (2, 3), (3, 1)])):
            monkeypatch.setenv("SHADOWPRICE_CHECKPOINT_DIR", str(tmp_path / f"{name}-{seed}"))
            found[name].append(accuracy(recipe, plans, held))
    assert min(found["fixed"]) > 0.85
    spread = max(found["fixed"]) - min(found["fixed"])
    assert abs(mean(found["resized"]) - mean(found["fixed"])) <= max(spread, 0.02), found

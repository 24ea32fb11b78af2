"""Training that is resized, stopped and killed gives the same result as without interruption."""

from __future__ import annotations

import copy
import json
import math
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from shadowprice.training import Order
from shadowprice.training.generation import nccl_here, own_device
from shadowprice.training.randomness import seed_all
from tests.train.generations import Job
from tests.train.scripts import small

pytestmark = pytest.mark.train

Make = Callable[..., Job]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Make]:
    made: list[Job] = []

    def make(name: str = "job", **options: Any) -> Job:
        made.append(Job(tmp_path / name, **options))
        return made[-1]

    yield make
    for one in made:
        one.end()


def losses(job: Job) -> dict[int, float]:
    """The loss after each step; of a repeated step, the one that counted."""
    path = job.checkpoints / "losses"
    lines = path.read_text().splitlines() if path.exists() else []
    return {line["step"]: line["loss"] for line in map(json.loads, lines)}


def done(job: Job) -> int:
    return max(losses(job), default=0)


def final(job: Job) -> dict[str, Any]:
    return json.loads((job.checkpoints / "final").read_text())


def resized(job: Job, history: list[tuple[int, str]], by: int = 8) -> None:
    """Run a job whose workers change every few steps, in several ways."""
    for workers, ending in history:
        generation = job.start(workers)
        wait_for(job, done(job) + by)
        if ending == "killed":
            # no worker may see another one die, and leave by itself
            generation.signal(signal.SIGSTOP)
            generation.signal(signal.SIGKILL)
            assert generation.ended() == [137] * workers
            continue
        if ending == "one by one":  # the signal reaches them at different steps
            for rank in reversed(range(workers)):
                generation.signal(signal.SIGTERM, rank)
                time.sleep(0.01)
        else:
            generation.signal(signal.SIGTERM)
        assert generation.ended() == [143] * workers, generation.logs()


def wait_for(job: Job, step: int) -> None:
    job.until(lambda: done(job) >= step)


HISTORY = [(2, "told"), (3, "killed"), (1, "told"), (4, "one by one"), (3, "told"), (7, "told")]


def test_resized_at_every_slot_it_ends_with_the_loss_curve_of_a_fixed_run(job: Make) -> None:
    words = ("--double", "--epochs", "16", "--save-every", "0", "--pace", "0.02")
    fixed, moved = job("fixed", words=words[:-2]), job("moved", words=words)
    fixed.run(1)
    resized(moved, HISTORY)
    moved.run(2)
    assert max(losses(fixed)) == max(losses(moved)) == 16 * 5
    for step, loss in losses(fixed).items():
        assert math.isclose(losses(moved)[step], loss, rel_tol=1e-6), step
    expected, got = final(fixed), final(moved)
    assert got["final"] == pytest.approx(expected["final"], rel=1e-6, abs=1e-12)
    assert got["random"] == expected["random"]
    assert f", 2 workers, {'nccl' if nccl_here() else 'gloo'}\n" in moved.began[-1].log()


def twin(epochs: int) -> tuple[list[float], list[float]]:
    """Losses and model of the same training as a plain loop: part after part, on copies."""
    data, order = small.Noisy(100, torch.float64), Order(100, 24, parts=6)
    seed_all(order.part_seed(0, 0, 3))
    device = own_device()
    model = small.network().double().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    total = epochs * order.steps
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=total)
    curve = []
    for step in range(total):
        parts, whole = order.split_step(step), 0.0
        slopes = [torch.zeros_like(parameter) for parameter in model.parameters()]
        statistics = {name: torch.zeros_like(one) for name, one in model.named_buffers()}
        samples = sum(len(part.samples) for part in parts)
        for part in parts:
            weight = len(part.samples) / samples
            seed_all(order.part_seed(step, part.number, 1))
            inputs, labels = zip(*(data[int(sample)] for sample in part.samples), strict=True)
            seed_all(order.part_seed(step, part.number, 0))
            copied = copy.deepcopy(model)
            scores = copied(torch.stack(inputs).to(device))
            wanted = torch.stack(labels).to(device)
            loss = torch.nn.functional.cross_entropy(scores, wanted)
            result = torch.autograd.grad(loss, list(copied.parameters()))
            slopes = [a + weight * b for a, b in zip(slopes, result, strict=True)]
            for name, one in copied.named_buffers():
                statistics[name] = (
                    one if one.dtype == torch.int64 else statistics[name] + weight * one
                )
            whole += weight * loss.item()
        for parameter, slope in zip(model.parameters(), slopes, strict=True):
            parameter.grad = slope
        for name, one in model.named_buffers():
            one.copy_(statistics[name])
        optimizer.step()
        schedule.step()
        curve.append(whole)
    return curve, torch.cat(
        [one.double().flatten() for one in model.state_dict().values()]
    ).tolist()


def test_it_is_the_training_that_a_plain_loop_does(job: Make) -> None:
    fixed = job(words=("--double", "--epochs", "4"))
    fixed.run(3)
    curve, values = twin(4)
    assert losses(fixed) == pytest.approx(dict(enumerate(curve, 1)), rel=1e-9)
    assert final(fixed)["final"] == pytest.approx(values, rel=1e-6, abs=1e-8)


def test_in_float32_a_resized_run_differs_less_than_seeds_do(job: Make) -> None:
    words = ("--epochs", "16")
    fixed = [job(f"fixed-{seed}", words=(*words, "--seed", str(seed))) for seed in range(3)]
    for one in fixed:
        one.start(1)
    moved = job("moved", words=(*words, "--pace", "0.02"))
    resized(moved, [(3, "told"), (2, "told"), (4, "killed"), (1, "told")], by=12)
    moved.run(3)
    for one in fixed:
        assert one.began[0].ended() == [0]

    def apart(a: Job, b: Job) -> float:
        first, second = losses(a), losses(b)
        return sum(abs(first[step] - second[step]) for step in first) / len(first)

    assert len(losses(moved)) == 16 * 5
    noise = min(apart(fixed[0], fixed[1]), apart(fixed[0], fixed[2]), apart(fixed[1], fixed[2]))
    assert apart(fixed[0], moved) < 0.1 * noise


def test_mixed_precision_and_the_scale_of_its_gradients_go_through_moves(job: Make) -> None:
    words = ("--mixed", "--epochs", "8")
    fixed, moved = job("fixed", words=words), job("moved", words=(*words, "--pace", "0.02"))
    fixed.run(1)
    resized(moved, [(2, "told"), (3, "killed"), (1, "told")], by=7)
    moved.run(2)
    assert final(moved)["scale"] == final(fixed)["scale"] == 2.0 ** (8 + 8 * 5 // 5)
    apart = [abs(losses(moved)[step] - loss) for step, loss in losses(fixed).items()]
    assert len(apart) == 8 * 5
    assert sum(apart) / len(apart) < 0.02  # what begins at 0.7: numbers with few digits are rounded


def test_more_workers_than_parts_change_nothing(job: Make) -> None:
    words = ("--double", "--epochs", "2")
    few, many = job("few", words=words), job("many", words=words)
    few.run(1)
    many.run(8)  # of 6 parts
    assert losses(many) == pytest.approx(losses(few), rel=1e-9)
    assert "8 workers for 6 parts" in many.began[0].log()


def test_processes_that_load_data_outlive_the_signal_and_load_the_same(job: Make) -> None:
    words = ("--double", "--epochs", "6")
    fixed, moved = job("fixed", words=words), job("moved", words=(*words, "--loaders", "1"))
    fixed.run(1)
    generation = moved.start(2, "--pace", "0.05")
    wait_for(moved, 4)
    generation.signal(signal.SIGTERM)  # the whole group of each, data loaders too
    assert generation.ended() == [143, 143], "\n".join(generation.logs())
    moved.run(1)
    assert losses(moved) == pytest.approx(losses(fixed), rel=1e-9)


def test_a_damaged_checkpoint_costs_the_steps_since_the_one_before(job: Make) -> None:
    words = ("--double", "--epochs", "8")
    fixed, moved = job("fixed", words=words), job("moved", words=words)
    fixed.run(1)
    resized(moved, [(1, "told"), (2, "told")], by=4)
    paths = sorted(moved.checkpoints.glob("checkpoint-*"))
    content = paths[-1].read_bytes()
    paths[-1].write_bytes(content[: len(content) // 2])
    moved.run(2)
    before = int(paths[0].name.removeprefix("checkpoint-"))
    assert f"step {before} of 40, 2 workers" in moved.began[-1].log()
    assert losses(moved) == pytest.approx(losses(fixed), rel=1e-9)


def test_gradients_added_up_over_steps_survive_moves(job: Make) -> None:
    words = ("--double", "--epochs", "4", "--every", "20")
    fixed, moved = job("fixed", words=words), job("moved", words=(*words, "--pace", "0.02"))
    fixed.run(1)
    resized(moved, [(2, "told"), (1, "told")], by=3)
    moved.run(2)
    assert losses(moved) == pytest.approx(losses(fixed), rel=1e-12)
    assert final(moved)["final"] == pytest.approx(final(fixed)["final"], rel=1e-12, abs=1e-14)


def test_it_may_be_stopped_at_any_moment_of_its_start(job: Make) -> None:
    moved = job(words=("--epochs", "400"))
    for late in (0.0, 0.05, 0.2, 0.5, 1.0):
        generation = moved.start(3)
        time.sleep(late)
        generation.signal(signal.SIGTERM)
        assert set(generation.ended()) <= {143}, generation.logs()


def test_a_worker_that_dies_is_a_failure_that_costs_what_was_not_saved(job: Make) -> None:
    words = ("--double", "--epochs", "8", "--save-every", "0")
    fixed, moved = job("fixed", words=words), job("moved", words=words)
    fixed.run(1)
    generation = moved.start(3, "--pace", "0.05")
    wait_for(moved, 5)
    generation.signal(signal.SIGKILL, 1)
    codes = generation.ended()
    assert codes[1] == 137
    assert 0 not in codes
    assert 143 not in codes
    moved.run(2)
    assert losses(moved) == pytest.approx(losses(fixed), rel=1e-9)


def test_a_change_is_measured_and_reported(job: Make) -> None:
    moved = job(words=("--epochs", "40", "--pace", "0.02"))
    resized(moved, [(2, "told")])
    generation = moved.start(1)
    wait_for(moved, done(moved) + 30)  # it continued after the last report
    document = json.loads((moved.folder / "progress.json").read_bytes())["metrics"]
    generation.signal(signal.SIGTERM)
    generation.ended()
    assert document.keys() == {
        "loss", "change_checkpoint", "change_away", "change_start", "change_first_step"
    }  # fmt: skip
    assert all(0 <= value < 60 for value in document.values())
    assert document["change_checkpoint"] > 0
    assert document["change_start"] > 0


def test_a_checkpoint_that_cannot_be_written_is_reported(job: Make) -> None:
    moved = job(words=("--epochs", "400", "--pace", "0.02", "--save-every", "0.1"))
    generation = moved.start(2, "--file-limit", "20000")
    wait_for(moved, 10)
    generation.signal(signal.SIGTERM)
    assert generation.ended() == [1, 143]
    said = generation.log()
    assert "failed to save a checkpoint after step" in said
    assert "stopping, but step" in said.splitlines()[-1]
    assert "couldn't be saved: [Errno 27] File too large" in said.splitlines()[-1]

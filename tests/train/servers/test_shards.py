"""State of servers: divided over any number of them, it equals that of one plain optimizer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import numpy as np
import torch

from shadowprice.training import TrainingError, checkpoints
from shadowprice.training.servers import Settings
from shadowprice.training.servers.shard import (
    Shard,
    build_seeded_model,
    merge_shards,
    parameter_layout,
    trainable_parameters,
)
from tests.train.servers import scripts

pytestmark = pytest.mark.train


@pytest.mark.parametrize("adam", [False, True])
def test_divided_in_any_way_it_learns_as_one_optimizer(tmp_path: Path, adam: bool) -> None:
    recipe = scripts.recipe(scripts.written(tmp_path), adam=adam)
    model = build_seeded_model(recipe)
    layout = parameter_layout(model)
    plain = recipe.optimizer(trainable_parameters(model))
    rate = plain.param_groups[0]["lr"]
    state = None
    step = 0
    for servers in (1, 3, 2, layout.elements, 4):
        shards = [Shard(recipe, number, servers, state) for number in range(servers)]
        for _ in range(3):
            torch.manual_seed(step)
            slope = torch.randn(layout.elements, dtype=torch.float64)
            for number, shard in enumerate(shards):
                first, last = layout.span(number, servers)
                # Two shares, to be added up.
                shard.apply([slope[first:last] * 0.25, slope[first:last] * 0.75], step)
            begin = 0
            for _, one in trainable_parameters(model):
                one.grad = slope[begin : begin + one.numel()].view(one.shape)
                begin += one.numel()
            plain.param_groups[0]["lr"] = rate * recipe.schedule(step)
            plain.step()
            step += 1
        wanted = torch.cat([one.detach().reshape(-1) for _, one in trainable_parameters(model)])
        result = torch.cat([shard.values for shard in shards])
        assert torch.allclose(result, wanted, rtol=1e-13, atol=1e-15)
        state = {**merge_shards([shard.state() for shard in shards]), "buffers": shards[0].buffers}


def test_parameters_are_grouped_by_name_though_a_server_has_none_of_a_group(
    tmp_path: Path,
) -> None:
    def grouped(parameters: Any) -> Any:
        bias = [parameter for parameter in parameters if parameter[0].endswith("bias")]
        rest = [parameter for parameter in parameters if not parameter[0].endswith("bias")]
        groups = [{"params": bias, "weight_decay": 0.0}, {"params": rest, "weight_decay": 0.5}]
        return torch.optim.AdamW(groups, lr=0.1)

    recipe = replace(scripts.recipe(scripts.written(tmp_path)), optimizer=grouped)
    learnt = []
    for servers in (1, 3):
        shards = [Shard(recipe, number, servers) for number in range(servers)]
        for shard in shards:
            shard.apply([torch.zeros_like(shard.values)], 0)
        learnt.append(torch.cat([shard.values for shard in shards]))
        state = merge_shards([shard.state() for shard in shards])
        assert state["parameters"].keys() == state["optimizer"].keys()
    assert torch.equal(*learnt)


class Plain(torch.optim.Optimizer):
    """Counts on the whole gradient, as a custom optimizer may."""

    def __init__(self, parameters: object) -> None:
        super().__init__(parameters, {"lr": 0.1})  # type: ignore[arg-type]
        for one in (param for group in self.param_groups for param in group["params"]):
            self.state[one]["sum"] = torch.zeros_like(one)

    def step(self) -> None:  # type: ignore[override]
        with torch.no_grad():
            for group in self.param_groups:
                for param, _ in zip(group["params"], group["param_names"], strict=True):
                    param.sub_(self.state[param]["sum"].add_(param.grad), alpha=group["lr"])


def test_an_optimizer_only_updates_parameters_with_a_gradient(tmp_path: Path) -> None:
    recipe = replace(scripts.recipe(scripts.written(tmp_path)), optimizer=Plain)
    learnt = []
    for servers in (1, 3):
        shards = [Shard(recipe, number, servers) for number in range(servers)]
        for shard in shards:
            shard.apply([torch.ones_like(shard.values)], 0)
        learnt.append(torch.cat([shard.values for shard in shards]))
    assert torch.equal(*learnt)


class Spread(torch.optim.Optimizer):
    """Keeps one row for every parameter, so it can't be divided by elements."""

    def __init__(self, parameters: object) -> None:
        super().__init__(parameters, {"lr": 0.1})  # type: ignore[arg-type]

    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for param in group["params"]:
                self.state[param]["row"] = torch.zeros(param.numel() + 1)


def test_an_optimizer_that_is_not_elementwise_is_refused(tmp_path: Path) -> None:
    recipe = replace(scripts.recipe(scripts.written(tmp_path)), optimizer=Spread)
    shard = Shard(recipe, 0, 1)
    with pytest.raises(TrainingError, match="Spread stores row with another shape"):
        shard.apply([torch.zeros_like(shard.values)], 0)


class Odd(torch.optim.SGD):
    """Keeps a numpy number."""

    def step(self, closure: Any = None) -> None:
        super().step(closure)
        for group in self.param_groups:
            for param in group["params"]:
                self.state[param]["norm"] = np.float64(1.0)


def test_an_optimiser_whose_state_no_checkpoint_can_hold_is_refused_at_once(tmp_path: Path) -> None:
    def odd(parameters: Any) -> Any:
        return Odd(parameters, lr=0.1)

    shard = Shard(replace(scripts.recipe(scripts.written(tmp_path)), optimizer=odd), 0, 1)
    with pytest.raises(TrainingError, match=r"use only tensors, .*: .*numpy"):
        shard.apply([torch.zeros_like(shard.values)], 0)


def test_a_recipe_may_have_numbers_of_numpy(tmp_path: Path) -> None:
    recipe = scripts.recipe(scripts.written(tmp_path))
    numpy_recipe = replace(recipe, minibatch=np.int64(8), seed=np.int64(0))  # type: ignore[arg-type]
    assert checkpoints.serialize(numpy_recipe.to_record()) == checkpoints.serialize(
        recipe.to_record()
    )
    with pytest.raises(TrainingError, match=r"minibatch: expected an integer, got 8\.5"):
        replace(recipe, minibatch=8.5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 10**13}, r"epochs: expected an integer from 1 to 1,000,000,000,000, got 10,0"),
        ({"seed": 2**63}, "seed: expected an integer from 0 to 9,223,372,036,854,775,807, got"),
    ],
)
def test_a_recipe_states_the_limits_of_its_numbers(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(TrainingError, match=message):
        replace(scripts.recipe(scripts.written(tmp_path)), **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"patience": float("inf")},
            "patience: expected seconds above 0 to 1,000,000,000, got inf",
        ),
        ({"join": float("nan")}, "join: expected seconds above 0"),
        ({"save_every": "60"}, "save_every: expected a number of seconds, got '60'"),
        ({"pace": -1}, "pace: expected seconds from 0 to 1,000,000,000, got -1"),
        ({"parts": 2.5}, "parts: expected an integer, got 2.5"),
        ({"parts": "8"}, "parts: expected an integer, got '8'"),
        ({"keep": 0}, "keep: expected an integer from 1 to 1,000,000, got 0"),
        ({"staleness": 1.5}, "staleness: expected an integer, got 1.5"),
        ({"staleness": 1, "synchronous": True}, "staleness: not valid in synchronous training"),
    ],
)
def test_settings_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TrainingError, match=message):
        Settings(**options)


def _small(**modules: torch.nn.Module) -> torch.nn.Module:
    """Return the model of `scripts.recipe` with other modules."""
    model = scripts.Small(moody=False)
    for name, module in modules.items():
        setattr(model, name, module)
    return model.double()


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    recipe = scripts.recipe(scripts.written(tmp_path))
    shard = Shard(recipe, 0, 1)
    state = {**merge_shards([shard.state()]), "buffers": shard.buffers}
    assert torch.equal(Shard(recipe, 0, 1, state).values, shard.values)
    for model, difference in (
        # The first server's parameters all fit in those of the checkpoint.
        (_small(last=torch.nn.Linear(12, 2)), "last.weight has shape [3, 12] there, and [2, 12]"),
        (_small(last=torch.nn.Linear(12, scripts.CLASSES, bias=False)), "this model has no last.b"),
        (_small(extra=torch.nn.Linear(1, 1)), "it has no extra.weight"),
        (_small(norm=torch.nn.BatchNorm1d(12)), "it has no norm.weight"),
        (_small().float(), "first.weight has type torch.float64 there, and torch.float32 here"),
    ):
        with pytest.raises(TrainingError) as caught:
            Shard(replace(recipe, model=lambda model=model: model), 0, 2, state)
        assert f"the checkpoint is of another model: {difference}" in str(caught.value)


@pytest.mark.parametrize("model", [torch.nn.Identity(), "mixed"])
def test_a_model_needs_parameters_of_one_type(model: object) -> None:
    if model == "mixed":
        model = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Linear(1, 1).double())
    with pytest.raises(TrainingError, match=r"no trainable parameter|one floating-point type"):
        trainable_parameters(model)

"""A parameter server's shard of the model: a slice of the parameters, and optimizer state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from shadowprice.training import checkpoints
from shadowprice.training.errors import TrainingError
from shadowprice.training.model_buffers import persistent_buffers, real_buffers
from shadowprice.training.randomness import seed_all
from shadowprice.training.servers.recipe import Recipe
from shadowprice.training.servers.sharding import Layout

State = dict[str, Any]


def build_seeded_model(recipe: Recipe) -> Any:
    """Return a recipe's model, identical in every process."""
    seed_all(recipe.seed)
    return recipe.model()


def trainable_parameters(model: Any) -> list[tuple[str, Any]]:
    """Return the trainable parameters; raise `TrainingError` unless they have one float type."""
    parameters = [
        (name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad
    ]
    if not parameters:
        raise TrainingError("the model has no trainable parameter")
    types = sorted({str(parameter.dtype) for _, parameter in parameters})
    if len(types) > 1 or not parameters[0][1].is_floating_point():
        raise TrainingError(
            "parameter servers need parameters of one floating-point type; the model's have "
            f"{', '.join(types)}"
        )
    return parameters


def parameter_layout(model: Any) -> Layout:
    """Return the layout of a model's parameters."""
    return Layout(
        tuple((name, parameter.numel()) for name, parameter in trainable_parameters(model))
    )


def model_shapes(model: Any) -> dict[str, list[int]]:
    """Return the shapes of trainable parameters and persistent buffers, by name."""
    tensors = [*trainable_parameters(model), *persistent_buffers(model)]
    return {name: list(tensor.shape) for name, tensor in tensors}


def flattened_buffers(model: Any) -> Any:
    """Return a model's buffers in one dimension, as float64 so that counts stay integral."""
    flat = [buffer.detach().reshape(-1).to("cpu", torch.float64) for buffer in real_buffers(model)]
    return torch.cat(flat) if flat else torch.empty(0, dtype=torch.float64)


def set_buffers(model: Any, values: Any) -> None:
    """Set a model's buffers from flat float64 values."""
    start = 0
    for buffer in real_buffers(model):
        part = values[start : start + buffer.numel()].view(buffer.shape).to(buffer.device)
        start += buffer.numel()
        with torch.no_grad():
            rounded = part if buffer.is_floating_point() else part.round()
            # Elements that are equal in float64 stay: large integers would lose digits.
            buffer.copy_(
                torch.where(buffer.to(torch.float64) == part, buffer, rounded.to(buffer.dtype))
            )


class Shard:
    """A server's slice of the parameters; ``state`` is a result of `merge_shards`."""

    def __init__(
        self,
        recipe: Recipe,
        ps_rank: int,
        ps_count: int,
        state: Mapping[str, Any] | None = None,
        device: Any = None,
    ) -> None:
        model = build_seeded_model(recipe)
        layout = parameter_layout(model)
        first, last = layout.span(ps_rank, ps_count)
        flat = torch.cat(
            [item.detach().reshape(-1).cpu() for _, item in trainable_parameters(model)]
        )
        self.values = flat[first:last].clone().to(device or "cpu")  # the parameters, flat
        self.gradient_bytes = layout.elements * self.values.element_size()  # of the whole model
        self.buffers = flattened_buffers(model)  # used on the leading server only
        self.pieces = layout.pieces(ps_rank, ps_count)
        self._shapes = model_shapes(model)
        self._schedule = recipe.schedule
        parts = self.values.split([piece.size for piece in self.pieces])
        self._views = [torch.nn.Parameter(part) for part in parts]
        own = {item.name: view for item, view in zip(self.pieces, self._views, strict=True)}
        # The optimizer first gets all parameters, because a parameter group must not be empty.
        named_parameters = [
            (name, own.get(name, torch.nn.Parameter(self.values[:0]))) for name, _ in layout.sizes
        ]
        self._optimizer = recipe.optimizer(named_parameters)
        self._drop_parameters(
            {id(item) for _, item in named_parameters} - {id(item) for item in self._views}
        )
        self._initial_rates = [group["lr"] for group in self._optimizer.param_groups]
        self._is_checked = False
        if state is not None:
            self._restore(state)

    def _drop_parameters(self, others: set[int]) -> None:
        """Remove the parameters of other servers from the optimizer: they get no gradients here."""
        for group in self._optimizer.param_groups:
            kept = [
                index
                for index, parameter in enumerate(group["params"])
                if id(parameter) not in others
            ]
            for parameter in group["params"]:
                if id(parameter) in others:
                    self._optimizer.state.pop(parameter, None)
            for key in {"params", "param_names"} & group.keys():
                group[key] = [group[key][index] for index in kept]

    def apply(self, gradients: Sequence[Any], minibatch: int) -> None:
        """Update the parameters by the sum of gradients; ``minibatch`` is its number in the job."""
        total = sum(gradients[1:], gradients[0])
        for view, part in zip(self._views, total.split([*map(len, self._views)]), strict=True):
            view.grad = part
        factor = self._schedule(minibatch)
        for group, rate in zip(self._optimizer.param_groups, self._initial_rates, strict=True):
            group["lr"] = rate * factor
        self._optimizer.step()
        if not self._is_checked:  # optimizers create their state in the first step
            self._check()

    def apply_buffer_changes(self, changes: Sequence[Any]) -> None:
        """Update the buffers by a mini-batch's or step's changes, as workers push them.

        A change is as long as the buffers, or twice as long if a worker's buffers were not all
        finite. In the second half, 1 marks an element that is the new value, not a difference.
        """
        total, size = sum(changes[1:], changes[0]), len(self.buffers)
        # Workers send these marks, because another worker may have made the buffer finite since.
        replaced = total[size:] > 0 if len(total) > size else torch.zeros(size, dtype=torch.bool)
        self.buffers = torch.where(replaced, total[:size], self.buffers + total[:size])

    def state(self) -> State:
        """Return all state, for `merge_shards`."""
        states = [
            {name: _on(value, "cpu") for name, value in self._optimizer.state.get(view, {}).items()}
            for view in self._views
        ]
        pieces = [[piece.name, piece.start, piece.stop] for piece in self.pieces]
        return {
            "pieces": pieces,
            "values": self.values.cpu(),
            "optimizer": states,
            "shapes": self._shapes,
        }

    def _check(self) -> None:
        """Refuse an optimizer if its state isn't element-wise, or a checkpoint can't hold it."""
        for view in self._views:
            for name, value in self._optimizer.state.get(view, {}).items():
                if torch.is_tensor(value) and value.dim() and value.shape != view.shape:
                    raise TrainingError(
                        f"{type(self._optimizer).__name__} stores {name} with another shape than "
                        "its parameter; use an element-wise optimizer such as SGD or Adam"
                    )
        # The state as in a checkpoint, without the elements of tensors.
        kept = [
            {name: None if torch.is_tensor(value) else value for name, value in state.items()}
            for state in self._optimizer.state.values()
        ]
        checkpoints.serialize({"optimizer": kept})
        self._is_checked = True

    def _restore(self, state: Mapping[str, Any]) -> None:
        parameters, optimizer = state["parameters"], state["optimizer"]
        self._compare_model(state["shapes"], parameters)
        for piece, view in zip(self.pieces, self._views, strict=True):
            view.data.copy_(parameters[piece.name][piece.start : piece.stop])
            kept = optimizer.get(piece.name, {})
            if kept:
                self._optimizer.state[view] = {
                    name: _on(value[piece.start : piece.stop].clone(), view.device)
                    if torch.is_tensor(value) and value.dim()
                    else (value.clone() if torch.is_tensor(value) else value)
                    for name, value in kept.items()
                }
        self.buffers = state["buffers"].clone()

    def _compare_model(
        self, shapes: Mapping[str, Sequence[int]], parameters: Mapping[str, Any]
    ) -> None:
        """Refuse the checkpoint of a model with other tensors."""
        for name in [*shapes, *(name for name in self._shapes if name not in shapes)]:
            saved, own = shapes.get(name), self._shapes.get(name)
            if own is None:
                difference = f"this model has no {name}"
            elif saved is None:
                difference = f"it has no {name}"
            elif list(saved) != own:
                difference = f"{name} has shape {list(saved)} there, and {own} here"
            elif name in parameters and parameters[name].dtype != self.values.dtype:
                types = f"{parameters[name].dtype} there, and {self.values.dtype} here"
                difference = f"{name} has type {types}"
            else:
                continue
            raise TrainingError(
                f"the checkpoint is of another model: {difference}; restore the model, or start a "
                "new job"
            )


def _on(value: Any, device: Any) -> Any:
    """Move a tensor to a device; return any other value unchanged."""
    return value.to(device) if torch.is_tensor(value) else value


def merge_shards(states: Sequence[Mapping[str, Any]]) -> State:
    """Return the joint state of all servers by parameter, independent of their number."""
    values: dict[str, list[Any]] = {}
    optimizer: dict[str, list[Mapping[str, Any]]] = {}
    for state in states:
        offset = 0
        for (name, start, stop), kept in zip(state["pieces"], state["optimizer"], strict=True):
            values.setdefault(name, []).append(state["values"][offset : offset + stop - start])
            optimizer.setdefault(name, []).append(kept)
            offset += stop - start
    return {
        "parameters": {name: torch.cat(parts) for name, parts in values.items()},
        "optimizer": {name: _joined(parts) for name, parts in optimizer.items()},
        "shapes": states[0]["shapes"],
    }


def _joined(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    joined: dict[str, Any] = {}
    for name, value in parts[0].items():
        is_divided = torch.is_tensor(value) and value.dim()
        joined[name] = torch.cat([part[name] for part in parts]) if is_divided else value
        if torch.is_tensor(joined[name]):  # copied, because training continues during the save
            joined[name] = joined[name].clone()
    return joined

"""What one server keeps of the model: a stretch of the parameters, and their state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from shadowprice.training import checkpoints
from shadowprice.training.errors import TrainingError
from shadowprice.training.randomness import seed_all
from shadowprice.training.servers.recipe import Recipe
from shadowprice.training.servers.sharding import Layout

State = dict[str, Any]


def seeded(recipe: Recipe) -> Any:
    """Return a recipe's model, the same in every process."""
    seed_all(recipe.seed)
    return recipe.model()


def trained(model: Any) -> list[tuple[str, Any]]:
    """Return the parameters that are learnt, with their names, in the model's order.

    Raises
    ------
    TrainingError
        If there are none, or they are not of one type.
    """
    found = [(name, one) for name, one in model.named_parameters() if one.requires_grad]
    if not found:
        raise TrainingError("the model has no parameter that is learnt")
    types = sorted({str(one.dtype) for _, one in found})
    if len(types) > 1 or not found[0][1].is_floating_point():
        raise TrainingError(
            f"the model's parameters are of {', '.join(types)}: servers keep one floating type"
        )
    return found


def layout_of(model: Any) -> Layout:
    """Return a model's parameters, laid end to end."""
    return Layout(tuple((name, one.numel()) for name, one in trained(model)))


def buffers_of(model: Any) -> list[Any]:
    """Return what a model keeps beside its parameters, as real numbers: running means, counts."""
    kept = model.state_dict().keys()
    found = [one for name, one in model.named_buffers() if name in kept]
    return [torch.view_as_real(one) if one.is_complex() else one for one in found]


def flattened_buffers(model: Any) -> Any:
    """Return those as numbers in one dimension, in float64: counts stay whole."""
    found = [one.detach().reshape(-1).to("cpu", torch.float64) for one in buffers_of(model)]
    return torch.cat(found) if found else torch.empty(0, dtype=torch.float64)


def set_buffers(model: Any, values: Any) -> None:
    """Put such numbers back into a model.

    What is the same is left as it is: a whole number may be larger than float64 holds exactly.
    """
    begin = 0
    for one in buffers_of(model):
        part = values[begin : begin + one.numel()].view(one.shape).to(one.device)
        begin += one.numel()
        with torch.no_grad():
            told = part if one.is_floating_point() else part.round()
            one.copy_(torch.where(one.to(torch.float64) == part, one, told.to(one.dtype)))


class Shard:
    """A server's stretch of the parameters.

    Parameters
    ----------
    recipe : Recipe
        What is learnt.
    server, servers : int
        Which server this is, and of how many.
    state : mapping, optional
        What `gathered` returned, of whatever number of servers.
    device : torch.device, optional
        Where it is kept, and gradients come to; by default the CPU.
    """

    def __init__(
        self,
        recipe: Recipe,
        server: int,
        servers: int,
        state: Mapping[str, Any] | None = None,
        device: Any = None,
    ) -> None:
        model = seeded(recipe)
        layout = layout_of(model)
        first, last = layout.span(server, servers)
        line = torch.cat([one.detach().reshape(-1).cpu() for _, one in trained(model)])
        self.values = line[first:last].clone().to(device or "cpu")
        """The parameters, in one dimension."""
        self.buffers = flattened_buffers(model)
        """What the leading server keeps beside them."""
        self.pieces = layout.pieces(server, servers)
        self._schedule = recipe.schedule
        self._views: list[Any] = []
        begin = 0
        for piece in self.pieces:
            self._views.append(torch.nn.Parameter(self.values[begin : begin + piece.size]))
            begin += piece.size
        own = {one.name: view for one, view in zip(self.pieces, self._views, strict=True)}
        # Those of which nothing is here, too: no group of parameters may be made empty.
        named = [
            (name, own.get(name, torch.nn.Parameter(self.values[:0]))) for name, _ in layout.sizes
        ]
        self._optimizer = recipe.optimizer(named)
        self._leave_out({id(one) for _, one in named} - {id(one) for one in self._views})
        self._rates = [group["lr"] for group in self._optimizer.param_groups]
        self._checked = False
        if state is not None:
            self._restore(state)

    def _leave_out(self, others: set[int]) -> None:
        """Let the optimiser step over what has gradients alone, which it may count on."""
        for group in self._optimizer.param_groups:
            here = [at for at, one in enumerate(group["params"]) if id(one) not in others]
            for one in group["params"]:
                if id(one) in others:
                    self._optimizer.state.pop(one, None)
            for key in {"params", "param_names"} & group.keys():
                group[key] = [group[key][at] for at in here]

    def apply(self, gradients: Sequence[Any], minibatch: int) -> None:
        """Update the parameters once.

        Parameters
        ----------
        gradients : sequence of tensor
            Shares of this stretch's gradient, to be added up in this order.
        minibatch : int
            The number of the mini-batch in the job, for the learning rate.
        """
        whole = gradients[0]
        for one in gradients[1:]:
            whole = whole + one
        begin = 0
        for view in self._views:
            view.grad = whole[begin : begin + view.numel()]
            begin += view.numel()
        factor = self._schedule(minibatch)
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * factor
        self._optimizer.step()
        if not self._checked:
            self._check()

    def state(self) -> State:
        """Return everything, as `gathered` takes it."""
        states = [
            {name: _on(value, "cpu") for name, value in self._optimizer.state.get(view, {}).items()}
            for view in self._views
        ]
        pieces = [[one.name, one.start, one.stop] for one in self.pieces]
        return {"pieces": pieces, "values": self.values.cpu(), "optimizer": states}

    def _check(self) -> None:
        """Refuse optimisers whose state does not go by elements, or that no checkpoint can hold."""
        for view in self._views:
            for name, value in self._optimizer.state.get(view, {}).items():
                if torch.is_tensor(value) and value.dim() and value.shape != view.shape:
                    raise TrainingError(
                        f"{type(self._optimizer).__name__} keeps {name} in another shape than its "
                        "parameter's: parameter servers need one that works element by element, "
                        "as SGD and Adam do"
                    )
        # As a checkpoint has it, without what tensors hold.
        kept = [
            {name: None if torch.is_tensor(value) else value for name, value in state.items()}
            for state in self._optimizer.state.values()
        ]
        checkpoints.packed({"optimizer": kept})
        self._checked = True

    def _restore(self, state: Mapping[str, Any]) -> None:
        parameters, optimizer = state["parameters"], state["optimizer"]
        begin = 0
        for piece, view in zip(self.pieces, self._views, strict=True):
            whole = parameters.get(piece.name)
            if whole is None or whole.numel() < piece.stop or whole.dtype != self.values.dtype:
                raise TrainingError(
                    f"the checkpoint is of another model: its parameter {piece.name} differs"
                )
            self.values[begin : begin + piece.size] = whole[piece.start : piece.stop]
            begin += piece.size
            kept = optimizer.get(piece.name, {})
            if kept:
                self._optimizer.state[view] = {
                    name: _on(value[piece.start : piece.stop].clone(), view.device)
                    if torch.is_tensor(value) and value.dim()
                    else (value.clone() if torch.is_tensor(value) else value)
                    for name, value in kept.items()
                }
        if len(state["buffers"]) != len(self.buffers):
            raise TrainingError("the checkpoint is of another model: its buffers differ")
        self.buffers = state["buffers"].clone()


def _on(value: Any, device: Any) -> Any:
    """Return a value on a device, if it is a tensor."""
    return value.to(device) if torch.is_tensor(value) else value


def gathered(states: Sequence[Mapping[str, Any]]) -> State:
    """Return what all servers keep, by parameter: nothing in it tells how many there were.

    Parameters
    ----------
    states : sequence of mapping
        What `Shard.state` returned, in the order of the servers.
    """
    values: dict[str, list[Any]] = {}
    optimizer: dict[str, list[Mapping[str, Any]]] = {}
    for state in states:
        begin = 0
        for (name, start, stop), kept in zip(state["pieces"], state["optimizer"], strict=True):
            values.setdefault(name, []).append(state["values"][begin : begin + stop - start])
            optimizer.setdefault(name, []).append(kept)
            begin += stop - start
    return {
        "parameters": {name: torch.cat(parts) for name, parts in values.items()},
        "optimizer": {name: _joined(parts) for name, parts in optimizer.items()},
    }


def _joined(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    joined: dict[str, Any] = {}
    for name, value in parts[0].items():
        divided = torch.is_tensor(value) and value.dim()
        joined[name] = torch.cat([part[name] for part in parts]) if divided else value
        if torch.is_tensor(joined[name]):
            joined[name] = joined[name].clone()
    return joined

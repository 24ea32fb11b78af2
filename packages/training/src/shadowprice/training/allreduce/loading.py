"""Loading of parts in any number of processes, in the order of the job."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate

from shadowprice.training.errors import TrainingError
from shadowprice.training.randomness import ignore_sigterm, seed_all
from shadowprice.training.sampling import Order, Part


class _Parts(Dataset[Any]):
    """A data set of parts; random numbers of a part don't depend on the loading process."""

    def __init__(self, data: Any, order: Order, collate: Callable[[Any], Any] | None) -> None:
        self._data, self._order, self._collate = data, order, collate

    def __getitem__(self, part: Part) -> Any:
        seed_all(self._order.part_seed(part.step, part.number, 1))  # for loading samples
        if isinstance(self._data, TensorDataset) and self._collate is None:
            return self._data[torch.from_numpy(part.samples.copy())]
        numbers = part.samples.tolist()
        if hasattr(self._data, "__getitems__"):
            samples = self._data.__getitems__(numbers)
        else:
            samples = [self._data[number] for number in numbers]
        return (self._collate or default_collate)(samples)


def iter_parts(
    data: Any,
    order: Order,
    steps: range,
    rank: int,
    workers: int,
    *,
    collate: Callable[[Any], Any] | None = None,
    **options: Any,
) -> Iterator[Any]:
    """Return an iterator over the batches of a worker's parts, in the order of the steps.

    ``collate`` makes a batch of samples; by default, torch's does. ``options`` go to `DataLoader`.
    Raises `TrainingError` if the data set's length is unknown, or differs from the order's.
    """
    try:
        length = len(data)
    except TypeError:
        raise TrainingError(
            "the data set has no length; pass a map-style data set (__len__ and __getitem__)"
        ) from None
    if length != order.samples:
        raise TrainingError(f"the data set has {length} samples, join got samples={order.samples}")
    parts = (part for step in steps for part in order.worker_parts(step, rank, workers))
    return iter(
        DataLoader(
            _Parts(data, order, collate),
            batch_size=None,
            sampler=parts,
            collate_fn=_identity,  # `_Parts` returns complete batches
            worker_init_fn=ignore_sigterm,
            **options,
        )
    )


def to_device(batch: Any, device: torch.device) -> Any:
    """Return a batch with all tensors in it, however nested, on a device."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return type(batch)({name: to_device(value, device) for name, value in batch.items()})
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(value, device) for value in batch))
    if isinstance(batch, tuple | list):
        return type(batch)(to_device(value, device) for value in batch)
    return batch


def _identity(batch: Any) -> Any:
    return batch

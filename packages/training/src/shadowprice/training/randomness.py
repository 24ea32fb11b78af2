"""Random numbers that depend on the training step, not on how the job got there."""

from __future__ import annotations

import random
import signal

import numpy as np
import torch


def seed_all(key: int) -> None:
    """Seed `torch`, `numpy.random` and `random` on every device with 64 bits of `Order.key`."""
    torch.default_generator.manual_seed(key)  # `torch.manual_seed` takes half a millisecond
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(key)
    np.random.seed(key % 2**32)  # noqa: NPY002  # the state that data sets draw from
    random.seed(key)


def shield(_worker: int = 0) -> None:
    """Ignore SIGTERM in a process that loads data; a ``worker_init_fn`` of a `DataLoader`.

    All processes of a job get the SIGTERM on which the training saves. A loader that died of it
    would end the training before it has saved. The loader ends with its training.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

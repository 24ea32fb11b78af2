"""Random numbers that follow from where training is, not from how it got there."""

from __future__ import annotations

import random
import signal

import numpy as np
import torch


def seed_all(key: int) -> None:
    """Set what `torch`, `numpy.random` and `random` draw next, on every device.

    Parameters
    ----------
    key : int
        64 bits, from `Order.key`.
    """
    torch.default_generator.manual_seed(key)  # `torch.manual_seed` takes half a millisecond
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(key)
    np.random.seed(key % 2**32)  # noqa: NPY002  # the state that data sets draw from
    random.seed(key)


def shield(_worker: int = 0) -> None:
    """Let a process that loads data outlive the SIGTERM that its training is told to save by.

    A ``worker_init_fn`` of a `DataLoader`: the signal goes to all processes, and one that loads
    data and died of it would end the training before it has saved. It ends with its training.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

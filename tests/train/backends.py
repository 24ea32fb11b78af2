"""Transports of tensors in tests: gloo, a wrapper of gloo, and NCCL if there are GPUs.

The driver's library tells whether there are GPUs. Processes are forked from one that has imported
this module, and couldn't use a GPU if that process had.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from shadowprice.training.generation import nccl_here
from shadowprice.training.servers.pairs import TRANSPORTS, TensorTransport

os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

ON_GPUS = pytest.mark.skipif(not nccl_here(), reason="there is no GPU, or no NCCL")
BACKENDS = ("gloo", "wired", pytest.param("nccl", marks=ON_GPUS))


class Connecting:
    """A gloo group that connects as NCCL does:

    both ends open a connection when they first use it.
    """

    def __init__(self, store: Any, rank: int) -> None:
        self._group = dist.ProcessGroupGloo(store, rank, 2, dist.default_pg_timeout)
        self._store, self._rank, self._ways = store, rank, {"out", "in"}

    def send(self, tensors: list[Any], other: int, tag: int) -> Any:
        """Send; the first time, once the other end receives."""
        if "out" in self._ways:
            self._store.wait([f"way-{self._rank}"], timedelta(seconds=60))
            self._ways.remove("out")
        return self._group.send(tensors, other, tag)

    def recv(self, tensors: list[Any], other: int, tag: int) -> Any:
        """Receive."""
        if "in" in self._ways:
            self._store.set(f"way-{other}", "")
            self._ways.remove("in")
        return self._group.recv(tensors, other, tag)

    def abort(self) -> None:
        """Stop pending operations."""
        self._group.abort()


def wired(store: Any, rank: int) -> TensorTransport:
    """Return a transport of gloo that is like NCCL's except for the GPU."""
    return TensorTransport(Connecting(store, rank), rank, torch.device("cpu"))


TRANSPORTS["wired"] = wired


def share_gpus(rank: int) -> None:
    """Let processes on one GPU form an NCCL group, which NCCL refuses on one machine.

    So each process pretends to be on a machine of its own, and they use sockets.
    """
    if nccl_here():
        assert not torch.cuda._is_in_bad_fork(), "forked from a process that has used a GPU"
        os.environ |= {
            "NCCL_HOSTID": f"test-{rank}",
            "NCCL_P2P_DISABLE": "1",
            "NCCL_SHM_DISABLE": "1",
            "NCCL_IB_DISABLE": "1",
            "NCCL_SOCKET_IFNAME": "lo",
        }

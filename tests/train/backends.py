"""What tensors travel by in tests: gloo, a wire of gloo beside it, NCCL where there are GPUs.

Whether there are is asked of the driver's library: processes are forked from one that has imported
this, and none of them could use a GPU if that had.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
import torch.distributed as dist

from shadowprice.training.generation import nccl_here
from shadowprice.training.servers.wires import WIRES, Wire

os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

ON_GPUS = pytest.mark.skipif(not nccl_here(), reason="there is no GPU, or no NCCL")
BACKENDS = ("gloo", "wired", pytest.param("nccl", marks=ON_GPUS))


def wired(store: Any, rank: int) -> Wire:
    """Return a wire of gloo: all of one but the GPU."""
    group = dist.ProcessGroupGloo(store, rank, 2, dist.default_pg_timeout)
    return Wire(group, rank, torch.device("cpu"))


WIRES["wired"] = wired


def share_gpus(rank: int) -> None:
    """Let processes meet by NCCL that compute on one GPU, which it refuses on one machine.

    So each says that it is on a machine of its own, and they talk by sockets.
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

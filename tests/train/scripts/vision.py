"""Lets libraries import a torchvision that was built for GPUs beside a torch that was not.

Nothing here uses it: they only look whether it is there, and stumble over operators it lacks then.
"""

from __future__ import annotations

import sys

import torch

LIBRARY = torch.library.Library("torchvision", "FRAGMENT")
"""Kept, since what it defines goes with it."""


def prepare() -> None:
    try:
        import torchvision  # noqa: F401
    except ImportError:
        return
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        for name in ("nms", "qnms"):
            LIBRARY.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

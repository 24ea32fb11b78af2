"""Lets libraries import a torchvision that was built for GPUs beside a torch that wasn't.

Nothing here uses it: libraries only check whether it is there, and fail on operators it lacks.
"""

from __future__ import annotations

import sys

import torch

LIBRARY = torch.library.Library("torchvision", "FRAGMENT")
"""Kept, because its definitions go with it."""


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

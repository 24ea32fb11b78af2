"""The loop in Ray Train's form, as its example has it, at a pace at which it can be stopped."""

from __future__ import annotations

import runpy
import time
from pathlib import Path
from typing import Any

import torch.distributed as dist

LOOP = runpy.run_path(str(Path(__file__).parents[3] / "examples" / "ray" / "loop.py"))


class Paced(LOOP["Scheduled"]):  # type: ignore[misc, name-defined]  # it is read from a file
    """What surrounds it under the scheduler."""

    def report(self, *given: Any) -> None:
        """Report, and take some time."""
        super().report(*given)
        time.sleep(0.05)


if __name__ == "__main__":
    LOOP["train_loop_per_worker"]({"around": Paced})
    dist.destroy_process_group()

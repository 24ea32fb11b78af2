"""The loop of Ray Train's example, slow enough to be stopped."""

from __future__ import annotations

import runpy
import time
from pathlib import Path
from typing import Any

import torch.distributed as dist

LOOP = runpy.run_path(str(Path(__file__).parents[3] / "examples" / "ray" / "loop.py"))


class Paced(LOOP["Scheduled"]):  # type: ignore[misc, name-defined]  # it is read from a file
    """The context that Ray Train would provide."""

    def report(self, *given: Any) -> None:
        """Report, and take some time."""
        super().report(*given)
        time.sleep(0.05)


if __name__ == "__main__":
    LOOP["train_loop_per_worker"]({"context": Paced})
    dist.destroy_process_group()

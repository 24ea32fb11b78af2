"""A training loop in the form that Ray Train's TorchTrainer takes, run as a job of shadowprice.

    run: {command: [python, loop.py]}

Only what surrounds the loop is another: who joins the processes, and where reports and checkpoints
go.
"""

from __future__ import annotations

import io
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS, BATCH = 60, 32


class Surroundings(Protocol):
    """What a loop asks of whoever runs it."""

    def prepare(self, model: torch.nn.Module) -> torch.nn.Module: ...
    def restored(self) -> dict[str, Any] | None: ...
    def report(self, step: int, loss: float, state: dict[str, Any]) -> None: ...


def train_loop_per_worker(config: dict[str, Any]) -> None:
    """Fit a line: what a TorchTrainer calls on every worker."""
    around: Surroundings = config["around"]()
    torch.manual_seed(0)
    truth = torch.arange(8, dtype=torch.float32)
    model = around.prepare(torch.nn.Linear(8, 1))
    device = next(model.parameters()).device
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    step, found = 0, around.restored()
    if found is not None:
        step = found["step"]
        model.load_state_dict(found["model"])
    rank, world = dist.get_rank(), dist.get_world_size()
    loss = torch.zeros(())
    while step < STEPS:
        # The batch belongs to the step, and each worker takes its part: any number of workers goes.
        points = torch.randn(BATCH, 8, generator=torch.Generator().manual_seed(step))[rank::world]
        scores, wanted = model(points.to(device)).squeeze(1), (points @ truth).to(device)
        loss = torch.nn.functional.mse_loss(scores, wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        around.report(step, loss.item(), {"step": step, "model": model.state_dict()})
    print(f"done: step {step}, loss {loss.item():.3g}, {world} workers", flush=True)


class Scheduled:
    """Under shadowprice: the environment says where the processes meet, `jobs` does the rest."""

    def __init__(self) -> None:
        from shadowprice import jobs

        self._jobs, self._stop = jobs, jobs.StopSignal()
        # Whether to stop is agreed on over gloo, on the CPU.
        dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")

    def prepare(self, model: torch.nn.Module) -> torch.nn.Module:
        if torch.cuda.is_available():
            return DistributedDataParallel(model.cuda())
        return DistributedDataParallel(model)

    def restored(self) -> dict[str, Any] | None:
        found = self._jobs.load()
        return None if found is None else torch.load(io.BytesIO(found.data), weights_only=True)

    def report(self, step: int, loss: float, state: dict[str, Any]) -> None:
        # All stop after the same step, though the signal reaches each at another moment.
        stopping = torch.tensor(float(bool(self._stop)))
        dist.all_reduce(stopping)
        if dist.get_rank() == 0:
            self._jobs.report(step, loss=loss)
            if stopping.item() or step % 20 == 0:
                data = io.BytesIO()
                torch.save(state, data)
                self._jobs.save(step, data.getvalue())
        if stopping.item():
            self._jobs.leave()


if __name__ == "__main__":
    train_loop_per_worker({"around": Scheduled})
    dist.destroy_process_group()

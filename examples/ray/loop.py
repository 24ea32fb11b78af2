"""A training loop in the form that Ray Train's TorchTrainer takes, run as a job of shadowprice.

    run: {command: [python, loop.py]}

Only the loop's context differs: it connects the processes, and stores reports and checkpoints.
"""

from __future__ import annotations

import io
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS, BATCH = 60, 32


class LoopContext(Protocol):
    """The context that the loop needs."""

    def prepare(self, model: torch.nn.Module) -> torch.nn.Module: ...
    def restored(self) -> dict[str, Any] | None: ...
    def report(self, step: int, loss: float, state: dict[str, Any]) -> None: ...


def train_loop_per_worker(config: dict[str, Any]) -> None:
    """Fit a line; TorchTrainer calls this function on every worker."""
    context: LoopContext = config["context"]()
    torch.manual_seed(0)
    truth = torch.arange(8, dtype=torch.float32)
    model = context.prepare(torch.nn.Linear(8, 1))
    device = next(model.parameters()).device
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    step, found = 0, context.restored()
    if found is not None:
        step = found["step"]
        model.load_state_dict(found["model"])
    rank, world = dist.get_rank(), dist.get_world_size()
    loss = torch.zeros(())
    while step < STEPS:
        # The batch depends on the step, and each worker takes its part, so any number of workers
        # works.
        points = torch.randn(BATCH, 8, generator=torch.Generator().manual_seed(step))[rank::world]
        scores, wanted = model(points.to(device)).squeeze(1), (points @ truth).to(device)
        loss = torch.nn.functional.mse_loss(scores, wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        context.report(step, loss.item(), {"step": step, "model": model.state_dict()})
    print(f"done: step {step}, loss {loss.item():.3g}, {world} workers", flush=True)


class Scheduled:
    """Under shadowprice: the environment connects the processes, and `jobs` does the rest."""

    def __init__(self) -> None:
        from shadowprice import jobs

        self._jobs, self._stop = jobs, jobs.StopSignal()
        # The workers agree by gloo, on the CPU, on whether to stop.
        dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")

    def prepare(self, model: torch.nn.Module) -> torch.nn.Module:
        if torch.cuda.is_available():
            return DistributedDataParallel(model.cuda())
        return DistributedDataParallel(model)

    def restored(self) -> dict[str, Any] | None:
        found = self._jobs.load()
        return None if found is None else torch.load(io.BytesIO(found.data), weights_only=True)

    def report(self, step: int, loss: float, state: dict[str, Any]) -> None:
        # All stop after the same step, although the signal reaches each at another moment.
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
    train_loop_per_worker({"context": Scheduled})
    dist.destroy_process_group()

"""A small network whose parts depend on more than one sample, on any number of workers.

Worker 0 writes the loss of every step, over its whole mini-batch, into ``losses`` beside the
checkpoints.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from shadowprice import training


class Noisy(Dataset[Any]):
    """Samples that are augmented at random whenever they are read."""

    def __init__(self, count: int, kind: torch.dtype) -> None:
        draw = torch.Generator().manual_seed(5)
        self.inputs = torch.randn(count, 6, generator=draw, dtype=kind)
        self.labels = (self.inputs[:, 0] * self.inputs[:, 1] > 0).long()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, number: int) -> Any:
        noise = torch.randn(6, dtype=self.inputs.dtype)
        return self.inputs[number] + 0.1 * noise, self.labels[number]


def network() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(6, 24),
        torch.nn.BatchNorm1d(24),
        torch.nn.Tanh(),
        torch.nn.Dropout(0.2),
        torch.nn.Linear(24, 24),
        torch.nn.BatchNorm1d(24, momentum=0.3),
        torch.nn.ReLU(),
        torch.nn.Linear(24, 2),
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--double", action="store_true")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--loaders", type=int, default=0)
    parser.add_argument("--pace", type=float, default=0.0)
    parser.add_argument("--save-every", type=float, default=600.0)
    parser.add_argument("--every", type=int, default=1, help="steps of one update")
    parser.add_argument("--evaluate", type=float, default=0.0, help="seconds of worker 0")
    parser.add_argument("--patience", type=float, default=60.0)
    parser.add_argument("--mixed", action="store_true", help="precision")
    parser.add_argument("--file-limit", type=int, default=0)
    chosen = parser.parse_args()
    kind = torch.float64 if chosen.double else torch.float32
    data = Noisy(100, kind)
    run = training.join(
        len(data), batch=24, parts=6, epochs=chosen.epochs, seed=chosen.seed,
        save_every=chosen.save_every, patience=chosen.patience,
        report_every=0.0 if torch.cuda.is_available() else 0.05,  # a GPU's losses come with reports
    )  # fmt: skip
    model = run.wrap(network().to(kind))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=run.total)
    on = run.device.type
    lower = torch.autocast(on, torch.float16 if on == "cuda" else torch.bfloat16, chosen.mixed)
    scaler = torch.amp.GradScaler(on, 2.0**8, growth_interval=5, enabled=chosen.mixed)
    run.register(model=model, optimizer=optimizer, schedule=schedule, scaler=scaler)
    if chosen.file_limit:  # NCCL processes have met by files
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (chosen.file_limit, chosen.file_limit))

    folder = Path(os.environ["SHADOWPRICE_CHECKPOINT_DIR"])
    known = -1

    def write(line: dict[str, Any]) -> None:
        nonlocal known
        if run.leads and run.done > known and run.loss is not None:
            known = run.done
            folder.mkdir(exist_ok=True)
            with (folder / "losses").open("a") as stream:
                stream.write(json.dumps({"step": run.done, "loss": run.loss, **line}) + "\n")

    try:
        pinned = bool(chosen.loaders) and torch.cuda.is_available()
        for step in run.steps(data, num_workers=chosen.loaders, pin_memory=pinned):
            write({"workers": run.generation.world})
            for inputs, labels in step:
                with lower:
                    loss = torch.nn.functional.cross_entropy(model(inputs), labels)
                scaler.scale(step.weigh(loss)).backward()
                time.sleep(chosen.pace / 6)
            if (step.number + 1) % chosen.every == 0:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
            schedule.step()
            if step.ends_epoch and run.leads:
                time.sleep(chosen.evaluate)
    finally:
        write({"workers": run.generation.world})
    if run.leads:
        values = [one.double().flatten() for one in model.state_dict().values()]
        final = {"final": torch.cat(values).tolist(), "random": torch.rand(1).item()}
        write(final)
        (folder / "final").write_text(json.dumps({**final, "scale": scaler.get_scale()}))


if __name__ == "__main__":
    main()

"""A training that Hugging Face's Trainer leads."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from tests.train.scripts import vision

vision.prepare()

from transformers import Trainer, TrainerCallback, TrainingArguments  # noqa: E402

from shadowprice.training.callbacks.huggingface import Elastic, arguments, latest_checkpoint  # noqa: E402
from shadowprice.training.generation import nccl_here  # noqa: E402


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2)
        )

    def forward(self, inputs: Any, labels: Any) -> dict[str, Any]:
        scores = self.layers(inputs)
        return {"loss": torch.nn.functional.cross_entropy(scores, labels), "scores": scores}


class Stream(torch.utils.data.IterableDataset[Any]):
    """A data set of unknown length."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def __iter__(self) -> Iterator[Any]:
        return iter(self._data)


class Slow(TrainerCallback):
    """Takes some time, and reports progress."""

    def __init__(self, pace: float, path: Path) -> None:
        self.pace, self.path = pace, path

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        time.sleep(self.pace)
        if state.is_world_process_zero:
            self.path.write_text(str(state.global_step))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pace", type=float, default=0.0)
    parser.add_argument("--samples", type=int, default=60)
    parser.add_argument("--stream", action="store_true", help="data without a length")
    chosen = parser.parse_args()
    draw = torch.Generator().manual_seed(1)
    inputs = torch.randn(chosen.samples, 6, generator=draw)
    data = [{"inputs": one, "labels": int(one[0] > one[1])} for one in inputs]
    folder = Path(os.environ["SHADOWPRICE_CHECKPOINT_DIR"])
    folder.mkdir(parents=True, exist_ok=True)
    args = TrainingArguments(
        num_train_epochs=5, max_steps=25, learning_rate=0.05, logging_steps=1, report_to=[],
        use_cpu=not nccl_here(), disable_tqdm=True, seed=3, eval_strategy="steps", eval_steps=1,
        **arguments(batch=12, largest=4),
        # The worst one is kept, which is the first: only requested checkpoints are saved.
        save_strategy="best", metric_for_best_model="loss", greater_is_better=True,
    )  # fmt: skip
    model = Model()
    dataset = Stream(data) if chosen.stream else data
    trainer = Trainer(
        model, args, train_dataset=dataset, eval_dataset=data[:12],
        callbacks=[Elastic(report_every=0.05), Slow(chosen.pace, folder / "done")],
    )  # fmt: skip
    trainer.train(resume_from_checkpoint=latest_checkpoint())
    if trainer.is_world_process_zero():
        values = torch.cat([parameter.flatten() for parameter in model.parameters()])
        curve = [line["loss"] for line in trainer.state.log_history if "loss" in line]
        (folder / "final").write_text(json.dumps({"final": values.tolist(), "losses": curve}))


if __name__ == "__main__":
    main()

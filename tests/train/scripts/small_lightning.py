"""A training that Lightning leads."""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import torch

from tests.train.scripts import vision

vision.prepare()

import lightning.pytorch as pl  # noqa: E402
from torch.utils.data import TensorDataset  # noqa: E402

from shadowprice import training  # noqa: E402
from shadowprice.training.callbacks.lightning import Elastic, arguments, loader, newest  # noqa: E402


class Model(pl.LightningModule):
    def __init__(self, pace: float, path: Path) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2)
        )
        self.pace, self.path = pace, path

    def training_step(self, batch: Any, number: int) -> Any:
        inputs, labels = batch
        loss = torch.nn.functional.cross_entropy(self.layers(inputs), labels)
        self.log("loss", loss)
        time.sleep(self.pace)
        if self.trainer.is_global_zero:
            self.path.write_text(str(self.trainer.global_step))
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.05)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pace", type=float, default=0.0)
    parser.add_argument("--accumulate", type=int, default=1)
    chosen = parser.parse_args()
    inputs = torch.randn(66, 6, generator=torch.Generator().manual_seed(1))
    data = TensorDataset(inputs, (inputs[:, 0] > inputs[:, 1]).long())
    folder = Path(os.environ["SHADOWPRICE_CHECKPOINT_DIR"])
    folder.mkdir(parents=True, exist_ok=True)
    order = training.Order(len(data), batch=12, parts=1, whole=True)
    model = Model(chosen.pace, folder / "done")
    trainer = pl.Trainer(
        max_epochs=5, accumulate_grad_batches=chosen.accumulate, accelerator="cpu",
        logger=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=folder,
        callbacks=[Elastic(report_every=0.05)], **arguments(),
    )  # fmt: skip
    trainer.fit(model, loader(data, order), ckpt_path=newest())
    if trainer.is_global_zero:
        values = torch.cat([one.detach().flatten() for one in model.parameters()])
        final = {"final": values.tolist(), "steps": trainer.global_step}
        (folder / "final").write_text(json.dumps(final))


if __name__ == "__main__":
    main()

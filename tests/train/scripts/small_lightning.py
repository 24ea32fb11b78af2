"""A training that Lightning leads."""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch

from tests.train.scripts import vision

vision.prepare()

import lightning.pytorch as pl  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from shadowprice import training  # noqa: E402
from shadowprice.training.callbacks.lightning import Elastic, arguments, latest_checkpoint, loader  # noqa: E402
from shadowprice.training.generation import nccl_here  # noqa: E402


class Model(pl.LightningModule):
    """Learns with one optimizer, whose rate follows the validation loss, or with two by hand."""

    def __init__(self, chosen: argparse.Namespace, path: Path) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2)
        )
        self.chosen, self.path, self.batches = chosen, path, 0
        self.automatic_optimization = not chosen.two

    def losses(self, batch: Any) -> Any:
        inputs, labels = batch
        return torch.nn.functional.cross_entropy(self.layers(inputs), labels)

    def training_step(self, batch: Any, number: int) -> Any:
        loss = self.losses(batch)
        self.log("loss", loss)
        time.sleep(self.chosen.pace)
        self.batches += 1
        if self.batches == self.chosen.stop_after:
            os.kill(os.getpid(), signal.SIGTERM)
        if self.trainer.is_global_zero:
            self.path.write_text(str(self.batches))
        if self.chosen.two:
            for optimizer in self.optimizers():
                optimizer.zero_grad()
                self.manual_backward(self.losses(batch))
                optimizer.step()
            return None
        return loss

    def validation_step(self, batch: Any, number: int) -> None:
        self.log("held", self.losses(batch), sync_dist=True)

    def configure_optimizers(self) -> Any:
        if self.chosen.two:
            return [torch.optim.Adam(self.layers[at].parameters(), lr=0.05) for at in (0, 2)]
        optimizer = torch.optim.Adam(self.parameters(), lr=0.05)
        # Never satisfied: the rate falls with every epoch.
        falls = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=1.0)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": falls, "monitor": "held"},
        }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pace", type=float, default=0.0)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--limit", type=int, default=None)
    parser.add_argument("--two", action="store_true", help="optimizers")
    parser.add_argument("--stop-after", type=int, default=0, help="batches of this generation")
    chosen = parser.parse_args()
    inputs = torch.randn(66, 6, generator=torch.Generator().manual_seed(1))
    data = TensorDataset(inputs, (inputs[:, 0] > inputs[:, 1]).long())
    folder = Path(os.environ["SHADOWPRICE_CHECKPOINT_DIR"])
    folder.mkdir(parents=True, exist_ok=True)
    order = training.Order(len(data), batch=12, parts=1, whole=True)
    model = Model(chosen, folder / "done")
    trainer = pl.Trainer(
        max_epochs=5, accumulate_grad_batches=chosen.accumulate,
        accelerator="gpu" if nccl_here() else "cpu", limit_train_batches=chosen.limit,
        logger=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=folder,
        callbacks=[Elastic(report_every=0.05)], **arguments(),
    )  # fmt: skip
    held = DataLoader(data, batch_size=len(data))
    trainer.fit(model, loader(data, order), held, ckpt_path=latest_checkpoint())
    if trainer.is_global_zero:
        values = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
        final = {"final": values.tolist(), "steps": trainer.global_step}
        (folder / "final").write_text(json.dumps(final))


if __name__ == "__main__":
    main()

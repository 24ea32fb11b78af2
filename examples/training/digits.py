"""An image classifier on scikit-learn's digits, trained on any number of workers.

    python digits.py --epochs 20

With batch normalisation, dropout and a learning rate schedule. The curve is the same for any number
of workers, whenever it changes.
"""

from __future__ import annotations

import argparse

import torch
from sklearn.datasets import load_digits
from torch.nn import functional
from torch.utils.data import TensorDataset

from shadowprice import training

TRAINED_ON = 1500  # of 1,797 images; the others test the model


def images() -> tuple[TensorDataset, TensorDataset]:
    """Return the images for training, and those for the test."""
    digits = load_digits()
    pixels = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16.0
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    chosen, rest = order[:TRAINED_ON], order[TRAINED_ON:]
    return TensorDataset(pixels[chosen], labels[chosen]), TensorDataset(pixels[rest], labels[rest])


def network(width: int) -> torch.nn.Module:
    """Return a small convolutional network."""
    nn = torch.nn
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.BatchNorm2d(2 * width),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(2 * width * 16, 10),
    )


@torch.no_grad()
def right(model: torch.nn.Module, data: TensorDataset, device: torch.device) -> float:
    """Return the share of images that a model classifies correctly."""
    pixels, labels = (one.to(device) for one in data.tensors)
    model.eval()
    share = (model(pixels).argmax(1) == labels).double().mean().item()
    model.train()
    return share


def main() -> None:
    """Train from the newest checkpoint on."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()

    train, test = images()
    run = training.join(len(train), batch=128, parts=8, epochs=chosen.epochs, seed=chosen.seed)
    model = run.wrap(network(chosen.width))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=run.total)
    run.register(model=model, optimizer=optimizer, schedule=schedule)
    for step in run.steps(train):
        for pixels, labels in step:
            step.backward(functional.cross_entropy(model(pixels), labels))
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step.ends_epoch and run.leads:
            run.log(accuracy=right(model.module, test, run.device))
    if run.leads:
        share = right(model.module, test, run.device)
        print(f"done: loss {run.loss or float('nan'):.4f}, {share:.1%} right", flush=True)


if __name__ == "__main__":
    main()

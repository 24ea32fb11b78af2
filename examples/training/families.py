"""The six families of the papers' testbed on 200 generated images, with parameter servers.

    python families.py --family resnet50          # train, here or under a scheduler
    python families.py --family resnet50 --divide 8 --epochs 16   # thinner: seconds on a processor
    python families.py --measure                  # a few steps of each: gradient, seconds, memory

Images are noise over a colour and stripes that depend on their class, so that there is something
to learn. The model is tested on images that were held out.
"""

from __future__ import annotations

import argparse
import importlib
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shadowprice import jobs
from shadowprice.training import servers

FAMILIES = {
    "alexnet": "alexnet",
    "resnet50": "resnet50",
    "resnet101": "resnet101",
    "resnet152": "resnet152",
    "vgg11": "vgg11",
    "inception-bn": "googlenet",  # torchvision's has batch normalisation after every convolution
}
CLASSES, COLOURS = 10, 3
HELD = 100
"""Images that test the model."""


def models() -> Any:
    """Return torchvision's models.

    Its compiled part may be for another torch, and then doesn't load. These models don't need it,
    but
    for the names of two operators.
    """
    try:
        return importlib.import_module("torchvision.models")
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
    for name in [one for one in sys.modules if one.split(".")[0] == "torchvision"]:
        del sys.modules[name]
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    models.library = library  # type: ignore[attr-defined]  # names live as long as it does
    return importlib.import_module("torchvision.models")


def family(name: str, divide: int = 1) -> torch.nn.Module:
    """Return a model of a family, every layer's width divided."""
    more = {"aux_logits": False, "init_weights": True} if name == "inception-bn" else {}
    found: torch.nn.Module = getattr(models(), FAMILIES[name])(
        weights=None, num_classes=CLASSES, **more
    )
    return thinned(found, divide) if divide > 1 else found


def thinned(model: torch.nn.Module, divide: int) -> torch.nn.Module:
    """Return a model of the same layers with fewer channels; images and classes stay.

    Layers draw their weights as usual. Without batch normalisation they use He's distribution, as
    torchvision does for VGG, because a thin network hardly begins to learn otherwise.
    """
    normalised = any(isinstance(one, torch.nn.BatchNorm2d) for one in model.modules())

    def narrow(wide: int) -> int:
        return wide if wide in {COLOURS, CLASSES} else wide // divide

    for name, one in list(model.named_modules()):
        new: torch.nn.Module
        if isinstance(one, torch.nn.Conv2d):
            into, out = narrow(one.in_channels), narrow(one.out_channels)
            new = torch.nn.Conv2d(
                into, out, one.kernel_size, one.stride, one.padding, bias=one.bias is not None
            )
        elif isinstance(one, torch.nn.BatchNorm2d):
            new = torch.nn.BatchNorm2d(narrow(one.num_features), one.eps)
        elif isinstance(one, torch.nn.Linear):
            new = torch.nn.Linear(narrow(one.in_features), narrow(one.out_features))
        else:
            continue
        if not normalised:
            mode = "fan_out" if isinstance(new, torch.nn.Conv2d) else "fan_in"
            torch.nn.init.kaiming_normal_(new.weight, mode=mode, nonlinearity="relu")
            if new.bias is not None:
                torch.nn.init.zeros_(new.bias)
        holder, _, own = name.rpartition(".")
        setattr(model.get_submodule(holder), own, new)
    return model


def images(count: int, size: int, seed: int) -> dict[str, np.ndarray]:
    """Return images with their classes."""
    draw = np.random.default_rng(seed)
    label = draw.integers(CLASSES, size=count)
    across = np.linspace(0.0, 2.0 * np.pi, size)
    stripes = np.sin((1 + label)[:, None] * across)[:, None, None, :]
    shifts = range(COLOURS)
    colour = np.stack([np.cos(label + shift) for shift in shifts], axis=1)[:, :, None, None]
    noise = draw.normal(0.0, 0.5, (count, COLOURS, size, size))
    return {"image": (noise + stripes + colour).astype(np.float32), "label": label}


def loss(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the mean cross-entropy."""
    return torch.nn.functional.cross_entropy(model(batch["image"]), batch["label"])


def right(model: torch.nn.Module, size: int) -> float:
    """Return the share of new images that a model classifies correctly."""
    where = next(model.parameters()).device
    held = {name: torch.from_numpy(one).to(where) for name, one in images(HELD, size, 1).items()}
    with torch.no_grad():
        found = model.eval()(held["image"]).argmax(dim=1)
    return float((found == held["label"]).double().mean())


def train(chosen: argparse.Namespace) -> None:
    """Train one family."""
    job = jobs.current()
    index = Path(chosen.data, "index.json")
    if job.leads and not index.exists():
        servers.write(chosen.data, images(chosen.images, chosen.size, 0), 5 * chosen.minibatch)
    while not index.exists():
        time.sleep(0.1)
    losses: list[float] = []

    def observe(minibatch: int, loss: float) -> None:
        losses.append(loss)
        if chosen.losses:
            with Path(chosen.losses).open("a", encoding="utf-8") as written:
                written.write(json.dumps([minibatch, loss]) + "\n")

    recipe = servers.Recipe(
        model=lambda: family(chosen.family, chosen.divide),
        loss=loss,
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=chosen.rate),
        data=servers.read(chosen.data),
        epochs=chosen.epochs,
        minibatch=chosen.minibatch,
        seed=chosen.seed,
    )
    # Of the ten images of a shared mini-batch a part has five. Batch normalisation needs their
    # statistics, which one image alone doesn't have.
    settings = servers.Settings(
        synchronous=chosen.in_step, parts=2, keep=4, save_every=60.0, observe=observe
    )
    outcome = servers.run(recipe, settings)
    if outcome is None or not outcome.leads:
        return
    found = outcome.measured
    if found:
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            f"{chosen.family:13} {found['gradient_bytes'] / 1e6:8.1f} MB "
            f"{found['minibatch_time']:7.2f} s {found['update_time']:6.2f} s "
            f"{memory:7.0f} MiB  loss {losses[0]:.2f} -> {losses[-1]:.2f} in {len(losses)} steps",
            flush=True,
        )
    if not chosen.brief:
        print(
            f"done: {outcome.minibatches} mini-batches of {chosen.family}, "
            f"{right(outcome.model, chosen.size):.0%} of {HELD} new images right "
            f"(guessing is {1 / CLASSES:.0%})",
            flush=True,
        )


def measure(chosen: argparse.Namespace) -> None:
    """Train a few steps of every family, each in a process of its own."""
    print("family        gradient    mini-batch  update   memory")
    for name in FAMILIES:
        with tempfile.TemporaryDirectory() as folder:
            count = str(chosen.steps * chosen.minibatch)
            words = [sys.executable, str(Path(__file__).resolve()), "--family", name]
            words += ["--images", count, "--size", str(chosen.size), "--epochs", "1"]
            words += ["--minibatch", str(chosen.minibatch), "--divide", str(chosen.divide)]
            words += ["--brief"]
            subprocess.run(words, cwd=folder, check=True)


def main() -> None:
    """Train, or measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--family", choices=FAMILIES, default="resnet50")
    parser.add_argument("--measure", action="store_true", help="a few steps of every family")
    parser.add_argument("--steps", type=int, default=3, help="how many, when measuring")
    parser.add_argument("--data", default="images", help="where they are, or are written")
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--size", type=int, default=64, help="pixels each way; 64 at least")
    parser.add_argument("--minibatch", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--rate", type=float, default=0.001)
    parser.add_argument(
        "--divide", type=int, choices=(1, 2, 4, 8), default=1, help="every layer's width by this"
    )
    parser.add_argument("--in-step", action="store_true", help="synchronously")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--losses", help="a file to which the loss of every mini-batch is added")
    parser.add_argument("--brief", action="store_true", help="do not try what was learnt")
    chosen = parser.parse_args()
    if chosen.measure:
        measure(chosen)
    else:
        torch.set_num_threads(1)
        train(chosen)


if __name__ == "__main__":
    main()

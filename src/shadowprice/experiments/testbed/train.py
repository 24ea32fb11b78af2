"""The testbed's job: one of six families, trained with parameter servers at the stated pace.

The families have the layers of their papers at a sixteenth of the width, and train on generated
images of 16 by 16 pixels, so that two cores suffice for nine servers. A worker computes each
mini-batch, and then waits until the time that the job file states is over.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from shadowprice import jobs
from shadowprice.training import servers

THINNER: Final = 16  # divisor of the width of every layer
CLASSES: Final = 10
SIZE: Final = 16  # width and height of an image in pixels
MINIBATCH: Final = 10
DATA: Final = "images"


def thin(channels: int) -> int:
    """Divide a number of channels by `THINNER`; return at least 2."""
    return max(2, channels // THINNER)


def convolution(into: int, out: int, size: int, stride: int = 1, *, norm: bool) -> nn.Sequential:
    """Return a convolution (``same`` padding), batch normalisation if ``norm``, and ReLU."""
    layers: list[nn.Module] = [nn.Conv2d(into, out, size, stride, size // 2, bias=not norm)]
    return nn.Sequential(*layers, *([nn.BatchNorm2d(out)] if norm else []), nn.ReLU())


def _head(channels: int) -> nn.Sequential:
    """Return the three linear layers of AlexNet and VGG."""
    wide = thin(4096)
    return nn.Sequential(
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        *(nn.Linear(channels, wide), nn.ReLU(), nn.Dropout(0.5)),
        *(nn.Linear(wide, wide), nn.ReLU(), nn.Dropout(0.5)),
        nn.Linear(wide, CLASSES),
    )


def alexnet() -> nn.Module:
    """Return AlexNet: five convolutions and three linear layers."""
    wide = [thin(channels) for channels in (64, 192, 384, 256, 256)]
    return nn.Sequential(
        *(convolution(3, wide[0], 5, 2, norm=False), nn.MaxPool2d(2)),
        *(convolution(wide[0], wide[1], 5, norm=False), nn.MaxPool2d(2)),
        *(convolution(into, out, 3, norm=False) for into, out in pairwise(wide[1:])),
        _head(wide[-1]),
    )


def vgg() -> nn.Module:
    """Return VGG-11: eight convolutions and three linear layers."""
    layers: list[nn.Module] = []
    into = 3
    for stage in ((64,), (128,), (256, 256), (512, 512), (512, 512)):
        for channels in stage:
            layers.append(convolution(into, thin(channels), 3, norm=False))
            into = thin(channels)
        layers.append(nn.MaxPool2d(2, ceil_mode=True))  # a 1x1 image stays 1x1
    return nn.Sequential(*layers, _head(into))


class Bottleneck(nn.Module):  # type: ignore[misc]  # torch's types are not known here
    """Bottleneck block of a residual network."""

    def __init__(self, into: int, inner: int, out: int, stride: int) -> None:
        super().__init__()
        self.path = nn.Sequential(
            convolution(into, inner, 1, norm=True),
            convolution(inner, inner, 3, stride, norm=True),
            nn.Conv2d(inner, out, 1, bias=False),
            nn.BatchNorm2d(out),
        )
        self.shortcut: nn.Module = nn.Identity()
        if into != out or stride != 1:
            self.shortcut = nn.Sequential(
                nn.Conv2d(into, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output."""
        return torch.relu(self.path(x) + self.shortcut(x))


def resnet(*blocks: int) -> Callable[[], nn.Module]:
    """Return a constructor of a ResNet; ``blocks`` are the numbers of blocks in its stages."""

    def build() -> nn.Module:
        layers: list[nn.Module] = [convolution(3, thin(64), 3, norm=True)]
        into = thin(64)
        for stage, count in enumerate(blocks):
            inner = thin(64 << stage)
            for block in range(count):
                stride = 2 if stage and not block else 1
                layers.append(Bottleneck(into, inner, 4 * inner, stride))
                into = 4 * inner
        return nn.Sequential(
            *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(into, CLASSES)
        )

    return build


class Inception(nn.Module):  # type: ignore[misc]  # torch's types are not known here
    """Inception module: four parallel paths whose channels are concatenated."""

    def __init__(self, into: int, one: int, three: int, double: int, pooled: int) -> None:
        super().__init__()
        self.paths = nn.ModuleList(
            [
                convolution(into, one, 1, norm=True),
                nn.Sequential(
                    convolution(into, one, 1, norm=True), convolution(one, three, 3, norm=True)
                ),
                nn.Sequential(
                    convolution(into, one, 1, norm=True),
                    convolution(one, double, 3, norm=True),
                    convolution(double, double, 3, norm=True),
                ),
                nn.Sequential(nn.AvgPool2d(3, 1, 1), convolution(into, pooled, 1, norm=True)),
            ]
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the concatenated channels of all paths."""
        return torch.cat([path(x) for path in self.paths], dim=1)


def inception() -> nn.Module:
    """Return Inception with batch normalisation: a stem, and ten modules in three stages."""
    layers: list[nn.Module] = [
        convolution(3, thin(64), 7, 2, norm=True),
        convolution(thin(64), thin(192), 3, norm=True),
    ]
    into = thin(192)
    for stage, count in enumerate((3, 5, 2)):
        one, three, double, pooled = (thin(one << stage) for one in (64, 96, 96, 64))
        for _ in range(count):
            layers.append(Inception(into, one, three, double, pooled))
            into = one + three + double + pooled
        if stage < 2:
            layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(into, CLASSES))


FAMILIES: Final[Mapping[str, Callable[[], nn.Module]]] = {
    "alexnet": alexnet,
    "resnet-50": resnet(3, 4, 6, 3),
    "resnet-101": resnet(3, 4, 23, 3),
    "resnet-152": resnet(3, 8, 36, 3),
    "vgg-11": vgg,
    "inception-bn": inception,
}


def images(count: int, seed: int) -> dict[str, NDArray[Any]]:
    """Generate noisy images with labels; an image's stripes and colour encode its label."""
    generator = np.random.default_rng(seed)
    label = generator.integers(CLASSES, size=count)
    across = np.linspace(0.0, 2.0 * np.pi, SIZE)
    stripes = np.sin((1 + label)[:, None] * across)[:, None, None, :]
    colour = np.stack([np.cos(label + shift) for shift in range(3)], axis=1)[:, :, None, None]
    noise = generator.normal(0.0, 0.5, (count, 3, SIZE, SIZE))
    return {"image": (noise + stripes + colour).astype(np.float32), "label": label}


def loss(model: nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return the mean cross-entropy."""
    return nn.functional.cross_entropy(model(batch["image"]), batch["label"])


class Momentum(torch.optim.Optimizer):  # type: ignore[misc]  # torch's types are not known here
    """SGD with momentum, like `torch.optim.SGD` but without importing torch's compiler.

    torch's own optimisers import the compiler at their first step. Nothing here uses it, and the
    import would add a second and a half to a server's start.
    """

    def __init__(self, parameters: Any, rate: float, momentum: float) -> None:
        for name in ("add_param_group", "state_dict", "load_state_dict"):
            # At the first call, torch marks these methods as excluded from compilation, which
            # imports the compiler. Setting the mark here avoids that.
            inner = getattr(torch.optim.Optimizer, name).__wrapped__
            inner.__dict__.setdefault("__dynamo_disable", inner)
        super().__init__(parameters, {"lr": rate, "momentum": momentum})

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, closure: Any = None) -> None:
        """Update the parameters once."""
        del closure
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(parameter)
                state["momentum_buffer"].mul_(group["momentum"]).add_(parameter.grad)
                parameter.add_(state["momentum_buffer"], alpha=-group["lr"])


def main() -> None:
    """Run the role of this process: worker or parameter server."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--family", choices=FAMILIES, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--chunks", type=int, required=True, help="chunks of the data")
    parser.add_argument("--minibatches", type=int, required=True, help="mini-batches of a chunk")
    parser.add_argument("--pace", type=float, default=0.0, help="minimum seconds of a mini-batch")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.backends.mkldnn.enabled = False  # its setup takes longer than computing these layers
    job = jobs.current()
    index = Path(DATA, "index.json")
    # One worker writes the data; the others wait for it.
    if job.leads and not index.exists():
        samples = options.minibatches * MINIBATCH
        servers.write(DATA, images(options.chunks * samples, options.seed), samples)
    while not index.exists():
        time.sleep(0.05)
    recipe = servers.Recipe(
        model=FAMILIES[options.family],
        loss=loss,
        optimizer=lambda parameters: Momentum(parameters, 0.01, 0.5),
        data=servers.read(DATA),
        epochs=options.epochs,
        minibatch=MINIBATCH,
        seed=options.seed,
    )
    servers.run(recipe, servers.Settings(pace=options.pace, report_every=1.0, save_every=60.0))


if __name__ == "__main__":
    main()

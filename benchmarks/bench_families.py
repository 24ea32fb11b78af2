"""The six families of the papers' testbed: what they learn, resized against fixed, over seeds.

python -m benchmarks.bench_families                       # the table; half an hour
python -m benchmarks.bench_families --only resnet50 --seeds 1
python -m benchmarks.bench_families --figure learnt.png   # the losses of the first seed, too

Every run is the example, ``examples/training/families.py``, in real processes: workers and
parameter servers. Resized runs are stopped by SIGTERM and go on with another number of both.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
from pathlib import Path

if not all(importlib.util.find_spec(one) for one in ("torch", "fsspec", "torchvision")):
    sys.exit("needs torch, fsspec and torchvision: pip install 'shadowprice[train,examples]'")

from tests.train.servers.families import EPOCHS, FAMILIES, RESIZED, STEPS, WAYS, Runs


def draw(curves: dict[tuple[str, str], list[float]], path: str) -> None:
    """Draw the losses of every family, resized beside fixed."""
    from matplotlib.figure import Figure  # noqa: PLC0415  # who wants the table needs no figures

    from shadowprice.experiments.figures import PALETTE  # noqa: PLC0415

    families = [one for one in FAMILIES if (one, "fixed") in curves]
    figure = Figure(figsize=(10.0, 6.4), layout="constrained")
    for axes, family in zip(figure.subplots(2, 3, squeeze=False).ravel(), families, strict=False):
        for number, way in enumerate(WAYS):
            colour, dash = PALETTE[number], ":" if "in step" in way else "-"
            curve = curves.get((family, way), [])
            if not curve:
                continue
            means = [statistics.fmean(curve[at : at + STEPS]) for at in range(0, len(curve), STEPS)]
            steps = range(STEPS, STEPS * len(means) + 1, STEPS)
            axes.plot(steps, means, dash, color=colour, label=way, linewidth=1.8)
        for part in range(1, len(RESIZED)):
            axes.axvline(
                len(curves[family, "fixed"]) * part / len(RESIZED),
                color="0.8",
                linewidth=0.9,
                zorder=0,
            )
        axes.set(title=family, ylim=(0.0, None))
    for axes in figure.axes[len(families) :]:
        axes.set_visible(False)
    figure.axes[0].legend(fontsize=8)
    figure.supxlabel("mini-batches (grey: resized)", fontsize=10)
    figure.supylabel("loss, mean of an epoch", fontsize=10)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=FAMILIES, nargs="*", default=FAMILIES)
    parser.add_argument("--ways", choices=WAYS, nargs="*", default=list(WAYS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--figure", help="where the losses of the first seed are drawn")
    parser.add_argument("--keep", type=Path, help="a file of what was found, added to and read")
    chosen = parser.parse_args()
    runs = Runs(chosen.keep)
    found: dict[str, tuple[list[float], float]] = {}
    for family in chosen.only:
        for way in chosen.ways:
            for seed in range(chosen.seeds if "in step" not in way else 1):
                key = f"{family} | {way} | {seed}"
                losses, accuracy = found[key] = runs.of(family, way, seed, chosen.epochs)
                first, last = statistics.fmean(losses[:STEPS]), statistics.fmean(losses[-STEPS:])
                print(f"{key:42} loss {first:.2f} -> {last:.2f}  {accuracy:.0%} right", flush=True)
    for family in chosen.only:
        both = [f"{family} | {one}, in step | 0" for one in ("fixed", "resized")]
        if not found.keys() >= set(both):
            continue
        curves = [found[one][0] for one in both]
        apart = max(abs(a - b) / a for a, b in zip(*curves, strict=True))
        print(f"{family:13} in step, resized differs from fixed by {apart:.1e} at most")
    if chosen.figure:
        draw({tuple(key.split(" | ")[:2]): value[0] for key, value in found.items()
              if key.endswith(" 0")}, chosen.figure)  # fmt: skip


if __name__ == "__main__":
    main()

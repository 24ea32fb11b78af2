"""Loss and accuracy of the six families of the papers' testbed: resized and fixed runs, by seed.

python -m benchmarks.bench_families                       # the table; half an hour
python -m benchmarks.bench_families --only resnet50 --seeds 1
python -m benchmarks.bench_families --figure learnt.png   # also draws the losses of the first seed

Each run trains the example ``examples/training/families.py`` in real processes: workers and
parameter servers. Resized runs are stopped by SIGTERM, and continue with other numbers of both.
Runs "in step" are synchronous.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
from pathlib import Path

if not all(importlib.util.find_spec(module) for module in ("torch", "fsspec", "torchvision")):
    sys.exit("needs torch, fsspec and torchvision: pip install 'shadowprice[train,examples]'")

from tests.train.servers.families import EPOCHS, FAMILIES, RESIZED, STEPS, WAYS, Runs


def draw(curves: dict[tuple[str, str], list[float]], path: str) -> None:
    """Draw a panel per family with the losses of resized and fixed runs."""
    from matplotlib.figure import Figure  # noqa: PLC0415  # an extra that the table doesn't need

    from shadowprice.experiments.figures import PALETTE  # noqa: PLC0415

    families = [family for family in FAMILIES if (family, "fixed") in curves]
    figure = Figure(figsize=(10.0, 6.4), layout="constrained")
    for axes, family in zip(figure.subplots(2, 3, squeeze=False).ravel(), families, strict=False):
        for number, way in enumerate(WAYS):
            colour, dash = PALETTE[number], ":" if "in step" in way else "-"
            curve = curves.get((family, way), [])
            if not curve:
                continue
            means = [
                statistics.fmean(curve[first : first + STEPS])
                for first in range(0, len(curve), STEPS)
            ]
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
    figure.supxlabel("mini-batches (grey lines: resizes)", fontsize=10)
    figure.supylabel("loss, mean of an epoch", fontsize=10)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main() -> None:
    """Train all runs, print the table, and draw the figure if requested."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=FAMILIES, nargs="*", default=FAMILIES)
    parser.add_argument("--ways", choices=WAYS, nargs="*", default=list(WAYS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--figure", help="file for the figure of the losses of the first seed")
    parser.add_argument("--keep", type=Path, help="file in which results are stored and reused")
    options = parser.parse_args()
    runs = Runs(options.keep)
    results: dict[str, tuple[list[float], float]] = {}
    for family in options.only:
        for way in options.ways:
            # Runs in step are compared loss by loss, so one seed suffices.
            for seed in range(options.seeds if "in step" not in way else 1):
                key = f"{family} | {way} | {seed}"
                losses, accuracy = results[key] = runs.of(family, way, seed, options.epochs)
                first, last = statistics.fmean(losses[:STEPS]), statistics.fmean(losses[-STEPS:])
                print(
                    f"{key:42} loss {first:.2f} -> {last:.2f}  accuracy {accuracy:.0%}", flush=True
                )
    for family in options.only:
        keys = [f"{family} | {way}, in step | 0" for way in ("fixed", "resized")]
        if not results.keys() >= set(keys):
            continue
        curves = [results[key][0] for key in keys]
        difference = max(abs(a - b) / a for a, b in zip(*curves, strict=True))
        print(
            f"{family:13} in step: losses of resized and fixed differ by at most {difference:.1e}"
        )
    if options.figure:
        draw({tuple(key.split(" | ")[:2]): losses for key, (losses, _) in results.items()
              if key.endswith(" 0")}, options.figure)  # fmt: skip


if __name__ == "__main__":
    main()

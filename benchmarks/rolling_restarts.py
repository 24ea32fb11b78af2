"""`rolling` beside other policies on windows of traces where moves cost: means, and who is ahead.

The first 120 jobs from every fifteenth day of six of Philly's virtual clusters, and from days 0 and
30 of ITP 01 to 06, each on a cluster sized to them, slots of 20 minutes.

Run: ``python -m benchmarks.rolling_restarts [--policies NAME...] [--parts PER-CENT...]``
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Final

from shadowprice.experiments.rolling import (
    ITP,
    PHILLY,
    POLICY_VARIANTS,
    NamedWorkload,
    run,
    with_restart_cost,
)

POLICIES: Final = ("rolling", "oasis", "rrh", "elasticflow")
PARTS: Final = (0, 10, 25, 50, 75, 95)
"""Per cent of a slot that a move costs."""

CIRCLES: Final = ("e13805", "2869ce", "0e4a51", "103959", "b436b2", "6214e9")
SLOT_SECONDS: Final = 1200


def windows() -> Iterator[NamedWorkload]:
    """Return the windows, those apart that hold the same jobs as the one before."""
    seen: set[tuple[str, ...]] = set()
    places = [(f"{circle}, day {day}", PHILLY, f"vc={circle}&from={day}d")
              for circle in CIRCLES for day in range(0, 100, 15)]  # fmt: skip
    places += [(f"ITP 0{at}, day {day}", ITP.format(at), f"from={day}d")
               for at in range(1, 7) for day in (0, 30)]  # fmt: skip
    for name, trace, options in places:
        window = NamedWorkload(name, f"{trace}?{options}&limit=120")
        if not window.at_hand:
            continue
        jobs = tuple(job.name for job in window.scenario(0).jobs)
        if jobs not in seen:
            seen.add(jobs)
            yield window


def measure(window: NamedWorkload, policy: str, part: int) -> float:
    """Return the part of the value on offer that a policy earns in a window."""
    scheme = next(one for one in POLICY_VARIANTS if one.label == policy)
    requested = with_restart_cost(window.scenario(0), SLOT_SECONDS * part // 100)
    return float(run(requested, scheme)["share"])


def main() -> None:
    """Print the mean of each policy for each cost of a move, and where `rolling` is not first."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policies", nargs="+", default=POLICIES)
    parser.add_argument("--parts", type=int, nargs="+", default=PARTS)
    chosen = parser.parse_args()
    found = list(windows())
    tasks = [
        (w, policy, part) for part in chosen.parts for w in found for policy in chosen.policies
    ]
    apart = multiprocessing.get_context("spawn")  # traces are read by threads, which a fork loses
    with ProcessPoolExecutor(os.cpu_count(), mp_context=apart) as pool:
        shares = dict(zip(tasks, pool.map(measure, *zip(*tasks, strict=True)), strict=True))
    print(f"{len(found)} windows; of the value on offer, per cent")
    for part in chosen.parts:
        means = [
            f"{policy} {100 * sum(shares[w, policy, part] for w in found) / len(found):.1f}"
            for policy in chosen.policies
        ]
        print(f"a move costs {part} % of a slot: {', '.join(means)}")
        for window in found:
            best = max(chosen.policies, key=lambda policy: shares[window, policy, part])
            ahead = 100 * (shares[window, best, part] - shares[window, "rolling", part])
            if ahead >= 0.05:
                print(f"    {window.name}: {best} is ahead by {ahead:.1f}")


if __name__ == "__main__":
    main()

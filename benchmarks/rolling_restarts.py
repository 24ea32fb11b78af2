"""`rolling` compared with other policies on windows of traces, by the cost of a move.

Windows are the first 120 jobs from every fifteenth day of six of Philly's virtual clusters, and
from days 0 and 30 of ITP 01 to 06. Each has a cluster sized for it, and slots of 20 minutes.

Run: ``python -m benchmarks.rolling_restarts [--policies NAME...] [--parts PERCENT...]``
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
MOVE_PERCENTS: Final = (0, 10, 25, 50, 75, 95)  # percentages of a slot that a move takes
VIRTUAL_CLUSTERS: Final = ("e13805", "2869ce", "0e4a51", "103959", "b436b2", "6214e9")
SLOT_SECONDS: Final = 1200


def windows() -> Iterator[NamedWorkload]:
    """Yield the available windows, without repetitions."""
    seen: set[tuple[str, ...]] = set()
    candidates = [(f"{vc}, day {day}", PHILLY, f"vc={vc}&from={day}d")
                  for vc in VIRTUAL_CLUSTERS for day in range(0, 100, 15)]  # fmt: skip
    candidates += [(f"ITP 0{number}, day {day}", ITP.format(number), f"from={day}d")
                   for number in range(1, 7) for day in (0, 30)]  # fmt: skip
    for name, trace, options in candidates:
        window = NamedWorkload(name, f"{trace}?{options}&limit=120")
        if not window.at_hand:
            continue
        # Without submissions for fifteen days, two windows have the same jobs.
        jobs = tuple(job.name for job in window.scenario(0).jobs)
        if jobs not in seen:
            seen.add(jobs)
            yield window


def measure(window: NamedWorkload, policy: str, percent: int) -> float:
    """Return the share of the value on offer that a policy earns in a window."""
    choice = next(variant for variant in POLICY_VARIANTS if variant.label == policy)
    scenario = with_restart_cost(window.scenario(0), SLOT_SECONDS * percent // 100)
    return float(run(scenario, choice)["share"])


def main() -> None:
    """Print the mean share of each policy by cost of a move, and windows that `rolling` loses."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policies", nargs="+", default=POLICIES)
    parser.add_argument("--parts", type=int, nargs="+", default=MOVE_PERCENTS)
    chosen = parser.parse_args()
    available = list(windows())
    tasks = [
        (window, policy, percent)
        for percent in chosen.parts
        for window in available
        for policy in chosen.policies
    ]
    spawn = multiprocessing.get_context("spawn")  # a fork has none of the threads that read traces
    with ProcessPoolExecutor(os.cpu_count(), mp_context=spawn) as pool:
        shares = dict(zip(tasks, pool.map(measure, *zip(*tasks, strict=True)), strict=True))
    print(f"{len(available)} windows; mean shares of the value on offer, in %")
    for percent in chosen.parts:
        means = {
            policy: 100 * sum(shares[window, policy, percent] for window in available)
            for policy in chosen.policies
        }
        texts = (f"{policy} {total / len(available):.1f}" for policy, total in means.items())
        print(f"a move takes {percent} % of a slot: {', '.join(texts)}")
        for window in available:
            best = max(chosen.policies, key=lambda policy: shares[window, policy, percent])
            lead = 100 * (shares[window, best, percent] - shares[window, "rolling", percent])
            if lead >= 0.05:
                print(f"    {window.name}: {best} leads by {lead:.1f}")


if __name__ == "__main__":
    main()

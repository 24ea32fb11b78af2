"""Times of OASiS's decisions in running clusters, compared with the plain one of `oasis_twin`.

A generated workload arrives at a cluster like the paper's. Every decision that the engine requests
is timed: update of prices, cost of every slot, search, and placement, or the reasons of a refusal.
Jobs that are too long for the remaining timespan don't count, because no search is needed to refuse
them. Some decisions are also taken by the plain reference (the "twin") on the same ledger, with the
same payoff.

Run: ``python -m benchmarks.bench_oasis``
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from benchmarks.oasis_twin import decide

from shadowprice.core.events import Commit, Decision, JobsArrived, PolicyEvent, Reject
from shadowprice.core.policy import Policy, PolicyContext, View
from shadowprice.core.specs import ClusterSpec, validate
from shadowprice.policies.registry import make_policy
from shadowprice.simulator.driver import Simulation
from shadowprice.traces.generator import GeneratorOptions, Preset, generate, paper_cluster


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    preset: Preset
    workers: int
    servers: int
    slots: int
    jobs: int
    twins: int
    aim_ms: float


ROWS = (
    Row("paper", 40, 40, 100, 200, 6, 1.0),
    Row("calibrated", 40, 40, 100, 200, 6, 1.0),
    Row("paper", 50, 50, 300, 300, 4, 3.0),
    Row("calibrated", 50, 50, 300, 300, 4, 3.0),
    Row("paper", 1000, 1000, 1000, 300, 2, 50.0),
    Row("calibrated", 1000, 1000, 1000, 300, 2, 50.0),
)


class Stopwatch:
    """Times a policy's decisions, and has every so many checked by the twin."""

    def __init__(self, policy: Policy, twins: int, every: int) -> None:
        self.policy = policy
        self.capabilities = policy.capabilities
        self.every, self.twins = every, twins
        self.milliseconds: list[float] = []
        self.admitted: list[float] = []
        self.twin: list[float] = []
        self.seen = 0

    def resume(self, view: View) -> None:
        """Reset the policy."""
        self.policy.resume(view)

    def parameters_in_force(self) -> Mapping[str, object]:
        """Return the parameters of the policy."""
        return self.policy.parameters_in_force()

    def decide(self, view: View, event: PolicyEvent) -> Iterator[Decision]:
        """Time each decision on an arrival."""
        decisions = iter(self.policy.decide(view, event))
        for job in event.jobs if isinstance(event, JobsArrived) else ():
            if job.required > (view.end - view.slot) * int(job.gains.max()):
                yield next(decisions)
                continue
            self.seen += 1
            payoff = math.nan
            is_checked = self.seen % self.every == 0 and len(self.twin) < self.twins
            if is_checked:  # before the policy changes the ledger
                began = time.perf_counter()
                payoff = decide(view, *self.policy._planner.boards, job)  # type: ignore[attr-defined,call-arg]
                self.twin.append(1e3 * (time.perf_counter() - began))
            began = time.perf_counter()
            decision = next(decisions)
            spent = 1e3 * (time.perf_counter() - began)
            self.milliseconds.append(spent)
            if isinstance(decision, Commit):
                self.admitted.append(spent)
            if is_checked:
                check(decision, payoff)
            yield decision
        yield from decisions


def check(decision: Decision, payoff: float) -> None:
    """Stop the benchmark if twin and policy disagree."""
    if isinstance(decision, Commit):
        same = math.isclose(decision.payoff, payoff, rel_tol=1e-6, abs_tol=1e-9)
    else:
        same = isinstance(decision, Reject) and payoff <= 1e-9
    if not same:
        raise SystemExit(f"the twin finds a payoff of {payoff}, the policy decides {decision}")


def measure(row: Row, lower: str) -> Stopwatch:
    """Run one row."""
    document = paper_cluster(workers=row.workers, parameter_servers=row.servers, horizon=row.slots)
    spec, faults = validate(ClusterSpec, document, "generated cluster")
    assert spec is not None, faults
    cluster = spec.resolve("generated cluster")
    options = GeneratorOptions(preset=row.preset, jobs=row.jobs, slots=row.slots, arrival_share=0.5)
    jobs = generate(options).to_jobs(cluster)
    policy = make_policy(
        "oasis",
        PolicyContext(cluster, jobs, row.slots),
        {"preset": "paper"} | ({"lower": lower} if lower else {}),
    )
    watch = Stopwatch(policy, row.twins, every=5)
    Simulation(cluster, jobs, watch, until=row.slots).run()
    return watch


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--quick", action="store_true", help="leave out the largest clusters")
    options.add_argument("--lower", default="", help="the policy's parameter `lower`")
    given = options.parse_args()
    # Compiles all kernels, including those of refusals, because a small row also refuses jobs.
    measure(replace(ROWS[1], twins=0), given.lower)
    print(
        f"{'workload':<12}{'servers':>12}{'T':>6}{'jobs':>6}{'decided':>9}{'admitted':>10}"
        f"{'median ms':>11}{'mean':>8}{'p99':>8}{'worst':>8}{'aim':>7}{'twin ms':>10}{'times':>8}"
    )
    for row in ROWS:
        if given.quick and row.workers > 100:
            continue
        watch = measure(row, given.lower)
        spent = np.array(watch.milliseconds)
        twin = float(np.median(watch.twin)) if watch.twin else math.nan
        median = float(np.median(spent))
        print(
            f"{row.preset:<12}{f'{row.workers}+{row.servers}':>12}{row.slots:>6}{row.jobs:>6}{len(spent):>9}"
            f"{len(watch.admitted):>10}{median:>11.2f}{spent.mean():>8.2f}"
            f"{np.percentile(spent, 99):>8.2f}{spent.max():>8.2f}{row.aim_ms:>7g}"
            f"{twin:>10.0f}{twin / median:>8.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()

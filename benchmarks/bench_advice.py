"""What working out advice on a refused job costs: the questions, and repeating the run.

Workloads are drawn by `traces.generator` on its cluster. CPU time: the questions are what `advise`
takes beyond visiting the same moments without asking anything. Where the first word need not be
the last (`rolling`), every change is run until its fate is known, and there is one figure: all that
advice takes. "Together" is all that advice on many takes, the runs included, as `simulate --advice`
works it out: one repeated run for all where refused jobs leave no trace, else one each that knows
of those before it.

    python benchmarks/bench_advice.py [JOBS [ONE_BY_ONE [TOGETHER]]]
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Mapping
from typing import Any

from shadowprice.advice.candidate_changes import arrival_change
from shadowprice.core.specs import ClusterSpec
from shadowprice.policies.choice import PolicyChoice
from shadowprice.results.observer import Observer
from shadowprice.simulator.advice import advise, advise_together, one_replay_suffices
from shadowprice.simulator.advice.moments import Probe, run_probes
from shadowprice.simulator.advice.retracing import DecisionCache
from shadowprice.simulator.driver import Simulation
from shadowprice.simulator.scenario import Scenario
from shadowprice.traces.generator import GeneratorOptions, generate, paper_cluster

SETTINGS: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("oasis", {"prices": "online"}),
    ("oasis", {"prices": "offline"}),
    ("pdors", {"prices": "online"}),
    ("pdors", {"prices": "offline"}),
    ("rrh", {}),
    ("elasticflow", {}),
    ("rolling", {}),
)
MOST = 12
"""Refused jobs looked at one by one, spread evenly, unless other counts are given."""
TOGETHER = 100
"""And at once."""


def measure(name: str, settings: Mapping[str, Any], jobs: int, most: int, at_once: int) -> None:
    """Print the median and the worst of what advice on a job costs."""
    slots = 100
    options = GeneratorOptions(preset="calibrated", jobs=jobs, slots=slots)
    document = paper_cluster(workers=20, parameter_servers=20, horizon=slots)
    on = ClusterSpec.model_validate(document).resolve("bench")
    workload = generate(options).fitted_to(on)
    scenario = Scenario(on, workload.to_jobs(on), until=slots)
    choice = PolicyChoice(name, settings)
    policy = choice.build(scenario.context())
    engine = Simulation(on, scenario.jobs, policy, until=slots).run([Observer()])
    refused = [
        at for at, job in enumerate(scenario.jobs) if engine.jobs[job.name].refusal is not None
    ]
    can = policy.capabilities
    asks = can.quotes and can.answers_at_once
    requested, repeated = [], []
    for position in refused[:: max(1, len(refused) // most)][:most]:
        entry = workload.to_record(position)
        job = scenario.jobs[position]
        arrivals = [int(value.split()[0]) for value in arrival_change(job, slots - 1).values]

        began = time.process_time()
        job_advice = advise(scenario, choice, position, entry, max_arrivals=2000)
        whole = time.process_time() - began
        if not asks:
            requested.append(1000 * whole)
            continue

        # The same moments; a later arrival that is admitted ends the walk.
        delayed = [one for one in job_advice.advice if one.key == "arrival"]
        last = int(delayed[0].after.split()[0]) if delayed else slots
        moments = [job.arrival, *(slot for slot in arrivals if slot <= last)]
        began = time.process_time()
        built = choice.build(scenario.context(explained=False))
        run_probes(scenario, built, [Probe(position, moments, lambda _: True)])
        repeating = time.process_time() - began
        requested.append(1000 * (whole - repeating))
        repeated.append(1000 * repeating)
    if not requested:
        print(f"{choice.label:22} refused none of {jobs}")
        return
    chosen = refused[:: max(1, len(refused) // at_once)][:at_once]
    parts = [chosen] if one_replay_suffices(policy) else [[position] for position in chosen]
    known = DecisionCache(scenario)
    took = []
    for part in parts:
        entries = {position: workload.to_record(position) for position in part}
        began = time.process_time()
        advise_together(scenario, choice, entries, max_arrivals=2000, cache=known)
        took.append(1000 * (time.process_time() - began) / len(part))
    mean = f"{statistics.mean(took):.1f} ms a job"
    if len(took) > 1:
        mean += f" (median {statistics.median(took):.1f}, worst {max(took):.1f})"
    together = f"; {len(chosen)} together {mean}"
    kind = "questions" if asks else "all of it"
    each = f"{kind} {statistics.median(requested):6.1f} ms a job (worst {max(requested):6.1f})"
    if repeated:
        median, worst = statistics.median(repeated), max(repeated)
        each += f", repeating the run {median:6.1f} ms (worst {worst:6.1f})"
    print(f"{choice.label:22} refused {len(refused):4} of {jobs}: {each}{together}", flush=True)


def main() -> None:
    given = [int(word) for word in sys.argv[1:4]]
    jobs, most, at_once = given + [300, MOST, TOGETHER][len(given) :]
    print(f"{most} of the refused jobs one by one, {at_once} together")
    for name, settings in SETTINGS:
        measure(name, settings, jobs, most, at_once)


if __name__ == "__main__":
    main()

"""Processor time of advice on refused jobs: quotes for changes, and the repeated run.

Workloads are drawn by `traces.generator`, on its cluster. Advice repeats the run, and asks the
policy for quotes in some slots. "quotes" is the time of `advise` minus the time of the same run
without quotes. A policy such as `rolling` may admit a job later, so each change needs a run until
its result is known, and the output has only the total. "together" is the time per job of advice on
many jobs, as in `simulate --advice`: one repeated run for all jobs if refused jobs don't affect
others, else one per job, which reuses cached decisions.

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
ONE_BY_ONE = 12  # default number of refused jobs that get advice one by one, evenly spread
TOGETHER = 100  # default number of refused jobs that get advice together


def measure(
    name: str, settings: Mapping[str, Any], jobs: int, one_by_one: int, at_once: int
) -> None:
    """Print the median and the maximum time of advice on a job."""
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
        index
        for index, job in enumerate(scenario.jobs)
        if engine.jobs[job.name].refusal is not None
    ]
    capabilities = policy.capabilities
    uses_quotes = capabilities.quotes and capabilities.answers_at_once
    quote_ms, repeat_ms = [], []  # without quotes, `quote_ms` has the total
    for position in refused[:: max(1, len(refused) // one_by_one)][:one_by_one]:
        entry = workload.to_record(position)
        job = scenario.jobs[position]
        arrivals = [int(value.split()[0]) for value in arrival_change(job, slots - 1).values]

        began = time.process_time()
        job_advice = advise(scenario, choice, position, entry, max_arrivals=2000)
        total = time.process_time() - began
        if not uses_quotes:
            quote_ms.append(1000 * total)
            continue

        # Repeat the run up to the same slots: advice stops at the first admitted later arrival.
        delayed = [advice for advice in job_advice.advice if advice.key == "arrival"]
        last = int(delayed[0].after.split()[0]) if delayed else slots
        moments = [job.arrival, *(slot for slot in arrivals if slot <= last)]
        began = time.process_time()
        built = choice.build(scenario.context(explained=False))
        run_probes(scenario, built, [Probe(position, moments, lambda _: True)])
        repeating = time.process_time() - began
        quote_ms.append(1000 * (total - repeating))
        repeat_ms.append(1000 * repeating)
    if not quote_ms:
        print(f"{choice.label:22} refused none of {jobs} jobs")
        return
    chosen = refused[:: max(1, len(refused) // at_once)][:at_once]
    parts = [chosen] if one_replay_suffices(policy) else [[position] for position in chosen]
    cache = DecisionCache(scenario)
    together_ms = []
    for part in parts:
        entries = {position: workload.to_record(position) for position in part}
        began = time.process_time()
        advise_together(scenario, choice, entries, max_arrivals=2000, cache=cache)
        together_ms.append(1000 * (time.process_time() - began) / len(part))
    mean = f"{statistics.mean(together_ms):.1f} ms a job"
    if len(together_ms) > 1:
        mean += f" (median {statistics.median(together_ms):.1f}, worst {max(together_ms):.1f})"
    together = f"; {len(chosen)} together {mean}"
    kind = "quotes" if uses_quotes else "total"
    each = f"{kind} {statistics.median(quote_ms):6.1f} ms a job (worst {max(quote_ms):6.1f})"
    if repeat_ms:
        median, worst = statistics.median(repeat_ms), max(repeat_ms)
        each += f", repeated run {median:6.1f} ms (worst {worst:6.1f})"
    print(f"{choice.label:22} refused {len(refused):4} of {jobs}: {each}{together}", flush=True)


def main() -> None:
    given = [int(word) for word in sys.argv[1:4]]
    jobs, one_by_one, at_once = given + [300, ONE_BY_ONE, TOGETHER][len(given) :]
    print(f"advice on at most {one_by_one} refused jobs one by one, {at_once} together")
    for name, settings in SETTINGS:
        measure(name, settings, jobs, one_by_one, at_once)


if __name__ == "__main__":
    main()

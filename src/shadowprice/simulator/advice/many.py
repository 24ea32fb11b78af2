"""Advice on the refused jobs of a run: the most valuable first, as many as the time allows."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from shadowprice.core import bounds
from shadowprice.policies.choice import PolicyChoice
from shadowprice.results.advice import JobAdvice, outcomes_with_advice
from shadowprice.results.run_directory import RunData
from shadowprice.simulator.advice.advisor import advise_together, one_replay_suffices
from shadowprice.simulator.advice.retracing import DecisionCache
from shadowprice.simulator.interrupt import StopRequestObserver
from shadowprice.simulator.scenario import Scenario

_GROUP_SECONDS: Final = 2.0
"""Time that a group of jobs may take, or twice that of its first job. Advice can exceed its time
limit, and delay a stop, by this."""


def add_advice(
    run: RunData,
    scenario: Scenario,
    choice: PolicyChoice,
    *,
    seconds: float,
    progress: Callable[[int, int], None] | None = None,
    stop: StopRequestObserver | None = None,
) -> RunData:
    """Return a run with advice on its refused jobs, and on abandoned ones that count as refused.

    The scenario must have its jobs' records. After ``seconds`` no further job is started, except a
    few. ``progress`` is called with (jobs with advice, jobs in total). A first ``stop`` request
    ends it after the current jobs, a second one immediately.

    ``info["advice"]`` has the number of ``refused`` (or abandoned) jobs, see
    `outcomes_with_advice`, the number of those with advice (``advised``), and the allowed
    ``seconds``.
    """
    refused = run.jobs.filter(run.jobs["outcome"].is_in(outcomes_with_advice(run.info)))
    names = refused.sort("value", descending=True, maintain_order=True)["job"].to_list()
    position = {job.name: index for index, job in enumerate(scenario.jobs)}
    advice: dict[str, JobAdvice] = {}
    names = names[: int(bounds.ADVICE_JOBS.maximum)]
    start = time.monotonic()
    done, group_size = 0, 1
    cache = DecisionCache(scenario)
    in_groups = one_replay_suffices(choice.build(scenario.context()))
    group_seconds = _GROUP_SECONDS
    while scenario.entry is not None and done < len(names):
        if time.monotonic() - start >= seconds or (
            stop is not None and stop.requested_at is not None
        ):
            break
        if progress is not None:
            progress(done, len(names))
        group = names[done : done + group_size]
        group_start = time.monotonic()
        try:
            entries = {position[job]: scenario.entry(position[job]) for job in group}
            results = advise_together(scenario, choice, entries, cache=cache)
        except KeyboardInterrupt:  # after a second request the run and the advice so far are kept
            break
        # A policy with a time limit may admit a job when it is queried again.
        pairs = zip(group, results, strict=True)
        advice |= {job: item for job, item in pairs if isinstance(item, JobAdvice)}
        done += len(group)
        # A group of jobs repeats the run once, which may take long.
        group_took = time.monotonic() - group_start
        group_seconds = max(group_seconds, 2.0 * group_took) if group_size == 1 else group_seconds
        if in_groups and 2.0 * group_took <= group_seconds:
            group_size *= 2
    counts = {"refused": refused.height, "advised": len(advice), "seconds": seconds}
    return replace(run, info={**run.info, "advice": counts}, advice=advice)

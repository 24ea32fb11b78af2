"""Advice on the refused jobs of a run: those worth most first, as many as a time allows."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from shadowprice.core import bounds
from shadowprice.policies.choice import PolicyChoice
from shadowprice.results.advice import Counsel, advised_outcomes
from shadowprice.results.files import Run
from shadowprice.simulator.advice.advisor import advise_together, repeats_once
from shadowprice.simulator.advice.retracing import Known
from shadowprice.simulator.interrupt import StopSign
from shadowprice.simulator.scenario import Scenario

_MOMENT: Final = 2.0
"""Seconds that a part of the jobs may take, or twice what the first of them takes alone: so much
longer than allowed it takes, and to stop."""


def with_advice(
    run: Run,
    scenario: Scenario,
    choice: PolicyChoice,
    *,
    seconds: float,
    progress: Callable[[int, int], None] | None = None,
    stop: StopSign | None = None,
) -> Run:
    """Return a run with advice on its refused jobs, and on those given up as good as refused.

    Parameters
    ----------
    run : Run
        The run.
    scenario : Scenario
        What it was of; with the entries of its jobs.
    choice : PolicyChoice
        Who decided.
    seconds : float
        Time after which no other job is begun with, but for a few.
    progress : callable, optional
        Called with (jobs advised on, jobs to advise on) now and then.
    stop : StopSign, optional
        Ends it behind the jobs in hand; asked once more, at once.

    Returns
    -------
    Run
        The same with ``advice``, and with ``info["advice"]``: how many jobs were ``refused`` (or
        given up, see `advised_outcomes`), on how many of them there is advice (``told``), and the
        ``seconds`` that were given.
    """
    refused = run.jobs.filter(run.jobs["outcome"].is_in(advised_outcomes(run.info)))
    names = refused.sort("value", descending=True, maintain_order=True)["job"].to_list()
    position = {job.name: at for at, job in enumerate(scenario.jobs)}
    found: dict[str, Counsel] = {}
    names = names[: int(bounds.ADVISED.most)]
    began = time.monotonic()
    tried, some = 0, 1
    known = Known(scenario)
    several = repeats_once(choice.build(scenario.context()))
    moment = _MOMENT
    while scenario.entry is not None and tried < len(names):
        if time.monotonic() - began >= seconds or (stop is not None and stop.asked is not None):
            break
        if progress is not None:
            progress(tried, len(names))
        part = names[tried : tried + some]
        asked = time.monotonic()
        try:
            entries = {position[job]: scenario.entry(position[job]) for job in part}
            counsels = advise_together(scenario, choice, entries, known=known)
        except KeyboardInterrupt:  # asked twice: the run, and the advice so far, are kept
            break
        # A policy that searches under a limit of time may admit one when asked again.
        told_on = zip(part, counsels, strict=True)
        found |= {job: counsel for job, counsel in told_on if isinstance(counsel, Counsel)}
        tried += len(part)
        # Several at a time repeat the run once, which may take long itself.
        took = time.monotonic() - asked
        moment = max(moment, 2.0 * took) if some == 1 else moment
        if several and 2.0 * took <= moment:
            some *= 2
    told = {"refused": refused.height, "told": len(found), "seconds": seconds}
    return replace(run, info={**run.info, "advice": told}, advice=found)

"""Advice on the refused jobs of a run: those worth most first, as many as a time allows."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from shadowprice.core import bounds
from shadowprice.core.errors import InputError
from shadowprice.results.advice import Counsel
from shadowprice.results.files import Run
from shadowprice.simulator.advice.advisor import advise
from shadowprice.simulator.interrupt import StopSign
from shadowprice.simulator.scenario import Scenario


def with_advice(
    run: Run,
    scenario: Scenario,
    name: str,
    settings: Mapping[str, Any],
    *,
    seconds: float,
    progress: Callable[[int, int], None] | None = None,
    stop: StopSign | None = None,
) -> Run:
    """Return a run with advice on its refused jobs.

    Parameters
    ----------
    run : Run
        The run.
    scenario : Scenario
        What it was of; with the entries of its jobs.
    name : str
        The policy.
    settings : mapping
        Its settings.
    seconds : float
        Time after which no other job is begun with.
    progress : callable, optional
        Called with (jobs advised on, refused jobs) now and then.
    stop : StopSign, optional
        Ends it behind the job in hand; asked once more, at once.

    Returns
    -------
    Run
        The same with ``advice``, and with ``info["advice"]``: how many jobs were ``refused``, on
        how many of them there is advice (``told``), and the ``seconds`` that were given.
    """
    refused = run.jobs.filter(run.jobs["outcome"] == "refused")
    names = refused.sort("value", descending=True, maintain_order=True)["job"].to_list()
    position = {job.name: at for at, job in enumerate(scenario.jobs)}
    found: dict[str, Counsel] = {}
    began = time.monotonic()
    for tried, job in enumerate(names[: int(bounds.ADVISED.most)]):
        over = time.monotonic() - began >= seconds or (stop is not None and stop.asked is not None)
        if over or scenario.entry is None:
            break
        if progress is not None:
            progress(tried, len(names))
        at = position[job]
        try:
            found[job] = advise(scenario, name, settings, at, scenario.entry(at))
        except InputError:
            # A policy that searches under a limit of time may admit it when asked again.
            continue
        except KeyboardInterrupt:  # asked twice: the run, and the advice so far, are kept
            break
    told = {"refused": len(names), "told": len(found), "seconds": seconds}
    return replace(run, info={**run.info, "advice": told}, advice=found)

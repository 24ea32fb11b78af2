"""Initial schedules for the search of a certificate: those of simulated runs of `rolling`."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import numpy as np

from shadowprice.core.events import Command, Completed, DriverEvent
from shadowprice.core.policy import Policy
from shadowprice.core.schedule import Schedule
from shadowprice.engine import Engine
from shadowprice.policies.choice import PolicyChoice
from shadowprice.results.observer import Observer
from shadowprice.simulator.scenario import Scenario

_SETTINGS: Final[tuple[dict[str, Any], ...]] = (
    {},
    # At this price no job gets a promise, so `rolling` runs jobs on spare capacity only, in order
    # of their utility per resource.
    {"prices": "given", "price": 1e12},
)


class _Stopped(Exception):  # noqa: N818  # it isn't an error
    """Ends a run early."""


class PlacementObserver(Observer):
    """Records the placements of every slot and the completed jobs, until ``stop`` returns True."""

    def __init__(self, stop: Callable[[], bool]) -> None:
        self._stop = stop
        self._rows: dict[str, int] = {}  # number of each job
        self._completed: set[str] = set()
        self._entries = array("q")  # job, slot, server, workers and parameter servers, repeated

    def on_slot(self, engine: Engine, slot: int) -> None:
        """Record all placements."""
        for name, placement in engine.running.items():
            row = self._rows.setdefault(name, len(self._rows))
            entries = zip(placement.servers, placement.workers, placement.ps, strict=True)
            for server, workers, ps in entries:
                self._entries.extend((row, slot, server, workers, ps))

    def on_event(self, _event: DriverEvent, commands: Sequence[Command]) -> None:
        """Record completed jobs; end the run if ``stop`` returns True."""
        self._completed.update(
            command.job for command in commands if isinstance(command, Completed)
        )
        if self._stop():
            raise _Stopped

    def schedules(self) -> dict[str, Schedule]:
        """Return the schedules of all completed jobs."""
        table = np.array(self._entries, dtype=np.int64).reshape(-1, 5)
        table = table[np.argsort(table[:, 0], kind="stable")]
        bounds = np.searchsorted(table[:, 0], np.arange(len(self._rows) + 1))
        return {
            name: Schedule.from_arrays(
                *(table[bounds[row] : bounds[row + 1], column].copy() for column in (1, 2, 3, 4))
            )
            for name, row in self._rows.items()
            if name in self._completed
        }


def completed_schedules(
    scenario: Scenario, policy: Policy, stop: Callable[[], bool]
) -> dict[str, Schedule]:
    """Run a freshly built policy; return the schedules of the jobs that complete.

    ``stop`` is called after every event, and returns whether to end the run.
    """
    placements = PlacementObserver(stop)
    with suppress(_Stopped):  # jobs that completed before are returned
        scenario.simulation(policy).run((placements,))
    return placements.schedules()


def iter_warm_starts(
    scenario: Scenario, stop: Callable[[], bool]
) -> Iterator[Mapping[str, Schedule]]:
    """Yield the schedules of one run after another, until ``stop`` returns True.

    These runs have no incidents.
    """
    undisturbed = replace(scenario, incidents=())
    for settings in _SETTINGS:
        if stop():
            return
        policy = PolicyChoice("rolling", settings).build(undisturbed.context())
        yield completed_schedules(undisturbed, policy, stop)

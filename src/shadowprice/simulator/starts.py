"""Schedules of a whole job set as `rolling` leaves them: where a search for better ones begins."""

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
from shadowprice.simulator.driver import Simulation
from shadowprice.simulator.scenario import Scenario

_SETTINGS: Final[tuple[dict[str, Any], ...]] = (
    {},
    # No promise is worth its price: everybody waits, and the densest go first.
    {"prices": "given", "price": 1e12},
)


class _Stopped(Exception):  # noqa: N818  # it is no error
    """Ends a run in the middle."""


class Placements(Observer):
    """Notes where jobs stand in every slot, and which complete.

    Parameters
    ----------
    stop : callable
        Asked after every event whether to end the run.
    """

    def __init__(self, stop: Callable[[], bool]) -> None:
        self._stop = stop
        self._rows: dict[str, int] = {}
        self._names: list[str] = []
        self._completed: set[str] = set()
        self._entries = array("q")

    def slot_running(self, engine: Engine, slot: int) -> None:
        """Note where everybody stands."""
        for name, placement in engine.running.items():
            row = self._rows.setdefault(name, len(self._rows))
            entries = zip(placement.servers, placement.workers, placement.ps, strict=True)
            for server, workers, ps in entries:
                self._entries.extend((row, slot, server, workers, ps))

    def took(self, event: DriverEvent, commands: Sequence[Command]) -> None:
        """Note who completed; end the run if asked to."""
        del event
        self._completed.update(
            command.job for command in commands if isinstance(command, Completed)
        )
        if self._stop():
            raise _Stopped

    def schedules(self) -> dict[str, Schedule]:
        """Return the schedules of all jobs that completed."""
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


def schedules_of(
    scenario: Scenario, policy: Policy, stop: Callable[[], bool]
) -> dict[str, Schedule]:
    """Run a policy; return the schedules of the jobs that it completes before it is stopped.

    Parameters
    ----------
    scenario : Scenario
        What is run.
    policy : Policy
        The policy, freshly built.
    stop : callable
        Asked after every event whether to end the run.
    """
    placements = Placements(stop)
    simulation = Simulation(
        cluster=scenario.cluster,
        jobs=scenario.jobs,
        policy=policy,
        until=scenario.until,
        seed=scenario.seed,
    )
    with suppress(_Stopped):  # what was done until then counts
        simulation.run((placements,))
    return placements.schedules()


def starts(scenario: Scenario, stop: Callable[[], bool]) -> Iterator[Mapping[str, Schedule]]:
    """Yield schedules of a job set, each from another run.

    Parameters
    ----------
    scenario : Scenario
        What is run; without what happens to servers, and exactly as fast as stated.
    stop : callable
        Asked often whether to end a run; no further one is begun then.
    """
    undisturbed = replace(scenario, incidents=())
    for settings in _SETTINGS:
        if stop():
            return
        policy = PolicyChoice("rolling", settings).build(undisturbed.context())
        yield schedules_of(undisturbed, policy, stop)

"""Running a workload under a policy and keeping all that a reader may ask about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from shadowprice.core.cluster import Cluster
from shadowprice.core.job import Job
from shadowprice.core.policy import Policy, PolicyContext
from shadowprice.kernels.stopwatch import preparing, working_time
from shadowprice.policies.choice import PolicyChoice
from shadowprice.results.collect import Circumstances, Input, collect
from shadowprice.results.files import Run
from shadowprice.results.observer import Observer
from shadowprice.results.recorder import Recorder
from shadowprice.simulator.driver import Incident, RunProgress, Simulation
from shadowprice.simulator.execution import ExactExecution, ExecutionModel
from shadowprice.simulator.interrupt import StopSign, stop_sign


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is run, apart from the policy.

    Parameters
    ----------
    cluster : Cluster
        The servers.
    jobs : sequence of Job
        In file order.
    until : int or None
        End of the timespan T.
    seed : int
        Seed of the policy's and the execution model's randomness.
    incidents : sequence of ServerLost, ServerBack or JobCancelled
        What else happens.
    inputs : sequence of Input
        Where it came from.
    execution : ExecutionModel
        How fast placed jobs run.
    options : mapping
        How the inputs were read, by the name of the option.
    entry : callable or None
        Returns a job as its file writes it, by its position; None where there is no file.
    """

    cluster: Cluster
    jobs: Sequence[Job]
    until: int | None = None
    seed: int = 0
    incidents: Sequence[Incident] = ()
    inputs: Sequence[Input] = ()
    execution: ExecutionModel = field(default_factory=ExactExecution)
    options: Mapping[str, object] = field(default_factory=dict)
    entry: Callable[[int], Mapping[str, Any]] | None = None

    @property
    def has_bags(self) -> bool:
        """Whether any job is a bag of tasks."""
        return any(job.bag is not None for job in self.jobs)

    def context(self, *, explained: bool = True) -> PolicyContext:
        """Return what a policy knows that knows the whole workload, as simulations allow.

        Parameters
        ----------
        explained : bool
            Whether its refusals are to say why.
        """
        return PolicyContext(
            cluster=self.cluster,
            known_jobs=self.jobs,
            until=self.until,
            seed=self.seed,
            explained=explained,
        )


def run_policy(
    scenario: Scenario,
    choice: PolicyChoice,
    *,
    stop: StopSign | None = None,
    at_once: bool = False,
) -> Run:
    """Build a policy, run a scenario under it, and keep everything about it.

    Parameters
    ----------
    scenario : Scenario
        What is run.
    choice : PolicyChoice
        Who decides.
    stop, at_once
        As of `record_run`.

    Raises
    ------
    InputError
        If the policy or a parameter is unknown.
    """
    policy = choice.build(scenario.context())
    return record_run(
        scenario,
        choice.label,
        policy,
        settings=choice.settings,
        origin=choice.origin,
        stop=stop,
        at_once=at_once,
    )


def record_run(
    scenario: Scenario,
    name: str,
    policy: Policy,
    *,
    settings: Mapping[str, Any] | None = None,
    origin: Mapping[str, object] | None = None,
    observers: Sequence[Observer] = (),
    progress: RunProgress | None = None,
    stop: StopSign | None = None,
    at_once: bool = False,
) -> Run:
    """Run a scenario under a policy and keep everything about it.

    Parameters
    ----------
    scenario : Scenario
        What is run.
    name : str
        Name of the policy.
    policy : Policy
        The policy, freshly built.
    settings : mapping, optional
        The settings that it was built with.
    observers : sequence of Observer
        Who else looks on.
    progress : callable, optional
        Called with (jobs arrived, jobs in all, slot) now and then.
    stop : StopSign, optional
        What stops it early; by default Ctrl-C does.
    at_once : bool
        Whether jobs are answered as by a service; see `Simulation`.

    Returns
    -------
    Run
        The run. On Ctrl-C what was done until then, with ``info["partial"]`` set.
    """
    recorder = Recorder(scenario.cluster, scenario.jobs, policy)
    simulation = Simulation(
        cluster=scenario.cluster,
        jobs=scenario.jobs,
        policy=policy,
        until=scenario.until,
        execution=scenario.execution,
        incidents=scenario.incidents,
        seed=scenario.seed,
        at_once=at_once,
    )
    partial = False
    before, began = preparing.seconds, working_time()
    with stop_sign() if stop is None else nullcontext(stop) as sign:
        try:
            simulation.run((recorder, *observers, sign), progress)
        except KeyboardInterrupt:
            partial = True
    wall, prepared = working_time() - began, preparing.seconds - before
    circumstances = Circumstances(
        name, scenario.seed, scenario.until, scenario.inputs, settings, scenario.options, origin
    )
    return collect(recorder, policy, circumstances, wall, prepared, partial=partial)

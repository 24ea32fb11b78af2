"""Scenarios, and recorded runs of them under a policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from shadowprice.core.cluster import Cluster
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.job import Job
from shadowprice.core.policy import Policy, PolicyContext
from shadowprice.core.relative_values import RELATIVE, STATED, check_values
from shadowprice.kernels.stopwatch import preparing, working_time
from shadowprice.policies.choice import PolicyChoice
from shadowprice.results.observer import Observer
from shadowprice.results.recorder import Recorder
from shadowprice.results.run_builder import RunContext, RunInput, build_run
from shadowprice.results.run_directory import RunData
from shadowprice.simulator.driver import Incident, ProgressCallback, Simulation
from shadowprice.simulator.execution import ExactExecution, ExecutionModel
from shadowprice.simulator.interrupt import StopRequestObserver, stop_on_signal
from shadowprice.simulator.lengths import KNOWN, LIMITS, HiddenLengths


def command_option(name: str) -> str:
    """Return the command option that sets an input, as its location in errors."""
    return f"--{name.replace('_', '-')}"


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything that determines a run, except the policy."""

    cluster: Cluster
    """The servers."""
    jobs: Sequence[Job]
    """Jobs in file order."""
    until: int | None = None
    """End of the timespan T."""
    seed: int = 0
    """Seed of the policy and of the durations of tasks."""
    incidents: Sequence[Incident] = ()
    """Lost and returned servers, and cancelled jobs."""
    inputs: Sequence[RunInput] = ()
    """Records of the files from which it was read."""
    execution: ExecutionModel = field(default_factory=ExactExecution)
    """Speed of placed jobs."""
    options: Mapping[str, object] = field(default_factory=dict)
    """Options with which the files were read."""
    entry: Callable[[int], Mapping[str, Any]] | None = None
    """Function that returns the job at an index as its file writes it; None without a file."""
    work_limits: Mapping[str, int] = field(default_factory=dict)
    """Progress units that time limits allow, by name of the jobs that have a limit."""
    drawn: Sequence[str] = ()
    """Parts of the workload that were drawn with the seed, because its files lack them."""
    lengths: str = KNOWN
    """Lengths that policies see: one of `shadowprice.simulator.lengths.LENGTHS`."""
    values: str = STATED
    """Meaning of jobs' values: one of `shadowprice.core.relative_values.VALUE_MODES`."""
    locate: Callable[[str], str] = command_option
    """Function that returns the location of an input in errors, by the input's name."""

    def with_lengths(self, lengths: str) -> Scenario:
        """Return the scenario with other lengths shown to policies.

        Raises `InputError` if ``lengths`` is `LIMITS`, but no job has a time limit.
        """
        if lengths == KNOWN:
            return self
        if lengths == LIMITS and not self.work_limits:
            problem = f"{LIMITS!r} needs jobs with a time limit, but none has one"
            raise InputError(Fault(self.locate("lengths"), problem, "write 'unknown'"))
        return replace(self, lengths=lengths, options={**self.options, "lengths": lengths})

    def with_values(self, values: str) -> Scenario:
        """Return the scenario with stated values, or values relative to those of the same tenant.

        Raises `InputError` if ``values`` is unknown, or `RELATIVE` while lengths are hidden.
        """
        check_values(values, self.locate("values"))
        if values == STATED:
            return self
        if self.lengths != KNOWN:
            lengths = f"{self.locate('lengths')} {self.lengths}"
            problem = f"{values!r} needs known lengths, got {lengths}"
            raise InputError(Fault(self.locate("values"), problem, "leave out one of the two"))
        return replace(self, values=values, options={**self.options, "values": values})

    @property
    def hidden_lengths(self) -> HiddenLengths | None:
        """Lengths that the policy sees instead of the true lengths; None if it sees the latter."""
        if self.lengths == KNOWN:
            return None
        shows_limits = self.lengths == LIMITS
        limits = self.work_limits if shows_limits else {}
        return HiddenLengths(self.cluster, limits, shows_limits=shows_limits)

    def context(self, *, explained: bool = True) -> PolicyContext:
        """Return the context from which a policy is built.

        The policy may know all jobs in advance, unless lengths are hidden or values are relative.
        ``explained`` requests reasons of refusals.
        """
        return PolicyContext(
            cluster=self.cluster,
            known_jobs=self.jobs if self.lengths == KNOWN and self.values == STATED else None,
            until=self.until,
            seed=self.seed,
            explained=explained,
        )

    def simulation(self, policy: Policy) -> Simulation:
        """Return the simulation of the scenario under a freshly built policy."""
        return Simulation(
            cluster=self.cluster,
            jobs=self.jobs,
            policy=policy,
            until=self.until,
            execution=self.execution,
            incidents=self.incidents,
            seed=self.seed,
            hidden_lengths=self.hidden_lengths,
            relative_values=self.values == RELATIVE,
        )


def run_policy(
    scenario: Scenario,
    choice: PolicyChoice,
    *,
    stop: StopRequestObserver | None = None,
) -> RunData:
    """Build a policy, run a scenario under it, and record everything about it; see `record_run`."""
    policy = choice.build(scenario.context())
    return record_run(
        scenario,
        choice.label,
        policy,
        settings=choice.settings,
        origin=choice.origin,
        stop=stop,
    )


def record_run(
    scenario: Scenario,
    name: str,
    policy: Policy,
    *,
    settings: Mapping[str, Any] | None = None,
    origin: Mapping[str, object] | None = None,
    observers: Sequence[Observer] = (),
    progress: ProgressCallback | None = None,
    stop: StopRequestObserver | None = None,
    at_once: bool = False,
) -> RunData:
    """Run a scenario under a freshly built policy, and record everything about it.

    ``name`` is the policy's label. ``settings`` are those that it was built with. ``origin`` is the
    source of a policy from outside the package. ``progress`` is called with (jobs arrived, jobs in
    total, slot) at intervals. ``at_once`` decides jobs as a service does; see `Simulation`.

    By default Ctrl-C stops the run. The result is then the run so far, with ``info["partial"]``.
    """
    recorder = Recorder(scenario.cluster, scenario.jobs, policy)
    simulation = replace(scenario.simulation(policy), at_once=at_once)
    partial = False
    prepared_before, start = preparing.seconds, working_time()
    with stop_on_signal() if stop is None else nullcontext(stop) as stopper:
        try:
            simulation.run((recorder, *observers, stopper), progress)
        except KeyboardInterrupt:
            partial = True
    wall, prepared = working_time() - start, preparing.seconds - prepared_before
    circumstances = RunContext(
        name, scenario.seed, scenario.until, scenario.inputs, settings, scenario.options, origin
    )
    return build_run(recorder, policy, circumstances, wall, prepared, partial=partial)


def random_draws(scenario: Scenario, choices: Sequence[PolicyChoice]) -> list[str]:
    """Return descriptions of all random draws: of the workload's, then of the policies'."""
    by_policy: dict[str, list[str]] = {}
    for choice in choices:
        if text := choice.parameters().random_draws_text(scenario.jobs):
            by_policy.setdefault(text, []).append(choice.label)
    policies = [f"{text} under {', '.join(labels)}" for text, labels in by_policy.items()]
    return [*scenario.drawn, *policies]

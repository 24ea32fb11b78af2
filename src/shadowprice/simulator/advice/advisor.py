"""Search for the changes that would have admitted refused jobs."""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

from shadowprice.advice.candidate_changes import (
    JobChange,
    JobFileRecord,
    arrival_change,
    candidate_changes,
    format_value,
)
from shadowprice.advice.changes import (
    PROBES_WHEN_MAX_REFUSED,
    AdmissionOutcome,
    ChangeSearch,
    JobVariants,
    NoStepFound,
    SearchResult,
    StepFn,
    StepFound,
    describe_result,
    find_smallest_step,
    is_size,
)
from shadowprice.core import bounds
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.job import Job
from shadowprice.core.policy import Policy
from shadowprice.policies.choice import PolicyChoice
from shadowprice.policies.pricing.constants import ContributionCache, use_cache
from shadowprice.results.advice import (
    Advice,
    IneffectiveChange,
    JobAdvice,
    outcomes_with_advice,
)
from shadowprice.results.run_directory import RunData
from shadowprice.simulator.advice.moments import DecisionPoint, Probe, Rerun, run_probes
from shadowprice.simulator.advice.retracing import DecisionCache
from shadowprice.simulator.interrupt import StopRequestObserver
from shadowprice.simulator.scenario import Scenario

MAX_ARRIVALS: Final = 20_000
"""Arrivals replayed for one job, if changes must be verified by running again."""

# An estimate needs a slope of log(price / utility) over log(utility) below the negative of this.
_MAX_SLOPE: Final = 0.01
_MAX_EXPONENT: Final = 700.0  # largest number whose exponential is finite

_CONSECUTIVE_DELAYS: Final = 100
"""Number of delays that are queried one by one: slot by slot up to 100 slots."""
_MAX_GAP_DIVISOR: Final = 6
"""Beyond these delays, the gap between queried slots is at most the delay divided by this."""

_GROUP_SECONDS: Final = 2.0
"""Maximum seconds that a group of jobs should take, or twice the first job's seconds if more.

Advice can exceed its time limit, and delay a stop, by the time of one group."""


class _TooExpensiveError(Exception):
    """Verifying one more change would take too long."""


def advise(
    scenario: Scenario,
    choice: PolicyChoice,
    position: int,
    entry: JobFileRecord,
    *,
    max_arrivals: int = MAX_ARRIVALS,
) -> JobAdvice:
    """Return the changes that would have admitted a refused job.

    Every change is verified. If the policy decides on arrival, it is queried again at the job's
    arrival, after replaying the run to that point. The whole run is repeated if the change affects
    the policy's initial parameters (such as price constants), or if the decision comes later.

    ``position`` is the job's index in the scenario, and ``entry`` its record in the file.
    ``max_arrivals`` limits the cost of verification, in arrivals replayed; changes beyond it are
    left out. Each change is minimal to 1 %. Raises `InputError` if the job isn't refused again,
    because the scenario isn't that of the run.
    """
    (job_advice,) = advise_together(scenario, choice, {position: entry}, max_arrivals=max_arrivals)
    if isinstance(job_advice, InputError):
        raise job_advice
    return job_advice


def advise_together(
    scenario: Scenario,
    choice: PolicyChoice,
    entries: Mapping[int, JobFileRecord],
    *,
    max_arrivals: int = MAX_ARRIVALS,
    cache: DecisionCache | None = None,
) -> list[JobAdvice | InputError]:
    """Return the changes that would have admitted each of several refused jobs, in order.

    As `advise`, but the run is repeated once for all jobs if refused jobs don't change what the
    policy does (`Capabilities.forgets_refused`). ``entries`` are the records by index, and
    ``cache`` has decisions of earlier advice on the scenario. A result is an error if the job
    isn't refused again.
    """
    if not entries:
        return []
    cache = cache or DecisionCache(scenario)
    with use_cache(ContributionCache(next(iter(entries), 0), cache.contributions)):
        policy = choice.build(scenario.context())
    capabilities = policy.capabilities
    advisors = [
        _Advisor(scenario, choice, position, entry, max_arrivals, cache)
        for position, entry in entries.items()
    ]
    if not (capabilities.quotes and capabilities.answers_at_once):
        for advisor in advisors:
            advisor.run()
    elif one_replay_suffices(policy):
        _query_policy(scenario, advisors, cache, foresees=capabilities.foresees)
    else:
        for advisor in advisors:
            _query_policy(scenario, [advisor], cache, foresees=capabilities.foresees)
    return [
        advisor.job_advice() if advisor.error is None else advisor.error for advisor in advisors
    ]


def add_advice(
    run: RunData,
    scenario: Scenario,
    choice: PolicyChoice,
    *,
    seconds: float,
    progress: Callable[[int, int], None] | None = None,
    stop: StopRequestObserver | None = None,
) -> RunData:
    """Return a run with advice on its refused jobs, and on dropped ones that were never admitted.

    The scenario must have its jobs' records. No group of jobs starts after ``seconds``, but a
    started group is completed. ``progress`` is called with (processed jobs, jobs in total). A
    first ``stop`` request ends the search after the current group, a second one immediately.

    ``info["advice"]`` has the numbers of ``refused`` (or dropped) jobs and of those that are
    ``advised``, and the allowed ``seconds``.
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
        # A group of jobs repeats the run once, which may take long. So larger groups are more
        # efficient, but their time is limited.
        group_took = time.monotonic() - group_start
        group_seconds = max(group_seconds, 2.0 * group_took) if group_size == 1 else group_seconds
        if in_groups and 2.0 * group_took <= group_seconds:
            group_size *= 2
    counts = {"refused": refused.height, "advised": len(advice), "seconds": seconds}
    return replace(run, info={**run.info, "advice": counts}, advice=advice)


def one_replay_suffices(policy: Policy) -> bool:
    """Return whether one repeated run suffices for all refused jobs.

    It does if refused jobs don't affect other decisions, and the policy quotes and decides at once.
    """
    capabilities = policy.capabilities
    return capabilities.forgets_refused and capabilities.quotes and capabilities.answers_at_once


def _query_policy(
    scenario: Scenario, advisors: Sequence[_Advisor], cache: DecisionCache, *, foresees: bool
) -> None:
    """Query the policy again at the arrivals of the jobs, and at later decision points."""
    policy = advisors[0].policy()
    for advisor in advisors:
        advisor.begin(policy, foresees=foresees)
    run_probes(scenario, policy, [advisor.probe() for advisor in advisors], cache)
    # The job could be admitted earlier, in a slot that was skipped.
    skipped = [
        probe for advisor in advisors if (probe := advisor.skipped_slots_probe()) is not None
    ]
    if skipped:
        run_probes(scenario, advisors[0].policy(), skipped, cache)
    for advisor in advisors:
        advisor.finish()


def _break_even_step(values: Sequence[float], gaps: Mapping[int, tuple[float, float]]) -> int:
    """Return the first step at which a job's utility should exceed its price; 0 if unknown.

    The price may rise with the utility. The model price / utility = c * utility ** slope is fitted
    to the two steps whose ratios are nearest to 1. With only one step, the price is constant.
    """
    nearest = sorted(
        (abs(math.log(price / utility)), step, math.log(price / utility))
        for step, (utility, price) in gaps.items()
        if utility > 0 and price > 0
    )[:2]
    if not nearest:
        return 0
    _, step, gap = nearest[0]
    log_value = math.log(values[step - 1])
    slope = -1.0  # as long as prices don't change
    if len(nearest) == 2 and nearest[1][1] != step:
        _, other, other_gap = nearest[1]
        slope = (gap - other_gap) / (log_value - math.log(values[other - 1]))
    if slope >= -_MAX_SLOPE:
        return 0
    return bisect_right(values, math.exp(min(log_value - gap / slope, _MAX_EXPONENT))) + 1


class ArrivalDelaySearch:
    """Search for the smallest delay of a job's arrival with which it is admitted.

    Step n of the change is the n-th possible later slot. A run only goes forward, and queries in
    every slot of a long horizon would be most of the cost of advice. So some later slots are
    skipped. If the job is admitted in a slot after skipped ones, `skipped_steps` gives these for
    another run, so that the job is certainly refused one slot before the result. ``outcomes`` are
    the answers by step.
    """

    def __init__(self, variants: JobVariants, change: JobChange) -> None:
        self._variants = variants
        self._change = change
        self._slots = [int(value.split()[0]) for value in change.values]
        self._steps = {slot: step for step, slot in enumerate(self._slots, start=1)}
        self._first: Job | None = None  # the job at its first later arrival
        self.outcomes: dict[int, AdmissionOutcome | None] = {}

    def initial_steps(self) -> Sequence[int]:
        """Return the steps to query first, ascending; the last one is the maximum delay."""
        steps, step, last = [], 1, len(self._slots)
        while step < last:
            steps.append(step)
            step += 1 if step < _CONSECUTIVE_DELAYS else max(1, step // _MAX_GAP_DIVISOR)
        return [*steps, last] if last else []

    def slots(self, steps: Iterable[int]) -> list[int]:
        """Return the slots of some steps."""
        return [self._slots[step - 1] for step in steps]

    def visit(self, point: DecisionPoint) -> bool:
        """Query in a slot; return whether later slots matter."""
        step = self._steps[point.slot]
        job = self._job_from(step)
        self.outcomes[step] = None if job is None else point.quote(job)
        return self.outcomes[step] is None

    def _job_from(self, step: int) -> Job | None:
        """Return the job with a later arrival; built once, because only the arrival differs."""
        if self._first is None:
            self._first = self._variants.job(self._change, step)
        return None if self._first is None else replace(self._first, arrival=self._slots[step - 1])

    def skipped_steps(self) -> Sequence[int]:
        """Return the skipped steps right before the first admitted step."""
        result = self.smallest_delay()
        if isinstance(result, NoStepFound):
            return ()
        before = max((step for step in self.outcomes if step < result.step), default=0)
        return range(before + 1, result.step)

    def smallest_delay(self) -> StepFound[AdmissionOutcome] | NoStepFound:
        """Return the smallest queried step that is admitted."""
        for step, admission in sorted(self.outcomes.items()):
            if admission is not None:
                return StepFound(step, admission)
        return NoStepFound(len(self.outcomes))


class _Advisor:
    """Search for one refused job; ``error`` is set if the job isn't refused again."""

    def __init__(
        self,
        scenario: Scenario,
        choice: PolicyChoice,
        position: int,
        entry: JobFileRecord,
        max_arrivals: int,
        cache: DecisionCache,
    ) -> None:
        self._scenario = scenario
        self._choice = choice
        self._position = position
        self._max_arrivals = max_arrivals
        self._job = scenario.jobs[position]
        self._variants = JobVariants(entry, self._job, scenario.cluster)
        self._rerun = Rerun(scenario, choice, position, cache)
        self._results: list[Advice | IneffectiveChange | None] = []
        self._left_out: list[str] = []
        last = self._job.arrival + scenario.cluster.horizon
        if scenario.until is not None:  # after this slot, no server could complete it
            last = min(last, scenario.until - self._job.min_slots_colocated)
        self._later = arrival_change(self._job, last)  # the change to a later arrival
        self._delays = ArrivalDelaySearch(self._variants, self._later)
        self._initial_parameters: str | None = None  # None if the job set doesn't affect them
        self._unchanged_text = ""  # what the advice assumes to stay unchanged
        self.error: InputError | None = None

    # ------------------------------------------------------------ queries

    def policy(self) -> Policy:
        """Return a newly built policy that knows the original jobs."""
        policy = self._rerun.policy(self._job)
        assert policy is not None
        return policy

    def begin(self, policy: Policy, *, foresees: bool) -> None:
        """Record the policy's initial parameters, and whether the job set affects them."""
        self._initial_parameters = repr(policy.parameters_in_force()) if foresees else None

    def probe(self) -> Probe:
        """Return the probe for the arrival slot and later ones."""
        arrival, delays = self._job.arrival, self._delays

        def visit(point: DecisionPoint) -> bool:
            return delays.visit(point) if point.slot != arrival else self._query_changes(point)

        return Probe(self._position, [arrival, *delays.slots(delays.initial_steps())], visit)

    def skipped_slots_probe(self) -> Probe | None:
        """Return the probe for the slots that were skipped; None if none matters."""
        delays = self._delays
        slots = delays.slots(delays.skipped_steps())
        return Probe(self._position, slots, delays.visit) if slots else None

    def finish(self) -> None:
        """Record the result for a later arrival, after all decision points were visited."""
        if self.error is not None:
            return
        rerun_step, answers = None, self._delays.outcomes
        if self._initial_parameters is not None:
            rerun_step = self._rerun_step_fn(
                self._later,
                self._initial_parameters,
                answers.__getitem__,
                {},
                answers.__contains__,
            )
        self._record(self._later, self._delays.smallest_delay(), rerun_step)
        self._unchanged_text = (
            f"the reservations and prices of slot {self._job.arrival}, and the rest of the job's "
            "entry"
        )
        if self._initial_parameters is not None:
            self._unchanged_text = (
                "the rest of the job's entry and all other jobs; values that the policy computes "
                "from the job set, such as price constants, were computed again with each change"
            )

    def _query_changes(self, point: DecisionPoint) -> bool:
        """Query all changes except a later arrival; return whether to query later slots."""
        try:
            self._check_refused_again(point.quote(self._job))
        except InputError as error:
            self.error = error
            return False
        changes = [*self._candidates(point.end)]
        search = ChangeSearch(self._variants, changes, point.quote)
        for change in changes:
            self._verify(change, search.find(change), partial(search.answer, change))
        return True

    def _verify(self, change: JobChange, quoted: SearchResult, answer: StepFn) -> None:
        """Record the result of a change's queries at the arrival."""
        if self._initial_parameters is None:
            self._record(change, quoted, None)
            return
        # The change may also change the policy's parameters, and then the queries prove nothing.
        gaps: dict[int, tuple[float, float]] = {}
        is_number = change.kind == "value" and change.key[0] == "utility"
        estimate = partial(_break_even_step, change.values, gaps) if is_number else None
        rerun_step = self._rerun_step_fn(change, self._initial_parameters, answer, gaps)
        self._record(change, quoted, rerun_step, estimate)

    def _rerun_step_fn(
        self,
        change: JobChange,
        initial_parameters: str,
        answer: StepFn,
        gaps: dict[int, tuple[float, float]],
        was_queried: Callable[[int], bool] = lambda _: True,
    ) -> StepFn:
        """Return a function that evaluates a step with a policy built from the changed job set.

        If a step leaves all parameters unchanged, the policy decides on the other jobs as before.
        Then the step's ``answer`` at the decision point holds, if the step ``was_queried`` there.
        ``gaps`` receives the utility and the price of the job, by step.
        """

        def rerun_step(step: int) -> AdmissionOutcome | None:
            job = self._variants.job(change, step)
            if job is None:
                return None
            self._check_affordable()
            policy = self._rerun.policy(job)
            if policy is None:
                return None
            if was_queried(step) and repr(policy.parameters_in_force()) == initial_parameters:
                return answer(step)
            admission = self._rerun.quote(job, policy)
            if admission is not None and admission.utility and admission.price:
                gaps[step] = admission.utility, admission.price
            elif admission is None and self._rerun.price_refusal is not None:
                gaps[step] = self._rerun.price_refusal
            return admission

        return rerun_step

    def _record(
        self,
        change: JobChange,
        quoted: SearchResult,
        rerun_step: StepFn | None,
        estimate: Callable[[], int] | None = None,
    ) -> None:
        """Record the result of the queries, or of a search with ``rerun_step`` if that is given."""
        if rerun_step is None:
            self._results.append(describe_result(change, quoted, verified="quoted"))
            return
        start = quoted.step if isinstance(quoted, StepFound) else 0
        try:
            steps = len(change.values)
            result = find_smallest_step(rerun_step, steps, start, evenly=0, estimate=estimate)
        except _TooExpensiveError:
            self._left_out.append(change.label)
            return
        at_quoted_prices = None
        if isinstance(quoted, NoStepFound) and isinstance(result, StepFound):
            at_quoted_prices = "nothing"
        elif isinstance(quoted, StepFound) and result != quoted:
            at_quoted_prices = format_value(change.values[quoted.step - 1])
        self._results.append(
            describe_result(change, result, verified="run", at_quoted_prices=at_quoted_prices)
        )

    # ------------------------------------------------------------ running again

    def run(self) -> None:
        """Run everything again with each change."""
        try:
            self._check_refused_again(self._rerun.quote(self._job))
        except InputError as error:
            self.error = error
            return
        end = self._scenario.until
        if end is None:
            end = self._job.arrival + self._scenario.cluster.horizon
        changes = [*self._candidates(end)]
        search = ChangeSearch(self._variants, changes, self._affordable_quote)
        with suppress(_TooExpensiveError):
            _ = search.is_smallest_refused  # cached; if True, no change of size needs a run
        for change in (*changes, self._later):
            # A smaller request never hurts. The largest step of another change may be refused while
            # smaller ones are admitted: the last slot, or one worker, leaves the least time.
            evenly = 0 if is_size(change) else PROBES_WHEN_MAX_REFUSED
            try:
                result = search.find(change, evenly)
            except _TooExpensiveError:
                self._left_out.append(change.label)
            else:
                self._results.append(describe_result(change, result, verified="run"))
        self._unchanged_text = (
            "the rest of the job's entry and all other jobs; another run verified each change"
        )

    # ------------------------------------------------------------ both

    def _candidates(self, end: int) -> Iterator[JobChange]:
        return candidate_changes(self._variants.entry, self._job, self._scenario.cluster, end)

    def _check_refused_again(self, admission: AdmissionOutcome | None) -> None:
        if admission is not None:
            raise InputError(
                Fault(
                    f"job {self._job.name!r}",
                    "is admitted when the run is repeated",
                    "another version made the run, or its files have changed; run it again",
                )
            )

    def _check_affordable(self) -> None:
        if self._rerun.arrivals + self._rerun.repeated_arrivals >= self._max_arrivals:
            raise _TooExpensiveError

    def _affordable_quote(self, job: Job) -> AdmissionOutcome | None:
        self._check_affordable()
        return self._rerun.quote(job)

    def job_advice(self) -> JobAdvice:
        """Return all results."""
        advice = [result for result in self._results if isinstance(result, Advice)]
        ineffective = [result for result in self._results if isinstance(result, IneffectiveChange)]
        name, arrival = self._job.name, self._job.arrival
        return JobAdvice(name, arrival, self._unchanged_text, advice, ineffective, self._left_out)

"""Search for the changes that would have admitted a job."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from shadowprice.advice.changes import (
    AdmissionOutcome,
    SearchResult,
    StepFn,
    describe_result,
    is_size,
    is_smallest_refused,
    search_changes,
    step_of_work,
)
from shadowprice.advice.search import (
    PROBES_WHEN_MAX_REFUSED,
    NoStepFound,
    StepFound,
    find_smallest_step,
)
from shadowprice.advice.variants import JobVariants
from shadowprice.advice.ways import (
    JobChange,
    JobFileRecord,
    arrival_change,
    candidate_changes,
    format_value,
)
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.policy import Policy
from shadowprice.policies.choice import PolicyChoice
from shadowprice.policies.pricing.measures import ContributionCache, use_cache
from shadowprice.results.advice import Advice, IneffectiveChange, JobAdvice
from shadowprice.simulator.advice.delays import ArrivalDelaySearch
from shadowprice.simulator.advice.moments import DecisionPoint, Probe, Rerun, run_probes
from shadowprice.simulator.advice.retracing import DecisionCache
from shadowprice.simulator.scenario import Scenario

MAX_ARRIVALS: Final = 20_000
"""Arrivals replayed for one job, if changes must be verified by running again."""

_MAX_SLOPE: Final = 0.01  # slope of price over utility from which on a higher utility doesn't help
_MAX_EXPONENT: Final = 700.0  # largest number whose exponential is finite


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

    Every change is verified. A policy that answers at once is queried again, at the prices at which
    it refused the job; the run is repeated up to that point. Everything is run again with the
    change if another job set changes the policy from the start (such as price constants over all
    jobs), or if its final answer comes later.

    ``position`` is the job's index in the scenario, and ``entry`` its record in the file.
    ``max_arrivals`` limits the cost of verification, in arrivals replayed; changes beyond it are
    left out. Each change is minimal to 1 %. Raises `InputError` if the job isn't refused again,
    because the scenario is another one.
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
    known: DecisionCache | None = None,
) -> list[JobAdvice | InputError]:
    """Return the changes that would have admitted each of several refused jobs, in order.

    As `advise`, but the run is repeated once for all jobs if refused jobs don't change what the
    policy does (`Capabilities.forgets_refused`). ``entries`` are the records by index, and
    ``known`` caches decisions of earlier advice on the scenario. A result is an error if the job
    isn't refused again.
    """
    if not entries:
        return []
    known = known or DecisionCache(scenario)
    with use_cache(ContributionCache(next(iter(entries), 0), known.measures)):
        policy = choice.build(scenario.context())
    capabilities = policy.capabilities
    advisors = [
        _Advisor(scenario, choice, position, entry, max_arrivals, known)
        for position, entry in entries.items()
    ]
    if not (capabilities.quotes and capabilities.answers_at_once):
        for advisor in advisors:
            advisor.run()
    elif one_replay_suffices(policy):
        _query_policy(scenario, advisors, known, foresees=capabilities.foresees)
    else:
        for advisor in advisors:
            _query_policy(scenario, [advisor], known, foresees=capabilities.foresees)
    return [
        advisor.job_advice() if advisor.error is None else advisor.error for advisor in advisors
    ]


def one_replay_suffices(policy: Policy) -> bool:
    """Return whether one repeated run suffices for all refused jobs, which then don't affect it."""
    capabilities = policy.capabilities
    return capabilities.forgets_refused and capabilities.quotes and capabilities.answers_at_once


def _query_policy(
    scenario: Scenario, advisors: Sequence[_Advisor], known: DecisionCache, *, foresees: bool
) -> None:
    """Query the policy again at the arrivals of the jobs, and at later decision points."""
    policy = advisors[0].policy()
    for advisor in advisors:
        advisor.begin(policy, foresees=foresees)
    run_probes(scenario, policy, [advisor.visitor() for advisor in advisors], known)
    # The job could be admitted earlier, in a slot that was skipped.
    skipped = [
        visitor for advisor in advisors if (visitor := advisor.visitor_between()) is not None
    ]
    if skipped:
        run_probes(scenario, advisors[0].policy(), skipped, known)
    for advisor in advisors:
        advisor.finish()


@dataclass(frozen=True, slots=True)
class _Outcome:
    """Result of one kind of change."""

    way: JobChange
    found: SearchResult
    verified: str
    at_those_prices: str | None = None


def _break_even_step(values: Sequence[float], gaps: Mapping[int, tuple[float, float]]) -> int:
    """Return the step at which a job's utility would equal its price; 0 if unknown.

    The price rises with the utility if prices depend on it. Their ratio is taken as a power of the
    utility, through the two steps with ratios nearest to 1.
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


class _Advisor:
    """Search for one refused job; ``error`` says that the job isn't refused again."""

    def __init__(
        self,
        scenario: Scenario,
        choice: PolicyChoice,
        position: int,
        entry: JobFileRecord,
        max_arrivals: int,
        known: DecisionCache,
    ) -> None:
        self._scenario = scenario
        self._choice = choice
        self._position = position
        self._most = max_arrivals
        self._job = scenario.jobs[position]
        self._variants = JobVariants(entry, self._job, scenario.cluster)
        self._rerun = Rerun(scenario, choice, position, known)
        self._outcomes: list[_Outcome] = []
        self._left_out: list[str] = []
        last = self._job.arrival + scenario.cluster.horizon
        if scenario.until is not None:  # from then on no server could complete it
            last = min(last, scenario.until - self._job.min_slots_colocated)
        self._later = arrival_change(self._job, last)
        self._delays = ArrivalDelaySearch(self._variants, self._later)
        self._in_force: str | None = None
        self._held = ""
        self.error: InputError | None = None

    # ------------------------------------------------------------ queries

    def policy(self) -> Policy:
        """Return a newly built policy that knows the original jobs."""
        policy = self._rerun.policy(self._job)
        assert policy is not None
        return policy

    def begin(self, policy: Policy, *, foresees: bool) -> None:
        """Record the policy's initial parameters, and whether the job set affects them."""
        self._in_force = repr(policy.parameters_in_force()) if foresees else None

    def visitor(self) -> Probe:
        """Return the probe for the arrival slot and later ones."""
        arrival, delays = self._job.arrival, self._delays

        def visit(moment: DecisionPoint) -> bool:
            return delays.visit(moment) if moment.slot != arrival else self._query_changes(moment)

        return Probe(self._position, [arrival, *delays.slots(delays.spread())], visit)

    def visitor_between(self) -> Probe | None:
        """Return the probe for the slots that were skipped; None if none matters."""
        delays = self._delays
        slots = delays.slots(delays.between())
        return Probe(self._position, slots, delays.visit) if slots else None

    def finish(self) -> None:
        """Evaluate later arrivals, once all answers are there."""
        if self.error is not None:
            return
        true_result = (
            None
            if self._in_force is None
            else self._true_results_later(self._in_force, self._delays)
        )
        self._record(self._later, self._delays.found(), true_result)
        self._held = (
            f"the reservations and prices of slot {self._job.arrival}, and the rest of the job's "
            "entry"
        )
        if self._in_force is not None:
            self._held = (
                "the rest of the job's entry and all other jobs; values that the policy computes "
                "from the job set, such as price constants, were computed again with each change"
            )

    def _query_changes(self, moment: DecisionPoint) -> bool:
        """Query all changes except a later arrival; return whether to query later slots."""
        try:
            self._check(moment.quote(self._job))
        except InputError as error:
            self.error = error
            return False
        ways = [*self._ways(moment.end)]
        for way, result, answer in search_changes(self._variants, ways, moment.quote):
            self._verify(way, result, answer)
        return True

    def _verify(self, way: JobChange, quoted: SearchResult, answer: StepFn) -> None:
        """Record the result of a change's queries at the arrival.

        If the change also changes the policy's parameters, these queries prove nothing, and the
        policy is run with them.
        """
        if self._in_force is None:
            self._record(way, quoted, None)
            return
        gaps: dict[int, tuple[float, float]] = {}
        is_number = way.name == "value" and way.key[0] == "utility"
        aim = partial(_break_even_step, way.values, gaps) if is_number else None
        self._record(way, quoted, self._true_results(way, self._in_force, answer, gaps), aim)

    def _true_results(
        self,
        way: JobChange,
        in_force: str,
        answer: StepFn,
        gaps: dict[int, tuple[float, float]],
        answered: Callable[[int], bool] = lambda _: True,
    ) -> StepFn:
        """Return a function that gives a step's true result if the policy knows the job set.

        As long as the change leaves all parameters unchanged, the policy decides on the other jobs
        as before, and its answer at the decision point holds if it was queried there. ``gaps``
        receives the utility and the price of the job, by step.
        """

        def true_result(step: int) -> AdmissionOutcome | None:
            job = self._variants.job(way, step)
            if job is None:
                return None
            self._check_affordable()
            policy = self._rerun.policy(job)
            if policy is None:
                return None
            if answered(step) and repr(policy.parameters_in_force()) == in_force:
                return answer(step)
            admission = self._rerun.quote(job, policy)
            if admission is not None and admission.utility and admission.price:
                gaps[step] = admission.utility, admission.price
            elif admission is None and self._rerun.short is not None:
                gaps[step] = self._rerun.short
            return admission

        return true_result

    def _true_results_later(self, in_force: str, delays: ArrivalDelaySearch) -> StepFn:
        answers = delays.outcomes
        return self._true_results(
            self._later, in_force, answers.__getitem__, {}, answers.__contains__
        )

    def _record(
        self,
        way: JobChange,
        quoted: SearchResult,
        true_result: StepFn | None,
        aim: Callable[[], int] | None = None,
    ) -> None:
        """Record the result of the queries; verify it with ``true_result`` if it may differ."""
        if true_result is None:
            self._outcomes.append(_Outcome(way, quoted, "quoted"))
            return
        start = quoted.step if isinstance(quoted, StepFound) else 0
        try:
            result = find_smallest_step(true_result, len(way.values), start, evenly=0, aim=aim)
        except _TooExpensiveError:
            self._left_out.append(way.label)
            return
        at_those_prices = None
        if isinstance(quoted, NoStepFound) and isinstance(result, StepFound):
            at_those_prices = "nothing"
        elif isinstance(quoted, StepFound) and result != quoted:
            at_those_prices = format_value(way.values[quoted.step - 1])
        self._outcomes.append(_Outcome(way, result, "run", at_those_prices))

    # ------------------------------------------------------------ running again

    def run(self) -> None:
        """Run everything again with each change."""
        try:
            self._check(self._rerun.quote(self._job))
        except InputError as error:
            self.error = error
            return
        end = self._scenario.until
        if end is None:
            end = self._job.arrival + self._scenario.cluster.horizon
        work = 0.0
        ways = [*self._ways(end)]
        smaller_fails = self._affordable and is_smallest_refused(
            self._variants, ways, self._rerun.quote
        )
        for way in (*ways, self._later):

            def true_result(step: int, way: JobChange = way) -> AdmissionOutcome | None:
                job = self._variants.job(way, step)
                if job is None:
                    return None
                self._check_affordable()
                return self._rerun.quote(job)

            found: SearchResult = NoStepFound(1)
            try:
                if not (smaller_fails and is_size(way)):
                    # A smaller request never hurts, but too large a step of another change may: in
                    # the last slot, or with one worker, there is least time.
                    evenly = 0 if is_size(way) else PROBES_WHEN_MAX_REFUSED
                    start = step_of_work(way, work)
                    found = find_smallest_step(true_result, len(way.values), start, evenly=evenly)
            except _TooExpensiveError:
                self._left_out.append(way.label)
                continue
            self._outcomes.append(_Outcome(way, found, "run"))
            if way.key == ("epochs",) and isinstance(found, StepFound):
                work = way.values[found.step - 1] / int(way.before)
        self._held = (
            "the rest of the job's entry and all other jobs; all was run again with each change"
        )

    # ------------------------------------------------------------ both

    def _ways(self, end: int) -> Iterator[JobChange]:
        return candidate_changes(self._variants.entry, self._job, self._scenario.cluster, end)

    def _check(self, admission: AdmissionOutcome | None) -> None:
        if admission is not None:
            raise InputError(
                Fault(
                    f"job {self._job.name!r}",
                    "is admitted when the run is repeated",
                    "the run was made by another version, or of other files; run it again",
                )
            )

    @property
    def _affordable(self) -> bool:
        return self._rerun.arrivals + self._rerun.head < self._most

    def _check_affordable(self) -> None:
        if not self._affordable:
            raise _TooExpensiveError

    def job_advice(self) -> JobAdvice:
        """Return all results; of several keys that reduce the work, only the smallest change."""
        advice: list[Advice] = []
        ineffective: list[IneffectiveChange] = []
        for outcome in self._outcomes:
            described = describe_result(
                outcome.way,
                outcome.found,
                verified=outcome.verified,
                at_those_prices=outcome.at_those_prices,
            )
            if isinstance(described, Advice):
                advice.append(described)
            elif described is not None:
                ineffective.append(described)
        return JobAdvice(
            self._job.name, self._job.arrival, self._held, advice, ineffective, self._left_out
        )

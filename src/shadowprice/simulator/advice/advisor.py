"""Working out what would have had a job admitted, way by way."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from shadowprice.core.cluster import BANDWIDTH
from shadowprice.core.errors import Fault, InputError
from shadowprice.results.advice import Advice, Counsel, Hopeless
from shadowprice.simulator.advice.delays import Delays
from shadowprice.simulator.advice.moments import Admission, Moment, Rerun, visit_moments
from shadowprice.simulator.advice.search import EVENLY, Found, Nothing, smallest
from shadowprice.simulator.advice.variants import Variants
from shadowprice.simulator.advice.ways import Entry, Way, later, plain, ways_of
from shadowprice.simulator.scenario import Scenario, build_policy

MOST_ARRIVALS: Final = 20_000
"""Arrivals replayed for one job where changes must be verified by running again."""


class _TooDearError(Exception):
    """Verifying one more change would take too long."""


def advise(
    scenario: Scenario,
    name: str,
    settings: Mapping[str, Any],
    position: int,
    entry: Entry,
    *,
    most_arrivals: int = MOST_ARRIVALS,
) -> Counsel:
    """Return what would have had a refused job admitted.

    Every change is verified before it is advised. A policy that answers at once is asked again, at
    the prices of the moment at which it refused the job: the run is repeated up to there. Where
    another job set changes what the policy does from the beginning (price constants over all jobs,
    say), or where its last word comes later, everything is run again with the change.

    Parameters
    ----------
    scenario : Scenario
        What was run.
    name : str
        The policy.
    settings : mapping
        Its settings.
    position : int
        Position of the refused job among the scenario's.
    entry : mapping
        The job as its file writes it.
    most_arrivals : int
        What runs for verification may cost, in arrivals replayed; ways beyond are left out.

    Returns
    -------
    Counsel
        Changes, each as small as it can be to 1 %, and ways in which none helps.

    Raises
    ------
    InputError
        If the job is not refused when asked again: the scenario is another one.
    """
    advisor = _Advisor(scenario, name, settings, position, entry, most_arrivals)
    can = build_policy(scenario, name, settings).capabilities
    if can.quotes and can.answers_at_once:
        advisor.ask(foresees=can.foresees)
    else:
        advisor.run()
    return advisor.counsel()


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What was found about a way."""

    way: Way
    found: Found[Admission] | Nothing
    verified: str
    at_those_prices: str | None = None


def _worth_its_price(way: Way, step: int, found: Admission) -> int:
    """Return the step at which a job is worth a little more than what an admitted one pays.

    Dinkelbach's step: a job that is worth so much would still do with the schedule of that one.
    """
    if not found.price or not found.utility:
        return step
    enough = way.values[step - 1] * found.price / found.utility
    return bisect_right(way.values, enough) + 1


class _Advisor:
    """One refused job, and what was found about it so far."""

    def __init__(
        self,
        scenario: Scenario,
        name: str,
        settings: Mapping[str, Any],
        position: int,
        entry: Entry,
        most_arrivals: int,
    ) -> None:
        self._scenario = scenario
        self._name = name
        self._settings = settings
        self._position = position
        self._most = most_arrivals
        self._job = scenario.jobs[position]
        self._variants = Variants(entry, self._job, scenario.cluster)
        self._rerun = Rerun(scenario, name, settings, position)
        self._outcomes: list[_Outcome] = []
        self._left_out: list[str] = []
        last = self._job.arrival + scenario.cluster.horizon
        if scenario.until is not None:
            last = min(last, scenario.until - 1)
        self._later = later(self._job, last)
        self._held = ""

    # ------------------------------------------------------------ asking again

    def ask(self, *, foresees: bool) -> None:
        """Ask the policy again at the moment of the arrival, and at later ones."""
        policy = self._rerun.policy(self._job)
        assert policy is not None
        in_force = repr(policy.parameters_in_force())
        arrival = self._job.arrival
        delays = Delays(self._variants, self._later)

        def visit(moment: Moment) -> bool:
            if moment.slot == arrival:
                self._check(moment.ask(self._job))
                ways = [*self._ways(moment.end)]
                in_vain = self._smaller_in_vain(ways, moment)
                work = 0.0  # part of the work with which it was admitted
                for way in ways:
                    if in_vain and way.name == "size" and way.key[-1] != BANDWIDTH:
                        self._outcomes.append(_Outcome(way, Nothing(1), "asked"))
                        continue
                    start = 0
                    if way.key == ("minibatches",) and work:
                        start = sum(value > work * int(way.before) for value in way.values) + 1
                    asked = self._ask_about(way, moment, in_force if foresees else None, start)
                    if way.key == ("epochs",) and isinstance(asked, Found):
                        work = way.values[asked.step - 1] / int(way.before)
                return True
            return delays.visit(moment)

        slots = [arrival, *delays.slots(delays.spread())]
        visit_moments(self._scenario, policy, self._position, slots, visit)
        if between := delays.between():
            # It could be taken in earlier, in a slot that was passed over.
            again = self._rerun.policy(self._job)
            assert again is not None
            slots = delays.slots(between)
            visit_moments(self._scenario, again, self._position, slots, delays.visit)
        fate = self._later_true(in_force, delays) if foresees else None
        self._keep(self._later, delays.found(), fate)
        self._held = (
            f"the reservations and prices that it met in slot {arrival}, and the rest of its entry"
        )
        if foresees:
            self._held = (
                "the rest of its entry and all other jobs; what the policy works out from the job "
                "set, such as price constants, was worked out again with each change"
            )

    def _smaller_in_vain(self, ways: list[Way], moment: Moment) -> bool:
        """Whether the job is refused even with the least of everything that it asks for."""
        least = self._variants.least([way for way in ways if way.name == "size"])
        return least is None or moment.ask(least) is None

    def _ask_about(
        self, way: Way, moment: Moment, in_force: str | None, start: int
    ) -> Found[Admission] | Nothing:
        def answer(step: int) -> Admission | None:
            job = self._variants.job(way, step)
            return None if job is None else moment.ask(job)

        guess = partial(_worth_its_price, way) if way.name == "value" else None
        asked = smallest(answer, len(way.values), start, guess=guess)
        self._keep(way, asked, None if in_force is None else self._true(way, in_force, answer))
        return asked

    def _true(
        self,
        way: Way,
        in_force: str,
        answer: Callable[[int], Admission | None],
        answered: Callable[[int], bool] = lambda _: True,
    ) -> Callable[[int], Admission | None]:
        """Return what tells a step's fate where the policy knows the job set.

        As long as the change leaves all its parameters as they were, the policy decides on the
        other jobs as it did, and its answer at the moment holds, where it was asked there.
        """

        def fate(step: int) -> Admission | None:
            job = self._variants.job(way, step)
            if job is None:
                return None
            self._afford()
            policy = self._rerun.policy(job)
            if policy is None:
                return None
            if answered(step) and repr(policy.parameters_in_force()) == in_force:
                return answer(step)
            return self._rerun.ask(job, policy)

        return fate

    def _later_true(self, in_force: str, delays: Delays) -> Callable[[int], Admission | None]:
        return self._true(self._later, in_force, delays.told.__getitem__, delays.told.__contains__)

    def _keep(
        self,
        way: Way,
        asked: Found[Admission] | Nothing,
        fate: Callable[[int], Admission | None] | None,
    ) -> None:
        """Keep what was found by asking; where ``fate`` may tell another story, what that finds."""
        if fate is None:
            self._outcomes.append(_Outcome(way, asked, "asked"))
            return
        start = asked.step if isinstance(asked, Found) else 0
        try:
            found = smallest(fate, len(way.values), start, evenly=0)
        except _TooDearError:
            self._left_out.append(way.label)
            return
        text = None
        if isinstance(asked, Nothing) and isinstance(found, Found):
            text = "nothing"
        elif isinstance(asked, Found) and found != asked:
            text = plain(way.values[asked.step - 1])
        self._outcomes.append(_Outcome(way, found, "run", text))

    # ------------------------------------------------------------ running again

    def run(self) -> None:
        """Run everything again with each change."""
        self._check(self._rerun.ask(self._job))
        end = self._scenario.until
        if end is None:
            end = self._job.arrival + self._scenario.cluster.horizon
        for way in (*self._ways(end), self._later):

            def fate(step: int, way: Way = way) -> Admission | None:
                job = self._variants.job(way, step)
                if job is None:
                    return None
                self._afford()
                return self._rerun.ask(job)

            try:
                found = smallest(fate, len(way.values), evenly=EVENLY // 4)
            except _TooDearError:
                self._left_out.append(way.label)
            else:
                self._outcomes.append(_Outcome(way, found, "run"))
        self._held = (
            "the rest of its entry and all other jobs; everything was run again with each change"
        )

    # ------------------------------------------------------------ both

    def _ways(self, end: int) -> Iterator[Way]:
        return ways_of(self._variants.entry, self._job, self._scenario.cluster, end)

    def _check(self, admission: Admission | None) -> None:
        if admission is not None:
            raise InputError(
                Fault(
                    f"job {self._job.name!r}",
                    "is admitted when the run is repeated",
                    "the run was made by another version, or of other files; run it again",
                )
            )

    def _afford(self) -> None:
        if self._rerun.arrivals + self._position >= self._most:
            raise _TooDearError

    def counsel(self) -> Counsel:
        """Return all that was found; of several keys that shorten the work, the gentlest."""
        advice, hopeless = [], []
        for outcome in self._outcomes:
            way, found = outcome.way, outcome.found
            if isinstance(found, Nothing):
                if way.values:
                    up_to = plain(way.values[-1])
                    hopeless.append(Hopeless(way.name, way.label, up_to, found.tried))
                continue
            value = way.values[found.step - 1]
            advice.append(
                Advice(
                    way=way.name,
                    key=way.label,
                    before=way.before,
                    after=plain(value),
                    change=way.change(value),
                    refused=way.before if found.step == 1 else plain(way.values[found.step - 2]),
                    completion=found.answer.completion,
                    utility=found.answer.utility,
                    price=found.answer.price,
                    verified=outcome.verified,
                    at_those_prices=outcome.at_those_prices,
                )
            )
        return Counsel(
            self._job.name, self._job.arrival, self._held, advice, hopeless, self._left_out
        )

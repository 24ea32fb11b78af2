"""Audits of a policy: whether misreports pay for a tenant, and whether sharing the cluster does.

A tenant can misreport its jobs in several ways. Its true revenue is computed from the true jobs, as
utility minus payments.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from itertools import islice
from typing import Any, Final

import numpy as np

from shadowprice.core import bounds, utility
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.events import Charge, Command, Decided, DriverEvent, SlotEnded
from shadowprice.core.job import Job
from shadowprice.core.schedule import Placement
from shadowprice.policies.choice import PolicyChoice
from shadowprice.results.accounts import MICRO, TenantAccount, compute_tenant_accounts
from shadowprice.results.observer import Observer
from shadowprice.simulator.execution import ExecutionModel
from shadowprice.simulator.scenario import Scenario, run_policy

MISREPORT_KINDS: Final = (
    "workers", "work", "less work", "split", "value", "urgency", "arrival", "several", "sham",
)  # fmt: skip
"""Kinds of misreports, those of demands first."""

MisreportFn = Callable[[Job], "ReportedJob | None"]
"""Function that misstates a job; it returns None if the job has no such property."""

_MAX_LISTED: Final = 3  # maximum number of single misreports that a mixture's description lists
_MIXTURE_SHARE: Final = 0.5  # mean share of a tenant's jobs that a mixture misreports
_FACTORS: Final = (0.1, 0.25, 0.5, 0.8, 1.25, 2.0, 4.0, 10.0)
_URGENCY_PARAMETERS: Final[Mapping[type, tuple[str, ...]]] = {
    utility.Sigmoid: ("decay", "target"),
    utility.Linear: ("slope",),
    utility.Power: ("exponent",),
    utility.Deadline: ("by",),
}
"""Parameters that determine the cost of waiting."""


@dataclass(frozen=True, slots=True)
class ReportedJob:
    """The reported version of a misreported job."""

    jobs: tuple[Job, ...]  # the misreported job, or the parts into which it is split
    need: int  # total progress of these jobs at which the true job is done
    max_slot_progress: int | None = None
    """Maximum progress that counts per slot, because parallel parts aren't faster than the job."""
    pace: Fraction = Fraction(1)
    """True progress in a slot, over the declared progress. It is below 1 if the work was
    understated, and above 1 if the throughput was understated."""

    @classmethod
    def of(cls, reported: Job, truth: Job) -> ReportedJob:
        """Return a single reported job, which is done at the progress that the true job needs."""
        return cls((reported,), truth.required)


@dataclass(frozen=True, slots=True)
class Misreport:
    """A workload with one tenant's jobs misreported."""

    kind: str  # one of `MISREPORT_KINDS`
    description: str  # description of the misreport for people
    jobs: tuple[Job, ...]  # jobs that the policy sees
    reported: Mapping[str, ReportedJob] = field(default_factory=dict)
    """Report of each misreported job, by its true name."""

    def execution(self, true: ExecutionModel) -> ExecutionModel:
        """Return the execution of the reported jobs: they take their true time."""
        paces = {
            job.name: report.pace
            for report in self.reported.values()
            for job in report.jobs
            if report.pace != 1
        }
        return TrueSpeedExecution(paces, true) if paces else true


class TrueSpeedExecution:
    """Execution of jobs that progress faster or slower than reported.

    ``paces`` are ratios of true to declared progress, by job. ``true`` is the execution of true
    reports.
    """

    def __init__(self, paces: Mapping[str, Fraction], true: ExecutionModel) -> None:
        self._paces, self._true = paces, true

    def progress(self, job: Job, placement: Placement, slot: int, *, moved: bool = False) -> int:
        """Return the progress at the job's pace, rounded up."""
        gain = self._true.progress(job, placement, slot, moved=moved)
        return math.ceil(gain * self._paces.get(job.name, 1))


class TrueRevenue(Observer):
    """Computes the true revenue of a tenant in a run with misreported jobs.

    A job is done in the slot in which its progress, or the sum over its parts, reaches
    `ReportedJob.need`. It earns its true utility, counted from its true arrival. Payments are those
    of the policy. ``truth`` are the tenant's true jobs; ``reported`` are the misreports, by the
    true job's name.
    """

    def __init__(
        self,
        truth: Mapping[str, Job],
        tenant: str,
        reported: Mapping[str, ReportedJob] | None = None,
    ) -> None:
        self._truth = truth
        self._tenant = tenant
        self._reports = {
            name: (reported or {}).get(name) or ReportedJob.of(job, job)
            for name, job in truth.items()
        }
        self._owner = {
            part.name: name for name, report in self._reports.items() for part in report.jobs
        }
        self._progress = dict.fromkeys(truth, 0)
        self.done: dict[str, int] = {}  # slot in which each true job is done
        self.balance = 0  # received minus paid amounts, in millionths of a utility unit

    def on_event(self, event: DriverEvent, commands: Sequence[Command]) -> None:
        """Record progress and payments."""
        if isinstance(event, SlotEnded):
            gained: Counter[str] = Counter()
            for part, progress in event.progress.items():
                if part in self._owner:
                    gained[self._owner[part]] += progress
            for name, progress in gained.items():
                report = self._reports[name]
                self._progress[name] += min(progress, report.max_slot_progress or progress)
                if self._progress[name] >= report.need and name not in self.done:
                    self.done[name] = event.slot
        for command in commands:
            if isinstance(command, Decided) and isinstance(command.decision, Charge):
                charge = command.decision
                amount = sum(charge.amounts.values())
                if charge.payer == self._tenant:
                    self.balance -= amount
                if charge.payee == self._tenant:
                    self.balance += amount

    @property
    def utility(self) -> float:
        """True utility of the jobs that are truly done."""
        return sum(
            utility.utility_value(self._truth[name].utility, slot - self._truth[name].arrival)
            for name, slot in self.done.items()
        )

    @property
    def revenue(self) -> float:
        """Utility, minus payments, plus income."""
        return self.utility + self.balance / MICRO


def misreports(
    jobs: Sequence[Job], tenant: str, trials: int, seed: int, latest: int
) -> Iterator[Misreport]:
    """Yield up to ``trials`` workloads with misreports by a tenant.

    First all its jobs are misreported in one way, then single jobs, then random mixtures. The seed
    determines the order of single jobs and the mixtures. ``latest`` is the maximum delay of an
    arrival in slots.
    """
    rng = np.random.default_rng(seed)
    own = [index for index, job in enumerate(jobs) if job.tenant == tenant]
    statements = [
        (kind, description, _reports(jobs, own, misstate))
        for kind, description, misstate in _misstatements(latest)
    ]
    all_jobs = [
        build_misreport(kind, f"all jobs: {description}", jobs, reports)
        for kind, description, reports in statements
        if reports
    ]
    singles = [
        build_misreport(kind, f"{jobs[index].name}: {description}", jobs, {index: reports[index]})
        for index in own
        for kind, description, reports in statements
        if index in reports
    ]
    for index in own:
        sham = replace(jobs[index], name=f"{jobs[index].name}+sham")
        description = f"{jobs[index].name}: a copy of it that is worth nothing"
        singles.append(Misreport("sham", description, (*jobs, sham)))
    singles = [singles[index] for index in rng.permutation(len(singles))]
    # A third of the trials for each of the three, if there are enough.
    third = trials // 3
    chosen = [*all_jobs[:third], *singles[: max(third, trials - third - len(all_jobs[:third]))]]
    yield from chosen[:trials]
    if all_jobs:  # otherwise no mixture could misreport a job
        yield from islice(_mixtures(jobs, own, statements, rng), max(0, trials - len(chosen)))


def _reports(
    jobs: Sequence[Job], own: Sequence[int], misstate: MisreportFn
) -> dict[int, ReportedJob]:
    """Return the misreports of one kind by index of the job, of the jobs that it changes."""
    return {index: report for index in own if (report := misstate(jobs[index])) is not None}


def _mixtures(
    jobs: Sequence[Job],
    own: Sequence[int],
    statements: Sequence[tuple[str, str, Mapping[int, ReportedJob]]],
    rng: np.random.Generator,
) -> Iterator[Misreport]:
    while True:
        reported: dict[int, ReportedJob] = {}
        descriptions = []
        for index in own:
            if rng.random() < _MIXTURE_SHARE:
                _, description, reports = statements[int(rng.integers(len(statements)))]
                if index in reports:
                    reported[index] = reports[index]
                    descriptions.append(f"{jobs[index].name}: {description}")
        if reported:
            unlisted = len(descriptions) - _MAX_LISTED
            more = f"; and {unlisted} more" if unlisted > 0 else ""
            shown = "; ".join(descriptions[:_MAX_LISTED]) + more
            yield build_misreport("several", shown, jobs, reported)


def build_misreport(
    kind: str, description: str, jobs: Sequence[Job], reported: Mapping[int, ReportedJob]
) -> Misreport:
    """Build a workload in which some jobs, by index, are replaced by their reports."""
    stated = [
        reported_job
        for index, job in enumerate(jobs)
        for reported_job in (reported[index].jobs if index in reported else (job,))
    ]
    return Misreport(
        kind,
        description,
        tuple(stated),
        {jobs[index].name: report for index, report in reported.items()},
    )


def _misstatements(latest: int) -> Iterator[tuple[str, str, MisreportFn]]:
    """Yield ways to misreport a job: kind, description and function."""
    # Demands come first, because Astraea's strategy-proofness is about them.
    for description, keeps in (
        ("one worker", lambda counts: counts == counts[0]),
        ("exactly its most workers", lambda counts: counts == counts[-1]),
        ("at most half its workers", lambda counts: counts <= counts[-1] // 2),
        ("at most a quarter of its workers", lambda counts: counts <= counts[-1] // 4),
        ("at least half its workers", lambda counts: counts >= counts[-1] // 2),
    ):
        yield "workers", description, partial(_restrict_worker_counts, keeps=keeps)
    for factor in (2.0, 1.5, 1.1):
        yield "work", f"{factor:g} times the work", partial(_overstate_work, factor=factor)
    for factor in (0.5, 0.75, 0.9):
        understate = partial(understate_work, factor=Fraction(str(factor)))
        yield "less work", f"{factor:g} times the work", understate
    for parts, fractions in ((2, "two halves"), (3, "three thirds")):
        for whole, worth in ((False, "its part"), (True, "all of it")):
            split = partial(split_job, parts=parts, whole=whole)
            yield "split", f"split into {fractions}, each worth {worth}", split
    for factor in _FACTORS:
        yield "value", f"worth {factor:g} times as much", partial(scale_value, factor=factor)
        urgency = partial(scale_urgency, factor=factor)
        yield "urgency", f"waiting costs {factor:g} times as much", urgency
    for delay in sorted({1, 2, 3, 5, 8, latest}):
        if 0 < delay <= latest:
            slots = "a slot" if delay == 1 else f"{delay} slots"
            yield "arrival", f"arrives {slots} later", partial(_delay, slots=delay)


def scale_value(job: Job, factor: float) -> ReportedJob | None:
    """Multiply a job's utility."""
    changed = _scale_utility(job, factor)
    return None if changed is None else ReportedJob.of(changed, job)


def _scale_utility(job: Job, factor: float) -> Job | None:
    """Return a job with its utility times a factor; None if that doesn't change the utility."""
    scaled = job.utility.scaled(factor)
    return None if scaled == job.utility else replace(job, utility=scaled)


def scale_urgency(job: Job, factor: float) -> ReportedJob | None:
    """Multiply a job's cost of waiting, and divide its target or deadline by the factor."""
    changes: dict[str, Any] = {
        name: getattr(job.utility, name) * (1 / factor if name in {"target", "by"} else factor)
        for name in _URGENCY_PARAMETERS.get(type(job.utility), ())
    }
    if not any(getattr(job.utility, name) != value for name, value in changes.items()):
        return None
    changed: utility.Utility = replace(job.utility, **changes)  # type: ignore[type-var]
    return ReportedJob.of(replace(job, utility=changed), job)


def _restrict_worker_counts(job: Job, keeps: Callable[[Any], Any]) -> ReportedJob | None:
    is_kept = keeps(job.worker_counts)
    if not is_kept.any() or is_kept.all():
        return None
    names = ("worker_counts", "gains", "internal_gains", "ps_counts")
    kept = {name: getattr(job, name)[is_kept] for name in names}
    return ReportedJob.of(replace(job, **kept), job)


def _overstate_work(job: Job, factor: float) -> ReportedJob | None:
    required = math.ceil(job.required * factor)
    if job.bag is not None or required >= bounds.PROGRESS.maximum:
        return None
    return ReportedJob.of(replace(job, required=required), job)


def understate_work(job: Job, factor: Fraction) -> ReportedJob | None:
    """Multiply a job's work by a factor below 1.

    The job isn't done at the end of its plan, and the policy has to plan the rest.
    """
    required = math.ceil(job.required * factor)
    if job.bag is not None or required >= job.required:
        return None
    return _with_pace(job, required)


def misstate_rate(job: Job, factor: Fraction) -> ReportedJob | None:
    """Multiply a job's stated throughput: its stated duration is divided by the factor."""
    required = math.ceil(job.required / factor)
    if job.bag is not None or not 0 < required < bounds.PROGRESS.maximum:
        return None
    return _with_pace(job, required)


def _with_pace(job: Job, required: int) -> ReportedJob:
    """Return a job with other stated work, whose pace is such that it takes its true time."""
    changed = replace(job, required=required)
    return ReportedJob((changed,), required, pace=Fraction(required, job.required))


def split_job(job: Job, parts: int, *, whole: bool) -> ReportedJob | None:
    """Submit a job in parts of equal work.

    The parts may run in parallel, but no faster than the job could. If ``whole``, each part states
    the job's whole value.
    """
    if job.bag is not None or job.required < parts:
        return None
    changed = job if whole else _scale_utility(job, 1 / parts)
    if changed is None:
        return None
    required = -(-job.required // parts)
    pieces = tuple(
        replace(changed, name=f"{job.name}+{index + 1}", required=required)
        for index in range(parts)
    )
    max_gain = int(max(job.gains.max(), job.internal_gains.max()))
    return ReportedJob(pieces, job.required, max_gain)


def _delay(job: Job, slots: int) -> ReportedJob:
    return ReportedJob.of(replace(job, arrival=job.arrival + slots), job)


Progress = Callable[[int, int], None]

EPSILON = 1e-6  # utility below which a gain is a rounding error


@dataclass(frozen=True, slots=True)
class MisreportGain:
    """Gain of a misreport."""

    misreport: Misreport
    revenue: float  # the tenant's true revenue with it
    utility: float  # the tenant's true utility with it
    gain: float  # this revenue minus that of honest reports


@dataclass(frozen=True, slots=True)
class TruthfulnessResult:
    """Gains of one tenant by misreports of its jobs, among those tried."""

    tenant: str
    honest_revenue: float  # revenue with the true report
    honest_utility: float  # utility with the true report
    trials: int  # number of misreports tried
    gained: Mapping[str, tuple[int, int]]
    """Number of misreports that gained, and number of those tried, by kind."""
    best: MisreportGain | None  # misreport with the largest gain; None if none gained

    def record(self) -> dict[str, object]:
        """Return the result as plain values."""
        best = self.best
        return {
            "tenant": self.tenant,
            "honest_revenue": self.honest_revenue,
            "honest_utility": self.honest_utility,
            "trials": self.trials,
            "gained": {
                kind: {"gained": won, "tried": tried} for kind, (won, tried) in self.gained.items()
            },
            "largest_gain": best.gain if best else 0.0,
            "misreport": None
            if best is None
            else {
                "kind": best.misreport.kind,
                "description": best.misreport.description,
                "revenue": best.revenue,
                "utility": best.utility,
            },
        }


def audit_truthfulness(
    scenario: Scenario,
    choice: PolicyChoice,
    *,
    tenants: Sequence[str] | None = None,
    trials: int = 200,
    latest: int = 8,
    progress: Progress | None = None,
) -> list[TruthfulnessResult]:
    """Run a workload repeatedly with one tenant's jobs misreported; return one result per tenant.

    By default every tenant with jobs is tried, with ``trials`` misreports each. ``latest`` is the
    maximum delay of an arrival in slots. ``progress`` is called with (runs done, runs in total).
    The gains found are real, but the search doesn't prove that no others exist. Raises `InputError`
    if a tenant has no jobs.
    """
    with_jobs = list(dict.fromkeys(job.tenant for job in scenario.jobs if job.tenant is not None))
    names = with_jobs if tenants is None else list(tenants)
    for name in names:
        if name not in with_jobs:
            listed = ", ".join(with_jobs) or "none"
            raise InputError(Fault("tenant", f"{name!r} has no jobs", f"with jobs: {listed}"))
    results = []
    done, total = 0, len(names) * (trials + 1)
    for name in names:
        truth = {job.name: job for job in scenario.jobs if job.tenant == name}
        stated = Misreport("", "", tuple(scenario.jobs))
        honest = _true_revenue(scenario, choice, stated, truth, name)
        best: MisreportGain | None = None
        won: Counter[str] = Counter()
        tried: Counter[str] = Counter()
        for misreport in misreports(scenario.jobs, name, trials, scenario.seed, latest):
            result = _true_revenue(scenario, choice, misreport, truth, name)
            gain = result.revenue - honest.revenue
            tried[misreport.kind] += 1
            won[misreport.kind] += gain > EPSILON
            if gain > (best.gain if best else EPSILON):
                best = MisreportGain(misreport, result.revenue, result.utility, gain)
            done += 1
            if progress is not None:
                progress(done, total)
        done += 1
        results.append(
            TruthfulnessResult(
                name,
                honest.revenue,
                honest.utility,
                sum(tried.values()),
                {kind: (won[kind], tried[kind]) for kind in MISREPORT_KINDS if kind in tried},
                best,
            )
        )
    return results


def _true_revenue(
    scenario: Scenario,
    choice: PolicyChoice,
    stated: Misreport,
    truth: Mapping[str, Job],
    tenant: str,
) -> TrueRevenue:
    reported = replace(scenario, jobs=stated.jobs, execution=stated.execution(scenario.execution))
    observer = TrueRevenue(truth, tenant, stated.reported)
    reported.simulation(choice.build(reported.context())).run([observer])
    return observer


@dataclass(frozen=True, slots=True)
class SharingIncentive:
    """Accounts of a tenant in the pool, and alone on servers of its share."""

    tenant: str
    pooled: TenantAccount  # under the policy
    alone: TenantAccount  # under ``batchsche``, which keeps tenants apart

    @property
    def utility_kept(self) -> bool:
        """Whether the jobs within its share earn at least as much as alone."""
        return self.pooled.earned_own >= self.alone.earned - EPSILON

    @property
    def revenue_kept(self) -> bool:
        """Whether its revenue is at least its revenue alone."""
        return self.pooled.revenue >= self.alone.revenue - EPSILON

    def record(self) -> dict[str, object]:
        """Return the result as plain values."""
        return {
            "tenant": self.tenant,
            "earned_in_share": self.pooled.earned_own,
            "earned": self.pooled.earned,
            "revenue": self.pooled.revenue,
            "alone": self.alone.earned,
            "utility_kept": self.utility_kept,
            "revenue_kept": self.revenue_kept,
        }


def audit_sharing(
    scenario: Scenario, choice: PolicyChoice, alone: Mapping[str, Any]
) -> list[SharingIncentive]:
    """Compare every tenant's accounts under a policy with its accounts alone on its share.

    ``alone`` are the parameters of ``batchsche``, which runs each tenant's jobs on its share only.
    """
    pooled = compute_tenant_accounts(run_policy(scenario, choice))
    apart = compute_tenant_accounts(run_policy(scenario, PolicyChoice("batchsche", alone)))
    return [
        SharingIncentive(name, account, apart.accounts[name])
        for name, account in pooled.accounts.items()
    ]

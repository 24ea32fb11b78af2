"""The protocol between policies and the engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.cluster import Cluster
from shadowprice.core.events import Decision, PolicyEvent
from shadowprice.core.job import Job
from shadowprice.core.ledger import LedgerView
from shadowprice.core.quote import Quote
from shadowprice.core.schedule import Placement, Schedule


class Status(Enum):
    """Lifecycle status of a job."""

    ARRIVED = "arrived"
    QUEUED = "queued"
    ADMITTED = "admitted"
    FINISHED = "finished"
    REFUSED = "refused"
    DROPPED = "dropped"
    CANCELLED = "cancelled"
    FAILED = "failed"

    def __init__(self, value: str) -> None:
        self.open: Final = value in ("arrived", "queued", "admitted")
        """Whether the job may still run."""


class JobState(Protocol):
    """A policy's view of a job."""

    @property
    def job(self) -> Job:
        """The job."""

    @property
    def status(self) -> Status:
        """Lifecycle status."""

    @property
    def progress(self) -> int:
        """Completed progress units, out of ``job.required``."""

    @property
    def remaining(self) -> int:
        """Progress units that remain."""

    @property
    def started(self) -> int | None:
        """First slot in which the job ran."""

    @property
    def generation_slot(self) -> int:
        """Slot in which the job's newest generation began."""

    @property
    def tasks_left(self) -> tuple[int, ...]:
        """Unfinished tasks of a bag, by group; empty for other jobs."""

    @property
    def copies_running(self) -> int:
        """Maximum number of running copies of a bag's unfinished tasks; 0 if it doesn't run."""

    @property
    def plan(self) -> Schedule:
        """Committed schedule, including past slots."""

    @property
    def promise(self) -> int | None:
        """Promised completion slot; None without a promise."""

    @property
    def placement(self) -> Placement | None:
        """Current placement, for policies that place slot by slot."""


class View(Protocol):
    """Read-only state that a policy decides on."""

    @property
    def slot(self) -> int:
        """The slot of the event: the first slot that can still be decided."""

    @property
    def cluster(self) -> Cluster:
        """The servers."""

    @property
    def ledger(self) -> LedgerView:
        """Reservations over the rolling window."""

    @property
    def end(self) -> int:
        """First slot that no plan may use: end of the window or of the timespan."""

    @property
    def until(self) -> int | None:
        """End of the timespan T, None if it is open."""

    @property
    def open_jobs(self) -> Mapping[str, JobState]:
        """Jobs that arrived and may still run, in order of arrival."""

    def is_lost(self, server: int) -> bool:
        """Return whether a server is unavailable for new work: lost, drained or cordoned."""

    @property
    def may_have_unstoppable_jobs(self) -> bool:
        """True if running jobs can be unstoppable; in simulations only on cordoned servers."""

    def is_unstoppable(self, job: str) -> bool:
        """Return whether a running job must keep its placement.

        It has no saved progress, or it runs on a cordoned server.
        """

    def running_placement(self, job: str) -> Placement | None:
        """Return a job's running placement, which it keeps unless another one is decided."""

    def runs(self, job: str) -> bool:
        """Return whether a job runs in an unfinished slot, so that its progress is incomplete."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Capabilities of a policy; the engine, drivers and reports query these instead of its name.

    If a capability stands for methods, a function returns the policy with their type:
    `as_priced_policy`, `as_holding_policy`, `as_quoting_policy`, `as_guaranteed_policy`.

    Parameters
    ----------
    plans_ahead : bool
        Commits future slots (`Commit`), so that the ledger keeps a full window.
    elastic : bool
        May change a job's worker count from slot to slot.
    charges : bool
        Emits payments between tenants.
    prices : bool
        Posts a price for every server and resource (`PricedPolicy`).
    wakes_every_slot : bool
        Needs `SlotBegan`. Other policies are only called when something changes.
    holds : bool
        Can compute for how many slots without events it will decide nothing (`HoldingPolicy`).
    local_traffic_is_free : bool
        Parameter servers only serve workers on other servers (Astraea (3i)). So the engine checks
        their number server by server, instead of by OASiS (6).
    runs_bags : bool
        Plans bags of tasks with copies. For other policies, the engine refuses bags.
    quotes : bool
        Can return its decision on a job without side effects (`QuotingPolicy`).
    guarantees : bool
        A theorem bounds its loss against the offline optimum (`GuaranteedPolicy`).
    forgets_refused : bool
        Forgets a job that it refused: the job doesn't influence any other decision.
    answers_at_once : bool
        The first decision on an arriving job is final: a job that is admitted or queued on arrival
        isn't refused later.
    foresees : bool
        Decisions depend on jobs that haven't arrived yet, which only a simulation knows. So a
        change of any job may change every decision.
    charges_restarts : bool
        Plans include the time that is lost when the placement changes (`Job.restart`), and the
        engine enforces that. Plans of other policies fall short by that time and are extended.
    window : int or None
        Number of slots, starting with the coming one, that plans may use; None for the horizon.
    patience : int or None
        Slots without running jobs or upcoming events after which a driver may conclude that queued
        jobs will never run; None for the horizon.
    """

    plans_ahead: bool = False
    elastic: bool = False
    charges: bool = False
    prices: bool = False
    wakes_every_slot: bool = False
    holds: bool = False
    local_traffic_is_free: bool = False
    runs_bags: bool = False
    quotes: bool = False
    guarantees: bool = False
    forgets_refused: bool = False
    answers_at_once: bool = True
    foresees: bool = False
    charges_restarts: bool = False
    window: int | None = None
    patience: int | None = None


class Policy(Protocol):
    """A scheduler: events in, decisions out.

    A policy reads no clock and does no I/O. It may keep caches and queues, provided that the same
    events give the same decisions.
    """

    @property
    def capabilities(self) -> Capabilities:
        """The policy's capabilities."""

    def decide(self, view: View, event: PolicyEvent) -> Iterable[Decision]:
        """Return decisions on an event.

        The engine applies each decision before it requests the next one. So a generator sees the
        ledger with its earlier decisions.
        """

    def resume(self, view: View) -> None:
        """Resync with the view, keeping learnt state that is still valid.

        Called when servers or shares changed, when a job was revised, and on a policy that missed
        events. Placements and plans stay in force. The policy makes its decisions on the next
        event.
        """

    def parameters_in_force(self) -> Mapping[str, object]:
        """Return all effective parameters, for ``run.json``."""


class PricedPolicy(Policy, Protocol):
    """A policy that posts prices."""

    def slot_prices(self, view: View) -> NDArray[np.float64]:
        """Return prices in ``view.slot``, shape (servers, resources).

        A price is the utility per slot for a server's whole amount of the resource; 0 if it has
        none. The call must not change the policy: drivers call it between any two events, for the
        slots of a query in any order.
        """


class HoldingPolicy(Policy, Protocol):
    """A policy that wakes in every slot, and can decide nothing for many slots at once."""

    def hold(self, view: View, progress: Mapping[str, int], slots: int) -> int:
        """Return for how many slots from ``view.slot`` on, at most ``slots``, nothing is decided.

        Each running job makes ``progress`` in each of these slots, none completes, and no other
        event comes. The policy is then in the state in which `SlotBegan` of each of the returned
        slots would leave it.
        """

    def held_prices(self, slots: range) -> NDArray[np.float64]:
        """Return `PricedPolicy.slot_prices` of slots that were just held, in one array.

        The shape is (slots, servers, resources). Only called if the policy posts prices.
        """


class QuotingPolicy(Policy, Protocol):
    """A policy that can quote jobs before they are submitted."""

    def quote(self, view: View, job: Job, *, explained: bool = False) -> Quote:
        """Return the decision on a job if it were the next to arrive, without side effects.

        The job isn't among ``view.open_jobs``, and arrives in ``view.slot`` or earlier. If
        ``explained``, a refusal includes its reason, which may double the cost.
        """


class GuaranteedPolicy(Policy, Protocol):
    """A policy with a theorem that bounds its loss against the offline optimum."""

    def guarantee(self, jobs: Sequence[Job]) -> Mapping[str, object]:
        """Return the theorem's ratio for all jobs that arrived, and whether its premise held."""


# The capabilities decide, not `isinstance`: a wrapper forwards capabilities but not methods.


def as_priced_policy(policy: Policy) -> PricedPolicy | None:
    """Return the policy as one that posts prices, None if it doesn't."""
    return cast(PricedPolicy, unwrap_policy(policy)) if policy.capabilities.prices else None


def as_holding_policy(policy: Policy) -> HoldingPolicy | None:
    """Return the policy as one that holds decisions, None if it doesn't."""
    return cast(HoldingPolicy, unwrap_policy(policy)) if policy.capabilities.holds else None


def as_quoting_policy(policy: Policy) -> QuotingPolicy | None:
    """Return the policy as one that gives quotes, None if it doesn't."""
    return cast(QuotingPolicy, unwrap_policy(policy)) if policy.capabilities.quotes else None


def as_guaranteed_policy(policy: Policy) -> GuaranteedPolicy | None:
    """Return the policy as one with a proven ratio, None if it has none."""
    return cast(GuaranteedPolicy, unwrap_policy(policy)) if policy.capabilities.guarantees else None


def unwrap_policy(policy: Policy) -> Policy:
    """Return the policy inside any wrappers, such as the one that times decisions."""
    while hasattr(policy, "wrapped_policy"):
        policy = policy.wrapped_policy
    return policy


def unavailable_server_rows(view: View) -> list[int]:
    """Return the rows of unavailable servers."""
    return [row for row in range(view.cluster.servers) if view.is_lost(row)]


@dataclass(frozen=True, slots=True)
class PolicyContext:
    """Information for building a policy.

    Parameters
    ----------
    known_jobs : sequence of Job or None
        All jobs of the workload, in a simulation; None in the live service.
    until : int or None
        End of the timespan T: nothing runs in slot T or later.
    itemised : bool
        Whether commitments include the cost of each slot.
    explained : bool
        Whether refusals include reasons. A reason costs as much as the decision, so simulations
        that only repeat decisions don't request it.
    end_moves : bool
        Whether the end of the timespan may move, as in a live service. If only the end keeps a job
        from completing, the job then waits instead of being dropped.
    """

    cluster: Cluster
    known_jobs: Sequence[Job] | None = None
    until: int | None = None
    seed: int = 0
    itemised: bool = False
    explained: bool = True
    end_moves: bool = False

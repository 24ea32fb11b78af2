"""The one protocol between policies and the engine."""

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
    """Where a job is in its life."""

    ARRIVED = "arrived"
    QUEUED = "queued"
    ADMITTED = "admitted"
    FINISHED = "finished"
    REFUSED = "refused"
    DROPPED = "dropped"
    CANCELLED = "cancelled"
    FAILED = "failed"

    def __init__(self, told: str) -> None:
        self.open: Final = told in ("arrived", "queued", "admitted")
        """Whether the job may still run."""


class JobState(Protocol):
    """What a policy sees of a job."""

    @property
    def job(self) -> Job:
        """The job itself."""
        ...

    @property
    def status(self) -> Status:
        """Where it is in its life."""
        ...

    @property
    def progress(self) -> int:
        """Progress units made so far, out of ``job.required``."""
        ...

    @property
    def remaining(self) -> int:
        """Progress units still to make."""
        ...

    @property
    def started(self) -> int | None:
        """First slot in which it ran."""
        ...

    @property
    def generation_slot(self) -> int:
        """Slot in which its newest placement began."""
        ...

    @property
    def tasks_left(self) -> tuple[int, ...]:
        """Tasks of a bag that are not finished, by group; empty for other jobs."""
        ...

    @property
    def copies_running(self) -> int:
        """Copies of a bag's unfinished tasks that it has places for, at most; 0 where none run."""
        ...

    @property
    def plan(self) -> Schedule:
        """Its committed schedule, past slots included."""
        ...

    @property
    def promise(self) -> int | None:
        """Slot by whose end it is promised to be complete, by a policy that promises."""
        ...

    @property
    def placement(self) -> Placement | None:
        """Where it stands until told otherwise, for policies that place slot by slot."""
        ...


class View(Protocol):
    """The read-only state that a policy decides on."""

    @property
    def slot(self) -> int:
        """The slot of the event: the first slot that can still be decided."""
        ...

    @property
    def cluster(self) -> Cluster:
        """The servers."""
        ...

    @property
    def ledger(self) -> LedgerView:
        """Reservations over the rolling window."""
        ...

    @property
    def end(self) -> int:
        """First slot that no plan may use: end of the window or of the timespan."""
        ...

    @property
    def until(self) -> int | None:
        """End of the timespan T, None where it is open."""
        ...

    @property
    def open_jobs(self) -> Mapping[str, JobState]:
        """Jobs that arrived and may still run, in order of arrival."""
        ...

    def lost(self, server: int) -> bool:
        """Whether a server is out."""
        ...

    def pinned(self, job: str) -> bool:
        """Whether what runs of a job must keep its placement, because it has saved nothing."""
        ...

    def running(self, job: str) -> Placement | None:
        """Return the placement that a job runs in, and keeps unless another one is decided."""
        ...

    def runs(self, job: str) -> bool:
        """Whether a slot is under way in which a job runs: not all that it yields is counted."""
        ...


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a policy does; engine, drivers and reports ask this, never its name.

    What stands for methods has a function that returns the policy with them: `priced`, `quoting`,
    `guaranteed`.

    Parameters
    ----------
    plans_ahead : bool
        Commits the future (`Commit`), so the ledger keeps a full window.
    elastic : bool
        May change a job's number of workers from slot to slot.
    charges : bool
        Issues payments between tenants.
    prices : bool
        Offers a price for every server and resource (`PricedPolicy`).
    wakes_every_slot : bool
        Wants `SlotBegan`; others are only called when something changes.
    local_traffic_is_free : bool
        Parameter servers serve the workers on other servers alone (Astraea (3i)), so their number
        is checked against these, server by server, instead of OASiS (6).
    runs_bags : bool
        Plans bags of tasks, with copies; the engine refuses them for every other policy.
    quotes : bool
        Answers what it would decide about a job, without a trace (`QuotingPolicy`).
    guarantees : bool
        A theorem bounds what it loses against the offline optimum (`GuaranteedPolicy`).
    forgets_refused : bool
        All is decided as it would be had the jobs that it refuses never come.
    answers_at_once : bool
        Its first word on an arriving job is its last: a job that it takes in on arrival is not
        refused later.
    foresees : bool
        What it decides now depends on jobs that have not arrived yet (known in a simulation
        only), so that another job file may change its decisions from the first one on.
    charges_restarts : bool
        Its plans complete the work with the time counted that is lost whenever the placement
        changes (`Job.restart`); the engine holds it to that. The plans of others fall short by what
        their moves cost, and are planned again.
    window : int or None
        Slots from the coming one on in which plans may lie; None: a horizon.
    patience : int or None
        Slots of standstill, nothing running and nothing to come, after which a driver may conclude
        that what is queued will never run; None: a horizon.
    """

    plans_ahead: bool = False
    elastic: bool = False
    charges: bool = False
    prices: bool = False
    wakes_every_slot: bool = False
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

    A policy keeps no clock and does no I/O. It may keep caches and queues of its own as long as the
    same events give the same decisions.
    """

    @property
    def capabilities(self) -> Capabilities:
        """What it does."""
        ...

    def decide(self, view: View, event: PolicyEvent) -> Iterable[Decision]:
        """Return decisions on an event.

        The engine applies each decision before it asks for the next one, so a generator sees the
        ledger with its earlier decisions in it.
        """
        ...

    def resume(self, view: View) -> None:
        """Begin anew on what the view shows, keeping what was learnt as far as it still holds.

        Called when servers or shares changed, when a job was revised, and on a policy that was not
        there when what the view shows was decided. What stands keeps standing, what is planned
        keeps its plan; decisions come with the next event.
        """
        ...

    def parameters_in_force(self) -> Mapping[str, object]:
        """Return every parameter in force, for ``run.json``."""
        ...


class PricedPolicy(Policy, Protocol):
    """A policy that posts prices."""

    def slot_prices(self, view: View) -> NDArray[np.float64]:
        """Return the price of each server's resources in ``view.slot``.

        Returns
        -------
        ndarray of float64, shape (servers, resources)
            Utility per slot for all of a server's resource; 0 where it has none.
        """
        ...


class QuotingPolicy(Policy, Protocol):
    """A policy that answers questions about jobs before they are submitted."""

    def quote(self, view: View, job: Job, *, explained: bool = False) -> Quote:
        """Return what would be decided about a job if it arrived now, as the next one.

        Asking leaves no trace: neither in the ledger nor in what the policy remembers, so that
        every later decision is the one it would have been.

        Parameters
        ----------
        view : View
            The state; the job is not among ``open_jobs``.
        job : Job
            The job, arriving in ``view.slot`` or before.
        explained : bool
            Whether a refusal is to carry its reason, which may cost as much again as the answer.
        """
        ...


class GuaranteedPolicy(Policy, Protocol):
    """A policy whose theorem bounds what it loses against the offline optimum."""

    def guarantee(self, jobs: Sequence[Job]) -> Mapping[str, object]:
        """Return the theorem's ratio over the jobs that arrived, and whether its premise held.

        Parameters
        ----------
        jobs : sequence of Job
            All that arrived.
        """
        ...


# What a policy may offer besides: it says so in its capabilities, and nothing else is asked.


def priced(policy: Policy) -> PricedPolicy | None:
    """Return a policy that posts prices, None if it posts none."""
    return cast(PricedPolicy, unwrapped(policy)) if policy.capabilities.prices else None


def quoting(policy: Policy) -> QuotingPolicy | None:
    """Return a policy that answers questions, None if it answers none."""
    return cast(QuotingPolicy, unwrapped(policy)) if policy.capabilities.quotes else None


def guaranteed(policy: Policy) -> GuaranteedPolicy | None:
    """Return a policy that a theorem is proved of, None if there is none."""
    return cast(GuaranteedPolicy, unwrapped(policy)) if policy.capabilities.guarantees else None


def unwrapped(policy: Policy) -> Policy:
    """Return the policy itself where it is wrapped, to be timed for instance."""
    while hasattr(policy, "wrapped_policy"):
        policy = policy.wrapped_policy
    return policy


def servers_out(view: View) -> list[int]:
    """Return the rows of the servers that are out."""
    return [row for row in range(view.cluster.servers) if view.lost(row)]


@dataclass(frozen=True, slots=True)
class PolicyContext:
    """What a policy may know when it is built.

    Parameters
    ----------
    cluster : Cluster
        The servers.
    known_jobs : sequence of Job or None
        The whole job set, where the driver knows it (a simulation); None live.
    until : int or None
        End of the timespan T.
    seed : int
        Seed of any randomness it draws.
    itemised : bool
        Whether commitments are to say what each of their slots costs.
    explained : bool
        Whether refusals are to say why. Who repeats a run only to ask a question needs no reasons,
        and finding them costs as much as deciding.
    end_moves : bool
        Whether the end of the timespan may move, as that of a live service: a job that it alone
        keeps from completing then waits instead of being dropped.
    """

    cluster: Cluster
    known_jobs: Sequence[Job] | None = None
    until: int | None = None
    seed: int = 0
    itemised: bool = False
    explained: bool = True
    end_moves: bool = False

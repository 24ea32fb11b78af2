"""Consulting the policy: each decision is validated, then applied."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, assert_never, get_args

import numpy as np
from numpy.typing import NDArray

from shadowprice.core.cluster import Cluster
from shadowprice.core.errors import OverbookingError, PolicyError
from shadowprice.core.events import (
    Charge,
    Command,
    Commit,
    Decided,
    Decision,
    Displace,
    Displaced,
    Drop,
    Pause,
    Place,
    PolicyEvent,
    Promise,
    Queue,
    Reject,
)
from shadowprice.core.policy import Policy, Status, unwrapped
from shadowprice.core.schedule import Schedule
from shadowprice.engine.bags import check_bag, check_copies
from shadowprice.engine.books import Books
from shadowprice.engine.memory import Kept, recall, remember
from shadowprice.engine.pinning import without_stops
from shadowprice.engine.state import JobRecord
from shadowprice.engine.validation import EmptyClusterCheck, check_commitment, check_placement
from shadowprice.engine.view import EngineView

Consultation = tuple[Decision, ...]
"""The policy's decisions on one event."""

_DECISIONS: Final = frozenset(get_args(Decision))


class Decider(Books):
    """Engine state that a policy's decisions change.

    Parameters
    ----------
    until : int or None
        End of the timespan T: nothing runs in slot T or later.
    acknowledges : bool
        Whether the driver acknowledges commands.
    keeps_memory : bool
        Whether to save the policy state before each event, so that a failed event leaves no trace
        in the policy. If not, the policy resyncs after a failed event.
    """

    def __init__(
        self,
        cluster: Cluster,
        policy: Policy,
        *,
        until: int | None,
        acknowledges: bool,
        keeps_memory: bool,
    ) -> None:
        capabilities = policy.capabilities
        window = capabilities.window or cluster.horizon
        super().__init__(
            cluster,
            window if capabilities.plans_ahead else 1,
            until,
            acknowledges=acknowledges,
        )
        self.policy = policy
        self.capabilities = capabilities
        self.keeps_memory = keeps_memory
        self._local_free = capabilities.local_traffic_is_free
        self._never_fits = EmptyClusterCheck(cluster, local_free=self._local_free)
        self._view = EngineView(self)
        self._memory: bytes | None = None
        self._kept: Kept | None = None
        self._asked = False
        self._absent = False
        self._script: Iterator[Consultation] | None = None
        self._consultations: list[Consultation] = []

    @property
    def view(self) -> EngineView:
        """Read-only view of the state for policies."""
        return self._view

    # ------------------------------------------------------------ consulting the policy

    def _query_policy(self, event: PolicyEvent) -> list[Command]:
        """Apply the policy's decisions on an event, or the recorded ones during replay."""
        commands: list[Command] = []
        applied: list[Decision] = []
        if self._script is not None:
            self._undo.assign(self, "_absent", True)
            decisions: Iterable[Decision] = next(self._script, ())
        else:
            self._asked = True
            decisions = self.policy.decide(self._view, event)
            if any(map(self.pinned, self.running)):
                decisions = without_stops(self, decisions)
        for decision in decisions:
            commands += self._apply(decision)
            applied.append(decision)
        self._consultations.append(tuple(applied))
        return commands

    def dump_policy_state(self) -> bytes:
        """Return the pickled policy state, to be stored with the event that led to it.

        Raises PolicyError if the policy holds objects that can't be pickled.
        """
        self._resync_policy_if_stale()
        if self._memory is None:
            self._memory = remember(self.policy, self._view)
        if not self.keeps_memory:
            self._kept = Kept.of(self._memory, self._view)
        return self._memory

    def load_policy_state(self, memory: bytes) -> None:
        """Restore the policy state that belongs to this engine state, after events were replayed.

        Raises ShadowpriceError if the policy state is damaged, of another version, or names jobs
        that aren't open.
        """
        self.ledger.advance_versions_past(self.sequence)
        recall(self.policy, memory, self._view)
        self._memory, self._absent = None, False
        if not self.keeps_memory:
            self._kept = Kept.of(memory, self._view)

    def begin_policy_anew(self) -> None:
        """Resync a policy that missed events with the current view."""
        try:
            self._resume_policy()
        except BaseException:
            # The policy's own state is undefined now: it resyncs before its next use.
            self._undo.rollback()
            self._asked, self._absent = False, True
            raise
        self._discard_saved_policy_state()
        self._undo.clear()

    def resync_policy(self) -> None:
        """Resync the policy with the state, within the event that it is deciding on."""
        unwrapped(self.policy).resume(self._view)

    def _resume_policy(self) -> None:
        """Resync the policy with the view, or mark it as out of sync during replay."""
        if self._script is not None:
            self._undo.assign(self, "_absent", True)
            return
        self._asked = True
        self._undo.assign(self, "_absent", False)
        unwrapped(self.policy).resume(self._view)

    def _resync_policy_if_stale(self) -> None:
        """Resync a policy that missed events; call it between two events."""
        if self._absent:
            self.begin_policy_anew()

    def _save_policy_state(self) -> None:
        """Save the policy state before an event, unless it is already saved.

        Saved before the event and not before the consultation, because the event's new jobs aren't
        open yet.
        """
        if self.keeps_memory and self._memory is None:
            self._memory = remember(self.policy, self._view)

    def _discard_saved_policy_state(self) -> None:
        """Discard the saved policy state after an event took effect.

        An enclosing unit of work keeps it for its rollback.
        """
        if self._asked:
            if self._held is not None:
                self._held.push(self._recall, self._memory)
            self._memory, self._asked = None, False

    def _rollback_policy_state(self) -> None:
        """Restore the policy state from before the event, or mark the policy for a resync."""
        consulted, self._asked = self._asked, False
        if consulted:
            self._recall(self._memory)

    def _recall(self, memory: bytes | None) -> None:
        """Restore the policy state of this engine state, if it was saved."""
        self._memory = memory
        if memory is not None:
            recall(self.policy, memory, self._view)
            self._absent = False
        else:
            if self._kept is not None:
                self._kept.recall(self.policy, self._view)
            self._absent = True  # the policy resyncs before its next use

    # ------------------------------------------------------------ applying decisions

    def _apply(self, decision: Decision) -> list[Command]:
        if isinstance(decision, Charge):
            self._check_charge(decision)
            return [Decided(self.slot, decision)]
        if type(decision) not in _DECISIONS:
            raise PolicyError(f"{decision!r} is no decision")
        record = self.open_jobs.get(decision.job)
        if record is None:
            closed = self.jobs.get(decision.job)
            story = f"job {decision.job!r} is unknown" if closed is None else closed.story()
            raise PolicyError(f"{story}: {decision.tag} came too late")
        if isinstance(decision, Displace):
            self._displace([decision.job])
            return [Displaced(self.slot, decision.job, decision.reason)]
        placement = self.running.get(decision.job)
        try:
            self._change(record, decision)
        except OverbookingError as error:
            raise PolicyError(f"{record.story()}: {error}") from error
        decided = Decided(self.slot, decision)
        if placement is not None and decision.job not in self.running:  # abandoned while it runs
            return [self._stop(self.slot, decision.job, placement, finished=False), decided]
        return [decided]

    def _change(self, record: JobRecord, decision: Decision) -> None:
        match decision:
            case Commit():
                self._commit(record, decision)
            case Place():
                self._place(record, decision)
            case Queue():
                self._queue(record)
            case Promise():
                self._promise(record, decision)
            case Pause():
                self._pause(record)
            case Reject():
                self._reject(record, decision)
            case Drop():
                self._drop(record, decision)
            case Charge() | Displace():
                pass  # handled in `_apply`
            case _:
                assert_never(decision)

    def _commit(self, record: JobRecord, decision: Commit) -> None:
        plan = decision.schedule
        if len(plan) and plan.start < self.slot:
            raise PolicyError(f"{record.story()}: planned for slot {plan.start}, which is over")
        if record.job.bag is None and not decision.copies:
            check_commitment(
                record,
                plan,
                self.cluster,
                self.end,
                moved=self._restarts(record, plan),
                local_free=self._local_free,
            )
        else:
            check_bag(record, plan, decision.copies, self.cluster, self.end)
        self._check_servers_available(record, plan.servers.tolist())
        job, undo = self._touch(record).job, self._undo
        self._let_go(job.name)
        self.ledger.reserve(job.name, plan, job.worker, job.ps)
        undo.push(self.ledger.undo_reserve, job.name)
        self.commitments += 1
        record.committed = self.commitments
        record.plans = record.plans + 1
        if decision.copies or record.copies:
            record.copies = decision.copies
            record.left = [entry.tasks for entry in decision.copies]
        for slot, placement in plan.placements():
            if slot not in self._agenda:
                undo.put(self._agenda, slot, {})
            undo.put(self._agenda[slot], job.name, placement)
        record.plan = plan
        record.status = Status.ADMITTED

    def _check_servers_available(self, record: JobRecord, servers: Iterable[int]) -> None:
        """Check that no lost or drained server is used.

        The ledger alone can't refuse these: a process may need no counted resource.
        """
        unavailable = self.lost.intersection(servers) if self.lost else None
        if unavailable:
            name = self.cluster.names[min(unavailable)]
            raise PolicyError(f"{record.story()}: put on {name!r}, which is lost or drained")

    def _restarts(self, record: JobRecord, plan: Schedule) -> NDArray[np.bool_] | None:
        """Return before which slots of a plan its job restarts, None if restarts cost nothing."""
        if not record.job.restart or not self.capabilities.charges_restarts or not len(plan):
            return None
        present = self.running.get(record.job.name) if plan.start == self.slot else None
        return plan.moved(present, ran=self.cluster.restart_first or record.started is not None)

    def _place(self, record: JobRecord, decision: Place) -> None:
        if len(record.plan):
            raise PolicyError(f"{record.story()}: placed, although it follows a plan")
        job = record.job
        if job.bag is not None or decision.copies:
            check_copies(record, decision, self.cluster, self.slot)
        else:
            check_placement(record, decision.placement, self.cluster, local_free=self._local_free)
        self._check_servers_available(record, decision.placement.servers)
        previous = record.placement
        self.ledger.stand(job.name, decision.placement, job.worker, job.ps)
        self._undo.push(self.ledger.undo_place, job.name, previous)
        self._touch(record).placement = decision.placement
        if decision.copies:
            record.plans = record.plans + 1
            record.copies = decision.copies
            record.left = [entry.tasks for entry in decision.copies]
        record.status = Status.ADMITTED
        self._move(job.name)

    def _pause(self, record: JobRecord) -> None:
        if record.placement is None:
            raise PolicyError(f"{record.story()}: paused, but it stands nowhere")
        self._let_go(record.job.name)

    def _queue(self, record: JobRecord) -> None:
        if record.status is Status.ARRIVED:
            self._touch(record).status = Status.QUEUED

    def _promise(self, record: JobRecord, decision: Promise) -> None:
        if len(record.plan):
            raise PolicyError(f"{record.story()}: promised, although it follows a plan")
        completion = decision.completion
        if completion is not None and completion < self.slot:
            raise PolicyError(f"{record.story()}: promised for slot {completion}, which is over")
        if completion is not None and self.until is not None and completion >= self.until:
            raise PolicyError(
                f"{record.story()}: promised for slot {completion}, but nothing runs in slot "
                f"{self.until} or later"
            )
        bag = record.job.bag
        if completion is not None and bag is not None:
            last = record.job.arrival + bag.slots - 1
            if completion > last:
                raise PolicyError(
                    f"{record.story()}: promised for slot {completion}, but its deadline falls in "
                    f"slot {last}"
                )
        if completion is None and record.promise is None:
            raise PolicyError(f"{record.story()}: a promise was taken back that was never given")
        self._touch(record).promise = completion
        if completion is not None:
            record.status = Status.ADMITTED
        elif record.placement is None:
            record.status = Status.QUEUED

    def _reject(self, record: JobRecord, decision: Reject) -> None:
        if record.status is Status.ADMITTED:
            raise PolicyError(f"{record.story()}: refused after it was admitted; drop it instead")
        closed = self._close(decision.job, Status.REFUSED)
        closed.refusal = decision.refusal

    def _drop(self, record: JobRecord, decision: Drop) -> None:
        closed = self._close(record.job.name, Status.DROPPED)
        closed.refusal = decision.refusal

    def _check_charge(self, charge: Charge) -> None:
        for tenant in (charge.payer, charge.payee):
            if tenant not in self.cluster.tenant_index:
                raise PolicyError(f"charge of job {charge.job!r}: unknown tenant {tenant!r}")
        if min(charge.amounts.values(), default=0) < 0:
            raise PolicyError(f"charge of job {charge.job!r} in slot {charge.slot} is negative")

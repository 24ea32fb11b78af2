"""Asking the policy, and putting its decisions into effect: each is checked, then applied."""

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
"""What the policy decided when it was asked once."""

_DECISIONS: Final = frozenset(get_args(Decision))


class Decider(Books):
    """Books that a policy's decisions change.

    Parameters
    ----------
    cluster : Cluster
        The servers.
    policy : Policy
        Who decides.
    until : int or None
        End of the timespan T.
    acknowledges : bool
        Whether the driver acknowledges commands.
    keeps_memory : bool
        Whether the policy's memory is kept before it is asked, so that an event that fails leaves
        no trace in it either. Without, a policy that can begins anew after such an event.
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
        """What policies see now."""
        return self._view

    # ------------------------------------------------------------ asking

    def _consult(self, event: PolicyEvent) -> list[Command]:
        """Put an event to the policy, or what was decided on it back then, into effect."""
        commands: list[Command] = []
        taken: list[Decision] = []
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
            taken.append(decision)
        self._consultations.append(tuple(taken))
        return commands

    def policy_memory(self) -> bytes:
        """Return the policy's memory, to be kept beside the event that it follows from.

        Raises
        ------
        PolicyError
            If the policy holds what cannot be kept.
        """
        self._bring_policy_back()
        if self._memory is None:
            self._memory = remember(self.policy, self._view)
        if not self.keeps_memory:
            self._kept = Kept.of(self._memory, self._view)
        return self._memory

    def recall_policy(self, memory: bytes) -> None:
        """Give the policy the memory that belongs to this state, after events it did not see.

        Raises
        ------
        ShadowpriceError
            If the memory is damaged, of another version, or speaks of jobs that are not open.
        """
        self.ledger.renumber(self.sequence)
        recall(self.policy, memory, self._view)
        self._memory, self._absent = None, False
        if not self.keeps_memory:
            self._kept = Kept.of(memory, self._view)

    def begin_policy_anew(self) -> None:
        """Let the policy begin anew on what it sees; for one that was not there so far."""
        try:
            self._resume_policy()
        except BaseException:
            # Who knows what it knows now: it begins anew before it is needed next.
            self._undo.roll_back()
            self._asked, self._absent = False, True
            raise
        self._settle_memory()
        self._undo.clear()

    def resync_policy(self) -> None:
        """Resync the policy with the state within the event that it decides on."""
        unwrapped(self.policy).resume(self._view)

    def _resume_policy(self) -> None:
        """Let the policy begin anew on what it sees, where it is there to see it."""
        if self._script is not None:
            self._undo.assign(self, "_absent", True)
            return
        self._asked = True
        self._undo.assign(self, "_absent", False)
        unwrapped(self.policy).resume(self._view)

    def _bring_policy_back(self) -> None:
        """Let a policy that does not know what happened begin anew, between two events."""
        if self._absent:
            self.begin_policy_anew()

    def _keep_memory(self) -> None:
        """Keep the policy's memory as it is before an event, where an older one does not tell it.

        Before, and not when the policy is asked: jobs that the event brings are not open yet.
        """
        if self.keeps_memory and self._memory is None:
            self._memory = remember(self.policy, self._view)

    def _settle_memory(self) -> None:
        """Forget the memory that was kept: the event took effect."""
        if self._asked:
            if self._held is not None:
                self._held.push(self._recall, self._memory)
            self._memory, self._asked = None, False

    def _give_memory_back(self) -> None:
        """Let the policy be as it was before it was asked, or begin anew with what it knew last."""
        asked, self._asked = self._asked, False
        if asked:
            self._recall(self._memory)

    def _recall(self, memory: bytes | None) -> None:
        """Give the policy back what it knew in this state, where that was kept."""
        self._memory = memory
        if memory is not None:
            recall(self.policy, memory, self._view)
            self._absent = False
        else:
            if self._kept is not None:
                self._kept.recall(self.policy, self._view)
            self._absent = True  # it begins anew before it is needed next

    # ------------------------------------------------------------ putting into effect

    def _apply(self, decision: Decision) -> list[Command]:
        if isinstance(decision, Charge):
            self._check_charge(decision)
            return [Decided(self.slot, decision)]
        if type(decision) not in _DECISIONS:
            raise PolicyError(f"{decision!r} is no decision")
        record = self.open_jobs.get(decision.job)
        if record is None:
            known = self.jobs.get(decision.job)
            story = f"job {decision.job!r} is unknown" if known is None else known.story()
            raise PolicyError(f"{story}: {decision.tag} came too late")
        if isinstance(decision, Displace):
            self._displace([decision.job])
            return [Displaced(self.slot, decision.job, decision.reason)]
        ran = self.running.get(decision.job)
        try:
            self._change(record, decision)
        except OverbookingError as error:
            raise PolicyError(f"{record.story()}: {error}") from error
        decided = Decided(self.slot, decision)
        if ran is not None and decision.job not in self.running:  # given up while it runs
            return [self._stop(self.slot, decision.job, ran, finished=False), decided]
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
                pass  # applied before
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
        self._check_there(record, plan.servers.tolist())
        job, undo = self._touch(record).job, self._undo
        self._let_go(job.name)
        self.ledger.reserve(job.name, plan, job.worker, job.ps)
        undo.push(self.ledger.unreserve, job.name)
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

    def _check_there(self, record: JobRecord, servers: Iterable[int]) -> None:
        """Check that nothing is put on a server that is out, even what takes nothing counted."""
        gone = self.lost.intersection(servers) if self.lost else None
        if gone:
            name = self.cluster.names[min(gone)]
            raise PolicyError(f"{record.story()}: put on {name!r}, which is lost or drained")

    def _restarts(self, record: JobRecord, plan: Schedule) -> NDArray[np.bool_] | None:
        """Return before which slots of a plan its job restarts, None where that costs nothing."""
        if not record.job.restart or not self.capabilities.charges_restarts or not len(plan):
            return None
        before = self.running.get(record.job.name) if plan.start == self.slot else None
        return plan.moved(before, ran=self.cluster.restart_first or record.started is not None)

    def _place(self, record: JobRecord, decision: Place) -> None:
        if len(record.plan):
            raise PolicyError(f"{record.story()}: placed, although it follows a plan")
        job = record.job
        if job.bag is not None or decision.copies:
            check_copies(record, decision, self.cluster, self.slot)
        else:
            check_placement(record, decision.placement, self.cluster, local_free=self._local_free)
        self._check_there(record, decision.placement.servers)
        before = record.placement
        self.ledger.stand(job.name, decision.placement, job.worker, job.ps)
        self._undo.push(self.ledger.unstand, job.name, before)
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

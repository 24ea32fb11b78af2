"""Keeps jobs equal to the `TrainingJob` resources of a cluster, and their status to the jobs.

By level, not by edge: whatever is named is compared with what the service knows, and the next step
towards agreement is made; every step may be made again. A resource gets its finalizer before its
job is submitted, and loses it after nothing of the job runs, so no job outlives its resource.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any, Final

from shadowprice.core.errors import InputError, ShadowpriceError
from shadowprice.core.owner import Owner
from shadowprice.executors.background import Background, all_of
from shadowprice.inputs.families import with_family
from shadowprice.kubernetes.conditions import Reason
from shadowprice.kubernetes.connection import IN_FLIGHT, Connection
from shadowprice.kubernetes.errors import ApiError, DeposedError
from shadowprice.kubernetes.informer import Informer
from shadowprice.kubernetes.names import DEFINITION, FINALIZER, PLURAL
from shadowprice.service.problems import ProblemError
from shadowprice.service.running.modes import user_fault
from shadowprice.service.service import Service
from shadowprice.service.trainingjobs.queue import WorkQueue
from shadowprice.service.trainingjobs.resource import ROUTE, Resource, edits
from shadowprice.service.trainingjobs.status import (
    Refused,
    Verdict,
    differs,
    patch_of,
    status_of,
    turns,
)
from shadowprice.service.trainingjobs.telling import Teller
from shadowprice.service.trainingjobs.tenancy import Tenancy
from shadowprice.service.truth import reading
from shadowprice.service.truth.operations import Cancel, Revise, Submit
from shadowprice.service.truth.outcome import Outcome
from shadowprice.service.truth.submission import NO_LIBRARY, read_submissions
from shadowprice.service.truth.views import JobView

log = logging.getLogger("shadowprice.service")

WORKERS: Final = IN_FLIGHT
"""Resources looked at at the same time: more would only wait for each other's requests."""

AGAIN: Final = 1.0
"""Seconds before what another leader wrote is looked at again."""

GOING: Final = 5.0
"""Seconds before a resource that goes is looked at again where nothing says that its job is quiet,
and its status says what keeps it; thousands may go at once, so it is no way to wait, and with more
than `GOING_A_SECOND` times so many it is later."""

GOING_A_SECOND: Final = 10.0
"""Such looks a second, of all resources together: they are to hold up nothing that ends a job."""

FIGURES: Final = 10.0
"""Seconds between two writes of a status in which only figures changed, at least."""

FIGURES_A_SECOND: Final = 10.0
"""Such writes a second, of all resources together: a slot may change the figures of thousands."""

UNTOLD: Final = 30.0
"""Seconds that a resource whose status tells nothing yet goes before others: as if it had been due
that long. What begins with a slot would have it wait for longer than people do."""

RETRY: Final = 5.0
"""Seconds before an API server without the definition is asked again."""


class Controller:
    """The operator's side of a service in Kubernetes.

    Parameters
    ----------
    service : Service
        Whose jobs they become; it writes.
    connection : Connection
        To the API server.
    epoch : int
        Number of this leader: higher than that of all before it.
    leads : callable
        Whether this instance still leads, asked before every write.

    Attributes
    ----------
    fault : callable
        Told the name of every step before it is made, where tests let it fail.
    health_error : str or None
        Why resources are not followed.
    """

    def __init__(
        self,
        service: Service,
        connection: Connection,
        *,
        epoch: int = 0,
        leads: Callable[[], bool] = lambda: True,
    ) -> None:
        self.fault: Callable[[str, str], None] = _no_fault
        self.health_error: str | None = None
        self._service = service
        self._driver = service.writing
        self._connection = connection
        connection.may_write = leads
        self._epoch = epoch
        self._leads = leads
        self._queue = WorkQueue()
        self._resources = Informer(connection, f"{ROUTE}/{PLURAL}", Resource.of, self._changed)
        self._jobs: dict[str, dict[str, Owner]] = {}
        self._edits: dict[str, tuple[int, Verdict | None]] = {}
        self._told: dict[str, float] = {}
        self._going: dict[str, str] = {}
        self._teller = Teller(connection, self._may_write)
        self._tenancy = Tenancy(
            connection,
            self._driver,
            service.cluster,
            warn=self._teller.warn,
            may_write=self._may_write,
            with_jobs=lambda: {key.partition("/")[0] for key in self._resources.items},
            changed=self._namespace_changed,
        )
        self._background = Background(log, service.metrics.failed)

    # ---------------------------------------------------------------- life

    @property
    def failing(self) -> str | None:
        """Which of its tasks fails just now; None where none does."""
        return self._background.health_error

    def begin(self) -> None:
        """Follow resources until `close`."""
        self._background.again("trainingjobs", self._begun, "following TrainingJobs")

    async def _begun(self) -> bool:
        """Begin; whether that could be."""
        try:
            await self._tenancy.start()
            await self._resources.start()
            self.health_error = None
            await self._tenancy.follow()  # before the first job: tenants that are known are let in
        except ApiError as error:
            missing = f"there is no {DEFINITION}; apply deploy/kubernetes/crd.yaml"
            self.health_error = missing if error.not_found else str(error)
            log.warning("TrainingJobs are not followed: %s", self.health_error)
            await self._tenancy.close()
            await asyncio.sleep(RETRY)
            return False
        except Exception:
            await all_of(self._resources.close, self._tenancy.close)
            raise
        for name in list(self._driver.published.jobs):
            self._know(name)
        self._driver.listeners.append(self._published)
        for key in {*self._resources.items, *self._jobs}:
            self._queue.add(key, 0.0)
        again = self._background.again
        for number in range(WORKERS):
            said = f"looking at TrainingJobs ({number + 1})"
            again("trainingjobs", lambda: self._queue.work(self._look), said)
        again("trainingjobs", self._teller.run, "telling of TrainingJobs")
        again("trainingjobs", self._tenancy.run, "following shares")
        return True

    async def close(self) -> None:
        """Follow them no longer."""
        if self._published in self._driver.listeners:
            self._driver.listeners.remove(self._published)
        await all_of(
            self._background.end,
            self._resources.close,
            self._tenancy.close,
            self._connection.close,
        )

    # ---------------------------------------------------------------- what is named

    def _changed(self, key: str, old: Resource | None, new: Resource | None) -> None:
        del old
        untold = new is not None and not new.status
        self._queue.add(key, -UNTOLD if untold else None)

    def _namespace_changed(self, name: str) -> None:
        for key in self._resources.items:
            if key.startswith(f"{name}/"):
                self._queue.add(key)

    def _published(self, outcome: Outcome) -> None:
        for name in outcome.views:
            owner = self._know(name)
            if owner is not None:
                self._queue.add(_key(owner))
        for told in outcome.told:
            owner = None if told.job is None else self._owner(told.job)
            if owner is not None:
                self._teller.tell(owner, told)
        if self._going:
            ordered = self._ordered()
            for job in [one for one in self._going if self._quiet(one, ordered)]:
                self._queue.add(self._going.pop(job))

    def _owner(self, job: str) -> Owner | None:
        return self._jobs.get(_key_of_job(job), {}).get(job)

    def _know(self, job: str) -> Owner | None:
        """Take note of whose an open job is."""
        known = self._owner(job)
        if known is not None:
            return known
        record = self._driver.specification(job)
        owner = None if record is None else Owner.of_labels(record.get("labels") or {})
        if owner is not None and owner.job == job:
            self._jobs.setdefault(_key(owner), {})[job] = owner
            return owner
        return None

    # ---------------------------------------------------------------- one resource

    async def _look(self, key: str) -> None:
        try:
            with self._driver.metrics.reconciled.time():
                await self._reconcile(key)
            self._queue.succeeded(key)
        except DeposedError:
            self._queue.add(key, AGAIN)
        except ApiError as error:
            pause = self._queue.failed(key)
            if not (error.conflict or error.not_found):
                log.warning("TrainingJob %s waits for %.1f s: %s", key, pause, error)
        except ProblemError as error:
            pause = self._queue.failed(key)
            log.info("TrainingJob %s waits for %.1f s: %s", key, pause, error)
        except Exception:
            self._driver.metrics.failures.labels("trainingjobs").inc()
            log.exception("TrainingJob %s could not be looked at", key)
            self._queue.failed(key)

    async def _reconcile(self, key: str) -> None:
        resource = self._resources.items.get(key)
        await self._cancel_forsaken(key, resource)
        if resource is None:
            return
        if resource.epoch > self._epoch:
            raise DeposedError("a newer leader wrote this resource")
        if resource.deleting:
            await self._release(key, resource)
            return
        if resource.settled and resource.held:
            return
        if not resource.held:
            resource = await self._hold(key, resource)
        tenant = self._tenancy.of(resource.owner.namespace)
        found, edited = await self._job_for(resource, tenant)
        await self._write_status(key, resource, found, tenant, edited)

    async def _cancel_forsaken(self, key: str, resource: Resource | None) -> None:
        """Withdraw jobs whose resource is not there any more, whatever took its finalizer away."""
        for job, owner in list(self._jobs.get(key, {}).items()):
            if resource is not None and resource.owner == owner:
                continue
            view = self._driver.published.jobs.get(job)
            if view is not None:
                self._may_write("cancel", key)
                with suppress(ProblemError):
                    await self._driver.do(Cancel(job))
            self._jobs[key].pop(job, None)
            self._going.pop(job, None)
            self._edits.pop(owner.uid, None)
            self._told.pop(owner.uid, None)
        if not self._jobs.get(key, True):
            del self._jobs[key]

    async def _hold(self, key: str, resource: Resource) -> Resource:
        """Let a resource not go before its job is over."""
        return await self._write(
            key,
            "hold",
            resource.path,
            {
                "metadata": {
                    "resourceVersion": resource.version,
                    "finalizers": [*resource.finalizers, FINALIZER],
                }
            },
        )

    async def _release(self, key: str, resource: Resource) -> None:
        """Withdraw the job of a resource that was deleted; let it go once nothing of it runs."""
        if not resource.held:
            return
        job = resource.owner.job
        view = await self._view(job)
        asked = view is not None and view.state.open
        if asked:
            self._may_write("cancel", key)
            view = await self._driver.do(Cancel(job))
        if view is not None and (view.state.open or not self._quiet(job, self._ordered())):
            if not view.state.open:
                self._going[job] = key
            if not asked:  # most are gone by then, and nobody has to be told of what goes at once
                tenant = view.tenant or resource.owner.namespace
                await self._write_status(key, resource, view, tenant, None)
            self._queue.add(key, max(GOING, len(self._going) / GOING_A_SECOND))
            return
        self._going.pop(job, None)
        left = [one for one in resource.finalizers if one != FINALIZER]
        body = {"metadata": {"resourceVersion": resource.version, "finalizers": left or None}}
        try:
            await self._write(key, "release", resource.path, body)
        except ApiError as error:
            if not error.not_found:
                raise
        self._edits.pop(resource.owner.uid, None)
        self._told.pop(resource.owner.uid, None)

    def _ordered(self) -> set[str]:
        """Return the jobs of which orders were not carried out yet."""
        return {order.job for order in self._driver.published.unacknowledged.values()}

    def _quiet(self, job: str, ordered: Collection[str]) -> bool:
        """Whether nothing of a job that is over runs, or is about to."""
        runner = self._service.runner
        if job in self._driver.published.running or job in ordered:
            return False
        return runner is None or not runner.holds(job)

    # ---------------------------------------------------------------- its job

    async def _view(self, job: str) -> JobView | None:
        published = self._driver.published
        view = published.jobs.get(job) or published.recent.get(job)
        if view is not None:
            return view
        found = await self._service.read(lambda connection: reading.job(connection, job))
        return None if found is None else found[0]

    async def _job_for(
        self, resource: Resource, tenant: str
    ) -> tuple[JobView | Refused, Verdict | None]:
        """Return the job of a resource, submitted or revised where it has to be."""
        job = resource.owner.job
        view = await self._view(job)
        if view is not None:
            edited = await self._revised(resource, tenant) if view.state.open else None
            return await self._view(job) or view, edited
        record = resource.record(tenant)
        cluster = self._driver.published.servers.cluster
        if cluster.tenants and tenant not in cluster.tenant_index:
            # Others have shares: whoever comes without one is known from now on, and owns nothing.
            await self._tenancy.follow()
            cluster = self._driver.published.servers.cluster
        try:
            [one] = read_submissions(
                [record],
                cluster,
                tenant=None,
                runs=self._service.runner is not None,
                single=True,
                owned=True,
                families=self._service.families,
            )
            fault = user_fault(self._service.settings, one.spec, "spec")
            if fault is not None:
                raise InputError(fault)
        except InputError as error:
            return Refused(Reason.INVALID, _in_spec(error)), None
        self._may_write("submit", _key(resource.owner))
        # Known before it is there: one that is refused at once is told of as well.
        self._jobs.setdefault(_key(resource.owner), {})[job] = resource.owner
        [(_, problem)] = await self._driver.do(Submit([one], at_once=True))
        if problem is not None:
            return Refused(Reason.NAME_TAKEN, str(problem)), None
        self.fault("submitted", _key(resource.owner))
        view = await self._view(job)
        assert view is not None
        return view, None

    async def _revised(self, resource: Resource, tenant: str) -> Verdict | None:
        """Let an edited resource change its job, as far as can be; None where all is as it was."""
        uid, job = resource.owner.uid, resource.owner.job
        known = self._edits.get(uid)
        if known is not None and known[0] == resource.generation:
            return known[1]
        before = self._driver.specification(job)
        if before is None:
            return None
        verdict: Verdict | None = None
        changes: dict[str, Any] = {}
        fixed: tuple[str, ...] = ()
        try:
            changes, fixed = edits(before, self._with_curve(resource.record(tenant), before))
        except InputError as error:
            verdict = (False, Reason.NOT_APPLIED, _in_spec(error))
        if changes:
            self._may_write("revise", _key(resource.owner))
            try:
                await self._driver.do(Revise(job, changes))
                verdict = (True, Reason.APPLIED, f"{', '.join(changes)} changed")
            except ShadowpriceError as error:
                if isinstance(error, ProblemError) and error.status >= 429:
                    raise  # it is not the edit's fault
                verdict = (False, Reason.NOT_APPLIED, _in_spec(error))
        if fixed:
            rest = "the job goes on as it was" if verdict is None else verdict[2]
            message = (
                f"{', '.join(fixed)} cannot be changed: {rest}; "
                "delete the resource and apply it anew"
            )
            verdict = (False, Reason.IMMUTABLE, message)
        if verdict is None and any(
            one.get("type") == "Edited" and one.get("status") == "False"
            for one in resource.status.get("conditions") or ()
        ):
            verdict = (True, Reason.APPLIED, "it is as the job is")
        self._edits[uid] = (resource.generation, verdict)
        return verdict

    def _with_curve(self, record: dict[str, Any], before: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a resource's record with the curve of its family: the one that its job has.

        A job keeps the curve that it was admitted with when the library changes.
        """
        if record.get("family") is not None and record.get("family") == before.get("family"):
            taken = {key: before[key] for key in ("throughput", "restart") if key in before}
            return {**taken, **record}
        found: Mapping[str, Any] = with_family(
            record, self._service.families, "spec", without=NO_LIBRARY
        )
        return found

    # ---------------------------------------------------------------- writing

    async def _write_status(
        self,
        key: str,
        resource: Resource,
        found: JobView | Refused,
        tenant: str,
        edited: Verdict | None,
    ) -> None:
        now = self._driver.clock.now()
        status = status_of(
            resource, found, tenant=tenant, epoch=self._epoch, now=now, edited=edited
        )
        if differs(resource, status):
            if not turns(resource, status):
                pause = between_figures(len(self._driver.published.jobs))
                last = self._told.get(resource.owner.uid)
                since = math.inf if last is None else time.monotonic() - last
                if since < pause:
                    self._queue.add(key, pause - since)
                    return
            path = f"{resource.path}/status"
            await self._write(key, "status", path, patch_of(resource, status))
            self._told[resource.owner.uid] = time.monotonic()
            if isinstance(found, Refused):
                self._teller.refused(resource, found)

    def _may_write(self, step: str, key: str) -> None:
        """Refuse to write where another instance leads.

        Raises
        ------
        DeposedError
            If it does.
        """
        self.fault(step, key)
        if not self._leads():
            raise DeposedError("this instance leads no more")

    async def _write(self, key: str, step: str, path: str, body: Mapping[str, Any]) -> Resource:
        """Write something of a resource, if it is as it was seen."""
        self._may_write(step, key)
        found = Resource.of(await self._connection.patch(path, body))
        if key in self._resources.items and self._resources.items[key].owner == found.owner:
            self._resources.items[key] = found
        self.fault(f"{step} done", key)
        return found


def between_figures(jobs: int) -> float:
    """Return the seconds between two writes of a status in which only figures changed.

    Parameters
    ----------
    jobs : int
        How many are open: each may have figures that change.
    """
    return max(FIGURES, jobs / FIGURES_A_SECOND)


def _key(owner: Owner) -> str:
    return f"{owner.namespace}/{owner.name}"


def _key_of_job(job: str) -> str:
    """Return the key that a job's name stands for, were it one of a resource's."""
    namespace, _, rest = job.partition(".")
    return f"{namespace}/{rest.rpartition('.')[0]}"


def _in_spec(error: ShadowpriceError) -> str:
    """Return what is wrong with a job, by its place in the resource."""
    faults = getattr(error, "faults", ())
    told = "; ".join(str(fault) for fault in faults[:5]) or str(error)
    return told.replace("job.", "spec.")


def _no_fault(step: str, key: str) -> None:
    del step, key

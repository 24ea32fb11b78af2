"""One generation on Kubernetes, from its order to its end.

    accepted -> running -> ended
    accepted -> refused

The generation's secret is its licence: pods cannot begin without it. It is made once, before any
pod, by whoever then makes the pods, and it is gone before the generation's end is told. So a
request that comes late, from a service that was cut off or is not there any more, begins nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from shadowprice.executors.contract import Ending
from shadowprice.executors.generations.generation import ACCEPTED, ENDED, OVER, REFUSED, RUNNING
from shadowprice.executors.generations.parts import PartEnd, is_decided, verdict_of
from shadowprice.executors.kubernetes.entry import KubernetesEntry, Part
from shadowprice.executors.kubernetes.following import Follower
from shadowprice.executors.kubernetes.judging import (
    end_of,
    refusal_of,
)
from shadowprice.executors.kubernetes.launching import AGAIN, AGAIN_AT_LAST, Launch
from shadowprice.executors.kubernetes.objects import Objects
from shadowprice.executors.kubernetes.pods import (
    seconds,
)
from shadowprice.executors.kubernetes.views import PodView, kept
from shadowprice.kubernetes.errors import ApiError
from shadowprice.kubernetes.pausing import Pauses

if TYPE_CHECKING:
    from shadowprice.executors.kubernetes.executor import KubernetesExecutor

log = logging.getLogger("shadowprice.executors")

FINISH: Final = -1
"""The order that tells processes to end because another of their generation has."""

OPENING: Final = 5.0
"""Seconds that a node has to tell a log, before its pod is told to end."""

SILENT: Final = 0.7
"""The same for a log that is empty: nothing says when a node begins to tell it."""

UNSEEN: Final = 2.0
"""Seconds before pods that were made, and that no event told of, are looked for."""

UNANSWERED: Final = 30.0
"""Longest of the growing pauses between such looks that the server does not answer."""

SETTLED: Final = 10.0
"""Seconds between looks at a generation that runs, where no event tells of any of its pods."""

OF_ITSELF: Final = frozenset({Ending.DONE.value, Ending.FAILED.value})
"""Endings that the pods' exit statuses say, and no order."""

READING: Final = 60.0
"""Seconds that a log may take once its pod is over."""

_OVER: Final[Mapping[str, Any]] = {"phase": ENDED, "end": None, "deciding": None, "plan": None}


class Drive:
    """Carries one generation to its end.

    Parameters
    ----------
    executor : KubernetesExecutor
        Whose it is.
    entry : KubernetesEntry
        The generation.
    """

    def __init__(self, executor: KubernetesExecutor, entry: KubernetesEntry) -> None:
        self._executor = executor
        self._entry = entry
        self._objects = Objects(executor, entry)
        self._following: set[asyncio.Task[None]] = set()
        self._launched = False
        self._pauses = Pauses(AGAIN, AGAIN_AT_LAST)
        self._unseen = Pauses(UNSEEN, UNANSWERED)

    async def run(self) -> None:
        """Carry it on from wherever it is."""
        try:
            await self._executor.background.repeat("drive", self._on, self._entry.carrying)
        finally:
            following = tuple(self._following)
            for task in following:
                task.cancel()
            await asyncio.gather(*following, return_exceptions=True)

    async def _on(self) -> bool:
        """Carry it on as far as it goes; whether it is over."""
        entry, came = self._entry, self._came
        if entry.over:
            return True
        try:
            await self._run()
        except ApiError as error:
            log.warning("generation %d of %r: %s", entry.number, entry.job, error)
        if not entry.over:  # or what seemed to be over was not
            if self._came > came:
                self._pauses.succeeded()
            await asyncio.sleep(self._pauses.failed())
        return entry.over

    async def _run(self) -> None:
        entry = self._entry
        if entry.state.get("end"):
            await self._finish_known()
            self._executor.look(entry)
            return
        if not self._launched and not entry.state.get("closing"):
            launch = Launch(self._executor, entry, self._objects)
            why = await launch.begin() if entry.phase == ACCEPTED else await launch.resume()
            if why:
                await self._close(why)
            self._launched, self._looked = True, time.monotonic()
        if entry.state.get("closing"):
            await self._withdraw()
        while not await self._is_over():
            entry.news_came.clear()
            await self._judge()
            self._executor.look(entry)  # a generation that settles may wait long for its next turn
            if entry.state.get("closing") and not self._closed:
                await self._withdraw()
            await self._order()
            if any(part.end is None for part in entry.parts.values()):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(SETTLED if self._settled() else 1.0):
                        await entry.news_came.wait()
        await self._finish()
        self._executor.look(entry)

    _came = 0
    _closed = False
    _looked = 0.0

    def _settled(self) -> bool:
        """Whether only what is told, and no time that passes, changes where the generation is."""
        entry = self._entry
        return entry.phase == RUNNING and all(
            part.view is not None
            and part.view.running
            and part.vanished is None
            and self._executor.gone_since(part.server) is None
            for part in entry.parts.values()
            if part.end is None
        )

    async def _is_over(self) -> bool:
        return all(part.end is not None for part in self._entry.parts.values())

    async def _write(self, **change: Any) -> None:
        """Write to the record, unless it says already that all is over."""

        def update(record: Any) -> dict[str, Any]:
            state = record.generations.get(self._entry.number)
            if state is None:
                return {"phase": ENDED, "ending": "lost", "reason": "its record is gone"}
            if state["phase"] not in OVER:
                state |= {"at": time.time(), **change}
            return dict(state)

        state = await self._executor.records.change(self._entry.job, update)
        self._entry.take(state)
        self._came += 1

    # ---------------------------------------------------------------- following

    async def _judge(self) -> None:
        """Take in where the pods are: what began, what ended, what never will begin."""
        entry, executor = self._entry, self._executor
        await self._look_for_unseen()
        for part in entry.parts.values():
            if part.end is not None:
                continue
            self._see(part)
            part.end = end_of(
                part,
                node=executor.node_or_none(part.server),
                lost_after=executor.settings.lost_after,
                gone_since=executor.gone_since(part.server),
                withdrawn=bool(entry.state.get("closing")),
            )
            if part.end is not None:
                await self._collect(part)
        if entry.phase != ACCEPTED or entry.state.get("closing"):
            return
        failed = any(part.end is not None and part.end.code > 0 for part in entry.parts.values())
        if failed or all(part.began or _exited(part) for part in entry.parts.values()):
            began = [p.view.began for p in entry.parts.values() if p.view and p.view.began]
            await self._write(phase=RUNNING, started=max([*began, entry.state["accepted"]]))
            return
        why = refusal_of(entry, executor.settings.patience)
        if why:
            await self._close(why)

    def _see(self, part: Part) -> None:
        key = f"{self._entry.namespace}/{part.pod}"
        view = self._executor.pods.items.get(key)
        if view is not None:
            part.view, part.vanished = kept(part.view, view), None
            return
        last = self._executor.last.pop(key, None)
        if last is not None:
            part.view = kept(part.view, last)
        if part.view is not None and part.vanished is None:
            part.vanished = time.monotonic()

    async def _look_for_unseen(self) -> None:
        """Look for pods that were made, and that no event told of, in the server itself.

        An event may be late, and a pod may come and go between two looks: what is in etcd decides.
        """
        missing = [
            part
            for part in self._entry.parts.values()
            if part.end is None and part.view is None and part.vanished is None
        ]
        now = time.monotonic()
        if not missing or not self._launched or now - self._looked < UNSEEN:
            return
        if not self._unseen.over:
            return
        try:
            views = {view.process: view for view in await self._objects.pods()}
        except ApiError:
            self._unseen.failed()
            return  # who does not answer says nothing of pods
        self._looked = now
        self._unseen.succeeded()
        for part in missing:
            if part.process in views:
                part.view = views[part.process]
            else:
                part.vanished = time.monotonic()

    async def _close(self, why: str) -> None:
        """Write that it is to be withdrawn, before anything of it is taken away."""
        await self._write(closing=why)
        self._entry.news_came.set()

    async def _withdraw(self) -> None:
        """Take the licence away, and find out what there is that has to end."""
        await self._objects.removed("secrets", self._objects.name)
        views = {view.process: view for view in await self._objects.pods()}
        for part in self._entry.parts.values():
            if part.process in views:
                part.view = kept(part.view, views[part.process])
            if part.view is None:
                part.end = PartEnd(part.process, -1, time.time(), lost="it was never there")
        self._closed = True

    async def _order(self) -> None:
        """Tell processes to end, where the scheduler or another process's end asks for it."""
        entry = self._entry
        stop = entry.state.get("stop")
        if stop:
            command, grace = int(stop["command"]), float(stop["grace"])
        elif entry.state.get("closing"):
            command, grace = FINISH, 0.0
        elif is_decided(entry.ends(), entry.workers, tolerant=entry.tolerant):
            await self._keep_what_decided()
            command, grace = FINISH, entry.grace
        else:
            return
        if entry.phase == ACCEPTED and stop and not entry.state.get("closing"):
            await self._close("it was told to stop before it was started")
        for part in entry.parts.values():
            if part.view is not None and part.view.deleting and part.ending is None:
                # An earlier service has told it, or anybody.
                part.ending = time.monotonic() - self._since(part.view)
        due = [p for p in entry.parts.values() if p.end is None and p.delivered != command]
        await asyncio.gather(*(self._deliver(part, command, grace) for part in due))

    async def _keep_what_decided(self) -> None:
        """Write down which ends make the others' processes end, before those are told to.

        Who goes on where this service is cut off would find pods that are gone, or going, and take
        them for deleted by somebody else.
        """
        parts = self._entry.parts
        known = {name: part.known() for name, part in parts.items() if part.end is not None}
        if len(known) < len(parts) and not self._entry.state.get("deciding"):
            await self._write(deciding=known)

    def _since(self, view: PodView) -> float:
        """Return the seconds since a pod was told to end, as the server counts them.

        By its clock alone: that of the machine here may be another. Both times are cut off to
        seconds; a second more leaves no process less than its grace.
        """
        now = self._objects.connection.time()
        if now is None or view.told is None:
            return 0.0
        return float(max(0.0, now + 1.0 - view.told))

    async def _deliver(self, part: Part, command: int, grace: float) -> None:
        if part.view is None:
            return
        if part.view.running and not part.delivered:
            await self._listen(part)
        uid = {"preconditions": {"uid": part.view.uid}}
        body = {"apiVersion": "v1", "kind": "DeleteOptions", **uid}
        lost = self._executor.is_lost(part.server)
        part.told = True
        # A server counts a grace from when a pod was told first, and makes it only shorter.
        now = time.monotonic()
        since = now if part.ending is None else part.ending
        allowed = min(part.allowed, now - since + grace)
        await self._objects.removed(
            "pods", part.pod, {**body, "gracePeriodSeconds": 0 if lost else seconds(allowed)}
        )
        part.ending, part.allowed = since, allowed
        part.delivered = command
        self._came += 1

    async def _listen(self, part: Part) -> None:
        """Fetch what a pod has written, and follow what it will, before it is told to end.

        Once: an order that the server did not take is given again, and is followed already.
        """
        if part.listened:
            return
        part.listened = True
        follower = self.follower(part)
        with contextlib.suppress(ApiError, TimeoutError):
            async with asyncio.timeout(OPENING):
                await follower.look()
        begun = asyncio.Event()
        following = follower.follow(begun)
        task = self._executor.background.spawn("logs", following, "following a log", vital=False)
        self._following.add(task)
        task.add_done_callback(self._following.discard)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(OPENING if follower.some else SILENT):
                await begun.wait()

    # ---------------------------------------------------------------- ending

    def follower(self, part: Part) -> Follower:
        """Return what fetches the log of a part."""
        if part.follower is None:
            executor = self._executor
            part.follower = Follower(
                self._objects.connection,
                self._objects.path("pods", part.pod),
                self._entry.generation.logs,
                part.process,
                executor.settings.log_bytes,
                self._entry.token,
            )
        return part.follower

    async def _collect(self, part: Part) -> None:
        """Fetch what is left of a part's log."""
        if part.view is None or not part.view.began:
            return
        follower = self.follower(part)
        with contextlib.suppress(ApiError, TimeoutError, OSError):
            async with asyncio.timeout(READING):
                await follower.finish()
        part.tail = follower.tail()

    async def _finish(self) -> None:
        """Take everything away, and say how it ended."""
        entry = self._entry
        refused = entry.phase == ACCEPTED and entry.state.get("closing")
        end = {} if refused else self._end()
        if end.get("ending") in OF_ITSELF:
            # Pods go with their secret, and they alone say so: who goes on where this service is
            # cut off would find none, and take for lost what completed, or failed.
            await self._write(end=end)
        await self._objects.removed("secrets", self._objects.name)
        views = await self._objects.pods()  # as they are now, whatever was told before
        for view in views:
            part = entry.parts.get(view.process)
            if part is not None and part.end is not None and self._goes_on(view):
                part.end, part.view, part.vanished, part.delivered = None, view, None, 0
                return
        await self._cleared(views)
        if refused:
            await self._write(phase=REFUSED, reason=refused, plan=None)
        else:
            await self._write(**_OVER, **end)

    async def _finish_known(self) -> None:
        """Take away what is left of a generation of which the record says how it ended."""
        await self._objects.removed("secrets", self._objects.name)
        while True:
            views = await self._objects.pods()
            await self._cleared(views)
            if not any(map(self._goes_on, views)):
                break
            await asyncio.sleep(AGAIN)
        end = self._entry.state["end"]
        await self._write(**_OVER, **end)

    def _goes_on(self, view: PodView) -> bool:
        """Whether a pod may still run something, on a node that is not taken for gone."""
        part = self._entry.parts.get(view.process)
        return _runs(view) and not (part is not None and self._executor.is_lost(part.server))

    async def _cleared(self, views: Iterable[PodView]) -> None:
        """Take pods and service away."""
        for view in views:
            part = self._entry.parts.get(view.process)
            lost = part is not None and self._executor.is_lost(part.server)
            body = {"apiVersion": "v1", "kind": "DeleteOptions"}
            grace = 0 if lost or view.over else 1
            await self._objects.removed("pods", view.name, {**body, "gracePeriodSeconds": grace})
        if len(self._entry.parts) > 1:
            await self._objects.removed("services", self._objects.name)

    def _end(self) -> dict[str, Any]:
        """Return what the record is to say of the end."""
        entry = self._entry
        ends = [part.end for part in entry.parts.values() if part.end is not None]
        known = verdict_of(
            ends, entry.workers, stop_ordered=entry.stop_ordered, tolerant=entry.tolerant
        )
        decided = entry.parts[known.process]
        seen = known.code >= 0 and not decided.unseen
        return {
            "ending": known.ending,
            "process": known.process,
            "code": known.code if seen else None,
            "reason": known.reason,
            "tail": list(decided.tail),
            "forced": any(end.killed for end in ends),
        }


def _exited(part: Part) -> bool:
    return part.end is not None and not part.end.lost


def _runs(view: PodView) -> bool:
    """Whether a pod may still run something."""
    return view.running or (view.exit is None and not view.over)

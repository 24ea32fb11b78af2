"""The launch of a generation: its secret first, then its service and pods.

Only the creator of the secret may create pods.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import secrets
import time
from collections.abc import Mapping
from typing import Any, Final

from shadowprice.executors.environment import list_processes
from shadowprice.executors.generations.generation import ACCEPTED, RUNNING
from shadowprice.executors.generations.placement_checks import PlacementError
from shadowprice.executors.kubernetes import names
from shadowprice.executors.kubernetes.objects import GenerationObjects
from shadowprice.executors.kubernetes.pods import (
    TOKEN_VARIABLE,
    ObjectContext,
    build_headless_service,
    build_pod,
    build_secret,
)
from shadowprice.executors.kubernetes.session import KubernetesSession
from shadowprice.executors.kubernetes.tracked_generation import KubernetesGeneration
from shadowprice.executors.kubernetes.views import merge_pod_view
from shadowprice.kubernetes.errors import ApiError
from shadowprice.kubernetes.pausing import Backoff

log = logging.getLogger("shadowprice.executors")

INITIAL_BACKOFF_SECONDS: Final = 1.0
MAX_BACKOFF_SECONDS: Final = 10.0  # initial and maximum backoff of requests that failed, in seconds

_MAX_CONCURRENT_CREATES: Final = 16


class GenerationLauncher:
    """Launches one generation, or resumes the launch of another service."""

    def __init__(
        self, session: KubernetesSession, entry: KubernetesGeneration, objects: GenerationObjects
    ) -> None:
        self._session = session
        self._entry = entry
        self._objects = objects
        self.created_nothing = False
        """True if the API server refused the secret, so that no pod was created."""

    async def begin(self) -> str:
        """Create the secret, the service and the pods; return a reason if that fails."""
        entry, session = self._entry, self._session
        spec, plan = entry.spec, entry.state["plan"]
        if spec is None:
            return await self.resume()
        launch = secrets.token_hex(16)
        place = ObjectContext(
            session.identity,
            entry.namespace,
            launch,
            tuple(plan["master"]),
            plan.get("owner"),
            session.gates and len(entry.parts) > 1,
        )
        entry.token = spec.progress_token
        try:
            try:
                secret = await self._create_secret(build_secret(spec, place), launch)
            except _RefusedError:
                self.created_nothing = True
                raise
            if secret is None:
                return await self.resume()
            state = (await session.records.read(spec.job)).generations.get(entry.number, {})
            reason = _launch_obstacle(state)
            if reason:
                if state:
                    entry.load_state(state)
                return reason
            node = session.cluster.node
            bodies = [
                build_pod(spec, process, place, node(process.server), session.settings, secret)
                for process in list_processes(spec)
            ]
            if place.master[0].startswith(bodies[0]["spec"]["hostname"]):
                service = await self._create_object(
                    "services", build_headless_service(spec, place, secret), launch
                )
                self._objects.uids["services"] = service
            limit = asyncio.Semaphore(_MAX_CONCURRENT_CREATES)

            async def create_pod(body: dict[str, Any]) -> None:
                async with limit:
                    uid = await self._create_object("pods", body, launch)
                entry.parts[body["metadata"]["labels"][names.PROCESS]].uid = uid

            results = await asyncio.gather(*map(create_pod, bodies), return_exceptions=True)
            for error in results:
                if isinstance(error, BaseException):
                    raise error
        except PlacementError as error:
            return str(error)
        except ApiError as error:
            if error.passing and not isinstance(error, _RefusedError):
                raise
            return f"the API server refused it: {error}"
        if place.gated:
            return await self._open_gates()
        return ""

    async def _open_gates(self) -> str:
        """Open the scheduling gates of all pods; return the reason if that is refused."""
        try:
            await self._objects.remove_scheduling_gates()
        except ApiError as error:
            if not error.refused:
                raise
            return f"the API server refused it: {error}"
        return ""

    async def _create_secret(self, body: dict[str, Any], launch: str) -> dict[str, Any] | None:
        """Create the secret; return None if an earlier launch of the generation created it.

        Raises `_RefusedError` if the API server refuses, or another object has the secret's name.
        """
        objects = self._objects
        try:
            secret: dict[str, Any] = await objects.connection.post(objects.path("secrets"), body)
        except ApiError as error:
            if not (error.exists or error.passing):
                raise _RefusedError(error.status, error.reason, str(error)) from error
            existing = await objects.find("secrets", objects.name)
            if existing is None:
                raise  # not created: retry
            if not objects.is_own(existing):
                raise self._already_exists_error("secrets", objects.name) from error
            secret = existing
        objects.uids["secrets"] = str(secret["metadata"]["uid"])
        own = secret["metadata"]["annotations"].get(names.EXECUTION) == launch
        return secret if own else None

    async def _create_object(self, kind: str, body: dict[str, Any], launch: str) -> str:
        """Create an object, with retries until the API server has it or refuses it.

        Return its uid; ``""`` if a stop command came before the API server answered.
        """
        until = time.monotonic() + self._session.settings.patience
        pauses = Backoff(INITIAL_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS)
        name = str(body["metadata"]["name"])
        while True:
            try:
                created = await self._objects.connection.post(self._objects.path(kind), body)
                return str(created["metadata"]["uid"])
            except ApiError as error:
                if error.exists:
                    existing = await self._objects.find(kind, name)
                    if existing is not None and self._objects.is_own(existing, launch):
                        return str(existing["metadata"]["uid"])  # the response was lost
                    if existing is not None:
                        raise self._already_exists_error(kind, name) from error
                elif not error.passing or time.monotonic() > until:
                    raise _RefusedError(error.status, error.reason, str(error)) from error
                if self._entry.stop_ordered:
                    return ""
            await asyncio.sleep(pauses.record_failure())

    def _already_exists_error(self, kind: str, name: str) -> _RefusedError:
        text = f"{kind} {name!r} in namespace {self._entry.namespace!r} already exists"
        return _RefusedError(409, "AlreadyExists", f"{text}, and has another owner")

    async def resume(self) -> str:
        """Resume the launch of another service; return a reason if that isn't possible."""
        entry, objects = self._entry, self._objects
        try:
            secret = await objects.find("secrets", objects.name)
        except ApiError as error:
            if not error.refused:
                raise
            message = "failed to read the secret of generation %d of %r: %s"
            log.warning(message, entry.number, entry.job, error)
            secret, readable = None, False
        else:
            readable = True
        if secret is not None and not objects.is_own(secret):
            if entry.phase == ACCEPTED:
                return str(self._already_exists_error("secrets", objects.name))
            secret = None
        if secret is None and readable and entry.phase == ACCEPTED:
            return "its launch was interrupted before it created the secret"
        if secret is not None:
            objects.uids["secrets"] = str(secret["metadata"]["uid"])
            entry.token = _decode_base64((secret.get("data") or {}).get(TOKEN_VARIABLE, ""))
        views = {view.process: view for view in await objects.pods()}
        for part in entry.parts.values():
            if part.process in views:
                part.view = merge_pod_view(part.view, views[part.process])
            if part.view is None and entry.phase == RUNNING:
                # Deleted meanwhile; its node needs a moment to kill the processes.
                part.vanished = time.monotonic()
            if part.view is None or part.view.deleting:
                part.stop_requested = entry.termination_requested
        if entry.phase == ACCEPTED and entry.parts.keys() - views.keys():
            # A missing pod may have run and been deleted, so it must not start again.
            return "its launch was interrupted before it created all pods"
        return await self._open_gates()


class _RefusedError(ApiError):
    """A request that the API server refused, or didn't accept before the timeout."""


def _launch_obstacle(state: Mapping[str, Any]) -> str:
    """Return why a generation may not be launched any more, according to its record."""
    if not state:
        return "its record was deleted"
    # A service that took over recorded that before it deleted the secret.
    if state["phase"] != ACCEPTED or state.get("closing"):
        return "another service has taken it over"
    return "it was stopped before it started" if state.get("stop") else ""


def _decode_base64(text: str) -> str:
    try:
        return base64.b64decode(text).decode("utf-8", "replace")
    except ValueError:
        return ""

"""An API server in memory that has the published schema of a recorded version, and enforces it.

It prunes unknown fields, as a real one does. Pods with scheduling gates are placed once they have
none; pods that are placed run at once, and end when they are stopped.
"""

from __future__ import annotations

import asyncio
import copy
import json
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.support.kubernetes_versions import openapi_document, unknown_fields
from tests.support.waiting import WAIT_LIMIT_SECONDS

NOW = "2026-01-01T00:00:00Z"
Object = dict[str, Any]


class Newer:
    """The server.

    Parameters
    ----------
    version : str
        The recorded version.
    nodes : int
        Number of nodes: ``one``, ``two``, ...

    Attributes
    ----------
    said : list of tuple
        Events of all pods, in order: kind and name.
    requests : Counter of str
        Number of requests by method and kind, and for lists by selector.
    unknown : list of str
        Paths of sent fields that the version doesn't know.
    refuse : callable
        Whether a pod is refused, by its name.
    logs_readable : Event
        Whether logs are returned; a request waits for it.
    deny : callable
        Whether the right to a request is missing, by its method and kind.
    """

    def __init__(self, version: str, nodes: int = 2) -> None:
        self.version = version
        self.said: list[tuple[str, str]] = []
        self.requests: Counter[str] = Counter()
        self.unknown: list[str] = []
        self.refuse: Callable[[str], bool] = lambda _: False
        self.deny: Callable[[str, str], bool] = lambda _method, _kind: False
        self.logs_readable = asyncio.Event()
        self.logs_readable.set()
        self.fail: Callable[[str, str], bool] = lambda _method, _kind: False
        self._count = 0
        self._objects: dict[str, dict[str, Object]] = {}
        self._history: list[tuple[int, str, str, Object]] = []
        self._knows_gates = (
            "schedulingGates"
            in openapi_document(version)["components"]["schemas"]["io.k8s.api.core.v1.PodSpec"][
                "properties"
            ]
        )
        for name in ("one", "two", "three")[:nodes]:
            status = {
                "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"},
                "conditions": [{"type": "Ready", "status": "True"}],
                "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
            }
            self._put("nodes", {"metadata": {"name": name}, "spec": {}, "status": status}, "ADDED")

    # ---------------------------------------------------------------- what there is

    def _put(self, kind: str, item: Object, event: str) -> Object:
        self._count += 1
        meta = item["metadata"]
        meta.setdefault("uid", str(uuid.UUID(int=self._count)))
        meta.setdefault("creationTimestamp", NOW)
        meta["resourceVersion"] = str(self._count)
        items = self._objects.setdefault(kind, {})
        if event == "DELETED":
            items.pop(meta["name"], None)
        else:
            items[meta["name"]] = item
        self._history.append((self._count, kind, event, copy.deepcopy(item)))
        return item

    def pods(self) -> list[str]:
        """Return the names of pods."""
        return sorted(self._objects.get("pods", {}))

    def names(self, kind: str) -> list[str]:
        """Return the names of the objects of a kind."""
        return sorted(self._objects.get(kind, {}))

    def put(self, kind: str, item: Object) -> None:
        """Create an object, as another client does."""
        self._put(kind, item, "ADDED")

    def delete_all(self, kind: str) -> None:
        """Delete the objects of a kind, as another client does."""
        for item in list(self._objects.get(kind, {}).values()):
            self._put(kind, item, "DELETED")

    def complete(self, pod: str, code: int = 0) -> None:
        """Let a pod's container exit; with a sidecar, the pod runs on."""
        item = copy.deepcopy(self._objects["pods"][pod])
        state = {"terminated": {"exitCode": code, "startedAt": NOW, "finishedAt": NOW}}
        own, *sidecars = item["status"]["containerStatuses"]
        own["state"] = state
        if not sidecars:
            item["status"]["phase"] = "Failed" if code else "Succeeded"
        self._put("pods", item, "MODIFIED")

    def inject_sidecar(self, pod: str) -> None:
        """Let another container run in a pod."""
        item = copy.deepcopy(self._objects["pods"][pod])
        sidecar = {"name": "proxy", "state": {"running": {"startedAt": NOW}}}
        item["status"]["containerStatuses"].append(sidecar)
        self._put("pods", item, "MODIFIED")

    def say(self, node: str, status: str) -> None:
        """Let a node be ready, ``True``, or not, ``False`` or ``Unknown``."""
        item = copy.deepcopy(self._objects["nodes"][node])
        item["status"]["conditions"][0]["status"] = status
        self._put("nodes", item, "MODIFIED")

    def remove(self, node: str) -> None:
        """Let a node be deleted."""
        self._put("nodes", self._objects["nodes"][node], "DELETED")

    def _placed(self, pod: Object) -> None:
        """Run a pod that waits for nothing."""
        spec = pod["spec"]
        if spec.get("schedulingGates") or spec.get("nodeName"):
            return
        term = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        [node] = term["nodeSelectorTerms"][0]["matchFields"][0]["values"]
        spec["nodeName"] = node
        state = {"running": {"startedAt": NOW}}
        pod["status"] = {
            "phase": "Running",
            "containerStatuses": [{"name": spec["containers"][0]["name"], "state": state}],
        }
        self.said.append(("runs", pod["metadata"]["name"]))
        self._put("pods", pod, "MODIFIED")

    # ---------------------------------------------------------------- requests

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Respond to a request."""
        if request.path.startswith("/openapi/v3"):
            return self._publish(request)
        words = request.path.split("/")
        words = words[words.index("v1") + 1 :]
        namespace = ""
        if words[0] == "namespaces":
            namespace, words = words[1], words[2:]
        kind, name = words[0], words[1] if len(words) > 1 else ""
        chosen = [one for one in ("labelSelector", "fieldSelector") if one in request.query]
        self.requests[" ".join([request.method, kind, *words[2:], *chosen])] += 1
        error = self._error(request.method, kind)
        if error is not None:
            return error
        if len(words) > 2:
            async with asyncio.timeout(WAIT_LIMIT_SECONDS):
                await self.logs_readable.wait()
            return web.Response(body=f"{NOW} a line\n".encode())
        if request.query.get("watch"):
            return await self._follow(request, kind)
        if kind in {"leases", "configmaps"}:  # services in several namespaces have their own
            kind = f"{kind} in {namespace}"
        items = self._objects.setdefault(kind, {})
        if request.method == "GET" and not name:
            return self._list(request, kind)
        if request.method == "POST":
            return self._create(kind, await request.json())
        if name not in items:
            return _refused(404, "NotFound")
        if request.method == "PUT":
            return self._replace(kind, items[name], await request.json())
        if request.method == "PATCH":
            item = _merged(items[name], await request.json())
            self._put(kind, item, "MODIFIED")
            if kind == "pods":
                self.said.append(("ungated", name))
                self._placed(item)
        elif request.method == "DELETE":
            body = await request.json() if request.can_read_body else {}
            return self._delete(kind, items[name], body)
        return web.json_response(items[name])

    def _error(self, method: str, kind: str) -> web.Response | None:
        if self.deny(method, kind):
            return _refused(403, "Forbidden", f'cannot {method} resource "{kind}"')
        if self.fail(method, kind):
            return _refused(500, "InternalError", "etcdserver: request timed out")
        return None

    def _publish(self, request: web.Request) -> web.Response:
        """Return the schema: an index, and the parts of each group."""
        if self.version in {"1.20", "1.23"}:
            return _refused(404, "NotFound")
        if request.path == "/openapi/v3":
            where = {"api/v1": {"serverRelativeURL": "/openapi/v3/api/v1?hash=1"}}
            return web.json_response({"paths": where})
        assert request.query["hash"] == "1"
        return web.json_response(openapi_document(self.version))

    def _create(self, kind: str, body: Object) -> web.Response:
        name = body["metadata"]["name"]
        self.unknown += unknown_fields(body, f"V1{body['kind']}", self.version, body["kind"])
        if name in self._objects.setdefault(kind, {}):
            return _refused(409, "AlreadyExists")
        if kind == "pods" and self.refuse(name):
            return _refused(403, "Forbidden")
        body["metadata"].setdefault("namespace", "default")
        if kind == "pods":
            if not self._knows_gates:
                body["spec"].pop("schedulingGates", None)
            body["status"] = {"phase": "Pending"}
            self.said.append(("made", name))
        made = self._put(kind, body, "ADDED")
        if kind == "pods":
            self._placed(made)
        return web.json_response(made, status=201)

    def _replace(self, kind: str, item: Object, body: Object) -> web.Response:
        if body["metadata"].get("resourceVersion") != item["metadata"]["resourceVersion"]:
            return _refused(409, "Conflict")
        metadata = {**item["metadata"], **body["metadata"]}
        return web.json_response(self._put(kind, {**body, "metadata": metadata}, "MODIFIED"))

    def _delete(self, kind: str, item: Object, options: Object) -> web.Response:
        uid = options.get("preconditions", {}).get("uid")
        if uid not in {None, item["metadata"]["uid"]}:
            return _refused(409, "Conflict")
        if kind == "pods":
            self.said.append(("deleted", item["metadata"]["name"]))
            if item["spec"].get("nodeName"):
                ended = {"exitCode": 143, "startedAt": NOW, "finishedAt": NOW}
                item["status"]["containerStatuses"][0]["state"] = {"terminated": ended}
        self._put(kind, item, "DELETED")
        return web.json_response(item)

    def _list(self, request: web.Request, kind: str) -> web.Response:
        wanted = [
            one.split("=") for one in request.query.get("labelSelector", "").split(",") if one
        ]
        name = request.query.get("fieldSelector", "").partition("=")[2]
        results = [
            item
            for item in self._objects[kind].values()
            if all(item["metadata"].get("labels", {}).get(key) == value for key, value in wanted)
            and name in {"", item["metadata"]["name"]}
        ]
        return web.json_response(
            {"metadata": {"resourceVersion": str(self._count)}, "items": results}
        )

    async def _follow(self, request: web.Request, kind: str) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        at = int(request.query["resourceVersion"])
        while request.transport is not None and not request.transport.is_closing():
            for number, of, event, item in list(self._history):
                if number > at:
                    at = number
                    if of == kind:
                        line = json.dumps({"type": event, "object": item})
                        await response.write(line.encode() + b"\n")
            await asyncio.sleep(0.01)
        return response


def _merged(item: Object, patch: Mapping[str, Any]) -> Object:
    """Return an object after a merge patch (RFC 7396)."""
    result = dict(item)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping):
            result[key] = _merged(result.get(key, {}), value)
        else:
            result[key] = value
    return result


def _refused(status: int, reason: str, message: str = "") -> web.Response:
    content = {"reason": reason, "message": message or reason.lower()}
    return web.json_response(content, status=status)


@asynccontextmanager
async def served(server: Newer, folder: Path) -> AsyncIterator[Path]:
    """Run the server, and yield a kubeconfig."""
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", server.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    where = {"server": f"http://127.0.0.1:{runner.addresses[0][1]}"}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": where}],
        "users": [{"name": "u", "user": {"token": "secret"}}],
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(config))
    try:
        yield path
    finally:
        await runner.cleanup()

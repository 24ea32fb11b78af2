"""The process that speaks to Ray: ``python -m shadowprice.executors.ray.bridge``.

A Ray driver ends with the raylet or the head that it is connected to, and installs handlers of its
own; so it is not the service that is one. Requests come as lines of JSON, ``{"id", "do", ...}``,
and are answered in any order by ``{"id", "is"}`` or ``{"id", "error"}``; ``{"event", ...}`` tells
what happens. It ends when its input does.
"""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import os
import queue
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, cast

import ray
import ray.cloudpickle
import ray.util.client
from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from shadowprice.executors.ray import agent

THREADS: Final = 32
WAIT: Final = 20.0
"""Seconds that an actor is asked to wait for news."""

SOON: Final = 60.0
"""Seconds that an actor has to answer."""

_THREADS_OF_AN_ACTOR: Final = 8


class Bridge:
    """Answers requests.

    Parameters
    ----------
    tell : callable
        Sends a line.
    """

    def __init__(self, tell: Callable[[dict[str, Any]], None]) -> None:
        self._tell = tell
        self._namespace = ""
        self._place: dict[str, Any] = {}
        self._actors: dict[str, Any] = {}
        self._following: queue.Queue[tuple[str, str]] = queue.Queue()
        self._looks: dict[str, Any] = {}
        self._looking = threading.Lock()
        self._answers: dict[str, Callable[..., Any]] = {
            name.removeprefix("do_"): getattr(self, name)
            for name in dir(self)
            if name.startswith("do_")
        }

    def answer(self, request: dict[str, Any]) -> None:
        """Do what a request asks for, and say what became of it."""
        number = request.pop("id")
        try:
            found = self._answers[request.pop("do")](**request)
        except Exception as error:
            told = {"id": number, "error": _said(error), "kind": type(error).__name__}
            self._tell(told)
        else:
            self._tell({"id": number, "is": found})

    # ---------------------------------------------------------------- the cluster

    def do_connect(self, address: str, namespace: str, place: dict[str, Any]) -> dict[str, Any]:
        """Connect; ``place`` is what every actor is told, see `agent.Agent`."""
        ray.init(
            address=address,
            namespace=namespace,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
        _ask_no_errors()
        ray.cloudpickle.register_pickle_by_value(agent)
        self._namespace, self._place = namespace, place
        threading.Thread(target=self._follow_or_end, daemon=True).start()
        return {"client": ray.util.client.ray.is_connected()}

    def do_nodes(self) -> list[dict[str, Any]]:
        """Return the nodes of the cluster, dead ones too."""
        wanted = ("NodeID", "NodeName", "NodeManagerAddress", "Alive", "Resources", "Labels")
        return [{name: node.get(name) for name in wanted} for node in ray.nodes()]

    # ---------------------------------------------------------------- actors

    def do_create(
        self,
        name: str,
        node: str,
        options: dict[str, Any],
        prepare: Mapping[str, Any],
        patience: float,
    ) -> dict[str, Any]:
        """Begin an actor on a node, and return what it knows of its place.

        Returns
        -------
        dict
            As of `agent.Agent.prepared`; ``error`` where it could not be had in time.
        """
        actor = (
            ray.remote(agent.Agent)
            .options(
                name=name,
                namespace=self._namespace,
                lifetime="detached",
                max_restarts=0,
                max_task_retries=0,
                max_concurrency=_THREADS_OF_AN_ACTOR,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
                **options,
            )
            .remote({**self._place, "key": name})
        )
        self._actors[name] = actor
        try:
            found = ray.get(actor.prepared.remote(**prepare), timeout=patience)
        except GetTimeoutError:
            found = {"error": f"Ray gave it no place within {patience:g} s"}
        except RayActorError as error:
            found = {"error": f"Ray gave it no place: {_said(error)}"}
        if "error" in found:
            self.do_kill(name)
        return cast("dict[str, Any]", found)

    def _actor(self, name: str) -> Any:
        if name not in self._actors:
            self._actors[name] = ray.get_actor(name, namespace=self._namespace)
        return self._actors[name]

    def do_find(self, name: str) -> bool:
        """Whether there is an actor of that name; if so, it is followed from now on."""
        try:
            self._actor(name)
        except ValueError:
            return False
        self._following.put((name, ""))
        return True

    def do_call(self, name: str, method: str, arguments: list[Any]) -> Any:
        """Return what an actor answers."""
        return ray.get(getattr(self._actor(name), method).remote(*arguments), timeout=SOON)

    def do_progress(self, names: list[str], most: float) -> dict[str, list[Any] | None]:
        """Return what processes have reported by now, of those whose actors say so in time.

        Parameters
        ----------
        names : list of str
            Of their actors.
        most : float
            Seconds that they have, together.
        """
        if not self._looking.acquire(blocking=False):
            return {}  # Ray takes no questions just now; one thread waits for it, and no more
        try:
            return self._reported(names, most)
        finally:
            self._looking.release()

    def _reported(self, names: list[str], most: float) -> dict[str, list[Any] | None]:
        if self._looks:  # what was answered too late tells of that time, and is let go
            late, _ = ray.wait(
                list(self._looks.values()), num_returns=len(self._looks), timeout=0.0
            )
            self._looks = {name: one for name, one in self._looks.items() if one not in late}
        for name in names:
            actor = self._actors.get(name)
            if actor is not None and name not in self._looks:  # a stuck one is asked once
                self._looks[name] = actor.look.remote()
        asked = {self._looks[name]: name for name in names if name in self._looks}
        ready = ray.wait(list(asked), num_returns=len(asked), timeout=most)[0] if asked else []
        found: dict[str, list[Any] | None] = {}
        for reference in ready:
            name = asked[reference]
            del self._looks[name]
            with contextlib.suppress(RayError):  # it is gone: who follows it tells of that
                found[name] = ray.get(reference)["progress"]
        return found

    def do_kill(self, name: str) -> None:
        """End an actor, and with it all that it looks after."""
        with contextlib.suppress(ValueError, RayActorError):
            ray.kill(self._actor(name))
        self._actors.pop(name, None)

    def do_collect(self, name: str, into: str) -> None:
        """Copy the log of a process that is over into a directory of this machine."""
        actor = self._actor(name)
        sizes = ray.get(actor.segments.remote(), timeout=SOON)
        self._copy(
            sizes, Path(into), lambda one, at: ray.get(actor.piece.remote(one, at), timeout=SOON)
        )

    @staticmethod
    def _copy(sizes: dict[str, int], into: Path, read: Callable[[str, int], str]) -> None:
        for name, size in sizes.items():
            path = into / Path(name).name
            with path.open("wb") as stream:
                os.fchmod(stream.fileno(), 0o600)
                while stream.tell() < size:
                    content = base64.b64decode(read(name, stream.tell()))
                    if not content:
                        break
                    stream.write(content)

    # ---------------------------------------------------------------- where an actor died

    def _on(self, node: str, function: Callable[..., Any], *arguments: Any) -> Any:
        task = ray.remote(function).options(
            num_cpus=0,
            max_retries=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
        )
        return ray.get(task.remote(*arguments), timeout=SOON)

    def do_clear(self, name: str, node: str, into: str) -> dict[str, Any]:
        """See to a process whose actor died, on its node; its log is copied and removed there."""
        place = {**self._place, "key": name}
        found = self._on(node, agent.clear, place, 20.0)
        if found["known"] and found["cleared"]:
            path = f"{self._place['root']}/parts/{name}"
            with contextlib.suppress(OSError):
                sizes = self._on(node, agent.segments, path) if into else {}
                self._copy(
                    sizes, Path(into), lambda one, at: self._on(node, agent.piece, path, one, at)
                )
            self._on(node, agent.remove, [path])
        return cast("dict[str, Any]", found)

    # ---------------------------------------------------------------- following

    def _follow_or_end(self) -> None:
        try:
            self._follow()
        except Exception as error:  # a bridge that tells nothing is worse than none
            end(f"Ray cannot be asked any more: {_said(error)}")

    def _follow(self) -> None:
        """Tell what becomes of actors, as long as there are any."""
        waiting: dict[Any, tuple[str, str]] = {}
        while True:
            with contextlib.suppress(queue.Empty):
                while True:
                    name, version = self._following.get(timeout=0.0 if waiting else 3600.0)
                    if name in self._actors and name not in {one for one, _ in waiting.values()}:
                        waiting[self._actors[name].wait.remote(version, WAIT)] = (name, version)
            if not waiting:
                continue
            ready, _ = ray.wait(list(waiting), num_returns=1, timeout=0.1)
            for reference in ready:
                name, version = waiting.pop(reference)
                try:
                    found = ray.get(reference)
                except ActorUnavailableError:
                    threading.Timer(1.0, self._following.put, ((name, version),)).start()
                except Exception as error:
                    self._actors.pop(name, None)
                    self._tell({"event": "gone", "name": name, "why": _said(error)})
                else:
                    if found["version"] != version:
                        self._tell({"event": "news", "name": name, "news": found})
                    state = found["state"]  # None: not begun yet, or not to be read
                    if state is None or state["phase"] not in {"ended", "refused"}:
                        self._following.put((name, found["version"]))


def _ask_no_errors() -> None:
    """Let the thread end by which a driver is told what failed elsewhere, to print it.

    While the head is away it asks without a pause, and takes a processor for itself.
    """
    worker = getattr(ray._private.worker, "global_worker", None)
    stopped = getattr(worker, "threads_stopped", None)
    if stopped is not None:
        stopped.set()


def _said(error: BaseException) -> str:
    """Return what an error says, in one line."""
    details = getattr(error, "details", None)
    if callable(details):  # gRPC's, which is a page as text
        return str(details())[:500]
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:6])[:500] or type(error).__name__


def end(why: str) -> None:
    """End this process, whatever its threads do; another is begun in its place."""
    sys.stderr.write(why + "\n")
    sys.stderr.flush()
    os._exit(1)


def main() -> None:
    """Answer the lines of standard input, until it ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what Ray prints is no answer
    writing = threading.Lock()

    def tell(value: dict[str, Any]) -> None:
        line = json.dumps(value)
        with writing:
            answers.write(line + "\n")
            answers.flush()

    bridge = Bridge(tell)
    threads = ThreadPoolExecutor(THREADS)
    for line in sys.stdin:
        threads.submit(bridge.answer, json.loads(line))
    os._exit(0)  # what threads still wait for is nobody's any more


if __name__ == "__main__":
    main()

"""The process that talks to Ray: ``python -m shadowprice.executors.ray.bridge``.

A Ray driver exits if its raylet or head fails, and it installs its own signal handlers. So the
service isn't a driver itself. Requests are lines of JSON, ``{"id", "do", ...}``. Responses come in
any order, as ``{"id", "is"}`` or ``{"id", "error", "kind"}``. Lines ``{"event", ...}`` are events.
The process exits when its input ends.
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
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import ray
import ray.cloudpickle
import ray.util.client
from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from shadowprice.executors.ray import agent

THREADS: Final = 32
SLOW_THREADS: Final = 256  # for requests that may take a minute; other requests don't wait for them

_SLOW_REQUESTS: Final = frozenset({"create", "clear", "collect"})
_SLOW_METHODS: Final = frozenset({"go", "retire"})

LONG_POLL_SECONDS: Final = 20.0  # timeout in seconds of an actor's long poll
CALL_TIMEOUT_SECONDS: Final = 60.0  # timeout in seconds of a call to an actor

_ACTOR_CONCURRENCY: Final = 8  # an actor's concurrent calls, of which a long poll is one


class ActorGoneError(Exception):
    """An actor has ended, or never existed."""


class Bridge:
    """Handles requests; ``send`` sends a response or an event."""

    def __init__(self, send: Callable[[dict[str, Any]], None]) -> None:
        self._send = send
        self._namespace = ""
        self._place: dict[str, Any] = {}
        self._actors: dict[str, Any] = {}
        self._following: queue.Queue[tuple[str, str]] = queue.Queue()  # actor, last known version
        self._polls: dict[str, Any] = {}  # pending progress polls by actor
        self._polling_progress = threading.Lock()

    def answer(self, request: dict[str, Any]) -> None:
        """Execute a request and send its response."""
        number = request.pop("id")
        try:
            result = getattr(self, f"do_{request.pop('do')}")(**request)
        except Exception as error:
            response = {"id": number, "error": _error_message(error), "kind": type(error).__name__}
            self._send(response)
        else:
            self._send({"id": number, "is": result})

    # ---------------------------------------------------------------- the cluster

    def do_connect(self, address: str, namespace: str, place: dict[str, Any]) -> dict[str, Any]:
        """Connect to Ray. ``place`` is passed to every actor; see `agent.ProcessActor`."""
        ray.init(
            address=address,
            namespace=namespace,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
        _stop_error_polling()
        ray.cloudpickle.register_pickle_by_value(agent)
        self._namespace, self._place = namespace, place
        threading.Thread(target=self._follow_or_end, daemon=True).start()
        return {"client": ray.util.client.ray.is_connected()}

    def do_nodes(self) -> list[dict[str, Any]]:
        """Return the nodes of the cluster, including dead ones."""
        fields = ("NodeID", "NodeName", "NodeManagerAddress", "Alive", "Resources", "Labels")
        return [{name: node.get(name) for name in fields} for node in ray.nodes()]

    # ---------------------------------------------------------------- actors

    def do_create(
        self,
        name: str,
        node: str,
        options: dict[str, Any],
        prepare: Mapping[str, Any],
        patience: float,
    ) -> dict[str, Any]:
        """Create an actor on a node; return the result of its `prepare`, or ``error``."""
        actor = (
            ray.remote(agent.ProcessActor)
            .options(
                name=name,
                namespace=self._namespace,
                lifetime="detached",
                max_restarts=0,
                max_task_retries=0,
                max_concurrency=_ACTOR_CONCURRENCY,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
                **options,
            )
            .remote({**self._place, "key": name})
        )
        self._actors[name] = actor
        try:
            properties = ray.get(actor.prepare.remote(**prepare), timeout=patience)
        except GetTimeoutError:
            properties = {"error": f"Ray scheduled no actor within {patience:g} s"}
        except RayActorError as error:
            properties = {"error": f"Ray scheduled no actor: {_error_message(error)}"}
        if "error" in properties:
            self.do_kill(name)
        return cast("dict[str, Any]", properties)

    def _actor(self, name: str) -> Any:
        if name not in self._actors:
            try:
                self._actors[name] = ray.get_actor(name, namespace=self._namespace)
            except ValueError as error:
                raise ActorGoneError(_error_message(error)) from error
        return self._actors[name]

    def do_call(self, name: str, method: str, arguments: Sequence[Any]) -> Any:
        """Call an actor's method; raise `ActorGoneError` if the actor has ended."""
        call = getattr(self._actor(name), method).remote(*arguments)
        try:
            return ray.get(call, timeout=CALL_TIMEOUT_SECONDS)
        except ActorUnavailableError:  # it may still exist
            raise
        except RayActorError as error:
            raise ActorGoneError(_error_message(error)) from error

    def do_find(self, name: str) -> bool:
        """Return whether an actor of this name exists; if so, start to follow it."""
        try:
            self._actor(name)
        except ActorGoneError:
            return False
        self._following.put((name, ""))
        return True

    def do_progress(self, names: list[str], timeout: float) -> dict[str, list[Any] | None]:
        """Return current progress of the processes whose actors respond in time."""
        if not self._polling_progress.acquire(blocking=False):
            return {}  # the last poll still waits for Ray, and more threads must not
        try:
            return self._poll_progress(names, timeout)
        finally:
            self._polling_progress.release()

    def _poll_progress(self, names: list[str], timeout: float) -> dict[str, list[Any] | None]:
        if self._polls:  # drop late responses, which are outdated
            late, _ = ray.wait(
                list(self._polls.values()), num_returns=len(self._polls), timeout=0.0
            )
            self._polls = {
                name: pending for name, pending in self._polls.items() if pending not in late
            }
        for name in names:
            actor = self._actors.get(name)
            if actor is not None and name not in self._polls:  # one at a time to a stuck actor
                self._polls[name] = actor.look.remote()
        requests = {self._polls[name]: name for name in names if name in self._polls}
        if not requests:
            return {}
        ready, _ = ray.wait(list(requests), num_returns=len(requests), timeout=timeout)
        progress: dict[str, list[Any] | None] = {}
        for reference in ready:
            name = requests[reference]
            del self._polls[name]
            with contextlib.suppress(RayError):  # its actor ended, and `_follow` reports that
                progress[name] = ray.get(reference)["progress"]
        return progress

    def do_kill(self, name: str) -> None:
        """Kill an actor; its process ends with it, because its lifeline closes."""
        with contextlib.suppress(ActorGoneError, RayActorError):
            ray.kill(self._actor(name))
        self._actors.pop(name, None)

    def do_collect(self, name: str, into: str) -> str:
        """Copy the log of an ended process to this machine; return why it is lost, or nothing."""
        return self._copy_log(
            Path(into),
            lambda: self.do_call(name, "segments", ()),
            lambda file, offset: self.do_call(name, "piece", (file, offset)),
        )

    @staticmethod
    def _copy_log(
        into: Path, sizes: Callable[[], dict[str, int]], read: Callable[[str, int], str]
    ) -> str:
        """Copy a log; return an error of a disk, because the generation must end nevertheless."""
        try:
            for name, size in sizes().items():
                path = into / Path(name).name
                with path.open("wb") as stream:
                    os.fchmod(stream.fileno(), 0o600)
                    while stream.tell() < size:
                        content = base64.b64decode(read(name, stream.tell()))
                        if not content:
                            break
                        stream.write(content)
        except (TimeoutError, ConnectionError):  # of Ray, so the caller retries
            raise
        except OSError as error:
            return _error_message(error)
        return ""

    # ---------------------------------------------------------------- dead actors

    def _run_on_node(self, node: str, function: Callable[..., Any], *arguments: Any) -> Any:
        task = ray.remote(function).options(
            num_cpus=0,
            max_retries=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
        )
        return ray.get(task.remote(*arguments), timeout=CALL_TIMEOUT_SECONDS)

    def do_clear(self, name: str, node: str, into: str) -> dict[str, Any]:
        """Clean up after a dead actor on its node; move its log if ``into`` is given."""
        place = {**self._place, "key": name}
        result = {
            **self._run_on_node(node, agent.clean_up_dead_actor, place, 20.0),
            "log_error": "",
        }
        if result["known"] and result["cleared"]:
            path = f"{self._place['root']}/parts/{name}"
            if into:
                result["log_error"] = self._copy_log(
                    Path(into),
                    partial(self._run_on_node, node, agent.list_log_segments, path),
                    partial(self._run_on_node, node, agent.read_segment_chunk, path),
                )
            self._run_on_node(node, agent.remove, [path])
        return result

    # ---------------------------------------------------------------- following

    def _follow_or_end(self) -> None:
        try:
            self._follow()
        except Exception as error:  # the service replaces a bridge that exits
            exit_process(f"lost contact with Ray: {_error_message(error)}")

    def _follow(self) -> None:
        """Long-poll the followed actors, and emit their changes and ends."""
        waiting: dict[Any, tuple[str, str]] = {}
        while True:
            with contextlib.suppress(queue.Empty):
                while True:  # take all that are queued; wait only if no poll is pending
                    name, version = self._following.get(timeout=0.0 if waiting else 3600.0)
                    followed = {other for other, _ in waiting.values()}
                    if name in self._actors and name not in followed:
                        request = self._actors[name].wait.remote(version, LONG_POLL_SECONDS)
                        waiting[request] = (name, version)
            if not waiting:
                continue
            ready, _ = ray.wait(list(waiting), num_returns=1, timeout=0.1)
            for reference in ready:
                name, version = waiting.pop(reference)
                try:
                    status = ray.get(reference)
                except ActorUnavailableError:  # temporary
                    threading.Timer(1.0, self._following.put, ((name, version),)).start()
                except Exception as error:
                    self._actors.pop(name, None)
                    self._send({"event": "gone", "name": name, "why": _error_message(error)})
                else:
                    if status["version"] != version:
                        self._send({"event": "news", "name": name, "news": status})
                    state = status["state"]  # None: not started, or unreadable
                    if state is None or state["phase"] not in {"ended", "refused"}:
                        self._following.put((name, status["version"]))


def _stop_error_polling() -> None:
    """Stop the driver's thread for remote errors, which occupies a core while the head is away."""
    worker = getattr(ray._private.worker, "global_worker", None)
    stopped = getattr(worker, "threads_stopped", None)
    if stopped is not None:
        stopped.set()


def _error_message(error: BaseException) -> str:
    """Return an error's message, in one line."""
    details = getattr(error, "details", None)
    if callable(details):  # gRPC errors are a page long as text
        return str(details())[:500]
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:6])[:500] or type(error).__name__


def exit_process(reason: str) -> None:
    """Exit despite running threads; the service starts another bridge."""
    sys.stderr.write(reason + "\n")
    sys.stderr.flush()
    os._exit(1)


def dispatch(lines: Iterable[str], answer: Callable[[dict[str, Any]], None]) -> None:
    """Execute requests concurrently until the input ends."""
    fast, slow = ThreadPoolExecutor(THREADS), ThreadPoolExecutor(SLOW_THREADS)
    for line in lines:
        request = json.loads(line)
        is_slow = request["do"] in _SLOW_REQUESTS or request.get("method") in _SLOW_METHODS
        (slow if is_slow else fast).submit(answer, request)


def main() -> None:
    """Handle requests from standard input until it ends."""
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # Ray's prints must not mix with responses
    writing = threading.Lock()

    def send(value: dict[str, Any]) -> None:
        line = json.dumps(value)
        with writing:
            output.write(line + "\n")
            output.flush()

    dispatch(sys.stdin, Bridge(send).answer)
    os._exit(0)  # pending requests have no receiver


if __name__ == "__main__":
    main()

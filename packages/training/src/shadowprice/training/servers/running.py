"""One process of a job with parameter servers: its role, its connections and its end."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Final, NoReturn

import torch.distributed as dist

from shadowprice import jobs
from shadowprice.training import checkpoints
from shadowprice.training.errors import TrainingError, first_line
from shadowprice.training.generation import Generation, bind_to_loopback, current, say
from shadowprice.training.servers.messages import (
    Link,
    LocalLink,
    Message,
    MessageKind,
    PeerLostError,
)
from shadowprice.training.servers.pairs import (
    PairLink,
    accept_shared_memory,
    connect_pair,
    offer_shared_memory,
    transport_device,
)
from shadowprice.training.servers.recipe import Recipe, Settings
from shadowprice.training.servers.server import KIND, Leader, ParameterServer
from shadowprice.training.servers.shard import Shard, State
from shadowprice.training.servers.worker import Worker

_SIGTERM_SPREAD_SECONDS: Final = 5.0  # time within which all processes receive SIGTERM
_THREAD_EXIT_TIMEOUT_SECONDS: Final = 5.0  # timeout for the threads of connections at exit
_STOP_POLL_SECONDS: Final = 0.02  # seconds between polls while a blocking action runs

# Ranks of the two ends of a link.
_FOLLOWER, _LEADER = 0, 1
_WORKER, _SERVER = 0, 1


@dataclass(frozen=True)
class TrainingResult:
    """Result of a worker.

    ``model`` has the final parameters. ``minibatches`` is the number of mini-batches that trained
    them, or of steps in synchronous training. ``leads`` is true for exactly one worker, which
    should report and save the model. ``measured`` has the metrics of the leading server, if this
    process also has that role; otherwise it is empty.
    """

    model: Any
    minibatches: int
    leads: bool
    measured: dict[str, float] = field(default_factory=dict)


def run(recipe: Recipe, settings: Settings | None = None) -> TrainingResult | None:
    """Train in the role that this process has: worker or parameter server.

    Outside a scheduler the process has both roles. The arguments are the same in every process.
    Returns the result of a worker, once training is done; None for a server. After SIGTERM, the
    process exits with status 143 once everything is saved. Raises `TrainingError` if the recipe is
    invalid, data can't be read, or another process is gone. If a server still has open connections,
    it logs the error and ends with status 1 instead.
    """
    connection_threads: list[threading.Thread] = []
    try:
        outcome = _run_role(recipe, settings or Settings(), connection_threads)
    except SystemExit as leaving:
        code = leaving.code  # like the interpreter, count a text as failure
        _join_or_exit(connection_threads, code if isinstance(code, int) else int(code is not None))
        raise
    except BaseException as error:
        if any(thread.is_alive() for thread in connection_threads):
            # These threads wait for other processes, which continue only once this process is gone.
            sys.excepthook(type(error), error, error.__traceback__)
            _exit(1)
        raise
    _join_or_exit(connection_threads, 0)
    return outcome


def _run_role(
    recipe: Recipe, settings: Settings, connection_threads: list[threading.Thread]
) -> TrainingResult | None:
    """Run the process's role; append threads with open connections to ``connection_threads``."""
    generation = current()
    job = generation.job
    stop = jobs.StopSignal()
    try:
        if job.ps == 0:
            workers = max(job.workers, generation.world)  # torchrun only sets the world size
            if workers > 1:
                raise TrainingError(
                    f"{workers} workers, but no parameter server; add `ps` to the job. Without a "
                    "scheduler, start one process without torchrun: it has both roles"
                )
            return _run_both_roles(recipe, settings, stop)
        if not generation.address:
            message = "MASTER_ADDR and MASTER_PORT are not set; the processes need them to connect"
            raise TrainingError(message)
        if job.role == "ps":
            ended = _run_ps(recipe, settings, generation, stop, connection_threads)
            if ended == "stop":
                jobs.leave()
            return None
        return _run_worker(recipe, settings, generation, stop)
    except PeerLostError as error:
        # The other processes may have received SIGTERM a moment before this one.
        if stop.wait(_SIGTERM_SPREAD_SECONDS):
            jobs.leave()
        raise TrainingError(f"another process of the job is gone: {error}") from error


# ------------------------------------------------------------------ both roles


def _run_both_roles(recipe: Recipe, settings: Settings, stop: Any) -> TrainingResult:
    leader = Leader(recipe, settings, 1, 1, _load_state(recipe, settings))
    worker_end, leader_end = LocalLink.pair()
    errors: list[BaseException] = []

    def lead() -> None:
        try:
            leader.lead(stop)
        except BaseException as error:  # raised below, by the main thread
            errors.append(error)
        finally:
            leader_end.close()

    threading.Thread(target=leader.serve, args=(0, leader_end), daemon=True).start()
    leader_thread = threading.Thread(target=lead, daemon=True)
    leader_thread.start()
    worker = Worker(recipe, settings, [worker_end], stop)
    try:
        minibatches = worker.work()
    except (PeerLostError, SystemExit):
        leader_thread.join()
        if errors:  # such as a checkpoint that couldn't be saved
            raise errors[0] from None
        raise
    except BaseException as error:
        leader.fail(error)  # nothing is saved after an error of the script
        leader_thread.join()
        raise
    leader_thread.join()
    if errors:
        raise errors[0]
    return TrainingResult(worker.model, minibatches, worker.leads, leader.measured.metrics())


# ------------------------------------------------------------------ one role


def _run_ps(
    recipe: Recipe,
    settings: Settings,
    generation: Generation,
    stop: Any,
    connection_threads: list[threading.Thread],
) -> str:
    """Run as a parameter server until the end; return ``done`` or ``stop``."""
    job = generation.job
    device = transport_device(settings.backend)
    timeout = timedelta(seconds=settings.join)
    server: ParameterServer
    if job.rank == 0:
        state = _load_state(recipe, settings)
        server = Leader(recipe, settings, job.ps, job.workers, state, device)
        store = _run_until_sigterm(lambda: _store(generation, settings), stop)
        # `index` is 1 if a checkpoint was restored, and `version` is its step.
        restore = Message(MessageKind.RESTORE, index=int(state is not None), version=server.version)
        for other in range(1, job.ps):
            name = f"leader-server-{other}"
            follower = _run_until_sigterm(
                partial(connect_pair, store, name, _LEADER, timeout), stop
            )
            follower.send(restore)
            server.followers.append(follower)
        # Wait until every follower has restored its state, so that a failure ends training here.
        for link in server.followers:
            _run_until_sigterm(link.receive, stop)
    else:
        store = _run_until_sigterm(lambda: _store(generation, settings), stop)
        name = f"leader-server-{job.rank}"
        leader = _run_until_sigterm(partial(connect_pair, store, name, _FOLLOWER, timeout), stop)
        state = _load_state_as_leader(recipe, settings, _run_until_sigterm(leader.receive, stop))
        version = 0 if state is None else int(state["assigner"]["committed"])
        model = None if state is None else state["model"]
        shard = Shard(recipe, job.rank, job.ps, model, device)
        server = ParameterServer(shard, version, keeps=settings.synchronous)
        leader.send(Message(MessageKind.RESTORE, version=version))
        connection_threads.append(
            threading.Thread(target=server.follow, args=(leader,), daemon=True)
        )

    def connect(worker: int) -> PairLink:
        # Each thread has another connection to the store, because waiting for a worker that never
        # comes blocks the connection.
        own_store = store.clone()
        name = _link_name(worker, job.rank)
        link = connect_pair(own_store, name, _SERVER, timeout, settings.backend)
        offer_shared_memory(link, server.shard.values.nbytes if settings.shared_memory else 0)
        link.traffic = server.traffic
        return link

    connection_threads.extend(
        threading.Thread(target=serve_once_connected, args=(server, worker, connect), daemon=True)
        for worker in range(job.workers)
    )
    for thread in connection_threads:
        thread.start()
    return server.lead(stop) if isinstance(server, Leader) else _wait_for_leader(server)


def serve_once_connected(
    server: ParameterServer, worker: int, connect: Callable[[int], Link]
) -> None:
    """Connect to a worker and serve it until it leaves; runs in a thread of its own."""
    try:
        try:
            link = connect(worker)
        except PeerLostError as error:
            say(f"worker {worker} did not connect: {error}")
            server.on_worker_absent(worker)
            return
        server.serve(worker, link)
        link.close()
    except BaseException as error:  # raised by the main thread
        server.fail(error)


def _join_or_exit(connection_threads: Sequence[threading.Thread], status: int) -> None:
    """Wait for a server's threads; if one still hangs, end the process at once.

    A thread can't be ended while gloo waits for a message or closes a connection, and shutting down
    the interpreter meanwhile would abort the process. The thread that follows the leader is
    included, because it may hold the last reference to its connection.
    """
    deadline = time.monotonic() + _THREAD_EXIT_TIMEOUT_SECONDS
    for thread in connection_threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    if any(thread.is_alive() for thread in connection_threads):
        _exit(status)


def _exit(status: int) -> NoReturn:
    """End this process at once, without the interpreter's shutdown."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _wait_for_leader(server: ParameterServer) -> str:
    with server.changed:
        server.changed.wait_for(lambda: bool(server.ended))
    if server.failure is not None:
        raise server.failure
    if server.ended == "gone":
        raise PeerLostError("lost the connection to the leading parameter server")
    return server.ended


def _run_worker(
    recipe: Recipe, settings: Settings, generation: Generation, stop: Any
) -> TrainingResult:
    job = generation.job
    transport_device(settings.backend)  # fail before waiting for other processes

    def connect_to_servers() -> tuple[Any, list[Link]]:
        store = _store(generation, settings)
        links: list[Link] = []
        timeout = timedelta(seconds=settings.join)
        for server in range(job.ps):
            name = _link_name(job.rank, server)
            link = connect_pair(store, name, _WORKER, timeout, settings.backend)
            accept_shared_memory(link)
            links.append(link)
        return store, links

    # Keep the store to the end, because other processes may still need it to connect.
    _kept_store, links = _run_until_sigterm(connect_to_servers, stop)
    worker = Worker(recipe, settings, links, stop)
    minibatches = worker.work()
    for link in links:
        link.close()
    return TrainingResult(worker.model, minibatches, worker.leads)


def _link_name(worker: int, server: int) -> str:
    return f"worker-{worker}-server-{server}"


def _store(generation: Generation, settings: Settings) -> Any:
    """Return the store for the rendezvous, which is needed until all processes have connected.

    On one machine, the leading server hosts it; otherwise worker 0, whose address all have.
    """
    address, _, port = generation.address.rpartition(":")
    job = generation.job
    is_local = bind_to_loopback(address)  # in every process: it also sets gloo's interface
    is_host = job.rank == 0 and job.role == ("ps" if is_local else "worker")
    try:
        return dist.TCPStore(
            address.strip("[]"),
            int(port),
            is_master=is_host,
            wait_for_workers=False,
            timeout=timedelta(seconds=settings.join),
        )
    except (RuntimeError, ValueError) as error:
        raise TrainingError(
            f"cannot connect to the rendezvous store at {generation.address}: {first_line(error)}"
        ) from error


def _run_until_sigterm(action: Callable[[], Any], stop: Any) -> Any:
    """Run a blocking action in a thread; exit with status 143 if SIGTERM comes first."""
    results: list[Any] = []

    def act() -> None:
        try:
            results.append(action())
        except BaseException as error:  # raised below, by the main thread
            results.append(error)

    threading.Thread(target=act, daemon=True).start()
    while not results:
        if stop.wait(_STOP_POLL_SECONDS):
            _exit(jobs.STOPPED)
    if isinstance(results[0], BaseException):
        raise results[0]
    return results[0]


# ------------------------------------------------------------------ checkpoints


def _load_state_as_leader(recipe: Recipe, settings: Settings, restore: Message) -> State | None:
    """Return a follower's state, from the checkpoint that the leader restored; None without one."""
    if not restore.index:
        return None
    checkpoint = checkpoints.load(step=restore.version)
    if checkpoint is None:
        raise TrainingError(
            f"found no valid checkpoint of step {restore.version} in "
            f"{jobs.current().checkpoint_dir}, which the leading parameter server restored; give "
            "all processes the same directory"
        )
    return _checked_state(checkpoint, recipe, settings)


def _load_state(recipe: Recipe, settings: Settings) -> State | None:
    """Return the state of the newest checkpoint, None without any."""
    checkpoint = checkpoints.load()
    return None if checkpoint is None else _checked_state(checkpoint, recipe, settings)


def _checked_state(checkpoint: checkpoints.Restored, recipe: Recipe, settings: Settings) -> State:
    """Return the state of a checkpoint; raise `TrainingError` if it belongs to another training."""
    checkpoint.check_kind(KIND)
    state = checkpoint.state
    if state["synchronous"] != settings.synchronous:
        raise TrainingError(
            f"the checkpoint was made with synchronous={state['synchronous']}; restore that "
            "setting, or start a new job"
        )
    for name, value in recipe.to_record().items():
        if state["recipe"].get(name) != value:
            raise TrainingError(
                f"the checkpoint was made with another {name}, so its positions in the data don't "
                f"match; restore {name}, or start a new job"
            )
    return state

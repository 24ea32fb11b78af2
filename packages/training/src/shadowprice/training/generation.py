"""One generation of a job: the identity of its processes, and their process group."""

from __future__ import annotations

import ctypes
import ipaddress
import os
import socket
import sys
from collections import deque
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist

from shadowprice import jobs
from shadowprice.training.errors import TrainingError, first_line

JOIN_TIMEOUT: Final = timedelta(minutes=5)
"""Timeout for joining, and of every collective operation."""

_NCCL_GRACE: Final = timedelta(seconds=30)
"""Addition to NCCL's timeout, which ends the process; gloo's timeout, an error, comes first."""


@dataclass(frozen=True, slots=True)
class Generation:
    """Identity of this process among the processes of its generation.

    Workers come first in ``rank``, then parameter servers; ``world`` is the number of processes.
    ``address`` is that of the rendezvous; empty if this is the only process.
    """

    job: jobs.Job
    rank: int
    world: int
    address: str

    @property
    def device(self) -> torch.device:
        """Device of this process: its GPU if it has one, otherwise the CPU; see `own_device`."""
        return own_device()


def current() -> Generation:
    """Return the identity of this process from the environment; by default the only process.

    Raises `TrainingError` if the environment is invalid, or has other processes but no address.
    """
    job = jobs.current()
    try:
        rank = int(os.environ.get("RANK", "0"))
        world = int(os.environ.get("WORLD_SIZE", "1"))
    except ValueError as error:
        raise TrainingError(f"RANK and WORLD_SIZE must be integers: {error}") from None
    if not 0 <= rank < world:
        raise TrainingError(f"RANK: expected 0 to WORLD_SIZE - 1 = {world - 1}, got {rank}")
    if world == 1:
        return Generation(job, 0, 1, "")
    address, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    if not address or not port:
        raise TrainingError(
            f"WORLD_SIZE is {world}, but MASTER_ADDR and MASTER_PORT are not set: start all "
            "processes with a scheduler or torchrun"
        )
    return Generation(job, rank, world, f"{address}:{port}")


def join_group(
    generation: Generation, *, backend: str | None = None, timeout: timedelta = JOIN_TIMEOUT
) -> None:
    """Join the process group of the generation with `torch.distributed`.

    ``backend`` is by default NCCL if every process has its own GPU, otherwise gloo. ``timeout`` is
    the timeout for joining and for all later collective operations. Raises `TrainingError` if the
    other processes don't join in time, or torch can't use the backend here.
    """
    if dist.is_initialized():
        raise TrainingError(
            "the process group already exists; call join before other code creates one"
        )
    if backend == "nccl" and not nccl_here():
        raise no_backend(backend)
    if generation.device.type == "cuda":
        torch.cuda.set_device(generation.device)
    if generation.address:
        bind_to_loopback(generation.address.rpartition(":")[0])
    rank, world = generation.rank, generation.world
    try:
        store = _rendezvous_store(rank, world, timeout)
        backend = backend or _choose_backend(rank, world, store)
        dist.init_process_group(
            backend,
            store=dist.PrefixStore("default_pg", store),
            rank=rank,
            world_size=world,
            timeout=timeout + _NCCL_GRACE if backend == "nccl" else timeout,
        )
    except (dist.DistError, RuntimeError, ValueError) as error:
        raise TrainingError(
            f"process {rank} of {world} failed to join the others at {generation.address}: "
            f"{first_line(error)}"
        ) from error
    hold(dist.group.WORLD)


def _rendezvous_store(rank: int, world: int, timeout: timedelta) -> Any:
    if world == 1:
        return dist.HashStore()
    store, _, _ = next(dist.rendezvous("env://", rank, world, timeout=timeout))
    store.set_timeout(timeout)
    return store


def _choose_backend(rank: int, world: int, store: Any) -> str:
    """Return the backend for all processes: NCCL if each has its own GPU, otherwise gloo."""
    own = _own_gpu()  # processes exchange these identifiers, because NCCL refuses a shared GPU
    if world == 1:
        return "nccl" if own else "gloo"
    store = dist.PrefixStore("gpus", store)
    store.set(str(rank), own)
    gpus = [gpu for gpu in store.multi_get([str(other) for other in range(world)]) if gpu]
    if len(gpus) == len({*gpus}) == world:
        return "nccl"
    if gpus and rank == 0:
        reason = f"{world - len(gpus)} have none" if len(gpus) < world else "some share one"
        say(f"using gloo, not NCCL, because not every process has its own GPU ({reason})")
    return "gloo"


def _own_gpu() -> str:
    """Return an identifier of this process's GPU, unique among machines; empty if it has none."""
    if not nccl_here():
        return ""
    # The address on the PCI bus, or the UUID if this version of torch lacks the address.
    properties = torch.cuda.get_device_properties(own_device())
    address = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    gpu = str(properties.uuid) if None in address else ":".join(map(str, address))
    return f"{os.environ.get('NCCL_HOSTID') or _machine()} {gpu}"


def _machine() -> str:
    """Return a unique name of this machine; host names may repeat."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        boot = ""
    return f"{socket.gethostname()} {boot}"


def own_device() -> torch.device:
    """Return the device of this process: its own GPU if it has one, otherwise the CPU.

    Executors show a process only its own GPUs; torchrun shows all, and numbers the processes.
    """
    if not torch.cuda.is_available():
        return torch.device("cpu")
    local = os.environ.get("LOCAL_RANK", "")
    number = int(local) if local.isdecimal() else 0
    return torch.device("cuda", number if number < torch.cuda.device_count() else 0)


def nccl_here() -> bool:
    """Return whether torch has NCCL and this process has a GPU."""
    return bool(dist.is_nccl_available() and torch.cuda.is_available())


def no_backend(name: str) -> TrainingError:
    """Build the error for a backend that torch can't use here."""
    return TrainingError(f"backend {name!r} isn't available here; use gloo")


def hold(value: Any) -> None:
    """Keep a process group, or a tensor sent in a group, alive until the process ends.

    The destructor of a group waits for the group's threads. A thread may need the GIL to release
    the last tensor that it sent, while the caller of the destructor has the GIL. Some processes
    would hang at exit in this deadlock, so held objects are never released.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


_latest_operations: Final[deque[Any]] = deque(maxlen=16)  # collective operations; see `wait_for`

hold(_latest_operations)


def wait_for(work: Any) -> None:
    """Wait for a collective operation (``async_op=True``), and keep a reference to it.

    A gloo thread drops its reference shortly after the operation is done. If no other reference is
    left, the thread frees the tensors, for which it needs the GIL. While the interpreter shuts
    down, no thread gets the GIL, and the process aborts (SIGABRT). Keeping a reference prevents it.
    """
    work.wait()
    _latest_operations.append(work)


def leave_group() -> None:
    """Destroy the process group, if there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()


def workers_text() -> str:
    """Return the number of workers and their backend as text for logs."""
    count = dist.get_world_size() if dist.is_initialized() else 1
    return f"{count} workers, {dist.get_backend()}" if count > 1 else "1 worker"


def say(text: str) -> None:
    """Write a line to the process's log."""
    print(f"shadowprice: {text}", file=sys.stderr, flush=True)


def bind_to_loopback(address: str) -> bool:
    """Set gloo's interface to the loopback if an address is local; return whether it is."""
    try:
        is_local = ipaddress.ip_address(address.strip("[]")).is_loopback
    except ValueError:
        is_local = address == "localhost"
    if is_local:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    return is_local

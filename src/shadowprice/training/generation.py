"""One generation of a job: what its processes were told, and how they find each other."""

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
from shadowprice.training.errors import TrainingError

PATIENCE: Final = timedelta(minutes=5)
"""How long processes wait for each other: to come together, and in all they do together."""

_MORE: Final = timedelta(seconds=30)
"""What NCCL has beyond that: it ends a process that waits too long, without a word of ours."""


@dataclass(frozen=True, slots=True)
class Generation:
    """What this process is among those of its generation.

    Parameters
    ----------
    job : jobs.Job
        What it was told.
    rank, world : int
        Its number among all processes, and how many there are: workers first, then servers.
    address : str
        Where they meet; empty for a process that is alone.
    """

    job: jobs.Job
    rank: int
    world: int
    address: str

    @property
    def device(self) -> torch.device:
        """What it computes on: a GPU that it was given, else the CPU; see `own_device`."""
        return own_device()


def current() -> Generation:
    """Return what this process was told; one that was told nothing is alone.

    Raises
    ------
    TrainingError
        If it was told that there are others, and not where.
    """
    job = jobs.current()
    try:
        rank = int(os.environ.get("RANK", "0"))
        world = int(os.environ.get("WORLD_SIZE", "1"))
    except ValueError as error:
        raise TrainingError(f"RANK and WORLD_SIZE are no numbers: {error}") from None
    if not 0 <= rank < world:
        raise TrainingError(f"RANK is {rank} and WORLD_SIZE {world}: no such process")
    if world == 1:
        return Generation(job, 0, 1, "")
    address, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    if not address or not port:
        raise TrainingError(
            f"WORLD_SIZE is {world}, but MASTER_ADDR and MASTER_PORT are not set: start all "
            "processes by a scheduler or by torchrun"
        )
    return Generation(job, rank, world, f"{address}:{port}")


def join_group(
    generation: Generation, *, backend: str | None = None, patience: timedelta = PATIENCE
) -> None:
    """Come together with the other processes of the generation, as `torch.distributed` does.

    Parameters
    ----------
    generation : Generation
        Which.
    backend : str, optional
        How tensors travel; by default NCCL where every process has a GPU of its own, else gloo.
    patience : timedelta, optional
        How long to wait for the others, now and in everything done together later.

    Raises
    ------
    TrainingError
        If they do not come, or torch has no such backend here.
    """
    if dist.is_initialized():
        raise TrainingError("the process group exists already: join before anything else does")
    if backend == "nccl" and not nccl_here():
        raise no_backend(backend)
    if generation.device.type == "cuda":
        torch.cuda.set_device(generation.device)
    if generation.address and _loopback(generation.address.rpartition(":")[0]):
        # gloo asks the resolver for this machine's name, which not every machine knows.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    rank, world = generation.rank, generation.world
    try:
        store = _met(rank, world, patience)
        backend = backend or _fitting(rank, world, store)
        dist.init_process_group(
            backend,
            store=dist.PrefixStore("default_pg", store),
            rank=rank,
            world_size=world,
            timeout=patience + _MORE if backend == "nccl" else patience,
        )
    except (dist.DistError, RuntimeError, ValueError) as error:
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise TrainingError(
            f"process {rank} of {world} did not find the others at {generation.address}: {said[0]}"
        ) from error
    hold(dist.group.WORLD)


def _met(rank: int, world: int, patience: timedelta) -> Any:
    """Return the store in which all processes of a generation find each other."""
    if world == 1:
        return dist.HashStore()
    store, _, _ = next(dist.rendezvous("env://", rank, world, timeout=patience))
    store.set_timeout(patience)
    return store


def _fitting(rank: int, world: int, store: Any) -> str:
    """Return the backend that all processes can use, the same to all of them."""
    own = _own_gpu()
    if world == 1:
        return "nccl" if own else "gloo"
    store = dist.PrefixStore("gpus", store)
    store.set(str(rank), own)
    gpus = [one for one in store.multi_get([str(each) for each in range(world)]) if one]
    if len(gpus) == len({*gpus}) == world:
        return "nccl"
    if gpus and rank == 0:
        why = f"{world - len(gpus)} have none" if len(gpus) < world else "some share one"
        say(f"not every process has a GPU of its own ({why}): they meet by gloo, not by NCCL")
    return "gloo"


def _own_gpu() -> str:
    """Return what NCCL tells GPUs apart by, which refuses two processes on one; empty for none."""
    if not nccl_here():
        return ""
    found = torch.cuda.get_device_properties(own_device())
    place = [getattr(found, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    gpu = str(found.uuid) if None in place else ":".join(map(str, place))
    return f"{os.environ.get('NCCL_HOSTID') or _machine()} {gpu}"


def _machine() -> str:
    """Return a name that no other machine has: hosts may be called alike."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        boot = ""
    return f"{socket.gethostname()} {boot}"


def own_device() -> torch.device:
    """Return what this process computes on: a GPU of its own where there is any, else the CPU.

    Executors show a process no GPUs but its own, of which it takes the first. torchrun shows all
    of a machine to all processes there, and numbers these: two of them on one GPU is what NCCL
    refuses.
    """
    if not torch.cuda.is_available():
        return torch.device("cpu")
    local = os.environ.get("LOCAL_RANK", "")
    number = int(local) if local.isdecimal() else 0
    return torch.device("cuda", number if number < torch.cuda.device_count() else 0)


def nccl_here() -> bool:
    """Return whether NCCL can be used: torch has it, and this process a GPU."""
    return bool(dist.is_nccl_available() and torch.cuda.is_available())


def no_backend(name: str) -> TrainingError:
    """Return what is raised where torch has no such backend."""
    return TrainingError(f"torch has no backend {name!r} here; gloo works everywhere")


def hold(group: Any) -> None:
    """Keep a process group, or a tensor that travelled in one, until the process is gone.

    A group waits for its threads when it is let go of. One of them may just want Python's lock, to
    let go of the last tensor that was sent; whoever lets go of the group has that lock, and both
    wait for ever. So leaving would hang, now and then: what is held is never let go of.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))


_newest: Final[deque[Any]] = deque(maxlen=16)
"""What was done together last; see `wait_for`."""

hold(_newest)


def wait_for(work: Any) -> None:
    """Wait for what was begun together (``async_op=True``), and hold it while it is new.

    A gloo thread lets go of what it did a moment after it is known to be done. Whoever is the last
    to do so lets go of its tensors, for which Python's lock is needed; in an interpreter that is
    shutting down no thread gets it, but is ended where nothing may fail, and the process is aborted
    (SIGABRT). So no thread is the last.

    Parameters
    ----------
    work : torch.distributed.Work
        What `dist.all_reduce` and the like return.
    """
    work.wait()
    _newest.append(work)


def leave_group() -> None:
    """Let go of the others; nothing happens where there is no group."""
    if dist.is_initialized():
        dist.destroy_process_group()


def workers() -> str:
    """Return how many workers there are, and how they are connected, for people."""
    count = dist.get_world_size() if dist.is_initialized() else 1
    return f"{count} workers, {dist.get_backend()}" if count > 1 else "1 worker"


def say(text: str) -> None:
    """Tell people something, in the process's log."""
    print(f"shadowprice: {text}", file=sys.stderr, flush=True)


def _loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return address == "localhost"

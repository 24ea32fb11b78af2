"""Processes of a generation: their environment and demands, equal on every executor.

Every worker and every parameter server is a process, which torchrun treats as a node with one
process. ``RANK`` numbers the workers first, then the parameter servers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from shadowprice.core.devices import is_device
from shadowprice.core.job_keys import key_digest
from shadowprice.executors.contract import GenerationSpec

INHERITED_VARIABLES: Final = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LANGUAGE",
    "TZ",
    "TMPDIR",
    "LD_LIBRARY_PATH",
)
"""Variables that a process inherits, besides ``LC_*``."""

RENDEZVOUS_PORTS: Final = range(20_000, 32_000)  # below Linux's ephemeral range
_SIGNIFICANT_BITS: Final = 10  # of a server's memory after rounding
_CONFIGURED_UNITS: Final = (10**6, 1 << 20)  # whole MB or MiB are values that people configured


@dataclass(frozen=True, slots=True)
class Process:
    """One process of a generation."""

    role: str  # `worker` or `ps`
    rank: int  # among the processes of its role
    world_rank: int  # among all processes, workers first
    server: str

    @property
    def name(self) -> str:
        """Name of the process in logs."""
        return f"{self.role}-{self.rank}"


def list_processes(spec: GenerationSpec) -> tuple[Process, ...]:
    """Return the processes of a generation, workers first, in placement order."""
    workers = [share.server for share in spec.placement for _ in range(share.workers)]
    servers = [share.server for share in spec.placement for _ in range(share.ps)]
    return (
        *(Process("worker", rank, rank, name) for rank, name in enumerate(workers)),
        *(Process("ps", rank, len(workers) + rank, name) for rank, name in enumerate(servers)),
    )


def build_environment(
    spec: GenerationSpec,
    process: Process,
    *,
    master_address: str,
    master_port: int,
    checkpoint_dir: str,
    devices: Sequence[str] | None = None,
) -> dict[str, str]:
    """Return the variables that each process gets; the master address is worker 0's server."""
    world = spec.workers + spec.parameter_servers
    values: dict[str, object] = {
        "SHADOWPRICE_JOB": spec.name or spec.job,
        "SHADOWPRICE_GENERATION": spec.generation,
        "SHADOWPRICE_RANK": process.rank,
        "SHADOWPRICE_ROLE": process.role,
        "SHADOWPRICE_WORKERS": spec.workers,
        "SHADOWPRICE_PS": spec.parameter_servers,
        "SHADOWPRICE_CHECKPOINT_DIR": checkpoint_dir,
        "SHADOWPRICE_PROGRESS_URL": spec.progress_url,
        "SHADOWPRICE_PROGRESS_TOKEN": spec.progress_token,
        "SHADOWPRICE_SLOT_END": f"{spec.slot_end:.3f}",
        "PET_NNODES": world,
        "PET_NODE_RANK": process.world_rank,
        "PET_NPROC_PER_NODE": 1,
        "PET_MASTER_ADDR": master_address,
        "PET_MASTER_PORT": master_port,
        # torchrun makes a directory of this name, so it is short and contains no slash.
        "PET_RDZV_ID": f"{key_digest(spec.job)}-{spec.generation}",
        "MASTER_ADDR": master_address,
        "MASTER_PORT": master_port,
        "RANK": process.world_rank,
        "WORLD_SIZE": world,
    }
    variables = {name: str(value) for name, value in values.items()}
    if devices is not None:
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
    return variables


def inherited_environment(spec: GenerationSpec, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a process inherits, and those that its program sets."""
    # Other variables of the service may contain secrets.
    passed = {name: inherited[name] for name in INHERITED_VARIABLES if name in inherited}
    passed |= {name: value for name, value in inherited.items() if name.startswith("LC_")}
    return {**passed, **spec.program.environment}


class PlacementError(Exception):
    """A generation can't run at its placement; the message is the reason."""


def validate_spec(spec: GenerationSpec) -> None:
    """Raise `PlacementError` if no process can be started from the specification."""
    if spec.workers < 1 or any(min(share.workers, share.ps) < 0 for share in spec.placement):
        raise PlacementError("it has no worker")
    if not spec.program.command:
        raise PlacementError("run.command: it is empty")
    texts: Mapping[str, Iterable[str]] = {
        "name": (spec.job, spec.name),
        "checkpoint_dir": (spec.checkpoint_dir,),
        "progress_url": (spec.progress_url,),
        "progress_token": (spec.progress_token,),
        "run.workdir": (spec.program.directory,),
        "run.command": spec.program.command,
        "run.env": (text for pair in spec.program.environment.items() for text in pair),
    }
    for location, values in texts.items():
        if any("\0" in text for text in values):
            raise PlacementError(f"{location}: it contains a null character; remove it")


def gpu_millis(amounts: Mapping[str, int]) -> int:
    """Return the total of GPUs of any kind, in thousandths."""
    return sum(amount for name, amount in amounts.items() if is_device(name))


def process_demand(spec: GenerationSpec, process: Process) -> Mapping[str, int]:
    """Return the demand of a process by resource."""
    return spec.worker if process.role == "worker" else spec.ps


def list_allocations(spec: GenerationSpec, processes: Iterable[Process]) -> list[dict[str, Any]]:
    """Return the demand of each process with its server, as JSON-compatible records."""
    return [
        {"server": process.server, "amounts": dict(process_demand(spec, process))}
        for process in processes
    ]


def allocated_on(server: str, allocations: Iterable[Mapping[str, Any]]) -> list[Mapping[str, int]]:
    """Return the demands on one server, process by process."""
    return [allocation["amounts"] for allocation in allocations if allocation["server"] == server]


def round_down_memory(memory: int) -> int:
    """Round a server's memory in bytes down to ten significant bits, by less than 1/512.

    Equal machines report capacities that differ by some KiB. Without rounding, each would form a
    group of servers of its own. Multiples of a megabyte or mebibyte aren't rounded.
    """
    if any(memory % unit == 0 for unit in _CONFIGURED_UNITS):
        return memory
    dropped_bits = max(0, memory.bit_length() - _SIGNIFICANT_BITS)
    return memory >> dropped_bits << dropped_bits

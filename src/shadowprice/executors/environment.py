"""Environment variables of a generation's processes, equal on every executor.

Every worker and every parameter server is a process, which torchrun treats as a node with one
process. ``RANK`` numbers the workers first, then the parameter servers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from shadowprice.core.job_keys import key_digest
from shadowprice.executors.contract import GenerationSpec


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
    """Return the environment variables that the contract guarantees to a process.

    The master address and port are the rendezvous endpoint on worker 0's server. All generations of
    a job have the same ``checkpoint_dir``. If ``devices`` (GPUs of the process) is None,
    ``CUDA_VISIBLE_DEVICES`` isn't set.
    """
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
    """Return the variables that a process gets besides the contract's.

    A service's environment may contain secrets (tokens, database addresses), so only
    `INHERITED_VARIABLES` and ``LC_*`` are inherited. The job's own variables override them.
    """
    passed = {name: inherited[name] for name in INHERITED_VARIABLES if name in inherited}
    passed |= {name: value for name, value in inherited.items() if name.startswith("LC_")}
    return {**passed, **spec.program.environment}


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

"""What the processes of a generation are told, in their environment: the same on every executor.

Every worker and every parameter server is a process, and to torchrun each is a node of one process.
Workers come first in ``RANK``; where parameter servers are used they follow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from shadowprice.executors.contract import GenerationSpec


@dataclass(frozen=True, slots=True)
class Process:
    """One process of a generation.

    Parameters
    ----------
    role : str
        ``worker`` or ``ps``.
    rank : int
        Its number among those of its role.
    world_rank : int
        Its number among all, workers first.
    server : str
        Where it runs.
    """

    role: str
    rank: int
    world_rank: int
    server: str

    @property
    def name(self) -> str:
        """What logs call it."""
        return f"{self.role}-{self.rank}"


def processes_of(spec: GenerationSpec) -> tuple[Process, ...]:
    """Return the processes of a generation, workers first, in the order of its placement."""
    workers = [share.server for share in spec.placement for _ in range(share.workers)]
    servers = [share.server for share in spec.placement for _ in range(share.ps)]
    return (
        *(Process("worker", rank, rank, name) for rank, name in enumerate(workers)),
        *(Process("ps", rank, len(workers) + rank, name) for rank, name in enumerate(servers)),
    )


def environment_of(
    spec: GenerationSpec,
    process: Process,
    *,
    master_address: str,
    master_port: int,
    checkpoint_dir: str,
    devices: Sequence[str] | None = None,
) -> dict[str, str]:
    """Return the variables that the contract promises to a process.

    Parameters
    ----------
    spec : GenerationSpec
        Its generation.
    process : Process
        Which process.
    master_address, master_port
        Where the processes meet: an address of the server of worker 0 that all of them reach.
    checkpoint_dir : str
        Absolute path for checkpoints, the same in every generation.
    devices : sequence of str, optional
        GPUs dealt to it; None where its server has none to deal, and the variable is not set.
    """
    world = spec.workers + spec.parameter_servers
    values: dict[str, object] = {
        "SHADOWPRICE_JOB": spec.job,
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
        "PET_RDZV_ID": f"{spec.job}-{spec.generation}",
        "MASTER_ADDR": master_address,
        "MASTER_PORT": master_port,
        "RANK": process.world_rank,
        "WORLD_SIZE": world,
    }
    told = {name: str(value) for name, value in values.items()}
    if devices is not None:
        told["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
    return told


def own_environment(spec: GenerationSpec, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return what a process gets beside the contract: little of the service's own, and the job's.

    A service's environment may hold secrets (tokens, addresses of databases), so only what programs
    cannot do without is passed on.
    """
    kept = {name: inherited[name] for name in PASSED_ON if name in inherited}
    kept |= {name: value for name, value in inherited.items() if name.startswith("LC_")}
    return {**kept, **spec.program.environment}


PASSED_ON: Final = (
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
"""What a process inherits, beside ``LC_*``."""

"""Devices that processes can share: GPUs of any kind.

A device is divided as by a buddy allocator: a share takes the smallest part in `PARTS` that holds
it. Each size of a part divides the next larger size. So processes fit on the devices of a server if
and only if the sum of their parts is at most the number of devices, and one sum is an exact test.
Without this rule, 0.6 + 0.6 + 0.6 would seem to fit on two devices.

``gpu/KIND`` counts the GPUs of a kind, and ``gpu`` the GPUs of all kinds. Servers and jobs name
either. If servers name kinds, `core.cluster` adds their total as ``gpu``, so that a job that
requests ``gpu`` runs on any kind.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from shadowprice.core.amounts import MILLI

if TYPE_CHECKING:
    from shadowprice.core.cluster import Cluster
    from shadowprice.core.job import Job

GPU: Final = "gpu"  # the resource that counts GPUs of all kinds

_GPU_NAME: Final = re.compile(r"gpu(?![a-z0-9])", re.IGNORECASE)

PARTS: Final = (1, 5, 25, 125, 250, 500, MILLI)  # parts of a device in thousandths, ascending


def is_device(resource: str) -> bool:
    """Return whether a resource counts devices: ``gpu`` or ``gpu/KIND``."""
    return resource == GPU or is_gpu_kind(resource)


def is_gpu_kind(resource: str) -> bool:
    """Return whether a resource counts the GPUs of one kind: ``gpu/KIND``."""
    return resource.startswith(f"{GPU}/")


def gpus_of_kinds(amounts: Mapping[str, int]) -> int:
    """Return the total of the GPUs whose kind is named, in thousandths."""
    return sum(amount for name, amount in amounts.items() if is_gpu_kind(name))


def without_total(amounts: Mapping[str, int]) -> dict[str, int]:
    """Return amounts that count each GPU once: without ``gpu`` if it is a total of kinds."""
    has_total = gpus_of_kinds(amounts) > 0
    return {name: amount for name, amount in amounts.items() if name != GPU or not has_total}


def gpus_per_worker(amounts: Iterable[tuple[str, int]]) -> float:
    """Return a worker's GPUs for GPU-hours, 1.0 if it has none; amounts are in thousandths."""
    counted = without_total(dict(amounts))
    return sum(amount for name, amount in counted.items() if is_device(name)) / MILLI or 1.0


def gpus_of_worker(job: Job, cluster: Cluster) -> int:
    """Return the GPUs that one worker takes, in thousandths.

    All resources named ``gpu``, alone or followed by a type (``gpu/v100``, ``gpu-a100``), are
    added up. A worker without a GPU counts as one GPU, so that the job's worker count still
    matters.
    """
    amounts = without_total(dict(zip(cluster.resources, job.worker.tolist(), strict=True)))
    return sum(amount for name, amount in amounts.items() if _GPU_NAME.match(name)) or MILLI


def whole_parts(amount: int) -> int:
    """Round a demand, in thousandths, up so that its share of a device is one of `PARTS`."""
    devices, share = divmod(amount, MILLI)
    if not share:
        return amount
    return devices * MILLI + next(part for part in PARTS if part >= share)

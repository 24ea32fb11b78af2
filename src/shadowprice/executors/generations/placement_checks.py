"""Validation of start commands, and demands of their processes, for all executors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from shadowprice.core.devices import is_device
from shadowprice.executors.contract import GenerationSpec
from shadowprice.executors.environment import Process

RENDEZVOUS_PORTS: Final = range(20_000, 32_000)
"""Ports for the rendezvous of a generation's processes, below Linux's ephemeral range."""


class PlacementError(Exception):
    """A generation can't run at its placement; the message is the reason."""


def validate_spec(spec: GenerationSpec) -> None:
    """Check that a generation can be passed to processes.

    Raises `PlacementError` if there is no worker or no command, or a text contains a null
    character.
    """
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
            message = "it contains a null character; remove it"
            raise PlacementError(f"{location}: {message}")


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

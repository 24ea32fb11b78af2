"""What any executor refuses before it looks for places."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from shadowprice.executors.contract import GenerationSpec
from shadowprice.executors.environment import Process

PORTS: Final = range(20_000, 32_000)
"""Where processes of a generation may meet: below those that Linux gives to who asks for any."""


class NoPlaceError(Exception):
    """A generation cannot run where it is to run, and why."""


def check(spec: GenerationSpec) -> None:
    """Refuse what no process can be told.

    Raises
    ------
    NoPlaceError
        If there is no worker, or a text that a program is given holds a null character.
    """
    if spec.workers < 1 or any(min(one.workers, one.ps) < 0 for one in spec.placement):
        raise NoPlaceError("it has no worker")
    texts: Iterable[str] = (
        spec.job,
        spec.checkpoint_dir,
        spec.progress_url,
        spec.progress_token,
        spec.program.directory,
        *spec.program.command,
        *(text for pair in spec.program.environment.items() for text in pair),
    )
    if not spec.program.command or any("\0" in text for text in texts):
        raise NoPlaceError("a text that its program would be given holds a null character")


def amounts(spec: GenerationSpec, process: Process) -> Mapping[str, int]:
    """Return what a process takes of every resource."""
    return spec.worker if process.role == "worker" else spec.ps


def deals_of(spec: GenerationSpec, processes: Iterable[Process]) -> list[dict[str, Any]]:
    """Return what the processes of a generation take, each of its server."""
    return [{"server": one.server, "amounts": dict(amounts(spec, one))} for one in processes]


def on_server(server: str, deals: Iterable[Mapping[str, Any]]) -> list[Mapping[str, int]]:
    """Return what is taken of one server, process by process."""
    return [deal["amounts"] for deal in deals if deal["server"] == server]

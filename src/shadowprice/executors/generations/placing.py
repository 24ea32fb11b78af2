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
    if not spec.program.command:
        raise NoPlaceError("run.command: it names no program")
    texts: Mapping[str, Iterable[str]] = {
        "name": (spec.job,),
        "checkpoint_dir": (spec.checkpoint_dir,),
        "progress_url": (spec.progress_url,),
        "progress_token": (spec.progress_token,),
        "run.workdir": (spec.program.directory,),
        "run.command": spec.program.command,
        "run.env": (text for pair in spec.program.environment.items() for text in pair),
    }
    for place, found in texts.items():
        if any("\0" in text for text in found):
            message = "it holds a null character, which no program can be given; leave it out"
            raise NoPlaceError(f"{place}: {message}")


def amounts(spec: GenerationSpec, process: Process) -> Mapping[str, int]:
    """Return what a process takes of every resource."""
    return spec.worker if process.role == "worker" else spec.ps


def deals_of(spec: GenerationSpec, processes: Iterable[Process]) -> list[dict[str, Any]]:
    """Return what the processes of a generation take, each of its server."""
    return [{"server": one.server, "amounts": dict(amounts(spec, one))} for one in processes]


def on_server(server: str, deals: Iterable[Mapping[str, Any]]) -> list[Mapping[str, int]]:
    """Return what is taken of one server, process by process."""
    return [deal["amounts"] for deal in deals if deal["server"] == server]

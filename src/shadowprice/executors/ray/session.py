"""Settings, connection and tracked generations of a Ray executor."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shadowprice.core.job_keys import key_digest
from shadowprice.executors.background import BackgroundTasks
from shadowprice.executors.contract import Progressed
from shadowprice.executors.generations.disk import FileLock
from shadowprice.executors.generations.generation import TERMINAL_PHASES, GenerationDirectory
from shadowprice.executors.generations.outcome import ProcessExit
from shadowprice.executors.generations.registry import RemoteGeneration
from shadowprice.executors.options_reader import DEFAULT_LOG_BYTES, OptionsReader
from shadowprice.executors.ray.bridge_client import BridgeClient
from shadowprice.executors.ray.launch_plan import RayNode


@dataclass(frozen=True, slots=True)
class RaySettings:
    """Settings of the Ray executor, as docs/ray-reference.md describes them."""

    log_bytes: int = DEFAULT_LOG_BYTES
    lost_after: float = 60.0
    memory: str = "rlimit"
    node_dir: str = ""
    patience: float = 60.0
    shared: str = ""  # directory that the service and all nodes see; if empty, the executor's own


def read_settings(values: Mapping[str, str]) -> RaySettings:
    """Parse the settings; raise InputError with all errors."""
    reader = OptionsReader(values, RaySettings)
    settings = RaySettings(
        reader.log_bytes(),
        reader.seconds("lost_after", 60),
        reader.choice("memory", ("rlimit", "off")),
        reader.path("node_dir") or f"/tmp/shadowprice-ray-{os.geteuid()}",  # owner is checked
        reader.seconds("patience", 60),
        reader.path("shared"),
    )
    reader.raise_errors()
    return settings


@dataclass
class RayProcess:
    """One process of a generation."""

    process: str  # such as ``worker-0``
    server: str
    node: str  # id of the Ray node that it was started on
    actor: str  # name of its actor
    attached: bool = False  # whether the bridge follows its actor
    is_requesting: bool = False  # whether a request about it is pending
    gone_since: float | None = None  # monotonic time since which its actor hasn't been found
    state: dict[str, Any] = field(default_factory=dict)  # last known, of its supervisor
    delivered: int = 0  # the newest stop command that its actor received
    end: ProcessExit | None = None
    start_error: str = ""  # why its actor failed to start it
    on_node: bool = True  # whether its log and files are still on its node
    reports: bool = False  # whether it ever had a progress file
    progress: list[Any] = field(default_factory=list)  # last content and time of its progress file
    responded: bool = True  # whether its actor responded to the last progress poll

    def load_state(self, state: dict[str, Any]) -> None:
        """Record its supervisor's state."""
        self.state = state
        if state.get("phase") in TERMINAL_PHASES:
            self.end = ProcessExit.from_state(
                self.process, state, f"{self.process} was lost on {self.server}"
            )

    def mark_lost(self, reason: str) -> None:
        """Record that it is lost, because its end can't be observed."""
        self.end = ProcessExit(self.process, -1, 0.0, lost=reason)
        self.on_node = False


class RayGeneration(RemoteGeneration):
    """One generation on Ray, whose end isn't acknowledged."""

    def __init__(self, job: str, number: int, generation: GenerationDirectory) -> None:
        super().__init__(job, number, generation)
        self.parts: dict[str, RayProcess] = {}
        self.lock: FileLock | None = None  # of its directory, held while its controller runs
        self.latest: Progressed | None = None  # progress that `poll_progress` hasn't returned yet

    def set_plan(self, plan: dict[str, Any]) -> None:
        """Copy the executor's part of a plan; an empty plan changes nothing."""
        super().set_plan(plan)
        if plan and not self.parts:
            parts = (RayProcess(**part) for part in plan["parts"])
            self.parts = {part.actor: part for part in parts}

    def unlock(self) -> None:
        """Release its lock, if held."""
        lock, self.lock = self.lock, None
        if lock is not None:
            lock.release()

    def poll_progress(self) -> Progressed | None:
        """Return the progress received since the last call, or None."""
        latest, self.latest = self.latest, None
        return latest

    async def poll_progress_async(self) -> Progressed | None:
        """Return `poll_progress` without a thread: the bridge already delivered it."""
        return self.poll_progress()

    @property
    def is_stale(self) -> bool:
        """Whether a process with a progress file didn't respond to the last poll."""
        return any(
            part.reports and part.end is None and not (part.attached and part.responded)
            for part in self.parts.values()
        )

    def on_progress_file(self, part: RayProcess, progress: list[Any] | None) -> None:
        """Record the content of a process's progress file, if it is new and valid."""
        if progress is None:
            return
        part.reports = True
        if progress == part.progress:
            self.on_unchanged_progress()
            return
        part.progress = progress
        content = progress[0].encode("utf-8", "surrogateescape")
        report = self.parse_progress(content, float(progress[1]))
        if report is not None:
            self.latest = report


@dataclass
class RaySession:
    """An executor's connection to its cluster, and the known state of the cluster."""

    settings: RaySettings
    base: Path  # directory that the service and all nodes share
    background: BackgroundTasks
    refresh: Callable[[RayGeneration], Awaitable[None]]  # emits a generation's new reports
    link: BridgeClient  # replaced when the bridge ended
    token: str = ""  # content of a file in ``base``, by which nodes recognize the directory
    nodes: dict[str, RayNode] = field(default_factory=dict)  # by server
    lost_actors: dict[str, str] = field(default_factory=dict)  # servers by actor whose files remain

    def folder(self, job: str) -> Path:
        """Return the job's directory on the shared file system."""
        return self.base / "files" / key_digest(job)

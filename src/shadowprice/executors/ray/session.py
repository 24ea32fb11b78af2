"""State that the executor shares with the controllers of its generations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from shadowprice.core.job_keys import key_digest
from shadowprice.executors.background import BackgroundTasks
from shadowprice.executors.ray.bridge_client import BridgeClient
from shadowprice.executors.ray.nodes import RayNode
from shadowprice.executors.ray.settings import RaySettings
from shadowprice.executors.ray.tracked_generation import RayGeneration


@dataclass
class RaySession:
    """An executor's connection to its cluster, and the known state of the cluster."""

    settings: RaySettings
    base: Path  # directory that the service and all nodes share
    background: BackgroundTasks
    refresh: Callable[[RayGeneration], Awaitable[None]]  # emits a generation's new reports
    token: str = ""  # content of a file in ``base``, by which nodes recognize the directory
    link: BridgeClient | None = None  # replaced when the bridge ended
    nodes: dict[str, RayNode] = field(default_factory=dict)  # by server
    lost_actors: dict[str, str] = field(default_factory=dict)
    """Actors of processes lost with their server, and the server whose files need cleanup."""

    def folder(self, job: str) -> Path:
        """Return the job's directory on the shared file system."""
        return self.base / "files" / key_digest(job)

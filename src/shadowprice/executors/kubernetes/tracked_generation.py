"""An executor's in-memory record of a generation on Kubernetes: its record and its pods."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from shadowprice.executors.contract import Ending, GenerationSpec, ServerAllocation
from shadowprice.executors.generations.generation import (
    ENDED,
    REFUSED,
    RUNNING,
    GenerationDirectory,
)
from shadowprice.executors.generations.process_exits import ProcessExit, is_outcome_final
from shadowprice.executors.generations.tracked_generation import RemoteGeneration
from shadowprice.executors.kubernetes.pod_logs import PodLogFollower
from shadowprice.executors.kubernetes.views import PodView


@dataclass
class PodProcess:
    """One process of a generation, and its pod."""

    process: str
    server: str
    pod: str
    uid: str = ""  # uid of the pod, if this service created it
    view: PodView | None = None  # the last observed state of the pod
    vanished: float | None = None  # monotonic time since which the pod is missing
    over_since: float | None = None
    """Monotonic time since which the pod is over, but its container wasn't seen to end."""
    delivered: int = 0  # the newest stop command that the API server accepted
    ending: float | None = None
    """Monotonic time since which the pod is being deleted, as far as known."""
    allowed: float = math.inf  # grace period in seconds from ``ending`` on
    stop_requested: bool = False
    """Whether its deletion was requested, even if the response is unknown."""
    end: ProcessExit | None = None
    listened: bool = False  # whether its log is, or was, followed
    unseen: bool = False  # whether its exit status is unknown
    tail: tuple[str, ...] = ()
    follower: PodLogFollower | None = None

    @property
    def has_started(self) -> bool:
        """Whether its process has started."""
        return self.view is not None and self.view.began is not None

    def exit_record(self) -> dict[str, Any]:
        """Return its end for the record, for a restarted service; that collects its log again."""
        assert self.end is not None
        return {"end": asdict(self.end), "unseen": self.unseen}

    def load_exit_record(self, known: Mapping[str, Any]) -> None:
        """Restore its end from the record."""
        self.end, self.unseen = ProcessExit(**known["end"]), bool(known["unseen"])


class KubernetesGeneration(RemoteGeneration):
    """One generation that isn't forgotten; its directory only holds logs."""

    def __init__(self, job: str, number: int, generation: GenerationDirectory) -> None:
        super().__init__(job, number, generation)
        self.parts: dict[str, PodProcess] = {}
        self.spec: GenerationSpec | None = None
        self.token = ""
        self.namespace = ""
        self.obstacle = ""
        """Why the API server doesn't let it start or end; empty if it does."""
        self.since = time.monotonic()

    def load_state(self, state: dict[str, Any]) -> None:
        """Apply the state in its record."""
        self.state = state
        stop = state.get("stop", {})
        self._stop_command = int(stop.get("command", 0))
        self.stop_ordered = bool(self._stop_command)
        self.placement = tuple(ServerAllocation(*share) for share in state.get("placement", ()))
        plan = state.get("plan")
        if plan and not self.parts:
            self.set_plan(
                {"processes": [{"name": part["process"]} for part in plan["parts"]], **plan}
            )
            parts = [PodProcess(**part) for part in plan["parts"]]
            self.parts = {part.process: part for part in parts}
            self.namespace = str(plan["namespace"])
            for name, end in (state.get("deciding") or {}).items():
                self.parts[name].load_exit_record(end)

    def state_without_record(self) -> dict[str, Any]:
        """Return its state after its record was deleted: lost, unless it had ended before."""
        if self.is_finished:
            return dict(self.state)
        lost = {"ending": Ending.LOST.value, "code": None, "reason": "its record was deleted"}
        return {**self.state, "phase": ENDED, "at": time.time(), **lost}

    def accepts_state(self, state: Mapping[str, Any]) -> bool:
        """Return whether a state of the record continues this generation's.

        A stop command that finds no record bars the generation, as if it had never started.
        """
        return self.phase not in {RUNNING, ENDED} or state["phase"] != REFUSED

    @property
    def termination_requested(self) -> bool:
        """Whether this or an earlier service may have deleted its pods."""
        return self.stop_ordered or bool(self.state.get("deciding"))

    @property
    def is_outcome_final(self) -> bool:
        """Whether the running processes can't change its result."""
        return is_outcome_final(self.process_exits(), self.workers, tolerant=self.tolerant)

    def read(self) -> None:
        """Do nothing: its record is in the API server; see `take`."""

    def exits(self) -> dict[str, int]:
        """Return the exit statuses of the processes that have ended, while others run."""
        return {end.name: end.code for end in self.process_exits()}

    def process_exits(self) -> list[ProcessExit]:
        """Return the ends of the processes that have ended."""
        return [part.end for part in self.parts.values() if part.end is not None]

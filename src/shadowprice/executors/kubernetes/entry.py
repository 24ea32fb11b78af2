"""What the executor has in memory of a generation: its record, its pods, what was told."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shadowprice.executors.contract import GenerationSpec, Share
from shadowprice.executors.generations.entry import DrivenEntry
from shadowprice.executors.generations.generation import Generation
from shadowprice.executors.generations.parts import PartEnd
from shadowprice.executors.kubernetes.following import Follower
from shadowprice.executors.kubernetes.views import PodView

if TYPE_CHECKING:
    from shadowprice.executors.kubernetes.driving import Drive


@dataclass
class Part:
    """One process of a generation, and its pod.

    Parameters
    ----------
    process : str
        Its name.
    server : str
        Where it runs.
    pod : str
        Name of its pod.
    """

    process: str
    server: str
    pod: str
    view: PodView | None = None
    """The pod as it was last seen."""
    vanished: float | None = None
    """Since when it is not there any more, on the monotonic clock."""
    over_since: float | None = None
    """Since when it is over on paper, while its container was not seen to end."""
    delivered: int = 0
    """The newest order to end that the server took."""
    ending: float | None = None
    """Since when it was told to end, as far as is known here, on the monotonic clock."""
    allowed: float = math.inf
    """Seconds from then on until it is killed."""
    told: bool = False
    """Whether it was told to end, or at least the server was asked to tell it."""
    end: PartEnd | None = None
    listened: bool = False
    """Whether its log is, or was, followed to its end."""
    unseen: bool = False
    """Whether nobody saw its exit status."""
    tail: tuple[str, ...] = ()
    follower: Follower | None = None

    @property
    def began(self) -> bool:
        """Whether its process began."""
        return self.view is not None and self.view.began is not None

    def known(self) -> dict[str, Any]:
        """Return what a record is to say of its end, for whoever goes on."""
        assert self.end is not None
        return {"end": asdict(self.end), "tail": list(self.tail), "unseen": self.unseen}

    def take(self, known: Mapping[str, Any]) -> None:
        """Take in what a record says of its end."""
        self.end = PartEnd(**known["end"])
        self.tail, self.unseen = tuple(known["tail"]), bool(known["unseen"])


class KubernetesEntry(DrivenEntry):
    """One generation that is not forgotten; see `generations.entry`.

    Parameters
    ----------
    job : str
        The job.
    number : int
        The generation.
    path : Path
        The executor's directory, where logs are kept.
    """

    def __init__(self, job: str, number: int, path: Path) -> None:
        super().__init__(job, number, Generation(path))
        self.parts: dict[str, Part] = {}
        self.spec: GenerationSpec | None = None
        self.token = ""
        self.namespace = ""
        self.driver: Drive | None = None
        self.since = time.monotonic()

    def take(self, state: dict[str, Any]) -> None:
        """Take in what its record says."""
        self.state = state
        stop = state.get("stop", {})
        self._stop_command = int(stop.get("command", 0))
        self.stop_ordered = bool(self._stop_command)
        self.placement = tuple(Share(*share) for share in state.get("placement", ()))
        plan = state.get("plan")
        if plan and not self.parts:
            self.take_plan(
                {"processes": [{"name": one["process"]} for one in plan["parts"]], **plan}
            )
            parts = [Part(**one) for one in plan["parts"]]
            self.parts = {one.process: one for one in parts}
            self.namespace = str(plan["namespace"])
            for name, known in (state.get("deciding") or {}).items():
                self.parts[name].take(known)

    @property
    def told_to_end(self) -> bool:
        """Whether its processes may have been told to end, by this service or an earlier one."""
        return self.stop_ordered or bool(self.state.get("deciding"))

    def read(self) -> None:
        """Its record is in the API server: see `take`."""

    def ends(self) -> list[PartEnd]:
        """Return how the processes ended that did."""
        return [part.end for part in self.parts.values() if part.end is not None]

"""State that the executor shares with the controllers of its generations."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from shadowprice.executors.background import BackgroundTasks
from shadowprice.executors.contract import Report
from shadowprice.executors.kubernetes.looking import Cluster
from shadowprice.executors.kubernetes.names import ServiceId
from shadowprice.executors.kubernetes.records import Records
from shadowprice.executors.kubernetes.settings import Settings
from shadowprice.executors.kubernetes.views import PodView
from shadowprice.kubernetes.connection import ApiClient


@dataclass
class Session:
    """An executor's open connection to its cluster, with everything that depends on it."""

    settings: Settings
    identity: ServiceId
    connection: ApiClient
    records: Records
    cluster: Cluster
    background: BackgroundTasks
    emit: Callable[[Iterable[Report]], None]
    leave: Callable[[Iterable[PodView]], None]
    """Counts pods that run on after the end of their generation as used capacity."""
    gates: bool = False
    """Whether the API server supports scheduling gates of pods."""

"""State that the executor shares with the controllers of its generations."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from shadowprice.executors.background import BackgroundTasks
from shadowprice.executors.contract import Report
from shadowprice.executors.kubernetes.cluster_cache import ClusterCache
from shadowprice.executors.kubernetes.names import ServiceId
from shadowprice.executors.kubernetes.records import ConfigMapStore
from shadowprice.executors.kubernetes.settings import KubernetesSettings
from shadowprice.executors.kubernetes.views import PodView
from shadowprice.kubernetes.connection import ApiClient


@dataclass
class KubernetesSession:
    """An executor's open connection to its cluster, with everything that depends on it."""

    settings: KubernetesSettings
    identity: ServiceId
    connection: ApiClient
    records: ConfigMapStore
    cluster: ClusterCache
    background: BackgroundTasks
    emit: Callable[[Iterable[Report]], None]
    leave: Callable[[Iterable[PodView]], None]
    """Counts pods that run on after the end of their generation as used capacity."""
    gates: bool = False  # whether the API server supports scheduling gates of pods

"""What can be set of the Kubernetes executor, beside what every executor is made with."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from shadowprice.core.specs.faults import validate
from shadowprice.core.specs.pod import PodSpec
from shadowprice.core.wording import shown
from shadowprice.executors.reading import LOG_BYTES, Reading

ALLOWED: Final = ("host_network", "host_path", "root", "secrets", "service_account")
"""What jobs may ask for only where the operator says so."""

_NAMES: Final = (
    "allow",
    "context",
    "gpu",
    "image",
    "log_bytes",
    "lost_after",
    "namespace",
    "network",
    "patience",
    "pod",
    "service_url",
    "shared",
    "tolerate_unready",
    "volume",
)
_MOST_POD: Final = 1 << 20
_OBJECT: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_RESOURCE: Final = re.compile(r"[a-z0-9.-]{1,253}/[A-Za-z0-9._-]{1,63}")


@dataclass(frozen=True, slots=True)
class Settings:
    """What can be set.

    Parameters
    ----------
    allow : frozenset of str
        What jobs may ask for, of `ALLOWED`.
    context : str
        A context of the kubeconfig; empty for the current one.
    gpu : str
        What a GPU is called among a node's resources.
    image : str
        Of jobs that name none; empty for none.
    log_bytes : int
        Most bytes kept of what one process writes.
    lost_after : float
        Seconds from when a node is not ready, or gone, until what ran there is taken for ended. A
        kubelet that is cut off lets pods run on.
    namespace : str
        Where pods and records are; empty for that of the context, or of the service's own pod.
    network : str
        ``pods``: every pod has its address, and a headless service names them; ``host``: pods use
        their node's network.
    patience : float
        Seconds that pods have to run on all nodes; then the generation is refused.
    pod : mapping
        What holds of all pods, as `core.specs.pod.PodSpec.plain` returns it.
    service_url : str
        By which pods reach the service, where that is another than it says itself.
    shared : str
        Absolute path under which all pods see a volume: checkpoints, and directories of jobs that
        name no other. Empty: checkpoints last as long as a pod.
    tolerate_unready : float
        Seconds that a node may be not ready and is a server all the same: a kubelet that could not
        renew its lease says nothing of its pods. At most half of `lost_after`, so that nothing is
        begun anew where it was lost.
    volume : str
        What that is: ``host`` (the same directory of every node, a network file system say) or the
        name of a persistent volume claim.
    """

    allow: frozenset[str] = frozenset()
    context: str = ""
    gpu: str = "nvidia.com/gpu"
    image: str = ""
    log_bytes: int = LOG_BYTES
    lost_after: float = 300.0
    namespace: str = ""
    network: str = "pods"
    patience: float = 120.0
    pod: Mapping[str, Any] = field(default_factory=dict)
    service_url: str = ""
    shared: str = ""
    tolerate_unready: float = 30.0
    volume: str = "host"


class _Reading(Reading):
    """Reads what only this executor has as well."""

    def allowed(self) -> frozenset[str]:
        """Return what jobs may ask for."""
        names = [one.strip() for one in self.values.get("allow", "").split(",") if one.strip()]
        for name in names:
            if name not in ALLOWED:
                mend = self.one_of(name, ALLOWED)
                self.fault("allow", f"{shown(name)} is nothing that can be allowed", mend)
        return frozenset(names)

    def pod(self) -> Mapping[str, Any]:
        """Return what a file says of all pods."""
        path = self.values.get("pod", "")
        if not path:
            return {}
        try:
            with Path(path).open("rb") as stream:
                content = stream.read(_MOST_POD + 1)
            if len(content) > _MOST_POD:
                raise ValueError("it is larger than a mebibyte")
            read = yaml.safe_load(content)
        except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
            told = " ".join((getattr(error, "strerror", None) or str(error)).split())
            self.fault("pod", f"{shown(path)} cannot be read: {told}", "write the path of a file")
            return {}
        found, faults = validate(PodSpec, read if read is not None else {}, path)
        self.faults += faults
        return found.plain() if found is not None else {}


def read_settings(values: Mapping[str, str]) -> Settings:
    """Return what is set.

    Raises
    ------
    InputError
        If a name is unknown or a value is wrong, listing all of them.
    """
    reading = _Reading(values, _NAMES)
    name = "write the name of an object: small letters, digits and -"
    lost_after = reading.seconds("lost_after", 300)
    settings = Settings(
        allow=reading.allowed(),
        context=values.get("context", ""),
        gpu=reading.matching("gpu", _RESOURCE, "nvidia.com/gpu", "write DOMAIN/NAME"),
        image=reading.matching(
            "image", r"[A-Za-z0-9][\w./:@+-]{0,3999}", "", "write REGISTRY/NAME:TAG"
        ),
        log_bytes=reading.log_bytes(),
        lost_after=lost_after,
        namespace=reading.matching("namespace", _OBJECT, "", name),
        network=reading.choice("network", ("pods", "host")),
        patience=reading.seconds("patience", 120),
        pod=reading.pod(),
        service_url=reading.matching(
            "service_url", r"https?://[^\s/]+", "", "write http://HOST:PORT"
        ),
        shared=reading.matching("shared", r"/[^\0]*[^\0/]", "", "write an absolute path"),
        tolerate_unready=min(reading.seconds("tolerate_unready", 30), lost_after / 2),
        volume=reading.matching("volume", _OBJECT, "host", "write host, or the name of a claim"),
    )
    if "volume" in values and not settings.shared:
        reading.fault("volume", "nothing says where pods see it", "add shared=/PATH")
    reading.end()
    return settings

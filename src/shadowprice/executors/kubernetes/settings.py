"""Settings of the Kubernetes executor."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from shadowprice.core.specs.faults import validate
from shadowprice.core.specs.run import PodSpec
from shadowprice.core.wording import hint_for_unknown, quote_for_display
from shadowprice.core.yaml_values import parse_yaml
from shadowprice.executors.options_reader import DEFAULT_LOG_BYTES, OptionsReader

PRIVILEGED_FEATURES: Final = ("host_network", "host_path", "root", "secrets", "service_account")
"""Pod options that jobs may only use if the operator allows them."""

_MAX_POD_FILE_BYTES: Final = 1 << 20
_OBJECT: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_RESOURCE: Final = re.compile(r"[a-z0-9.-]{1,253}/[A-Za-z0-9._-]{1,63}")


@dataclass(frozen=True, slots=True)
class KubernetesSettings:
    """Settings of the Kubernetes executor, as docs/kubernetes-reference.md describes them."""

    allow: frozenset[str] = frozenset()  # those of `PRIVILEGED_FEATURES` that jobs may use
    context: str = ""  # of the kubeconfig; empty for the current one
    gpu: str = "nvidia.com/gpu"  # Kubernetes resource of GPUs
    image: str = ""  # of jobs that set none
    log_bytes: int = DEFAULT_LOG_BYTES
    lost_after: float = 300.0  # seconds without its node after which a process counts as lost
    namespace: str = ""  # empty for the namespace of the context, or of the service's own pod
    network: str = "pods"  # or host, the node's network
    patience: float = 120.0  # maximum seconds until all pods of a generation have started
    pod: Mapping[str, Any] = field(default_factory=dict)  # default options, from `PodSpec.plain`
    service_url: str = ""  # URL by which pods reach the service; empty for the service's own
    shared: str = ""  # path at which all pods mount ``volume``; checkpoints are lost without it
    tolerate_unready: float = 30.0  # seconds for which a node that isn't ready remains a server
    volume: str = "host"  # equal directories of all nodes, or a persistent volume claim


def _read_allowed(reader: OptionsReader) -> frozenset[str]:
    names = [item.strip() for item in reader.values.get("allow", "").split(",") if item.strip()]
    for name in names:
        if name not in PRIVILEGED_FEATURES:
            hint = hint_for_unknown(name, PRIVILEGED_FEATURES)
            message = f"{quote_for_display(name)} is not an option that can be allowed"
            reader.add_error("allow", message, hint)
    return frozenset(names)


def _read_pod(reader: OptionsReader) -> Mapping[str, Any]:
    path = reader.values.get("pod", "")
    if not path:
        return {}
    try:
        with Path(path).open("rb") as stream:
            content = stream.read(_MAX_POD_FILE_BYTES + 1)
        if len(content) > _MAX_POD_FILE_BYTES:
            raise ValueError("it is larger than 1 MiB")
        document = parse_yaml(content)
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        reason = " ".join((getattr(error, "strerror", None) or str(error)).split())
        message = f"{quote_for_display(path)} cannot be read: {reason}"
        reader.add_error("pod", message, "write the path of a file")
        return {}
    pod, faults = validate(PodSpec, document if document is not None else {}, path)
    reader.faults += faults
    return pod.plain() if pod is not None else {}


def read_settings(values: Mapping[str, str]) -> KubernetesSettings:
    """Parse the settings; raise InputError with all errors."""
    reader = OptionsReader(values, KubernetesSettings)
    object_hint = "expected the name of an object: lower-case letters, digits and -"
    lost_after = reader.seconds("lost_after", 300)
    settings = KubernetesSettings(
        allow=_read_allowed(reader),
        context=values.get("context", ""),
        gpu=reader.matching("gpu", _RESOURCE, "nvidia.com/gpu", "write DOMAIN/NAME"),
        image=reader.matching(
            "image", r"[A-Za-z0-9][\w./:@+-]{0,3999}", "", "write REGISTRY/NAME:TAG"
        ),
        log_bytes=reader.log_bytes(),
        lost_after=lost_after,
        namespace=reader.matching("namespace", _OBJECT, "", object_hint),
        network=reader.choice("network", ("pods", "host")),
        patience=reader.seconds("patience", 120),
        pod=_read_pod(reader),
        service_url=reader.matching(
            "service_url", r"https?://[^\s/]+", "", "write http://HOST:PORT"
        ),
        shared=reader.matching("shared", r"/[^\0]*[^\0/]", "", "write an absolute path"),
        # An unready node has to be no server before its processes count as lost.
        tolerate_unready=min(reader.seconds("tolerate_unready", 30), lost_after / 2),
        volume=reader.matching(
            "volume", _OBJECT, "host", "expected host, or the name of a persistent volume claim"
        ),
    )
    if "volume" in values and not settings.shared:
        reader.add_error("volume", "the path inside pods is missing", "add shared=/PATH")
    reader.raise_errors()
    return settings

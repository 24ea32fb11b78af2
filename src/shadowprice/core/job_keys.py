"""Keys of jobs in the live service: unique strings, with the tenant's name if there is one.

Two tenants may use one name, and a tenant may use a name again when its job is closed. So the
engine, the store and the executors identify a job by its key, and people by its name. A key depends
on the jobs of its own tenant only, so that no name, directory or order reveals those of another
tenant.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from shadowprice.core import bounds

MAX_KEY_CHARACTERS: Final = 6 * int(bounds.NAME.maximum) + 32
"""Length of a key whose tenant and name have the most characters, all escaped, and of its id."""

ID_PREFIX: Final = "id:"
"""Prefix of a reference to a job by its id, because another job may be named by a number."""

_ESCAPED: Final = str.maketrans({"%": "%25", "/": "%2F", "~": "%7E"})


def qualified_name(tenant: str | None, name: str) -> str:
    """Return ``tenant/name``, or ``name`` without a tenant, with separators in either escaped.

    At most one open job has a qualified name.
    """
    own = name.translate(_ESCAPED)
    return own if tenant is None else f"{tenant.translate(_ESCAPED)}/{own}"


def repeated_key(qualified: str, job_id: int) -> str:
    """Return the key of a job whose qualified name may already be the key of an earlier job."""
    return f"{qualified}~{job_id}"


def owned_key(name: str) -> str:
    """Return the key of the job that a Kubernetes resource owns, by its unique name.

    The tenant isn't part of it, because the tenant of a namespace can change. No tenant has an
    empty name, so no other job has this key.
    """
    return f"/{name.translate(_ESCAPED)}"


def name_of_key(key: str) -> str:
    """Return the name of the job with a key."""
    name = key.rpartition("/")[2].partition("~")[0]
    return name.replace("%7E", "~").replace("%2F", "/").replace("%25", "%")


def shown_key(key: str) -> str:
    """Return the qualified name of the job with a key, or its name if a resource owns it."""
    return key.removeprefix("/").partition("~")[0]


def key_digest(key: str) -> str:
    """Return a digest of a key for paths and object names, which must not contain the key."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:32]


RESERVED_LABELS: Final = "shadowprice.io/"  # prefix of labels that users may not submit

_NAMESPACE, _NAME, _UID = (f"{RESERVED_LABELS}{part}" for part in ("namespace", "name", "uid"))


@dataclass(frozen=True, slots=True)
class Owner:
    """The Kubernetes resource that a job was created from, and that owns its pods.

    It is stored in the job's labels, so that the engine and the store don't depend on Kubernetes.
    Only the service's own controller may set these labels: they choose the namespace in which pods
    run. Its UID differs from those of earlier and later resources with the same name.
    """

    namespace: str
    name: str
    uid: str

    @classmethod
    def from_labels(cls, labels: Mapping[str, str]) -> Owner | None:
        """Return the owner in a job's labels, None if there is none."""
        if not all(label in labels for label in (_NAMESPACE, _NAME, _UID)):
            return None
        return cls(labels[_NAMESPACE], labels[_NAME], labels[_UID])

    def labels(self) -> dict[str, str]:
        """Return the labels that describe this owner."""
        return {_NAMESPACE: self.namespace, _NAME: self.name, _UID: self.uid}

    @property
    def job(self) -> str:
        """Name of the job in the service, unique per resource."""
        return f"{self.namespace}.{self.name}.{self.uid.replace('-', '')[:12]}"

    @property
    def key(self) -> str:
        """Key of the job in the service."""
        return owned_key(self.job)

"""Kubernetes names of the custom resource, its labels and annotations."""

from __future__ import annotations

from typing import Final

GROUP: Final = "shadowprice.io"
"""API group of the custom resource, and prefix of all labels and annotations."""

VERSION: Final = "v1alpha1"

API_VERSION: Final = f"{GROUP}/{VERSION}"

KIND: Final = "TrainingJob"

PLURAL: Final = "trainingjobs"

CRD_NAME: Final = f"{PLURAL}.{GROUP}"  # name of the custom resource definition

FINALIZER: Final = f"{GROUP}/cancel"
"""Finalizer that keeps a deleted resource until its job has ended."""

CLAIM: Final = f"{GROUP}/service"
"""Annotation of a resource with the service that drives it; it gets it with the finalizer."""

TENANT_LABEL: Final = f"{GROUP}/tenant"
"""Label of a namespace that sets the tenant of its jobs; by default the namespace's name."""

SHARE: Final = f"{GROUP}/share"
"""Annotation of a namespace with its tenant's share; as a label it marks a quota."""

ACTIVE_LABEL: Final = f"{GROUP}/active"  # label of the service's pods: true on the leader

MAX_NAME_CHARS: Final = 63  # maximum characters of a resource's name

"""Names that are bound in Kubernetes: the resource, its labels, who owns what."""

from __future__ import annotations

from typing import Final

GROUP: Final = "shadowprice.io"
"""API group of the custom resource, and the beginning of every label and annotation."""

VERSION: Final = "v1alpha1"

API_VERSION: Final = f"{GROUP}/{VERSION}"

KIND: Final = "TrainingJob"

PLURAL: Final = "trainingjobs"

DEFINITION: Final = f"{PLURAL}.{GROUP}"
"""Name of the definition."""

FINALIZER: Final = f"{GROUP}/cancel"
"""Holds a resource that is deleted until nothing of its job runs."""

TENANT_LABEL: Final = f"{GROUP}/tenant"
"""Label of a namespace that names the tenant of its jobs, in place of its own name."""

SHARE: Final = f"{GROUP}/share"
"""Annotation of a namespace that states its tenant's share; as a label, what makes a quota one."""

ACTIVE_LABEL: Final = f"{GROUP}/active"
"""Label of the service's pods: true on the one that writes."""

LONGEST_NAME: Final = 63
"""Characters of a resource's name."""

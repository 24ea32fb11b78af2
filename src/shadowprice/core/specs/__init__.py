"""Models of cluster and job files, which validate them wherever they come from.

`ClusterSpec.resolve` and `JobSpec.resolve` convert a model to the objects that schedulers use.
Unknown keys are errors (the nearest known key is named), quantities carry their unit, and a
diagnostic names its location and a hint.
"""

from shadowprice.core.specs.cluster import ClusterSpec
from shadowprice.core.specs.faults import validate
from shadowprice.core.specs.fields import LimitedModel, Name, Spec
from shadowprice.core.specs.jobs import JobSpec, resolve_jobs
from shadowprice.core.specs.run import RunSpec
from shadowprice.core.specs.utilities import resolve_utility

__all__ = [
    "ClusterSpec",
    "JobSpec",
    "LimitedModel",
    "Name",
    "RunSpec",
    "Spec",
    "resolve_jobs",
    "resolve_utility",
    "validate",
]

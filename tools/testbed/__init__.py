"""A Kubernetes cluster on this machine, for tests: real API server, real kubelets, real pods.

`Testbed` runs a cluster, and ``make testbed`` builds its programs once. ``python -m tools.testbed``
starts a cluster interactively. `audit` checks the API server's log for duplicate and orphaned pods.
"""

from tools.testbed.access import ApiError
from tools.testbed.bed import Testbed
from tools.testbed.images import BASE, host_python
from tools.testbed.places import TestbedError, missing

__all__ = ["BASE", "ApiError", "Testbed", "TestbedError", "host_python", "missing"]

"""A Kubernetes cluster on this machine, for tests: real API server, real kubelets, real pods.

`Testbed` is it; ``make testbed`` builds what it runs, once. ``python -m tools.testbed`` starts one
by hand. `audit` says from the API server's own log whether anything was doubled or left behind.
"""

from tools.testbed.access import ApiError
from tools.testbed.bed import Testbed
from tools.testbed.images import BASE, host_python
from tools.testbed.places import TestbedError, missing

__all__ = ["BASE", "ApiError", "Testbed", "TestbedError", "host_python", "missing"]

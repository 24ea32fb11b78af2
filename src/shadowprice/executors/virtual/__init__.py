"""An executor in simulated time: hours of a live service take seconds of processor time.

`VirtualLoop` is an event loop whose clock jumps to the next timer. `VirtualExecutor` implements the
executor contract with jobs (`VirtualJob`) whose real behaviour may differ from their specification.
A service runs unchanged with both.
"""

from shadowprice.executors.virtual.executor import (
    Rate,
    VirtualExecutor,
    VirtualGeneration,
    VirtualJob,
    stated_rate,
)
from shadowprice.executors.virtual.loop import StalledError, VirtualClock, VirtualLoop, run_virtual

__all__ = [
    "Rate",
    "StalledError",
    "VirtualClock",
    "VirtualExecutor",
    "VirtualGeneration",
    "VirtualJob",
    "VirtualLoop",
    "run_virtual",
    "stated_rate",
]

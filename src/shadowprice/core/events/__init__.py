"""What happens to a cluster, what policies decide, and what drivers are told to do.

Events flow from a driver into the engine, decisions from a policy to the engine, and commands from
the engine to the driver. All are values: none of them acts.

An event's ``slot`` is the first slot that can still be decided when it happens: between two slots
the coming one, and while a slot runs the one after it. `SlotBegan` and `SlotEnded` name the slot
itself. Outside, servers go by name; rows of arrays are the engine's and the policies' business.

A module for each way that they go; all of them are imported from here.
"""

from shadowprice.core.events.commands import (
    Command,
    Completed,
    Decided,
    Displaced,
    Order,
    Resize,
    Run,
    Start,
    Stop,
)
from shadowprice.core.events.decisions import (
    Charge,
    Commit,
    Decision,
    Displace,
    Drop,
    Pause,
    Place,
    Promise,
    Queue,
    Reject,
)
from shadowprice.core.events.driver_events import (
    Acknowledged,
    CapacityChanged,
    DriverEvent,
    JobCancelled,
    JobEnded,
    JobFailed,
    JobRevised,
    JobsArrived,
    ProgressMeasured,
    ServerBack,
    ServerLost,
    ServerState,
    SlotBegan,
    SlotEnded,
    StartFailed,
    TimespanChanged,
)
from shadowprice.core.events.policy_events import (
    JobsDisplaced,
    JobsFinished,
    PlansFellShort,
    PolicyEvent,
)

__all__ = [
    "Acknowledged",
    "CapacityChanged",
    "Charge",
    "Command",
    "Commit",
    "Completed",
    "Decided",
    "Decision",
    "Displace",
    "Displaced",
    "DriverEvent",
    "Drop",
    "JobCancelled",
    "JobEnded",
    "JobFailed",
    "JobRevised",
    "JobsArrived",
    "JobsDisplaced",
    "JobsFinished",
    "Order",
    "Pause",
    "Place",
    "PlansFellShort",
    "PolicyEvent",
    "ProgressMeasured",
    "Promise",
    "Queue",
    "Reject",
    "Resize",
    "Run",
    "ServerBack",
    "ServerLost",
    "ServerState",
    "SlotBegan",
    "SlotEnded",
    "Start",
    "StartFailed",
    "Stop",
    "TimespanChanged",
]

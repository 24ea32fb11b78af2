"""Events, decisions and commands.

Drivers send events to the engine, policies send decisions to the engine, and the engine sends
commands to the driver. All are immutable values without behaviour.

An event's ``slot`` is the first slot that can still be decided: between two slots the coming one,
and while a slot runs the one after it. `SlotBegan` and `SlotEnded` name the slot itself. Servers
are identified by name. Only the engine and the policies use rows of arrays.

Each direction has its own module; import all names from here.
"""

from shadowprice.core.events.commands import (
    Command,
    Completed,
    Decided,
    Displaced,
    NumberedCommand,
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
    GenerationEvent,
    JobCancelled,
    JobEnded,
    JobFailed,
    JobRevised,
    JobsArrived,
    JobStarted,
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
    LengthsRevised,
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
    "GenerationEvent",
    "JobCancelled",
    "JobEnded",
    "JobFailed",
    "JobRevised",
    "JobStarted",
    "JobsArrived",
    "JobsDisplaced",
    "JobsFinished",
    "LengthsRevised",
    "NumberedCommand",
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

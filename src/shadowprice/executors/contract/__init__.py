"""The contract between the live service and the executors that run its jobs.

An executor runs *generations*. A generation is one run of a job at a fixed placement: fixed numbers
of workers and parameter servers on named servers, each a process. It starts once and ends once, and
a job has at most one running generation. To rescale a job, the service stops its generation, waits
for the end, and starts the next one.

Commands and reports. An executor makes a command (`start`, `stop`) durable, and then returns a
`Receipt`. `watch` reports the effect. An accepted generation is reported `Started` or
`StartRefused`, and a started one is reported `Ended`: exactly one of each, in that order. An
executor may repeat a report unchanged until `acknowledge_end`. So a service that was down for any
time receives every report that it didn't record.

Fencing. The executor durably stores the newest generation of each job that a `start` or a `stop`
named. A `start` of an older generation is stale, and a `start` of the same one is a duplicate.
Neither starts anything, so commands may be repeated, delayed and reordered. Two commands are the
same if their `GenerationSpec.identity` is equal. A store restored from a backup may reuse a
generation's number for a different command; that command is stale.

Endings. All processes of a generation end together: when the first one fails, or when every worker
has exited 0. With `Program.tolerates_workers`, the generation continues if a worker dies, until a
parameter server or the last worker fails. `executors.generations.outcome` implements this rule for
every executor.

Modules: `commands`, `reports` and `answers` define the data exchanged, `executor` the protocol,
`optional` the optional protocols, and `options` the constructor's options. Import all names from
this package.
"""

from shadowprice.executors.contract.answers import (
    GenerationPhase,
    GenerationStatus,
    LogChunk,
    ObservedJob,
    Obstacle,
)
from shadowprice.executors.contract.commands import (
    UNCOMMANDED_STOP,
    GenerationSpec,
    Receipt,
    ServerAllocation,
)
from shadowprice.executors.contract.executor import Executor, ExecutorCapabilities, ExecutorError
from shadowprice.executors.contract.optional import (
    ChecksReachability,
    KeepsLocalRecords,
    LimitsServers,
    PollsProgress,
    ReportsHealth,
    ReportsObstacles,
    UnpackFailure,
    UnpacksFiles,
)
from shadowprice.executors.contract.options import Election, ExecutorOptions, ignore_failure
from shadowprice.executors.contract.reports import (
    ROLE_LABEL,
    Ended,
    Ending,
    InvalidProgress,
    PartlyEnded,
    Progressed,
    Report,
    ServerGone,
    ServerInfo,
    ServerSeen,
    Started,
    StartRefused,
)

__all__ = [
    "ROLE_LABEL",
    "UNCOMMANDED_STOP",
    "ChecksReachability",
    "Election",
    "Ended",
    "Ending",
    "Executor",
    "ExecutorCapabilities",
    "ExecutorError",
    "ExecutorOptions",
    "GenerationPhase",
    "GenerationSpec",
    "GenerationStatus",
    "InvalidProgress",
    "KeepsLocalRecords",
    "LimitsServers",
    "LogChunk",
    "ObservedJob",
    "Obstacle",
    "PartlyEnded",
    "PollsProgress",
    "Progressed",
    "Receipt",
    "Report",
    "ReportsHealth",
    "ReportsObstacles",
    "ServerAllocation",
    "ServerGone",
    "ServerInfo",
    "ServerSeen",
    "StartRefused",
    "Started",
    "UnpackFailure",
    "UnpacksFiles",
    "ignore_failure",
]

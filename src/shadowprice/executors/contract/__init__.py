"""The contract between the live service and what runs its jobs.

An executor starts *generations*. A generation is one placement of a job: fixed numbers of workers
and parameter servers on named servers, each a process. It begins once, ends once, and at most one
generation of a job runs at a time. The service changes a job by stopping one generation, seeing its
end, and starting the next.

Orders (`start`, `stop`) are answered at once by a `Receipt`, after what they change is durable;
what becomes of them is told by `watch`, as reports. What was accepted is reported `Started`
or `Refused`, and one that started is reported `Ended`, exactly one of each, in that order. A
report may come again, word for word, until `forget` says that it was recorded. So a service
that was away, for a moment or a month, misses nothing: what it did not record it is told again.

Fencing. The newest generation that an executor saw of a job, in a `start` or a `stop`, is kept
where it survives both of them. A `start` of an older one is stale, a `start` of the same one a
duplicate: neither starts anything. Orders may so be repeated, delayed and reordered at will.
The same one is the same order, not only the same number: a store that was restored counts again
from where the copy was made, and may give a number to another order. What tells orders apart
(`GenerationSpec.identity`) is kept with a generation; another order of its number is stale.

Endings. All processes of a generation end together: with the first that fails, and once all workers
exited 0. A program that tolerates workers (`Program.tolerates_workers`) says that the others go on
without one that dies: only parameter servers, or the last worker, then end the generation.
`executors.generations.verdict` is that rule, for every executor.

Each module is one part of it: `orders`, `reports`, `answers` and `servers` are what goes to and
fro, `executor` is what every executor does, `optional` what one may offer besides, `options` what
it is made with. All of it is imported from here.
"""

from shadowprice.executors.contract.answers import Held, LogChunk, Observed, Phase
from shadowprice.executors.contract.errors import ExecutorError
from shadowprice.executors.contract.executor import Capabilities, Executor
from shadowprice.executors.contract.optional import Fresh, Reaching, Remembering, ReportsHealth
from shadowprice.executors.contract.options import Election, ExecutorOptions, unheeded
from shadowprice.executors.contract.orders import UNASKED, GenerationSpec, Receipt, Share
from shadowprice.executors.contract.reports import (
    Ended,
    Ending,
    Misreported,
    Progressed,
    Refused,
    Report,
    Started,
)
from shadowprice.executors.contract.servers import ServerGone, ServerSeen, ServerSlice

__all__ = [
    "UNASKED",
    "Capabilities",
    "Election",
    "Ended",
    "Ending",
    "Executor",
    "ExecutorError",
    "ExecutorOptions",
    "Fresh",
    "GenerationSpec",
    "Held",
    "LogChunk",
    "Misreported",
    "Observed",
    "Phase",
    "Progressed",
    "Reaching",
    "Receipt",
    "Refused",
    "Remembering",
    "Report",
    "ReportsHealth",
    "ServerGone",
    "ServerSeen",
    "ServerSlice",
    "Share",
    "Started",
    "unheeded",
]

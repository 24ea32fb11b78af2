"""Columns of a cluster's own log: its header, and what each column means.

A header is compared without case, separators and units. A guess must fit the values of its column,
because the header doesn't suffice: ``wait`` may be a duration, or whether a job waited.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shadowprice.core.errors import Fault, InputError
from shadowprice.core.wording import hint_for_unknown, quote_for_display
from shadowprice.traces.log_values import UNIT_SECONDS
from shadowprice.traces.text import column_names

HEADERS: Final[Mapping[str, str]] = {
    "job": "jobid id jobnumber jobidentifier identifier uuid uid jobname "
    "runid runname taskid globaljobid submissionid displayname name job",
    "submit": "submit submittime submitted submittedtime submittedat submission submissiontime "
    "submitdate submissiondate datesubmitted timesubmitted "
    "created createdat createtime creation creationtime creationtimestamp queuedtime enqueued "
    "queuedat arrival arrivaltime arrived qtime qdate qsubtime "
    "submissiondatetime submitdatetime createdon createdatetime enqueuetime timestamp queued "
    "datetime time date",
    "start": "start starttime started startedat startdate begin begintime began beganat "
    "scheduledtime datestarted timestarted stime currentstartdate "
    "startdatetime startedon launchtime launched launchedat trainingstarttime",
    "end": "end endtime ended endedat enddate finish finishtime finished finishedat completed "
    "completedat completiontime stop stoptime stoppedat "
    "completion completiondate datefinished timefinished dateended timeended "
    "enddatetime finishdatetime endedon completedon terminatedat terminationtime trainingendtime",
    "duration": "duration runtime elapsed elapsedtime elapsedraw wallclock wallclocktime "
    "runseconds executiontime usedwalltime wallduration resourcesusedwalltime "
    "remotewallclocktime runduration trainingtime executionduration activeduration runningtime "
    "totalruntime ruwallclock",
    "wait": "wait waittime waited waiting waitingtime queuetime queueingtime queuingtime "
    "queuedelay queueduration pendingtime pendtime queue",
    "time_limit": "timelimit timelimitraw limit walltimelimit requestedtime requestedwalltime "
    "reqwalltime maxruntime runlimit resourcelistwalltime walltime",
    "deadline": "deadline deadlinetime due duedate dueat dueby ddl",
    "gpus": "gpus gpu numgpus numgpu ngpus gpunum gpucount requestedgpus reqgpus gpusrequested "
    "allocgpus gpusallocated allocatedgpus gpualloc gpureq totalgpus numberofgpus "
    "ngpu totalgpu gputotal gpustotal allocatedgpu allocgpu requestedgpu reqgpu gpurequest "
    "gpurequests gpurequested gpulimit gpulimits gpucnt ofgpus noofgpus gpusused usedgpus "
    "entrypointnumgpus acceleratorcount numaccelerators accelerators "
    "requestgpus grantedgpus nvidiacomgpu nvidiagpu "
    "alloctres reqtres tres",
    "gpus_per_node": "gpuspernode gpupernode trespernode grespernode allocgres reqgres gres",
    "nodes": "nodes numnodes nnodes nodecount allocnodes reqnodes",
    "gpu_type": "gputype gpumodel gpuname accelerator acceleratortype",
    "cpus": "cpus cpu cores numcpus ncpus cpunum cpucount alloccpus reqcpus numcores ncores "
    "numberofcpus numberofcores requestcpus requestedcpus",
    "memory": "memory mem reqmem reqmemory requestedmemory allocmemory",
    "tenant": "tenant account group groupname project projectname projname team vc virtualcluster "
    "department organization organisation namespace queue queuename partition partitionname",
    "user": "user username userid owner submitter submittedby",
    "status": "status state stat jobstate finalstate phase result outcome exitstatus exitcode",
    "model": "model modelname architecture network",
}
"""Headers by meaning, in lower case without separators and units, the likeliest first."""

_NAMESPACES: Final = re.compile(
    r"(?:(?:params?|parameters|config|tags|mlflow|metadata|spec|status|summary|attributes|sys"
    r"|resource_list|requests|limits)[./])+",
    re.IGNORECASE,
)
"""Groups of columns at the beginning of headers, as in ``params.num_gpus`` of MLflow."""
_LISTS: Final = frozenset(
    {"alloctres", "reqtres", "tres", "allocgres", "reqgres", "gres", "trespernode", "grespernode"}
)
"""Headers of columns of GPUs that list other resources too."""
_KNOWN: Final = frozenset(word for words in HEADERS.values() for word in words.split())
TIMES: Final = frozenset({"submit", "start", "end", "deadline"})
DURATIONS: Final = frozenset({"duration", "wait", "time_limit"})

_UNIT_BYTES: Final[Mapping[str, float]] = {
    **dict.fromkeys(("b", "bytes"), 1.0),
    **{f"{letter}b": 1000.0**power for power, letter in enumerate("kmgt", start=1)},
    **{f"{letter}ib": 1024.0**power for power, letter in enumerate("kmgt", start=1)},
}
_UTC: Final = frozenset({"utc", "gmt"})
_CLOCK_WORDS: Final = _UTC | {"local", "ts", "epoch", "unix"}
"""Last words of a header that say how a time is written."""
_SPAN_WORDS: Final = frozenset({"hh", "mm", "ss", "hms", "dd"})
"""Last words of a header that say how a duration is written."""
_OWN: Final = "column "  # prefix of a replaced name, see `_own_name`
_SEPARATORS: Final = (",", ";", "\t", "|")
_MAX_COMMENTS: Final = 100  # maximum comments at each end of a preamble that may be the header
_EXAMPLE: Final = "--map submit=COLUMN,duration=COLUMN,gpus=COLUMN"
Misfit = Callable[[str, str], str | None]
"""Returns why a column can't have a meaning, or None if it can."""


@dataclass(frozen=True, slots=True)
class TableHeader:
    """The header of a log, and how its columns are separated."""

    location: str
    preamble: int  # number of lines before the header
    separator: str
    names: tuple[str, ...]
    """Names of the columns; empty names and those that importers use are replaced."""


@dataclass(slots=True)
class LogColumns:
    """Columns by meaning."""

    names: dict[str, str]
    guessed: frozenset[str]  # meanings that the user didn't map
    ignored: dict[str, tuple[str, str]]  # by meaning: a column that isn't used, and the reason

    def ignore(self, meaning: str, reason: str) -> None:
        """Stop using the column of a meaning."""
        self.ignored[meaning] = (self.names.pop(meaning), reason)


def read_header(path: Path, head: str, mapping: Mapping[str, str]) -> TableHeader:
    """Return the header at the beginning of a table's text; raise `InputError` without one."""
    preamble, separator = _preamble(path, head, frozenset(mapping.values()))
    names = column_names(head, separator, preamble)
    return TableHeader(
        f"{path}: line {preamble + 1}",
        preamble,
        separator,
        tuple(_own_name(name, number) for number, name in enumerate(names, start=1)),
    )


def _own_name(name: str, number: int) -> str:
    """Return a name; replace an empty one, one that importers use, or a pattern of polars."""
    if not name:
        return f"{_OWN}{number}"
    is_pattern = name == "*" or (name.startswith("^") and name.endswith("$"))
    return f"{_OWN}{name}" if name == "line" or name.startswith("_") or is_pattern else name


def _preamble(path: Path, head: str, mapped: AbstractSet[str]) -> tuple[int, str]:
    """Return the number of lines before the header, and the separator of columns.

    Lines before the header are blank, comments after ``#``, or Excel's ``sep=;``. The header may
    begin with ``#``, too. Then it has as many fields as the first other line, and at least as many
    fields that look like names of columns.
    """
    lines = [line.strip("\r ") for line in head.split("\n")]
    stated = re.fullmatch(r"sep=([,;\t|])", lines[0], re.IGNORECASE)
    count = 1 if stated else 0
    comments: list[int] = []
    while count < len(lines) and lines[count][:1] in {"", "#"}:
        comments += [count] if lines[count] else []
        count += 1
    has_rows = count < len(lines)
    first_row = lines[count] if has_rows else max(lines, key=len)
    separator = stated[1] if stated else max(_SEPARATORS, key=first_row.count)

    def likeness(names: Sequence[str]) -> int:
        return sum(name in mapped or _is_known(name) for name in names)

    header = column_names(head, separator, count) if has_rows else []
    best, minimum = count, max(1, likeness(header))
    # The header is the first of these lines if all rows begin with #, else the last one.
    for index in [*comments[:_MAX_COMMENTS], *comments[-_MAX_COMMENTS:]]:
        names = column_names(lines[index], separator)
        fits = len(names) == len(header) or not has_rows
        if fits and len(names) > 1 and likeness(names) >= minimum:
            best, minimum = index, likeness(names) + (not has_rows)
    if best == len(lines):
        raise InputError(Fault(str(path), "has comments only", "give a file with rows"))
    return best, separator


def parse_mapping(mapping: str) -> dict[str, str]:
    """Parse ``submit=COLUMN,...``; a column with a comma is quoted with its name."""
    pairs: dict[str, str] = {}
    for part in next(csv.reader([mapping], skipinitialspace=True), []):
        meaning, equals, column = part.partition("=")
        meaning = meaning.strip()
        if not equals:
            raise InputError(
                Fault("map", f"expected MEANING=COLUMN, got {quote_for_display(part)}", _EXAMPLE)
            )
        if meaning not in HEADERS:
            message = f"unknown meaning {quote_for_display(meaning)}"
            raise InputError(Fault("map", message, hint_for_unknown(meaning, HEADERS)))
        if meaning in pairs:
            raise InputError(Fault("map", f"{meaning} is repeated", _EXAMPLE))
        pairs[meaning] = column.strip()
    return pairs


def choose_columns(
    header: TableHeader, filled: Sequence[str], mapping: Mapping[str, str], misfit: Misfit
) -> LogColumns:
    """Return the column of each meaning: the mapped one, else the likeliest one that fits.

    Guesses come from ``filled``, the columns with a value. A column that doesn't fit is only used
    if every job needs its meaning. Raises `InputError` if a mapped column doesn't exist, or a
    needed meaning has no column.
    """
    mapped = {meaning: _mapped_name(header, column) for meaning, column in mapping.items()}
    columns = LogColumns({}, frozenset(HEADERS.keys() - mapped.keys()), {})
    names = columns.names
    for meaning in HEADERS:
        if meaning in mapped:
            continue
        for name in _candidates(meaning, filled):
            if name in names.values() or name in mapped.values():
                continue
            reason = misfit(meaning, name)
            if reason is None:
                names[meaning] = name
                if meaning not in TIMES:  # the user should know of an unused column of times
                    columns.ignored.pop(meaning, None)
                break
            columns.ignored.setdefault(meaning, (name, reason))
    names.update({meaning: name for meaning, name in mapped.items() if name})
    for meaning in ("submit", "duration", "start", "end", "gpus"):
        is_lacking = meaning not in names and _is_needed(meaning, names.keys())
        column = columns.ignored.get(meaning, ("", ""))[0]
        if column and is_lacking and not (meaning == "submit" and may_be_span(column)):
            names[meaning] = columns.ignored.pop(meaning)[0]
    _check_needed(header, filled, names.keys())
    for meaning, (name, _) in list(columns.ignored.items()):
        if name in names.values():  # it has another meaning
            del columns.ignored[meaning]
    _ignore_unused(columns)
    return columns


def time_columns(
    header: TableHeader, filled: Sequence[str], mapping: Mapping[str, str]
) -> list[str]:
    """Return the columns that are mapped to times, or whose header looks like a time."""
    mapped = [mapping[meaning] for meaning in HEADERS if meaning in TIMES and mapping.get(meaning)]
    names = [_mapped_name(header, column) for column in mapped]
    for meaning in HEADERS:
        names += _candidates(meaning, filled) if meaning in TIMES else []
    return list(dict.fromkeys(names))


def _mapped_name(header: TableHeader, column: str) -> str:
    if not column or column in header.names:
        return column
    own = _own_name(column, 0)
    if own in header.names:
        return own
    hint = hint_for_unknown(column, header.names, f"it has {_listed(header.names)}")
    message = f"the header has no column {quote_for_display(column)}"
    raise InputError(Fault(header.location, message, hint))


def _is_needed(meaning: str, names: AbstractSet[str]) -> bool:
    match meaning:
        case "submit":
            return "start" not in names
        case "duration":
            return not {"start", "end"} <= names
        case "start" | "end":
            return "duration" not in names
    return "gpus_per_node" not in names


def _check_needed(header: TableHeader, filled: Sequence[str], names: AbstractSet[str]) -> None:
    lacking: dict[str, tuple[str, ...]] = {}  # meanings by what they state
    if not {"submit", "start"} & names:
        lacking["the submission"] = ("submit", "start")
    if "duration" not in names and not {"start", "end"} <= names:
        lacking["the run time"] = ("duration", "start", "end")
    if not {"gpus", "gpus_per_node", "cpus"} & names:
        lacking["GPUs"] = ("gpus", "gpus_per_node", "cpus")
    if not lacking:
        return
    if len(header.names) == 1:
        message = f"has no separator between columns: {quote_for_display(header.names[0])}"
        hint = "write commas, semicolons, tabs or bars between them; spaces don't separate columns"
        raise InputError(Fault(header.location, message, hint))
    message = f"no column looks like {' or '.join(lacking)}"
    hint = f"its columns are {_listed(header.names)}; name them: {_EXAMPLE}"
    empty = [name for name in header.names if name not in filled]
    meanings = [meaning for group in lacking.values() for meaning in group]
    for name in dict.fromkeys(name for each in meanings for name in _candidates(each, empty)):
        message += f"; {quote_for_display(name)} is empty"
    raise InputError(Fault(header.location, message, hint))


def _ignore_unused(columns: LogColumns) -> None:
    """Ignore columns that add nothing to the other columns."""
    names = columns.names
    if "wait" in names and "start" in names:
        columns.ignore("wait", "starts are known")
    if "wait" in names and "submit" not in names:
        columns.ignore("wait", "submissions aren't known")
    if "gpus_per_node" in names and "gpus" in names:
        columns.ignore("gpus_per_node", "the GPUs in all are known")
    if "nodes" in names and "gpus_per_node" not in names:
        columns.ignore("nodes", "GPUs aren't counted by node")


def _candidates(meaning: str, names: Sequence[str]) -> list[str]:
    """Return the columns whose header looks like a meaning, the likeliest first."""
    by_key: dict[str, str] = {}
    # Reversed, so that the first of several columns with one key stays; full names come before
    # names without their group.
    for name in reversed(names):
        short = _without_namespace(name)
        if short != name:
            by_key[_key(short, meaning)] = name
    for name in reversed(names):
        key = _key(name, meaning)
        by_key[key] = name
        by_key[key.removeprefix("job") or key] = name
    likely = [by_key[word] for word in HEADERS[meaning].split() if word in by_key]
    return list(dict.fromkeys(likely))


def _without_namespace(name: str) -> str:
    match = _NAMESPACES.match(name)
    return (name[match.end() :] or name) if match else name


def _is_known(name: str) -> bool:
    names = (name, _without_namespace(name))
    meanings = ("submit", "duration", "memory", "gpus")
    keys = (_key(each, meaning) for each in names for meaning in meanings)
    return any(key in _KNOWN or (key.removeprefix("job") or key) in _KNOWN for key in keys)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 30} more" if len(names) > 30 else ""
    return ", ".join(quote_for_display(name) for name in names[:30]) + more


def _split_name(name: str) -> list[str]:
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).lower()  # camelCase
    return re.findall(r"[a-z0-9]+", spaced)


def _key(name: str, meaning: str) -> str:
    """Return a header without case, separators, and units of the meaning's own kind."""
    endings: AbstractSet[str] = frozenset()
    if meaning in TIMES:
        endings = UNIT_SECONDS.keys() | _CLOCK_WORDS
    elif meaning in DURATIONS:
        endings = UNIT_SECONDS.keys() | _SPAN_WORDS
    elif meaning == "memory":
        endings = _UNIT_BYTES.keys()
    words = _split_name(name.removeprefix(_OWN))
    while len(words) > 1 and words[-1] in endings:
        words = words[:-1]
    return "".join(words)


def seconds_unit(name: str) -> float:
    """Return the seconds of the unit that a header ends with, such as ``runtime_min``, else 1."""
    return _unit(name, UNIT_SECONDS)


def lists_resources(name: str) -> bool:
    """Return whether a header is of a column with lists of resources, such as Slurm's AllocTRES."""
    return _key(name, "gpus").removeprefix("job") in _LISTS


def states_seconds_unit(name: str) -> bool:
    """Return whether a header ends with a unit of time."""
    words = _split_name(name)
    return len(words) > 1 and words[-1] in UNIT_SECONDS


def bytes_unit(name: str) -> float:
    """Return the bytes of the unit that a header ends with, such as ``Memory_GB``, else 1."""
    return _unit(name, _UNIT_BYTES)


def _unit(name: str, units: Mapping[str, float]) -> float:
    words = _split_name(name)
    return units.get(words[-1], 1.0) if len(words) > 1 else 1.0


def is_hours_and_minutes(name: str) -> bool:
    """Return whether a header says that 1:30 is an hour and a half, as ``Run time (h:mm)`` does."""
    return _split_name(name)[-2:] in (["h", "mm"], ["hh", "mm"], ["h", "m"])


def may_be_span(name: str) -> bool:
    """Return whether a header of submissions may mean run times if the column has numbers."""
    return _key(name, "submit") == "time"


def may_be_names(name: str) -> bool:
    """Return whether a header of waits may mean names of queues."""
    return _key(name, "wait") == "queue"


def is_htcondor_status(name: str) -> bool:
    """Return whether a header is HTCondor's JobStatus, a number."""
    return _key(name, "status") == "jobstatus"


def is_utc(name: str) -> bool:
    """Return whether a header says that its times are UTC."""
    return bool(_UTC.intersection(_split_name(name)[-1:]))

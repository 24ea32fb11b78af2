"""Snapshots: an engine's complete state as plain values, and restoring an engine from them.

The engine's state is stored by name, so that later versions of the program can read it. The policy
state (`engine.policy_session`) is stored with it, and can only be restored into the same policy
with the same parameters. Otherwise the policy resyncs with the view.
"""

from __future__ import annotations

import base64
import json
import platform
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import fields
from itertools import islice
from typing import Any, Final

import shadowprice
from shadowprice.core.bag import TaskCopies
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.events import Resize, Start, Stop
from shadowprice.core.job import Job
from shadowprice.core.policy import Policy, Status
from shadowprice.core.schedule import Placement
from shadowprice.engine import records
from shadowprice.engine.engine import Engine
from shadowprice.engine.job_record import JobRecord
from shadowprice.engine.policy_session import copy_policy, sources
from shadowprice.engine.state import COUNTERS, JOB_SETS, SERVER_SETS

FORMAT: Final = 1
"""Version of the snapshot format."""

_COMMANDS: Final = {kind.tag: kind for kind in (Start, Resize, Stop)}

_JSON: Final = json.JSONEncoder(separators=(",", ":")).encode


def snapshot(engine: Engine) -> records.Fields:
    """Return an engine's complete state as plain values that JSON can represent.

    Raises PolicyError if the policy holds objects that can't be pickled.
    """
    return StateCapture(engine).record()


class StateCapture:
    """The state of an engine between two events, which can be written while the engine continues.

    A capture takes a fraction of the time of writing, because it shares immutable jobs, plans and
    placements. ``sequence`` is the number of the last event in the state. Raises PolicyError if the
    policy holds objects that can't be pickled.
    """

    def __init__(self, engine: Engine) -> None:
        state = engine.state
        self.sequence = state.sequence
        self._names = names = state.cluster.names
        self._policy_state = engine.session.dump_state()
        self._cluster = state.cluster
        self._jobs = [_values(record) for record in state.jobs.values()]
        self._running = dict(state.running)
        self._unacknowledged = list(state.unacknowledged.values())
        self._plain_values: records.Fields = {
            "until": state.until,
            "acknowledges": state.acknowledges,
            **{name: getattr(state, name) for name in COUNTERS},
            "start": state.ledger.start,
            "slot_running": state.slot_running,
            **{name: [names[row] for row in sorted(getattr(state, name))] for name in SERVER_SETS},
            **{name: list(getattr(state, name)) for name in JOB_SETS},
            "departed_digest": f"{state.departed_digest():x}",
            "state_digest": state.state_digest(),
        }

    def record(self) -> records.Fields:
        """Return the state as plain values for `restore`."""
        record: records.Fields = json.loads("".join(self.pieces(1_000)))
        return record

    def pieces(self, size: int) -> Iterator[str]:
        """Yield the state as JSON text, with ``size`` jobs, commands or placements per piece."""
        jobs = (_job_record(JobRecord(*values), self._names) for values in self._jobs)
        running = (
            f"{_JSON(job)}:{_JSON(records.placement_record(placement, self._names))}"
            for job, placement in self._running.items()
        )
        yield _JSON(self._head())[:-1]
        for opening, entries, closing in (
            (',"jobs":[', map(_JSON, jobs), "]"),
            (',"unacknowledged":[', map(_JSON, map(_command_record, self._unacknowledged)), "]"),
            (',"running":{', running, "}"),
        ):
            yield opening + ",".join(islice(entries, size))
            while piece := ",".join(islice(entries, size)):
                yield "," + piece
            yield closing
        yield "}"

    def _head(self) -> records.Fields:
        """Return all values except the jobs, running placements and commands."""
        versions = {
            "shadowprice": shadowprice.__version__,
            "python": platform.python_version(),
            "sources": sources(),
        }
        return {
            "snapshot": FORMAT,
            "versions": versions,
            "cluster": records.cluster_record(self._cluster),
            **self._plain_values,
            "policy_state": base64.b64encode(zlib.compress(self._policy_state, 1)).decode(),
        }


def restore(record: Mapping[str, Any], policy: Policy, *, with_policy_state: bool = True) -> Engine:
    """Return an engine in the state of a snapshot, with a newly built policy.

    Without ``with_policy_state``, the policy resyncs with the view instead. This is for another
    policy, or one with other parameters. Policy state from another version of the source code is
    never restored.

    Raise `InputError` if the record isn't a snapshot of this version, or is inconsistent, and
    `ShadowpriceError` if the policy state can't be read.
    """
    version = record.get("snapshot") if isinstance(record, Mapping) else None
    if version != FORMAT:
        raise InputError(Fault("snapshot", f"unknown format {version!r}; expected {FORMAT}"))
    try:
        engine = _restore_engine(record, policy)
        same_sources = record["versions"]["sources"] == sources()
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise InputError(Fault("snapshot", f"is damaged: {error!r}")) from error
    if engine.state_digest() != record["state_digest"]:
        raise InputError(Fault("snapshot", "is damaged: its digest is not that of its state"))
    if with_policy_state and same_sources:
        engine.session.load_state(_read_policy_state(record))
    else:
        engine.session.resync()
    return engine


def _read_policy_state(record: Mapping[str, Any]) -> bytes:
    try:
        return zlib.decompress(base64.b64decode(record["policy_state"]))
    except (ValueError, zlib.error) as error:
        raise InputError(Fault("snapshot", f"is damaged: {error}")) from error


def clone(engine: Engine) -> Engine:
    """Return an independent engine in the same state, with its own policy, for what-if queries.

    Immutable jobs and plans are shared. The cost grows with the number of open jobs.
    """
    policy_state = engine.session.dump_state()
    copy = Engine(
        engine.cluster,
        engine.policy,
        until=engine.until,
        saves_policy_state=engine.session.saves_policy_state,
        acknowledges=engine.state.acknowledges,
    )
    copy.state.copy_from(engine.state)
    copy.session.policy = copy_policy(engine.policy, policy_state, copy.view)
    return copy


def _restore_engine(record: Mapping[str, Any], policy: Policy) -> Engine:
    cluster = records.cluster_from_record(record["cluster"])
    engine = Engine(cluster, policy, until=record["until"], acknowledges=record["acknowledges"])
    state, index = engine.state, cluster.index
    for name in (*COUNTERS, "slot_running"):
        setattr(state, name, record[name])
    for name in SERVER_SETS:
        setattr(state, name, {index[server] for server in record[name]})
    for name in JOB_SETS:
        setattr(state, name, dict.fromkeys(record[name]))
    state.load_jobs(
        [_job_from_record(item, index) for item in record["jobs"]],
        {
            name: records.placement_from_record(placement, index)
            for name, placement in record["running"].items()
        },
        start=record["start"],
        departed=int(record["departed_digest"], 16),
    )
    for item in record["unacknowledged"]:
        command = _command_from_record(item, index)
        state.unacknowledged[command.id] = command
    return engine


def _values(record: JobRecord) -> tuple[Any, ...]:
    """Return a record's current values; lists are copied, because bags change them in place."""
    return (record.copy() if record.copies or record.finished else record).values()


_CONVERTED: Final = {
    "job", "status", "plan", "placement", "refusal", "copies", "unfinished", "finished",
    "earlier_slots", "earlier_share",
}  # fmt: skip
_UNCHANGED: Final = [field.name for field in fields(JobRecord) if field.name not in _CONVERTED]
"""Fields of `JobRecord` that are stored unchanged, under their own names."""


def _job_record(record: JobRecord, names: tuple[str, ...]) -> records.Fields:
    values: records.Fields = {"job": record.job.record(), "status": record.status.value}
    values |= {name: getattr(record, name) for name in _UNCHANGED}
    if len(record.plan) and record.status.open:  # a closed job's plan isn't used any more
        values["plan"] = records.schedule_record(record.plan, names)
    if record.placement is not None:
        values["placement"] = records.placement_record(record.placement, names)
    if record.refusal is not None:
        values["refusal"] = record.refusal.record()
    if record.copies:
        values["copies"] = [list(entry) for entry in record.copies]
        values["unfinished"] = list(record.unfinished)
    if record.finished:
        values["finished"] = list(record.finished)
    if record.earlier_slots:
        values["earlier"] = [record.earlier_slots, record.earlier_share]
    return values


def _job_from_record(values: Mapping[str, Any], index: Mapping[str, int]) -> JobRecord:
    record = JobRecord(Job.from_record(values["job"]), values["order"], Status(values["status"]))
    for name in _UNCHANGED:
        setattr(record, name, values[name])
    if "plan" in values:
        record.plan = records.schedule_from_record(values["plan"], index)
    if "placement" in values:
        record.placement = records.placement_from_record(values["placement"], index)
    if "refusal" in values:
        record.refusal = records.refusal_from_record(values["refusal"])
    record.copies = tuple(TaskCopies(*entry) for entry in values.get("copies", ()))
    record.unfinished = list(values.get("unfinished", ()))
    record.finished = list(values.get("finished", ()))
    record.earlier_slots, record.earlier_share = values.get("earlier", (0, 0.0))
    return record


def _command_record(command: Start | Resize | Stop) -> records.Fields:
    values: records.Fields = {
        "type": command.tag,
        "slot": command.slot,
        "job": command.job,
        "id": command.id,
        "generation": command.generation,
        "after": list(command.after),
        "frees": list(command.frees),
    }
    if isinstance(command, Stop):
        values["finished"] = command.finished
    else:
        placement = command.placement
        entries = zip(command.servers, placement.workers, placement.ps, strict=True)
        values["on"] = [list(entry) for entry in entries]
        values["copies"] = [list(entry) for entry in command.copies]
        values["plan"] = command.plan
    return values


def _command_from_record(
    record: Mapping[str, Any], index: Mapping[str, int]
) -> Start | Resize | Stop:
    values = dict(record)
    kind: Any = _COMMANDS[values.pop("type")]
    values["after"], values["frees"] = tuple(values["after"]), tuple(values["frees"])
    if kind is not Stop:
        servers, workers, ps = zip(*values.pop("on"), strict=True)
        # Map names to current rows without sorting them; -1 for a server that was removed since.
        rows = tuple(index.get(name, -1) for name in servers)
        values["placement"], values["servers"] = Placement(rows, workers, ps), servers
        values["copies"] = tuple(TaskCopies(*entry) for entry in values["copies"])
    command: Start | Resize | Stop = kind(**values)
    return command

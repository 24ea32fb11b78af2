"""The whole state of an engine as plain values, and an engine of its own from them.

What the engine knows is written out by name, so that a snapshot outlives versions; what the policy
knows of its own is its memory (`shadowprice.engine.memory`), which is kept beside it and fits the
same policy with the same parameters. Without it, or with another policy, the policy begins anew on
what it sees.
"""

from __future__ import annotations

import base64
import json
import platform
import zlib
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

import shadowprice
from shadowprice.core.bag import TaskCopies
from shadowprice.core.errors import Fault, InputError
from shadowprice.core.events import Resize, Start, Stop
from shadowprice.core.job import Job
from shadowprice.core.policy import Policy, Status
from shadowprice.engine.engine import Engine
from shadowprice.engine.memory import recall, sources, twin
from shadowprice.engine.records import (
    Fields,
    cluster_of,
    cluster_record,
    placement_of,
    placement_record,
    refusal_of,
    schedule_of,
    schedule_record,
)
from shadowprice.engine.state import JobRecord

FORMAT: Final = 1
"""Version of the format."""

_JSON: Final = json.JSONEncoder(separators=(",", ":")).encode


def snapshot(engine: Engine) -> Fields:
    """Return an engine's whole state as plain values, ready for JSON.

    Parameters
    ----------
    engine : Engine
        Between two events.

    Raises
    ------
    PolicyError
        If the policy holds what cannot be kept.
    """
    return Captured(engine).record()


class Captured:
    """An engine's state at one moment, to be written out while the engine goes on.

    Taking it costs a fraction of writing it: jobs, plans and placements are shared, as nobody
    changes them.

    Parameters
    ----------
    engine : Engine
        Between two events.

    Attributes
    ----------
    sequence : int
        Number of the last event that is in it.

    Raises
    ------
    PolicyError
        If the policy holds what cannot be kept.
    """

    def __init__(self, engine: Engine) -> None:
        self.sequence = engine.sequence
        self._names = names = engine.cluster.names
        self._memory = engine.policy_memory()
        self._cluster = engine.cluster
        self._jobs = [_values(record) for record in engine.jobs.values()]
        self._running = dict(engine.running)
        self._unacknowledged = list(engine.unacknowledged.values())
        self._counts: Fields = {
            "until": engine.until,
            "acknowledges": engine.acknowledges,
            "sequence": engine.sequence,
            "arrivals": engine.arrivals,
            "commands": engine.commands,
            "commitments": engine.commitments,
            "start": engine.ledger.start,
            "slot_running": engine.slot_running,
            "lost": [names[row] for row in sorted(engine.lost)],
            "drained": [names[row] for row in sorted(engine.drained)],
            **{name: list(marked) for name, marked in engine.marks().items()},
            "departed_digest": f"{engine.departed_digest():x}",
            "state_digest": engine.state_digest(),
        }

    def record(self) -> Fields:
        """Return it as plain values, as `restore` takes them."""
        names = self._names
        return {
            **self._head(),
            "jobs": [_job_record(JobRecord(*values), names) for values in self._jobs],
            "running": {name: placement_record(on, names) for name, on in self._running.items()},
            "unacknowledged": [_order_record(order) for order in self._unacknowledged],
        }

    def pieces(self, size: int) -> Iterator[str]:
        """Yield the same as JSON, in pieces of so many jobs, orders or placements."""
        names = self._names
        yield _JSON(self._head())[:-1]
        for name, (opening, closing), entries in (
            ("jobs", "[]", (_JSON(_job_record(JobRecord(*each), names)) for each in self._jobs)),
            ("unacknowledged", "[]", (_JSON(_order_record(each)) for each in self._unacknowledged)),
            (
                "running",
                "{}",
                (
                    f"{_JSON(job)}:{_JSON(placement_record(on, names))}"
                    for job, on in self._running.items()
                ),
            ),
        ):
            yield f',"{name}":{opening}' + ",".join(islice(entries, size))
            while some := ",".join(islice(entries, size)):
                yield "," + some
            yield closing
        yield "}"

    def _head(self) -> Fields:
        """Return all that does not grow with the open jobs, but for names and the memory."""
        versions = {
            "shadowprice": shadowprice.__version__,
            "python": platform.python_version(),
            "sources": sources(),
        }
        return {
            "snapshot": FORMAT,
            "versions": versions,
            "cluster": cluster_record(self._cluster),
            **self._counts,
            "memory": base64.b64encode(zlib.compress(self._memory, 1)).decode(),
        }


def restore(
    record: Mapping[str, Any], policy: Policy, *, keeps_memory: bool = True, memory: bool = True
) -> Engine:
    """Return an engine in the state that a snapshot tells.

    Parameters
    ----------
    record : mapping
        As `snapshot` gave it.
    policy : Policy
        Freshly built; it takes over the memory of the one that was there.
    keeps_memory : bool
        As of `Engine`.
    memory : bool
        Whether the policy takes the memory over; if not, it begins anew on what it sees, as a
        policy of another kind or parameters has to. It begins anew, too, where the memory was kept
        by another version of the sources, if it can.

    Raises
    ------
    InputError
        If the record is no snapshot of this version, or contradicts itself.
    ShadowpriceError
        If the policy's memory cannot be read.
    """
    version = record.get("snapshot") if isinstance(record, Mapping) else None
    if version != FORMAT:
        raise InputError(Fault("snapshot", f"unknown format {version!r}; expected {FORMAT}"))
    try:
        engine = _restored(record, policy, keeps_memory=keeps_memory)
        same_sources = record["versions"]["sources"] == sources()
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise InputError(Fault("snapshot", f"is damaged: {error!r}")) from error
    if engine.state_digest() != record["state_digest"]:
        raise InputError(Fault("snapshot", "is damaged: its digest is not that of its state"))
    if memory and same_sources:
        engine.ledger.renumber(engine.sequence)
        recall(engine.policy, _memory_of(record), engine.view)
    else:
        engine.begin_policy_anew()
    return engine


def _memory_of(record: Mapping[str, Any]) -> bytes:
    try:
        return zlib.decompress(base64.b64decode(record["memory"]))
    except (ValueError, zlib.error) as error:
        raise InputError(Fault("snapshot", f"is damaged: {error}")) from error


def clone(engine: Engine) -> Engine:
    """Return an engine in the same state, with a policy of its own, to ask what would be.

    Jobs and plans are shared, as nobody changes them; the time grows with the open jobs.
    """
    memory = engine.policy_memory()
    made = Engine(
        engine.cluster,
        engine.policy,
        until=engine.until,
        keeps_memory=engine.keeps_memory,
        acknowledges=engine.acknowledges,
    )
    made.take_books(engine)
    made.policy = twin(engine.policy, memory, made.view)
    return made


def _restored(record: Mapping[str, Any], policy: Policy, *, keeps_memory: bool) -> Engine:
    cluster = cluster_of(record["cluster"])
    engine = Engine(
        cluster,
        policy,
        until=record["until"],
        keeps_memory=keeps_memory,
        acknowledges=record["acknowledges"],
    )
    index = cluster.index
    for name in ("sequence", "arrivals", "commands", "commitments", "slot_running"):
        setattr(engine, name, record[name])
    engine.lost = {index[name] for name in record["lost"]}
    engine.drained = {index[name] for name in record["drained"]}
    engine.take_records(
        [_job_of(each, index) for each in record["jobs"]],
        {name: placement_of(on, index) for name, on in record["running"].items()},
        start=record["start"],
        departed=int(record["departed_digest"], 16),
        marks={name: record[name] for name in engine.marks()},
    )
    for each in record["unacknowledged"]:
        order = _order_of(each, index)
        engine.unacknowledged[order.id] = order
    return engine


def _values(record: JobRecord) -> tuple[Any, ...]:
    """Return all that a record holds at this moment; tasks of bags are counted in place."""
    return (record.copy() if record.copies or record.finished else record).values()


def _job_record(record: JobRecord, names: tuple[str, ...]) -> Fields:
    told: Fields = {
        "job": record.job.record(),
        "status": record.status.value,
        "order": record.order,
        "progress": record.progress,
        "started": record.started,
        "completion": record.completion,
        "promise": record.promise,
        "plans": record.plans,
        "measured": record.measured,
        "generation": record.generation,
        "failures": record.failures,
        "began": record.began,
        "committed": record.committed,
        "following": record.following,
        "resumed_at": record.resumed_at,
        "resumed_before": record.resumed_before,
        "lost": record.lost,
        "generation_slot": record.generation_slot,
    }
    if len(record.plan) and record.status.open:
        told["plan"] = schedule_record(record.plan, names)
    if record.placement is not None:
        told["placement"] = placement_record(record.placement, names)
    if record.refusal is not None:
        told["refusal"] = record.refusal.record()
    if record.copies:
        told["copies"] = [list(entry) for entry in record.copies]
        told["left"] = list(record.left)
    if record.finished:
        told["finished"] = list(record.finished)
    return told


def _job_of(told: Mapping[str, Any], index: Mapping[str, int]) -> JobRecord:
    record = JobRecord(Job.from_record(told["job"]), told["order"], Status(told["status"]))
    record.progress = told["progress"]
    record.started = told["started"]
    record.completion = told["completion"]
    record.promise = told["promise"]
    record.plans = told["plans"]
    record.measured = told["measured"]
    record.generation = told["generation"]
    record.failures = told["failures"]
    record.began = told["began"]
    record.committed = told["committed"]
    record.following = told["following"]
    record.resumed_at = told["resumed_at"]
    record.resumed_before = told["resumed_before"]
    record.lost = told["lost"]
    record.generation_slot = told["generation_slot"]
    if "plan" in told:
        record.plan = schedule_of(told["plan"], index)
    if "placement" in told:
        record.placement = placement_of(told["placement"], index)
    if "refusal" in told:
        record.refusal = refusal_of(told["refusal"])
    record.copies = tuple(TaskCopies(*entry) for entry in told.get("copies", ()))
    record.left, record.finished = list(told.get("left", ())), list(told.get("finished", ()))
    return record


def _order_record(order: Start | Resize | Stop) -> Fields:
    told: Fields = {
        "order": order.tag,
        "slot": order.slot,
        "job": order.job,
        "id": order.id,
        "generation": order.generation,
        "after": list(order.after),
        "frees": list(order.frees),
    }
    if isinstance(order, Stop):
        told["finished"] = order.finished
    else:
        placement = order.placement
        entries = zip(order.servers, placement.workers, placement.ps, strict=True)
        told["on"] = [list(entry) for entry in entries]
        told["copies"] = [list(entry) for entry in order.copies]
        told["plan"] = order.plan
    return told


def _order_of(told: Mapping[str, Any], index: Mapping[str, int]) -> Start | Resize | Stop:
    common: dict[str, Any] = {
        "id": told["id"],
        "generation": told["generation"],
        "after": tuple(told["after"]),
        "frees": tuple(told["frees"]),
    }
    if told["order"] == Stop.tag:
        return Stop(told["slot"], told["job"], told["finished"], **common)
    known = [entry for entry in told["on"] if entry[0] in index]
    kind = Start if told["order"] == Start.tag else Resize
    return kind(
        told["slot"],
        told["job"],
        placement_of(known, index),
        servers=tuple(name for name, _, _ in told["on"]),
        copies=tuple(TaskCopies(*entry) for entry in told["copies"]),
        plan=told["plan"],
        **common,
    )

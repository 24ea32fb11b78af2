"""Reading everything back: snapshot, journal, what is known of open jobs.

Recorded decisions are applied, and the policy is not asked about the past. It gets its memory back
where the one that was kept belongs to the last event; otherwise it begins anew on what it sees,
with what it had learnt by the snapshot.
"""

from __future__ import annotations

import json
import logging
import platform
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from sqlalchemy import Connection, delete, func, select

import shadowprice
from shadowprice.core.cluster import Cluster
from shadowprice.core.errors import Fault, InputError, PolicyError, ShadowpriceError
from shadowprice.core.events import (
    CapacityChanged,
    Decision,
    PolicyEvent,
    Resize,
    ServerState,
    Start,
)
from shadowprice.core.policy import Capabilities, Policy, PolicyContext, View
from shadowprice.engine.capacity import changed_cluster
from shadowprice.engine.engine import Engine
from shadowprice.engine.journal import entry_of
from shadowprice.engine.memory import sources
from shadowprice.engine.records import cluster_of, cluster_record, placement_of
from shadowprice.engine.snapshot import restore, snapshot
from shadowprice.policies.choice import PolicyChoice
from shadowprice.service.budgets.accounts import Accounts
from shadowprice.service.budgets.billing import read_accounts
from shadowprice.service.clock import Calendar, SteadyClock
from shadowprice.service.store import UNKNOWN_FORMAT_HINT, Store, tables
from shadowprice.service.truth.margins import Margins, read_margins
from shadowprice.service.truth.views import JobView, State

log = logging.getLogger("shadowprice.service")

FORMAT: Final = 1
"""Version of what the tables hold, beside that of the tables themselves."""


@dataclass(slots=True)
class Recovered:
    """What was read back."""

    engine: Engine
    calendar: Calendar
    views: dict[str, JobView]
    specs: dict[str, Mapping[str, Any]]
    orders: dict[str, Start | Resize]
    pending: list[str]
    next_job: int
    next_told: int
    accounts: Accounts
    last_at: int
    snapshot_sequence: int
    replayed: int
    margins: Margins


def recover(
    store: Store,
    cluster: Cluster,
    choice: PolicyChoice,
    clock: SteadyClock,
    *,
    virtual: bool = False,
) -> Recovered:
    """Read everything back from a store, or begin a new one.

    Parameters
    ----------
    store : Store
        What is read.
    cluster : Cluster
        As the cluster file has it.
    choice : PolicyChoice
        Who decides from now on.
    clock : SteadyClock
        The service's time.
    virtual : bool
        Whether nothing really runs from now on, so that no order waits for the end of another.

    Raises
    ------
    InputError
        If it does not fit the cluster's slots or resources, or its format is unknown.
    StoreError
        If it cannot be read.
    """
    version = store.get("format")
    if version is None:
        return _begin(store, cluster, choice, clock, virtual=virtual)
    if version != str(FORMAT):
        raise InputError(
            Fault(
                f"--data {store.shown}",
                f"the content is of the unknown format {version}",
                UNKNOWN_FORMAT_HINT,
            )
        )
    with store.reading() as connection:
        engine, since, replayed = _engine(connection, choice, virtual=virtual)
        views, specs, pending = _jobs(connection)
        return Recovered(
            engine,
            _calendar(connection, cluster, store),
            views,
            specs,
            _orders(connection, engine),
            pending,
            (connection.execute(select(func.max(tables.jobs.c.id))).scalar() or 0) + 1,
            (connection.execute(select(func.max(tables.events.c.id))).scalar() or 0) + 1,
            read_accounts(connection),
            _last_at(connection),
            since,
            replayed,
            Margins() if virtual else read_margins(connection, views.values()),
        )


def _begin(
    store: Store, cluster: Cluster, choice: PolicyChoice, clock: SteadyClock, *, virtual: bool
) -> Recovered:
    engine = Engine(cluster, live_policy(choice, cluster), acknowledges=not virtual)
    now = clock.now()
    calendar = Calendar.starting(now, cluster.slot_seconds)
    packed = _packed(engine)
    with store.transaction() as connection:
        for table in (tables.snapshots, tables.meta):
            store.write(connection, delete(table))
        row = {"sequence": 0, "at": now, "state": packed}
        store.write(connection, tables.snapshots.insert(), [row])
        store.put(connection, "origin", str(calendar.origin))
        store.put(connection, "cluster", json.dumps(cluster_record(cluster)))
        put_policy(store, connection, choice, engine.policy)
        store.put(connection, "python", platform.python_version())
        store.put(connection, "format", str(FORMAT))
    return Recovered(engine, calendar, {}, {}, {}, [], 1, 1, Accounts({}, 1), now, 0, 0, Margins())


def _packed(engine: Engine) -> bytes:
    return zlib.compress(json.dumps(snapshot(engine), separators=(",", ":")).encode(), 1)


def _value(connection: Connection, key: str) -> str:
    table = tables.meta
    return str(connection.execute(select(table.c.value).where(table.c.key == key)).scalar_one())


def _calendar(connection: Connection, cluster: Cluster, store: Store) -> Calendar:
    first = cluster_of(json.loads(_value(connection, "cluster")))
    if first.slot_seconds != cluster.slot_seconds:
        raise InputError(
            Fault(
                "--cluster",
                f"its slots take {float(cluster.slot_seconds):g} s, those in {store.shown} "
                f"{float(first.slot_seconds):g} s",
                "keep the length of a slot, or begin with other data",
            )
        )
    origin = int(_value(connection, "origin"))
    calendar = Calendar.starting(0, cluster.slot_seconds)
    return Calendar(origin, calendar.slot)


def _last_at(connection: Connection) -> int:
    found = [
        connection.execute(select(func.max(table.c.at))).scalar() or 0
        for table in (tables.journal, tables.snapshots, tables.events)
    ]
    return max(found)


# ---------------------------------------------------------------- engine


def _engine(
    connection: Connection, choice: PolicyChoice, *, virtual: bool
) -> tuple[Engine, int, int]:
    """Return the engine, the number of the snapshot's event, and how many were replayed."""
    table = tables.snapshots
    rows = connection.execute(select(table).order_by(table.c.sequence.desc())).all()
    problem: ShadowpriceError | None = None
    for row in rows:
        try:
            state = json.loads(zlib.decompress(row.state))
            engine, replayed, same = _replayed(connection, state, choice, virtual=virtual)
        except (ValueError, zlib.error) as error:
            problem = ShadowpriceError(f"snapshot {row.sequence} is damaged: {error}")
        except InputError as error:
            problem = error
        else:
            return engine if same else _under(engine, choice), row.sequence, replayed
        log.error("%s; trying the one before", problem)
    raise InputError(
        Fault(
            "--data",
            f"no snapshot can be read: {problem or 'there is none'}",
            "restore a backup",
        )
    )


def _replayed(
    connection: Connection, state: dict[str, Any], choice: PolicyChoice, *, virtual: bool
) -> tuple[Engine, int, bool]:
    """Return an engine with a snapshot's state and all that came after it.

    It is under the policy that decided on that; also whether this is the one that is to decide now.
    """
    mark = _value(connection, "policy")
    same = mark == mark_of(choice)
    before = choice if same else _choice_of(mark, choice)
    if before == choice and not same:
        log.info("policy %s has another version; it resyncs with the state", choice.name)
    exact = _is_exact(mark, before)
    past = _past_policy(connection, before, cluster_of(state["cluster"]))
    # State that another version of a file pickled has no meaning for this one.
    engine = restore(state, past, memory=exact or (before is not None and before.file is None))
    # As the service is now, not as the one was that wrote the snapshot: what really runs is waited
    # for from the first order on, and where nothing does, orders that nobody acknowledges would add
    # up, and be gone through in every slot.
    engine.acknowledges = not virtual
    if virtual:
        engine.unacknowledged.clear()
    table, replayed = tables.journal, 0
    memory = connection.execute(select(tables.memory)).first()
    # Its label has the sources of this package and the digest of the policy's file.
    if memory is not None and not _is_exact(memory.policy, before):
        memory = None
    knows = engine.sequence
    rows = connection.execute(
        select(table.c.entry)
        .where(table.c.sequence > engine.sequence)
        .order_by(table.c.sequence)
        .execution_options(yield_per=500)
    )
    for line in rows.scalars():
        engine.apply(entry_of(line, engine.cluster))
        engine.collect()
        replayed += 1
        if memory is not None and memory.sequence == engine.sequence:
            try:
                engine.recall_policy(zlib.decompress(memory.memory))
                knows = engine.sequence
            except (ShadowpriceError, zlib.error) as error:
                log.warning("the policy's memory cannot be read: %s", error)
    if knows < engine.sequence:
        engine.begin_policy_anew()
    return engine, replayed, same


def live_policy(choice: PolicyChoice, cluster: Cluster) -> Policy:
    """Return the policy as it decides where jobs really run, freshly built.

    Raises
    ------
    InputError
        If there is no such policy or parameter, or it cannot run live.
    """
    return choice.build(PolicyContext(cluster=cluster, itemised=True, end_moves=True))


def mark_of(choice: PolicyChoice) -> str:
    """Return what equal choices of one version share: a memory fits only its own."""
    version = f"{shadowprice.__version__}+{sources()}"
    parts = [choice.name, choice.settings, version]
    return json.dumps(parts if choice.origin is None else [*parts, choice.origin], sort_keys=True)


def _is_exact(mark: str, choice: PolicyChoice | None) -> bool:
    """Whether a mark is that of a choice, with the code that is there now."""
    try:
        return choice is not None and mark == mark_of(choice)
    except InputError:
        return False


def put_policy(store: Store, connection: Connection, choice: PolicyChoice, policy: Policy) -> None:
    """Store which policy decides, and its capabilities, which `_PastPolicy` needs."""
    store.put(connection, "policy", mark_of(choice))
    store.put(connection, "capabilities", json.dumps(asdict(policy.capabilities)))


class _PastPolicy:
    """Stand-in for a policy whose code isn't there any more: it never decides."""

    def __init__(self, capabilities: Capabilities) -> None:
        self.capabilities = capabilities

    def decide(self, view: View, event: PolicyEvent) -> Iterable[Decision]:
        """Raise: recorded decisions are applied instead."""
        del view, event
        raise PolicyError("a policy of the past was asked to decide")

    def resume(self, view: View) -> None:
        """Do nothing: another policy takes over."""
        del view

    def parameters_in_force(self) -> Mapping[str, object]:
        """Return no parameters."""
        return {}


def _past_policy(connection: Connection, before: PolicyChoice | None, cluster: Cluster) -> Policy:
    """Return the policy that decided before; a stand-in if its code or a parameter is gone."""
    if before is not None:
        try:
            return live_policy(before, cluster)
        except InputError as error:
            log.warning("policy %s can't be built as it was: %s", before.name, error)
    return _PastPolicy(Capabilities(**json.loads(_value(connection, "capabilities"))))


def _choice_of(mark: str, choice: PolicyChoice) -> PolicyChoice | None:
    """Return the policy of a mark; None if only a file that isn't named now could tell.

    A file is never loaded because the store names it: the store holds data, not code.
    """
    name, settings, _, *origin = json.loads(mark)
    if origin and "file" in origin[0]:
        now = choice.file
        same = now is not None and (now.path, now.name) == (origin[0]["file"], origin[0]["object"])
        return replace(choice, settings=settings) if same else None
    return PolicyChoice(name, settings)


def _under(engine: Engine, choice: PolicyChoice) -> Engine:
    """Return an engine in the same state under another policy."""
    try:
        return restore(snapshot(engine), live_policy(choice, engine.cluster), memory=False)
    except ShadowpriceError as error:  # plans reach beyond what it looks at, say
        raise InputError(
            Fault(
                "--policy",
                f"{choice.name} cannot take over what is planned: {error}",
                "keep the policy until open jobs are done, or begin with other data",
            )
        ) from error


# ---------------------------------------------------------------- jobs


def _jobs(
    connection: Connection,
) -> tuple[dict[str, JobView], dict[str, Mapping[str, Any]], list[str]]:
    """Return views and specifications of open jobs, and the names of those not decided on."""
    table = tables.jobs
    views: dict[str, JobView] = {}
    specs: dict[str, Mapping[str, Any]] = {}
    pending: list[str] = []
    rows = connection.execute(
        select(table.c.name, table.c.view, table.c.spec)
        .where(table.c.open == 1)
        .order_by(table.c.id)
    )
    for row in rows:
        view = views[row.name] = JobView.of_store(row.view)
        specs[row.name] = json.loads(row.spec)
        if view.state is State.PENDING:
            pending.append(row.name)
    return views, specs, pending


def _orders(connection: Connection, engine: Engine) -> dict[str, Start | Resize]:
    """Return the newest order of every job that is to run."""
    found: dict[str, Start | Resize] = {}
    names = list(engine.running)
    table, index = tables.commands, engine.cluster.index
    for at in range(0, len(names), 500):
        rows = connection.execute(
            select(table)
            .where(table.c.job.in_(names[at : at + 500]), table.c.kind != "stop")
            .order_by(table.c.id)
        )
        for row in rows:
            record = json.loads(row.record)
            kind = Start if row.kind == "start" else Resize
            on = [entry for entry in record["on"] if entry[0] in index]
            found[row.job] = kind(
                record["slot"],
                row.job,
                placement_of(on, index),
                id=row.id,
                generation=row.generation,
                after=tuple(record["after"]),
                frees=tuple(record["frees"]),
                servers=tuple(name for name, _, _ in record["on"]),
                plan=record["plan"],
            )
    return found


# ---------------------------------------------------------------- the file's cluster


def file_change(before: Cluster, file: Cluster, now: Cluster, slot: int) -> CapacityChanged | None:
    """Return what a changed cluster file asks for, None where it is the file of the last time.

    Parameters
    ----------
    before : Cluster
        As the file was when it was last read.
    file : Cluster
        As it is.
    now : Cluster
        As the cluster is, with what operators changed.
    slot : int
        First slot that can still be decided.

    Raises
    ------
    InputError
        If the file has other resources or another horizon.
    """
    if set(file.resources) != set(before.resources) or file.horizon != before.horizon:
        raise InputError(
            Fault(
                "--cluster",
                "its resources or its horizon are not those of the data",
                "keep both, or begin with other data",
            )
        )
    old = {name: _state(before, name) for name in before.names}
    servers: dict[str, ServerState | None] = {}
    for name in file.names:
        state = _state(file, name)
        if old.get(name) != state:
            servers[name] = state
    for name in before.names:
        if name not in file.index and name in now.index:
            servers[name] = None
    event = CapacityChanged(
        slot,
        servers,
        file.tenants if file.tenants != before.tenants else None,
        file.restart_seconds if file.restart_seconds != before.restart_seconds else None,
        file.restart_first if file.restart_first != before.restart_first else None,
    )
    if event == CapacityChanged(slot):
        return None
    changed_cluster(now, event)
    return event


def _state(cluster: Cluster, name: str) -> ServerState:
    row = cluster.index[name]
    amounts = cluster.capacity[row].tolist()
    return ServerState(
        cluster.roles[row],
        dict(zip(cluster.resources, amounts, strict=True)),
        cost=None if cluster.costs is None else float(cluster.costs[row]),
    )

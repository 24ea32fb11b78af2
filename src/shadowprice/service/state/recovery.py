"""Recovery of the engine and the open jobs from snapshot, journal and tables.

Recovery only applies recorded decisions. The policy gets its stored policy state back. A large
state may be some seconds old. Then the policy is also queried about the events since, only to learn
from them again. If its decisions differ from the record, or its stored state can't be read, the
policy resyncs with the engine, but keeps what it had learnt by then.
"""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, func, select

import shadowprice
from shadowprice.core import events
from shadowprice.core.cluster import Cluster
from shadowprice.core.errors import Fault, InputError, PolicyError, ShadowpriceError
from shadowprice.core.policy import Capabilities, Policy, PolicyContext, View
from shadowprice.core.relative_values import STATED, OpenValues, RelativeValues
from shadowprice.engine.engine import Engine
from shadowprice.engine.journal import parse_entry
from shadowprice.engine.policy_session import sources
from shadowprice.engine.records import cluster_from_record, cluster_record, placement_from_record
from shadowprice.engine.server_events import changed_cluster
from shadowprice.engine.snapshot import restore, snapshot
from shadowprice.policies.choice import PolicyChoice
from shadowprice.service.budgets.account_table import read_accounts
from shadowprice.service.clock import MICROSECOND, SECOND, MonotonicWallClock, SlotCalendar
from shadowprice.service.state.batch import Batch, operation
from shadowprice.service.state.durable_state import DurableState
from shadowprice.service.state.ending import END_KEY, TimespanEnd
from shadowprice.service.state.engine_events import VALUES_KEY, apply_event
from shadowprice.service.state.job_views import JobView, State
from shadowprice.service.state.lengths import ServiceLengths
from shadowprice.service.state.margins import Margins, read_finished
from shadowprice.service.state.restart_costs import RestartCostEstimator
from shadowprice.service.state.server_limits import KEY as WITHHELD_KEY
from shadowprice.service.state.server_limits import clear_withheld
from shadowprice.service.state.start_ups import KEY as START_UPS_KEY
from shadowprice.service.state.start_ups import StartUps
from shadowprice.service.state.tenant_lanes import TenantLanes
from shadowprice.service.store import UNKNOWN_FORMAT_HINT, Store, tables
from shadowprice.service.store.lookups import rows_among, stored_value
from shadowprice.service.store.retention import last_job

log = logging.getLogger("shadowprice.service")

STORE_FORMAT: Final = 1  # version of the values in the tables; migrations number the schema


def recover(
    store: Store,
    cluster: Cluster,
    choice: PolicyChoice,
    clock: MonotonicWallClock,
    *,
    virtual: bool = False,
    max_overrun: float | None = None,
    values: str = STATED,
    observe_event_seconds: Callable[[float], None] = lambda _: None,
) -> DurableState:
    """Recover the durable state from a store, or initialize an empty store.

    ``cluster`` comes from the cluster file, and ``choice`` is the policy from now on. If
    ``virtual``, no job really runs, so commands need no acknowledgement. The other options are
    those of `DurableState`; ``values`` is its ``values_mode``. Raise `InputError` if the data
    doesn't fit the cluster's slots or resources, or has an unknown format, and `StoreError` if
    the store can't be read.
    """
    build = _initialize if store.get("format") is None else _load
    state = build(store, cluster, choice, clock, virtual)
    # Copying the policy state before each event would cost more than everything else.
    state.engine.session.saves_policy_state = False
    state.max_overrun, state.values_mode = max_overrun, values
    state.observe_event_seconds = observe_event_seconds
    if values != STATED:
        state.values = RelativeValues.from_record(store.get(VALUES_KEY))
        engine_state = state.engine.state
        state.open_values = OpenValues(engine_state.open_jobs, engine_state.watch_jobs())
    return state


def _load(
    store: Store, cluster: Cluster, choice: PolicyChoice, clock: MonotonicWallClock, virtual: bool
) -> DurableState:
    """Recover the durable state from a store that has content."""
    version = store.get("format")
    if version != str(STORE_FORMAT):
        message = f"the content has the unknown format {version}"
        raise InputError(Fault(f"--data {store.shown}", message, UNKNOWN_FORMAT_HINT))
    end, restarts, start_ups, withheld = (
        json.loads(store.get(key) or "{}")
        for key in (END_KEY, "restarts", START_UPS_KEY, WITHHELD_KEY)
    )
    with store.reading() as connection:
        recovered = _recover_engine(connection, choice, virtual=virtual)
        engine = recovered.engine
        views, specs, backlog = _jobs(connection)
        calendar = _calendar(connection, cluster, store)
        finished = [] if virtual else read_finished(connection)
        return DurableState(
            store=store,
            choice=choice,
            clock=clock,
            virtual=virtual,
            engine=engine,
            calendar=calendar,
            views=views,
            specs=specs,
            desired=_newest_commands(connection, engine),
            backlog=backlog,
            next_job=last_job(connection) + 1,
            next_event_id=_next_event(connection, calendar, clock.now()),
            accounts=read_accounts(connection),
            last_at=_last_at(connection),
            snapshot_sequence=recovered.snapshot_sequence,
            mode_changed=recovered.was_virtual != virtual,
            recovered_events=recovered.replayed,
            margins=Margins() if virtual else Margins([*finished, *views.values()]),
            lengths=ServiceLengths(finished),
            end=TimespanEnd(**end),
            start_ups=StartUps.from_record(start_ups),
            withheld=withheld,
            token_tenants=_tenants_with_tokens(connection, clock.now()),
            restarts=RestartCostEstimator(restarts),
        )


def _initialize(
    store: Store, cluster: Cluster, choice: PolicyChoice, clock: MonotonicWallClock, virtual: bool
) -> DurableState:
    """Initialize an empty store with the first snapshot."""
    engine = Engine(cluster, build_live_policy(choice, cluster), acknowledges=not virtual)
    now = clock.now()
    calendar = SlotCalendar.starting(now, cluster.slot_seconds)
    packed = zlib.compress(json.dumps(snapshot(engine), separators=(",", ":")).encode(), 1)
    with store.transaction() as connection:
        row = {"sequence": 0, "at": now, "state": packed}
        store.write(connection, tables.snapshots.insert(), [row])
        store.put(connection, "origin", str(calendar.origin))
        store.put(connection, "cluster", json.dumps(cluster_record(cluster)))
        put_policy(store, connection, choice, engine.policy)
        store.put(connection, "format", str(STORE_FORMAT))
    store.mark_used()
    return DurableState(
        store=store,
        choice=choice,
        clock=clock,
        virtual=virtual,
        engine=engine,
        calendar=calendar,
        last_at=now,
    )


def _value(connection: Connection, key: str) -> str:
    value = stored_value(connection, key)
    assert value is not None, key  # every store has it since its first start
    return value


def _calendar(connection: Connection, cluster: Cluster, store: Store) -> SlotCalendar:
    first = cluster_from_record(json.loads(_value(connection, "cluster")))
    if first.slot_seconds != cluster.slot_seconds:
        slots = f"its slots take {float(cluster.slot_seconds):g} s"
        message = f"{slots}, but slots in {store.shown} take {float(first.slot_seconds):g} s"
        hint = "keep the length of a slot, or use a new data directory"
        raise InputError(Fault("--cluster", message, hint))
    return SlotCalendar(int(_value(connection, "origin")), cluster.slot_seconds * SECOND)


def _tenants_with_tokens(connection: Connection, now: int) -> dict[str, None]:
    table = tables.tokens
    is_valid = table.c.revoked.is_(None) & (table.c.expires.is_(None) | (table.c.expires > now))
    query = select(table.c.tenant).distinct().where(table.c.tenant.is_not(None), is_valid)
    return dict.fromkeys(connection.execute(query).scalars())


def _next_event(connection: Connection, calendar: SlotCalendar, now: int) -> int:
    """Return the number of the next event.

    The store may be a restored backup, and clients resume from numbers that were used after the
    backup. So each start skips to the microseconds since 1970, a number that grows faster than the
    events of a service. If the clock was set back to before 1970, the time since the first start is
    larger. A backup that is restored on a machine whose clock is behind may reuse numbers.
    """
    last = connection.scalar(select(func.max(tables.events.c.id))) or 0
    return max(last + 1, now // MICROSECOND, (now - calendar.origin) // MICROSECOND)


def _last_at(connection: Connection) -> int:
    timed = (tables.journal, tables.snapshots, tables.events)
    return max(connection.scalar(select(func.max(table.c.at))) or 0 for table in timed)


# ---------------------------------------------------------------- engine


class _RecoveredEngine(NamedTuple):
    engine: Engine
    snapshot_sequence: int  # number of events before the snapshot
    replayed: int  # events of the journal after it
    was_virtual: bool  # mode of the service that wrote the snapshot


def _recover_engine(
    connection: Connection, choice: PolicyChoice, *, virtual: bool
) -> _RecoveredEngine:
    """Recover the engine from the newest snapshot that can be read, and from the journal."""
    table = tables.snapshots
    rows = connection.execute(select(table).order_by(table.c.sequence.desc())).all()
    problem: ShadowpriceError | None = None
    for row in rows:
        try:
            state = json.loads(zlib.decompress(row.state))
            engine, replayed, is_same_policy = _replay(connection, state, choice, virtual=virtual)
        except (ValueError, zlib.error) as error:
            problem = ShadowpriceError(f"snapshot {row.sequence} is damaged: {error}")
        except InputError as error:
            problem = error
        else:
            engine = engine if is_same_policy else _fork_with_policy(engine, choice)
            return _RecoveredEngine(engine, row.sequence, replayed, not state["acknowledges"])
        log.error("%s; trying the previous snapshot", problem)
    message = f"no readable snapshot: {problem or 'there is none'}"
    raise InputError(Fault("--data", message, "restore a backup"))


def _replay(
    connection: Connection, state: dict[str, Any], choice: PolicyChoice, *, virtual: bool
) -> tuple[Engine, int, bool]:
    """Restore a snapshot, and replay the journal after it.

    Return the engine, the number of replayed events, and whether ``choice`` with its present code
    decided them. If it didn't, the engine has a placeholder for the policy.
    """
    fingerprint, stored = _value(connection, "policy"), None
    # The fingerprint includes digests of this package's sources and of the policy's file. So if it
    # is the same, this policy made the decisions and can read the stored policy state.
    is_same_policy = fingerprint == policy_fingerprint(choice)
    # Another policy takes over no policy state, so a placeholder for the one that decided suffices.
    policy: Policy = _PastPolicy(Capabilities(**json.loads(_value(connection, "capabilities"))))
    if not is_same_policy and json.loads(fingerprint)[:2] == [choice.name, choice.settings]:
        log.info("policy %s has another version; it resyncs with the state", choice.name)
    if is_same_policy:
        policy = build_live_policy(choice, cluster_from_record(state["cluster"]))
        stored = connection.execute(
            select(tables.policy_state).where(tables.policy_state.c.policy == fingerprint)
        ).first()
    engine = restore(state, policy, with_policy_state=is_same_policy)
    table, replayed, synced = tables.journal, 0, engine.sequence  # synced: event of policy state
    if is_same_policy and (stored is None or stored.sequence <= synced):
        engine.session.is_following = True  # the snapshot's policy state is the newest
    rows = connection.execute(
        select(table.c.entry)
        .where(table.c.sequence > engine.sequence)
        .order_by(table.c.sequence)
        .execution_options(yield_per=500)
    )
    for line in rows.scalars():
        engine.apply(parse_entry(line, engine.cluster))
        engine.state.collect()
        replayed += 1
        if stored is not None and stored.sequence == engine.sequence:
            try:
                engine.session.load_state(zlib.decompress(stored.memory))
                synced = engine.sequence
                engine.session.is_following = True
            except (ShadowpriceError, zlib.error) as error:
                log.warning("failed to read the policy's state: %s", error)
    # The replay used the mode of the service that decided. From now on, this service's mode counts.
    # Without an executor, nothing acknowledges commands, so they would pile up.
    engine.state.acknowledges = not virtual
    if virtual:
        engine.unacknowledged.clear()
    if synced < engine.sequence and not engine.session.is_following:
        engine.session.resync()
    engine.session.is_following = False
    return engine, replayed, is_same_policy


def build_live_policy(choice: PolicyChoice, cluster: Cluster) -> Policy:
    """Build the policy for the live service; raise `InputError` if it can't run live."""
    return choice.build(PolicyContext(cluster=cluster, itemised=True, end_moves=True))


def policy_fingerprint(choice: PolicyChoice) -> str:
    """Return a text that identifies a policy, its settings and its code version."""
    version = f"{shadowprice.__version__}+{sources()}"
    parts = [choice.name, choice.settings, version]
    return json.dumps(parts if choice.origin is None else [*parts, choice.origin], sort_keys=True)


def put_policy(store: Store, connection: Connection, choice: PolicyChoice, policy: Policy) -> None:
    """Store the policy's fingerprint, and its capabilities for `_PastPolicy`."""
    store.put(connection, "policy", policy_fingerprint(choice))
    store.put(connection, "capabilities", json.dumps(asdict(policy.capabilities)))


class _PastPolicy:
    """Placeholder for the policy that made the recorded decisions, if another one is used now."""

    def __init__(self, capabilities: Capabilities) -> None:
        self.capabilities = capabilities

    def decide(self, view: View, event: events.PolicyEvent) -> Iterable[events.Decision]:
        """Raise `PolicyError`: recovery applies recorded decisions instead."""
        del view, event
        raise PolicyError("a restored policy was asked to decide")

    def resume(self, view: View) -> None:
        pass  # another policy takes over

    def parameters_in_force(self) -> Mapping[str, object]:
        return {}


def _fork_with_policy(engine: Engine, choice: PolicyChoice) -> Engine:
    try:
        return restore(
            snapshot(engine), build_live_policy(choice, engine.cluster), with_policy_state=False
        )
    except ShadowpriceError as error:  # for example, plans reach beyond the policy's horizon
        message = f"{choice.name} can't continue the present plans: {error}"
        hint = "keep the policy until no job is open, or use a new data directory"
        raise InputError(Fault("--policy", message, hint)) from error


# ---------------------------------------------------------------- jobs


def _jobs(
    connection: Connection,
) -> tuple[dict[str, JobView], dict[str, Mapping[str, Any]], TenantLanes[str]]:
    """Return the views and specifications of open jobs, and the keys of undecided ones."""
    table = tables.jobs
    views: dict[str, JobView] = {}
    specs: dict[str, Mapping[str, Any]] = {}
    backlog = TenantLanes[str]()
    query = select(table.c.key, table.c.view, table.c.spec).where(table.c.open == 1)
    for row in connection.execute(query.order_by(table.c.id)):
        view = views[row.key] = JobView.from_json(row.view)
        specs[row.key] = json.loads(row.spec)
        if view.state is State.PENDING:
            backlog.push(view.tenant, row.key)
    return views, specs, backlog


def _newest_commands(
    connection: Connection, engine: Engine
) -> dict[str, events.Start | events.Resize]:
    commands: dict[str, events.Start | events.Resize] = {}
    table, index = tables.commands, engine.cluster.index
    query = select(table).where(table.c.kind != "stop").order_by(table.c.id)
    for row in rows_among(connection, query, table.c.job, list(engine.running)):
        record = json.loads(row.record)
        kind = events.Start if row.kind == "start" else events.Resize
        on = [entry for entry in record["on"] if entry[0] in index]
        commands[row.job] = kind(
            record["slot"],
            row.job,
            placement_from_record(on, index),
            id=row.id,
            generation=row.generation,
            after=tuple(record["after"]),
            frees=tuple(record["frees"]),
            servers=tuple(name for name, _, _ in record["on"]),
            plan=record["plan"],
        )
    return commands


# ---------------------------------------------------------------- cluster file


@operation
def follow_cluster_file(batch: Batch, cluster: Cluster) -> None:
    """Apply edits of the cluster file; other changes of operators stay."""
    before = cluster_from_record(json.loads(_value(batch.connection, "cluster")))  # last applied
    file, now, slot = cluster, batch.engine.cluster, batch.state.next_slot
    if set(file.resources) != set(before.resources) or file.horizon != before.horizon:
        message = "its resources or its horizon are not those of the data"
        hint = "keep both, or use a new data directory"
        raise InputError(Fault("--cluster", message, hint))
    old = {name: _state(before, name) for name in before.names}
    new = {name: _state(file, name) for name in file.names}
    servers: dict[str, events.ServerState | None] = {
        name: state for name, state in new.items() if old.get(name) != state
    }
    servers |= {name: None for name in before.names if name not in new and name in now.index}
    event = events.CapacityChanged(
        slot,
        servers,
        file.tenants if file.tenants != before.tenants else None,
        file.restart_seconds if file.restart_seconds != before.restart_seconds else None,
        file.restart_first if file.restart_first != before.restart_first else None,
    )
    if event == events.CapacityChanged(slot):
        return
    changed_cluster(now, event)  # raises the file's diagnostics
    apply_event(batch, event)
    clear_withheld(batch, servers.keys())
    batch.set_value("cluster", json.dumps(cluster_record(file)))
    for name in servers:
        batch.emit("server", server=name, what="the cluster file was edited")


def _state(cluster: Cluster, name: str) -> events.ServerState:
    row = cluster.index[name]
    amounts = cluster.capacity[row].tolist()
    return events.ServerState(
        cluster.roles[row],
        dict(zip(cluster.resources, amounts, strict=True)),
        cost=None if cluster.costs is None else float(cluster.costs[row]),
    )

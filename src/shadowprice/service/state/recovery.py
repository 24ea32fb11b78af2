"""Recovery of the engine and the open jobs from snapshot, journal and tables.

Recovery applies recorded decisions; it never asks the policy to decide again. The policy gets its
stored policy state back. A large one may be some seconds old: then the policy is queried about the
events since, and learns from them again. If it decides otherwise than recorded, or nothing was
stored, it resyncs with the engine, from what it had learnt by then.
"""

from __future__ import annotations

import json
import logging
import platform
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
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
from shadowprice.core.relative_values import STATED, OpenValues, RelativeValues
from shadowprice.engine.engine import Engine
from shadowprice.engine.journal import parse_entry
from shadowprice.engine.policy_session import sources
from shadowprice.engine.records import cluster_from_record, cluster_record, placement_from_record
from shadowprice.engine.server_events import changed_cluster
from shadowprice.engine.snapshot import restore, snapshot
from shadowprice.policies.choice import PolicyChoice
from shadowprice.service.budgets.account_table import read_accounts
from shadowprice.service.budgets.accounts import Accounts
from shadowprice.service.clock import MICROSECOND, MonotonicWallClock, SlotCalendar
from shadowprice.service.state.backlog import Backlog
from shadowprice.service.state.durable_state import DurableState
from shadowprice.service.state.ending import TimespanEnd, read_end
from shadowprice.service.state.engine_events import VALUES_KEY
from shadowprice.service.state.job_views import JobView, State
from shadowprice.service.state.lengths import ServiceLengths
from shadowprice.service.state.margins import Margins, learn_margins, read_finished
from shadowprice.service.state.restart_costs import RestartCostEstimator
from shadowprice.service.state.server_limits import read_withheld
from shadowprice.service.state.start_ups import StartUps, read_start_ups
from shadowprice.service.store import UNKNOWN_FORMAT_HINT, Store, tables
from shadowprice.service.store.lookups import in_chunks, stored_value
from shadowprice.service.store.retention import last_job

log = logging.getLogger("shadowprice.service")

STORE_FORMAT: Final = 1  # version of the tables' content; the schema has a version of its own


def recover(
    store: Store,
    cluster: Cluster,
    choice: PolicyChoice,
    clock: MonotonicWallClock,
    *,
    virtual: bool = False,
    max_overrun: float | None = None,
    values: str = STATED,
    on_decision: Callable[[float], None] = lambda _: None,
) -> DurableState:
    """Recover the durable state from a store, or initialize an empty store.

    ``cluster`` comes from the cluster file, and ``choice`` is the policy from now on. If
    ``virtual``, no job really runs, so commands need no acknowledgement. The other options are
    those of `DurableState`; ``values`` is its ``values_mode``. Raise `InputError` if the data
    doesn't fit the cluster's slots or resources, or has an unknown format, and `StoreError` if
    the store can't be read.
    """
    version = store.get("format")
    if version is None:
        state = _begin(store, cluster, choice, clock, virtual=virtual)
    else:
        state = _load(store, cluster, choice, clock, version, virtual=virtual)
    # Copying the policy state before each event would cost more than everything else.
    state.engine.session.keeps_memory = False
    state.max_overrun, state.values_mode, state.on_decision = max_overrun, values, on_decision
    if values != STATED:
        state.values = RelativeValues.from_record(store.get(VALUES_KEY))
        engine_state = state.engine.state
        state.open_values = OpenValues(engine_state.open_jobs, engine_state.watch_jobs())
    return state


def _load(
    store: Store,
    cluster: Cluster,
    choice: PolicyChoice,
    clock: MonotonicWallClock,
    version: str,
    *,
    virtual: bool,
) -> DurableState:
    """Recover the durable state from a store that has content of a format version."""
    if version != str(STORE_FORMAT):
        raise InputError(
            Fault(
                f"--data {store.shown}",
                f"the content has the unknown format {version}",
                UNKNOWN_FORMAT_HINT,
            )
        )
    restart_costs = json.loads(store.get("restarts") or "{}")
    end, start_ups, withheld = read_end(store), read_start_ups(store), read_withheld(store)
    with store.reading() as connection:
        engine, since, replayed, acknowledged = _engine(connection, choice, virtual=virtual)
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
            launch_commands=_newest_commands(connection, engine),
            backlog=backlog,
            next_job=last_job(connection) + 1,
            next_event_id=_next_event(connection, calendar, clock.now()),
            accounts=read_accounts(connection),
            last_at=_last_at(connection),
            snapshot_sequence=since,
            mode_changed=acknowledged is virtual,
            recovered_events=replayed,
            margins=Margins() if virtual else learn_margins(finished, views.values()),
            lengths=ServiceLengths(finished),
            end=end,
            start_ups=start_ups,
            withheld=withheld,
            token_tenants=_tenants_with_tokens(connection, clock.now()),
            restarts=RestartCostEstimator(restart_costs),
        )


def _begin(
    store: Store,
    cluster: Cluster,
    choice: PolicyChoice,
    clock: MonotonicWallClock,
    *,
    virtual: bool,
) -> DurableState:
    """Initialize an empty store with the first snapshot."""
    engine = Engine(cluster, build_live_policy(choice, cluster), acknowledges=not virtual)
    now = clock.now()
    calendar = SlotCalendar.starting(now, cluster.slot_seconds)
    packed = _pack_snapshot(engine)
    with store.transaction() as connection:
        for table in (tables.snapshots, tables.meta):
            store.write(connection, delete(table))
        row = {"sequence": 0, "at": now, "state": packed}
        store.write(connection, tables.snapshots.insert(), [row])
        store.put(connection, "origin", str(calendar.origin))
        store.put(connection, "cluster", json.dumps(cluster_record(cluster)))
        put_policy(store, connection, choice, engine.policy)
        store.put(connection, "python", platform.python_version())
        store.put(connection, "format", str(STORE_FORMAT))
    store.mark_used()
    return DurableState(
        store=store,
        choice=choice,
        clock=clock,
        virtual=virtual,
        engine=engine,
        calendar=calendar,
        views={},
        specs={},
        launch_commands={},
        backlog=Backlog(),
        next_job=1,
        next_event_id=1,
        accounts=Accounts({}, 1),
        last_at=now,
        snapshot_sequence=0,
        recovered_events=0,
        margins=Margins(),
        lengths=ServiceLengths(),
        end=TimespanEnd(),
        start_ups=StartUps(),
        withheld={},
        token_tenants={},
        restarts=RestartCostEstimator({}),
    )


def _pack_snapshot(engine: Engine) -> bytes:
    return zlib.compress(json.dumps(snapshot(engine), separators=(",", ":")).encode(), 1)


def _value(connection: Connection, key: str) -> str:
    value = stored_value(connection, key)
    assert value is not None, key  # every store has it since its first start
    return value


def _calendar(connection: Connection, cluster: Cluster, store: Store) -> SlotCalendar:
    first = cluster_from_record(json.loads(_value(connection, "cluster")))
    if first.slot_seconds != cluster.slot_seconds:
        raise InputError(
            Fault(
                "--cluster",
                f"its slots take {float(cluster.slot_seconds):g} s, those in {store.shown} "
                f"{float(first.slot_seconds):g} s",
                "keep the length of a slot, or use a new data directory",
            )
        )
    origin = int(_value(connection, "origin"))
    calendar = SlotCalendar.starting(0, cluster.slot_seconds)
    return SlotCalendar(origin, calendar.slot)


def _tenants_with_tokens(connection: Connection, now: int) -> dict[str, None]:
    """Return the tenants that have a valid token."""
    table = tables.tokens
    is_valid = table.c.revoked.is_(None) & (table.c.expires.is_(None) | (table.c.expires > now))
    query = select(table.c.tenant).distinct().where(table.c.tenant.is_not(None), is_valid)
    return dict.fromkeys(connection.execute(query).scalars())


def _next_event(connection: Connection, calendar: SlotCalendar, now: int) -> int:
    """Return the number of the next event.

    The store may be a restored backup, and clients resume from numbers that were used after it was
    copied. So each start skips to the microseconds since 1970, which outrun a service that emits
    fewer than a million events per second. If the clock was set back to before 1970, the time since
    the first start is larger. A copy that is restored on a machine whose clock is behind may reuse
    numbers.
    """
    last = connection.execute(select(func.max(tables.events.c.id))).scalar() or 0
    return max(last + 1, now // MICROSECOND, (now - calendar.origin) // MICROSECOND)


def _last_at(connection: Connection) -> int:
    latest = [
        connection.execute(select(func.max(table.c.at))).scalar() or 0
        for table in (tables.journal, tables.snapshots, tables.events)
    ]
    return max(latest)


# ---------------------------------------------------------------- engine


def _engine(
    connection: Connection, choice: PolicyChoice, *, virtual: bool
) -> tuple[Engine, int, int, bool]:
    """Return the engine, the snapshot's sequence number, and the number of replayed events.

    The last value is whether the engine acknowledged commands until now. If the newest snapshot is
    damaged, fall back to the previous one.
    """
    table = tables.snapshots
    rows = connection.execute(select(table).order_by(table.c.sequence.desc())).all()
    problem: ShadowpriceError | None = None
    for row in rows:
        try:
            state = json.loads(zlib.decompress(row.state))
            engine, replayed, same = _replay(connection, state, choice, virtual=virtual)
        except (ValueError, zlib.error) as error:
            problem = ShadowpriceError(f"snapshot {row.sequence} is damaged: {error}")
        except InputError as error:
            problem = error
        else:
            engine = engine if same else _fork_with_policy(engine, choice)
            return engine, row.sequence, replayed, state["acknowledges"]
        log.error("%s; trying the one before", problem)
    raise InputError(
        Fault(
            "--data",
            f"no readable snapshot: {problem or 'there is none'}",
            "restore a backup",
        )
    )


def _replay(
    connection: Connection, state: dict[str, Any], choice: PolicyChoice, *, virtual: bool
) -> tuple[Engine, int, bool]:
    """Restore a snapshot and replay the journal after it, under the policy that decided then.

    Return the engine, the number of replayed events, and whether that policy is the chosen one.
    """
    mark = _value(connection, "policy")
    same = mark == policy_fingerprint(choice)
    before = choice if same else _find_choice(mark, choice)
    if before == choice and not same:
        log.info("policy %s has another version; it resyncs with the state", choice.name)
    exact = _is_exact(mark, before)
    past = _past_policy(connection, before, cluster_from_record(state["cluster"]))
    # Another version of a policy file may have pickled an incompatible policy state.
    engine = restore(state, past, memory=exact or (before is not None and before.file is None))
    table, replayed = tables.journal, 0
    memory = connection.execute(select(tables.memory)).first()
    # The mark includes digests of this package's sources and of the policy's file.
    if memory is not None and not _is_exact(memory.policy, before):
        memory = None
    synced = engine.sequence
    if exact and (memory is None or memory.sequence <= synced):
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
        if memory is not None and memory.sequence == engine.sequence:
            try:
                engine.session.load_state(zlib.decompress(memory.memory))
                synced = engine.sequence
                engine.session.is_following = True
            except (ShadowpriceError, zlib.error) as error:
                log.warning("failed to read the policy's state: %s", error)
    # The replay had the mode of the service that decided; from now on it is that of this one.
    # Without an executor, nothing acknowledges commands: they would pile up.
    engine.state.acknowledges = not virtual
    if virtual:
        engine.unacknowledged.clear()
    if synced < engine.sequence and not engine.session.is_following:
        engine.session.resync()
    engine.session.is_following = False
    return engine, replayed, same


def build_live_policy(choice: PolicyChoice, cluster: Cluster) -> Policy:
    """Build the policy for the live service.

    Raise `InputError` if the policy or a parameter is unknown, or the policy can't run live.
    """
    return choice.build(PolicyContext(cluster=cluster, itemised=True, end_moves=True))


def policy_fingerprint(choice: PolicyChoice) -> str:
    """Return a text that identifies a policy, its settings and its code version.

    A policy state is only valid for the mark that it was stored with.
    """
    version = f"{shadowprice.__version__}+{sources()}"
    parts = [choice.name, choice.settings, version]
    return json.dumps(parts if choice.origin is None else [*parts, choice.origin], sort_keys=True)


def _is_exact(mark: str, choice: PolicyChoice | None) -> bool:
    """Return whether a mark is that of a choice with its present code."""
    try:
        return choice is not None and mark == policy_fingerprint(choice)
    except InputError:
        return False


def put_policy(store: Store, connection: Connection, choice: PolicyChoice, policy: Policy) -> None:
    """Store the policy's mark, and its capabilities for `_PastPolicy`."""
    store.put(connection, "policy", policy_fingerprint(choice))
    store.put(connection, "capabilities", json.dumps(asdict(policy.capabilities)))


class _PastPolicy:
    """Placeholder for a policy whose code is missing: it never decides."""

    def __init__(self, capabilities: Capabilities) -> None:
        self.capabilities = capabilities

    def decide(self, view: View, event: PolicyEvent) -> Iterable[Decision]:
        """Raise `PolicyError`: recovery applies recorded decisions instead."""
        del view, event
        raise PolicyError("a restored policy was asked to decide")

    def resume(self, view: View) -> None:
        """Do nothing: another policy takes over."""
        del view

    def parameters_in_force(self) -> Mapping[str, object]:
        """Return no parameters."""
        return {}


def _past_policy(connection: Connection, before: PolicyChoice | None, cluster: Cluster) -> Policy:
    """Build the policy that decided before; a placeholder if its code or a parameter is gone."""
    if before is not None:
        try:
            return build_live_policy(before, cluster)
        except InputError as error:
            log.warning("policy %s can't be built as it was: %s", before.name, error)
    return _PastPolicy(Capabilities(**json.loads(_value(connection, "capabilities"))))


def _find_choice(mark: str, choice: PolicyChoice) -> PolicyChoice | None:
    """Return the policy choice of a mark; None if its file isn't that of ``choice``.

    A file that only the store names is never loaded, because the store holds data, not code.
    """
    name, settings, _, *origin = json.loads(mark)
    if origin and "file" in origin[0]:
        now = choice.file
        same = now is not None and (now.path, now.name) == (origin[0]["file"], origin[0]["object"])
        return replace(choice, settings=settings) if same else None
    return PolicyChoice(name, settings)


def _fork_with_policy(engine: Engine, choice: PolicyChoice) -> Engine:
    """Return a copy of the engine under another policy."""
    try:
        return restore(snapshot(engine), build_live_policy(choice, engine.cluster), memory=False)
    except ShadowpriceError as error:  # for example, plans reach beyond the policy's horizon
        raise InputError(
            Fault(
                "--policy",
                f"{choice.name} can't continue the present plans: {error}",
                "keep the policy until no job is open, or use a new data directory",
            )
        ) from error


# ---------------------------------------------------------------- jobs


def _jobs(
    connection: Connection,
) -> tuple[dict[str, JobView], dict[str, Mapping[str, Any]], Backlog]:
    """Return the views and specifications of open jobs, and the keys of undecided ones."""
    table = tables.jobs
    views: dict[str, JobView] = {}
    specs: dict[str, Mapping[str, Any]] = {}
    backlog = Backlog()
    rows = connection.execute(
        select(table.c.key, table.c.view, table.c.spec)
        .where(table.c.open == 1)
        .order_by(table.c.id)
    )
    for row in rows:
        view = views[row.key] = JobView.from_json(row.view)
        specs[row.key] = json.loads(row.spec)
        if view.state is State.PENDING:
            backlog.extend([(view.tenant, row.key)])
    return views, specs, backlog


def _newest_commands(connection: Connection, engine: Engine) -> dict[str, Start | Resize]:
    """Return the newest start or resize command of each running job."""
    commands: dict[str, Start | Resize] = {}
    names = list(engine.running)
    table, index = tables.commands, engine.cluster.index
    for chunk in in_chunks(names):
        rows = connection.execute(
            select(table).where(table.c.job.in_(chunk), table.c.kind != "stop").order_by(table.c.id)
        )
        for row in rows:
            record = json.loads(row.record)
            kind = Start if row.kind == "start" else Resize
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


def cluster_file_diff(
    before: Cluster, file: Cluster, now: Cluster, slot: int
) -> CapacityChanged | None:
    """Return the event that applies the changes of the cluster file; None if it has none.

    ``before`` is the file's content when it was last read, and ``now`` the cluster in force, with
    the changes of operators. ``slot`` is the first slot that can still be decided. Raise
    `InputError` if the file changes the set of resources or the horizon, or the event is invalid.
    """
    if set(file.resources) != set(before.resources) or file.horizon != before.horizon:
        raise InputError(
            Fault(
                "--cluster",
                "its resources or its horizon are not those of the data",
                "keep both, or use a new data directory",
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

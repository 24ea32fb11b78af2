"""Tables of the store, in the schema of the newest migration."""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    BigInteger,
    Column,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    literal_column,
)

metadata: Final = MetaData()

# SQLite autoincrements only columns of type INTEGER.
BigIntPk: Final = BigInteger().with_variant(Integer, "sqlite")

meta = Table(
    "meta",
    metadata,
    Column("key", String(100), primary_key=True),
    Column("value", Text, nullable=False),
)

journal = Table(
    "journal",
    metadata,
    Column("sequence", BigIntPk, primary_key=True, autoincrement=False),
    Column("at", BigInteger, nullable=False),
    Column("entry", Text, nullable=False),
)

snapshots = Table(
    "snapshots",
    metadata,
    Column("sequence", BigIntPk, primary_key=True, autoincrement=False),
    Column("at", BigInteger, nullable=False),
    Column("state", LargeBinary, nullable=False),
)

memory = Table(
    "memory",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("sequence", BigInteger, nullable=False),
    Column("policy", Text, nullable=False),
    Column("memory", LargeBinary, nullable=False),
)

jobs = Table(
    "jobs",
    metadata,
    Column("id", BigIntPk, primary_key=True),
    Column("key", Text, nullable=False, unique=True),
    Column("qualified_name", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("tenant", Text),
    Column("state", String(20), nullable=False),
    Column("open", Integer, nullable=False),
    Column("submitted", BigInteger, nullable=False),
    Column("closed", BigInteger),
    Column("spec", Text, nullable=False),
    Column("content", String(64), nullable=False),
    Column("view", Text, nullable=False),
    Column("request", String(64)),
)
Index("jobs_by_state", jobs.c.state, jobs.c.id)
Index("jobs_by_qualified_name", jobs.c.qualified_name, jobs.c.id)
Index("jobs_by_name", jobs.c.name, jobs.c.open, jobs.c.qualified_name, jobs.c.id)
Index("jobs_by_tenant", jobs.c.tenant, jobs.c.id)
Index("jobs_by_tenant_and_state", jobs.c.tenant, jobs.c.state, jobs.c.id)
Index("jobs_open", jobs.c.open, jobs.c.id)
Index("jobs_closed", jobs.c.closed)
Index("jobs_by_request", jobs.c.request)

commands = Table(
    "commands",
    metadata,
    Column("id", BigIntPk, primary_key=True, autoincrement=False),
    Column("sequence", BigInteger, nullable=False),
    Column("job", Text, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("kind", String(10), nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("record", Text, nullable=False),
    Column("acknowledged", BigInteger),
)
Index("commands_by_job", commands.c.job, commands.c.id)

generations = Table(
    "generations",
    metadata,
    Column("job", Text, primary_key=True),
    Column("generation", Integer, primary_key=True),
    Column("ordered", BigInteger, nullable=False),
    Column("started", BigInteger),
    Column("ended", BigInteger),
    Column("exit", Integer),
    Column("reason", Text),
    Column("placement", Text, nullable=False),
    Column("slot", BigInteger, nullable=False),
    Column("workers", Integer, nullable=False),
    Column("ps", Integer, nullable=False),
)
Index("generations_by_end", generations.c.ended)

events = Table(
    "events",
    metadata,
    Column("id", BigIntPk, primary_key=True, autoincrement=False),
    Column("at", BigInteger, nullable=False),
    Column("kind", String(20), nullable=False),
    Column("decision", Integer, nullable=False),
    Column("job", Text),
    Column("job_id", BigInteger),
    Column("tenant", Text),
    Column("data", Text, nullable=False),
)
Index("events_by_job", events.c.job, events.c.id)
Index("events_by_tenant", events.c.tenant, events.c.id)
Index("events_by_time", events.c.at)
# Few events are decisions, so partial indexes find them quickly.
decided: Final = events.c.decision == literal_column("1")
for _name, _columns in (
    ("events_decided", (events.c.id,)),
    ("events_decided_by_tenant", (events.c.tenant, events.c.id)),
    ("events_decided_by_job", (events.c.job, events.c.id)),
):
    Index(_name, *_columns, sqlite_where=decided, postgresql_where=decided)

progress = Table(
    "progress",
    metadata,
    Column("id", BigIntPk, primary_key=True),
    Column("job", Text, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("minibatches", Float, nullable=False),
    Column("metrics", Text, nullable=False),
)
Index("progress_by_job", progress.c.job, progress.c.id)
Index("progress_by_time", progress.c.at)

prices = Table(
    "prices",
    metadata,
    Column("id", BigIntPk, primary_key=True),
    Column("at", BigInteger, nullable=False),
    Column("slot", BigInteger, nullable=False),
    Column("grain", Integer, nullable=False),
    Column("record", Text, nullable=False),
)
Index("prices_by_time", prices.c.at)
Index("prices_by_grain", prices.c.grain, prices.c.at)

observed = Table(
    "observed",
    metadata,
    Column("id", BigIntPk, primary_key=True),
    Column("job", Text, nullable=False),
    Column("since", BigInteger, nullable=False),
    Column("ended", BigInteger),
    Column("placement", Text, nullable=False),
)
Index("observed_by_job", observed.c.job, observed.c.id)
Index("observed_by_end", observed.c.ended)

outcomes = Table(
    "outcomes",
    metadata,
    Column("job", Text, primary_key=True),
    Column("tenant", Text),
    Column("started", BigInteger, nullable=False),
    Column("ended", BigInteger),
    Column("slot", BigInteger),
    Column("runs", Integer, nullable=False),
    Column("done", Integer),
    Column("utility", Float),
)
Index("outcomes_by_end", outcomes.c.ended)

budgets = Table(
    "budgets",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("budget", Text, nullable=False),
    Column("balance", BigInteger, nullable=False),
    Column("reserved", BigInteger, nullable=False),
    Column("spent", BigInteger, nullable=False),
    Column("period", BigInteger, nullable=False),
    Column("room", BigInteger, nullable=False),
    Column("sums", Text, nullable=False),
)

entries = Table(
    "entries",
    metadata,
    Column("id", BigIntPk, primary_key=True, autoincrement=False),
    Column("at", BigInteger, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("kind", String(10), nullable=False),
    Column("points", BigInteger, nullable=False),
    Column("balance", BigInteger, nullable=False),
    Column("job", Text),
    Column("other", Text),
    Column("note", Text, nullable=False),
)
Index("entries_by_tenant", entries.c.tenant, entries.c.id)
Index("entries_by_time", entries.c.at)

tokens = Table(
    "tokens",
    metadata,
    Column("id", BigIntPk, primary_key=True),
    Column("hash", String(64), nullable=False, unique=True),
    Column("role", String(10), nullable=False),
    Column("tenant", Text),
    Column("note", Text, nullable=False),
    Column("created", BigInteger, nullable=False),
    Column("expires", BigInteger),
    Column("revoked", BigInteger),
)

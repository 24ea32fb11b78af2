"""Tables of the store, in the schema of the newest migration.

Moments are nanoseconds since 1970, and points are millionths of a point. A column ``job`` has the
key of a job, and texts such as ``spec``, ``view``, ``record`` and ``data`` are JSON.
"""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa

metadata: Final = sa.MetaData()

# SQLite autoincrements only columns of type INTEGER.
BigIntPk: Final = sa.BigInteger().with_variant(sa.Integer, "sqlite")

# Values by key, such as the origin of slots and the version of the content.
meta = sa.Table(
    "meta",
    metadata,
    sa.Column("key", sa.String(100), primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
)

journal = sa.Table(
    "journal",
    metadata,
    sa.Column("sequence", BigIntPk, primary_key=True, autoincrement=False),
    sa.Column("at", sa.BigInteger, nullable=False),
    sa.Column("entry", sa.Text, nullable=False),
)

snapshots = sa.Table(
    "snapshots",
    metadata,
    sa.Column("sequence", BigIntPk, primary_key=True, autoincrement=False),
    sa.Column("at", sa.BigInteger, nullable=False),
    sa.Column("state", sa.LargeBinary, nullable=False),
)

# One row: the newest policy state, with the policy's fingerprint (`recovery.policy_fingerprint`).
policy_state = sa.Table(
    "memory",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("sequence", sa.BigInteger, nullable=False),
    sa.Column("policy", sa.Text, nullable=False),
    sa.Column("memory", sa.LargeBinary, nullable=False),
)

jobs = sa.Table(
    "jobs",
    metadata,
    sa.Column("id", BigIntPk, primary_key=True),
    sa.Column("key", sa.Text, nullable=False, unique=True),
    sa.Column("qualified_name", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("tenant", sa.Text),
    sa.Column("state", sa.String(20), nullable=False),
    sa.Column("open", sa.Integer, nullable=False),
    sa.Column("submitted", sa.BigInteger, nullable=False),
    sa.Column("closed", sa.BigInteger),
    sa.Column("spec", sa.Text, nullable=False),
    sa.Column("content", sa.String(64), nullable=False),
    sa.Column("view", sa.Text, nullable=False),
    sa.Column("request", sa.String(64)),
)
sa.Index("jobs_by_state", jobs.c.state, jobs.c.id)
sa.Index("jobs_by_qualified_name", jobs.c.qualified_name, jobs.c.id)
sa.Index("jobs_by_name", jobs.c.name, jobs.c.open, jobs.c.qualified_name, jobs.c.id)
sa.Index("jobs_by_tenant", jobs.c.tenant, jobs.c.id)
sa.Index("jobs_by_tenant_and_state", jobs.c.tenant, jobs.c.state, jobs.c.id)
sa.Index("jobs_open", jobs.c.open, jobs.c.id)
sa.Index("jobs_closed", jobs.c.closed)
sa.Index("jobs_by_request", jobs.c.request)

commands = sa.Table(
    "commands",
    metadata,
    sa.Column("id", BigIntPk, primary_key=True, autoincrement=False),
    sa.Column("sequence", sa.BigInteger, nullable=False),
    sa.Column("job", sa.Text, nullable=False),
    sa.Column("generation", sa.Integer, nullable=False),
    sa.Column("kind", sa.String(10), nullable=False),
    sa.Column("at", sa.BigInteger, nullable=False),
    sa.Column("record", sa.Text, nullable=False),
    sa.Column("acknowledged", sa.BigInteger),
)
sa.Index("commands_by_job", commands.c.job, commands.c.id)

generations = sa.Table(
    "generations",
    metadata,
    sa.Column("job", sa.Text, primary_key=True),
    sa.Column("generation", sa.Integer, primary_key=True),
    sa.Column("ordered", sa.BigInteger, nullable=False),  # when it was commanded
    sa.Column("started", sa.BigInteger),
    sa.Column("ended", sa.BigInteger),
    sa.Column("exit", sa.Integer),
    sa.Column("reason", sa.Text),
    sa.Column("placement", sa.Text, nullable=False),
    sa.Column("slot", sa.BigInteger, nullable=False),
    sa.Column("workers", sa.Integer, nullable=False),
    sa.Column("ps", sa.Integer, nullable=False),
)
sa.Index("generations_by_end", generations.c.ended)

events = sa.Table(
    "events",
    metadata,
    sa.Column("id", BigIntPk, primary_key=True, autoincrement=False),
    sa.Column("at", sa.BigInteger, nullable=False),
    sa.Column("kind", sa.String(20), nullable=False),
    sa.Column("decision", sa.Integer, nullable=False),
    sa.Column("job", sa.Text),
    sa.Column("job_id", sa.BigInteger),
    sa.Column("tenant", sa.Text),
    sa.Column("data", sa.Text, nullable=False),
)
sa.Index("events_by_job", events.c.job, events.c.id)
sa.Index("events_by_tenant", events.c.tenant, events.c.id)
sa.Index("events_by_time", events.c.at)
# Few events are decisions, so partial indexes find them quickly.
decided: Final = events.c.decision == sa.literal_column("1")
for _name, _columns in (
    ("events_decided", (events.c.id,)),
    ("events_decided_by_tenant", (events.c.tenant, events.c.id)),
    ("events_decided_by_job", (events.c.job, events.c.id)),
):
    sa.Index(_name, *_columns, sqlite_where=decided, postgresql_where=decided)

progress = sa.Table(
    "progress",
    metadata,
    sa.Column("id", BigIntPk, primary_key=True),
    sa.Column("job", sa.Text, nullable=False),
    sa.Column("generation", sa.Integer, nullable=False),
    sa.Column("at", sa.BigInteger, nullable=False),
    sa.Column("minibatches", sa.Float, nullable=False),
    sa.Column("metrics", sa.Text, nullable=False),
)
sa.Index("progress_by_job", progress.c.job, progress.c.id)
sa.Index("progress_by_time", progress.c.at)

prices = sa.Table(
    "prices",
    metadata,
    sa.Column("id", BigIntPk, primary_key=True),
    sa.Column("at", sa.BigInteger, nullable=False),
    sa.Column("slot", sa.BigInteger, nullable=False),
    sa.Column("grain", sa.Integer, nullable=False),
    sa.Column("record", sa.Text, nullable=False),
)
sa.Index("prices_by_time", prices.c.at)
sa.Index("prices_by_grain", prices.c.grain, prices.c.at)

# Runs and results of jobs of another scheduler, which this service only observes
# (`execution.observer`):
observed = sa.Table(
    "observed",
    metadata,
    sa.Column("id", BigIntPk, primary_key=True),
    sa.Column("job", sa.Text, nullable=False),
    sa.Column("since", sa.BigInteger, nullable=False),
    sa.Column("ended", sa.BigInteger),
    sa.Column("placement", sa.Text, nullable=False),
)
sa.Index("observed_by_job", observed.c.job, observed.c.id)
sa.Index("observed_by_end", observed.c.ended)

outcomes = sa.Table(
    "outcomes",
    metadata,
    sa.Column("job", sa.Text, primary_key=True),
    sa.Column("tenant", sa.Text),
    sa.Column("started", sa.BigInteger, nullable=False),
    sa.Column("ended", sa.BigInteger),
    sa.Column("slot", sa.BigInteger),
    sa.Column("runs", sa.Integer, nullable=False),
    sa.Column("done", sa.Integer),
    sa.Column("utility", sa.Float),
)
sa.Index("outcomes_by_end", outcomes.c.ended)

# Accounts of tenants with a budget, and the entries that changed them (`budgets.accounts`):
budgets = sa.Table(
    "budgets",
    metadata,
    sa.Column("tenant", sa.Text, primary_key=True),
    sa.Column("budget", sa.Text, nullable=False),
    sa.Column("balance", sa.BigInteger, nullable=False),
    sa.Column("reserved", sa.BigInteger, nullable=False),
    sa.Column("spent", sa.BigInteger, nullable=False),
    sa.Column("period", sa.BigInteger, nullable=False),
    sa.Column("room", sa.BigInteger, nullable=False),
    sa.Column("sums", sa.Text, nullable=False),
)

entries = sa.Table(
    "entries",
    metadata,
    sa.Column("id", BigIntPk, primary_key=True, autoincrement=False),
    sa.Column("at", sa.BigInteger, nullable=False),
    sa.Column("tenant", sa.Text, nullable=False),
    sa.Column("kind", sa.String(10), nullable=False),
    sa.Column("points", sa.BigInteger, nullable=False),
    sa.Column("balance", sa.BigInteger, nullable=False),
    sa.Column("job", sa.Text),
    sa.Column("other", sa.Text),
    sa.Column("note", sa.Text, nullable=False),
)
sa.Index("entries_by_tenant", entries.c.tenant, entries.c.id)
sa.Index("entries_by_time", entries.c.at)

tokens = sa.Table(
    "tokens",
    metadata,
    sa.Column("id", BigIntPk, primary_key=True),
    sa.Column("hash", sa.String(64), nullable=False, unique=True),
    sa.Column("role", sa.String(10), nullable=False),
    sa.Column("tenant", sa.Text),
    sa.Column("note", sa.Text, nullable=False),
    sa.Column("created", sa.BigInteger, nullable=False),
    sa.Column("expires", sa.BigInteger),
    sa.Column("revoked", sa.BigInteger),
)

"""Tables of version 0.1.0."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_DECIDED = sa.text("decision = 1")


def upgrade() -> None:
    """Create the tables and their indexes."""
    op.create_table(
        "meta",
        sa.Column("key", sa.String(100), primary_key=True),
        sa.Column("value", sa.Text, nullable=False),
    )
    op.create_table(
        "journal",
        sa.Column("sequence", _NUMBER, primary_key=True, autoincrement=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("entry", sa.Text, nullable=False),
    )
    op.create_table(
        "snapshots",
        sa.Column("sequence", _NUMBER, primary_key=True, autoincrement=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("state", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "memory",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("sequence", sa.BigInteger, nullable=False),
        sa.Column("policy", sa.Text, nullable=False),
        sa.Column("memory", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "jobs",
        sa.Column("id", _NUMBER, primary_key=True),
        sa.Column("name", sa.Text, nullable=False, unique=True),
        sa.Column("tenant", sa.Text),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("open", sa.Integer, nullable=False),
        sa.Column("submitted", sa.BigInteger, nullable=False),
        sa.Column("closed", sa.BigInteger),
        sa.Column("spec", sa.Text, nullable=False),
        sa.Column("content", sa.String(64), nullable=False),
        sa.Column("view", sa.Text, nullable=False),
        sa.Column("token", sa.String(64)),
    )
    op.create_index("jobs_by_state", "jobs", ["state", "id"])
    op.create_index("jobs_by_tenant", "jobs", ["tenant", "id"])
    op.create_index("jobs_by_tenant_and_state", "jobs", ["tenant", "state", "id"])
    op.create_index("jobs_open", "jobs", ["open", "id"])
    op.create_index("jobs_closed", "jobs", ["closed"])
    op.create_table(
        "commands",
        sa.Column("id", _NUMBER, primary_key=True, autoincrement=False),
        sa.Column("sequence", sa.BigInteger, nullable=False),
        sa.Column("job", sa.Text, nullable=False),
        sa.Column("generation", sa.Integer, nullable=False),
        sa.Column("kind", sa.String(10), nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("record", sa.Text, nullable=False),
        sa.Column("acknowledged", sa.BigInteger),
    )
    op.create_index("commands_by_job", "commands", ["job", "id"])
    op.create_table(
        "generations",
        sa.Column("job", sa.Text, primary_key=True),
        sa.Column("generation", sa.Integer, primary_key=True),
        sa.Column("ordered", sa.BigInteger, nullable=False),
        sa.Column("started", sa.BigInteger),
        sa.Column("ended", sa.BigInteger),
        sa.Column("exit", sa.Integer),
        sa.Column("reason", sa.Text),
        sa.Column("placement", sa.Text, nullable=False),
        sa.Column("slot", sa.BigInteger, nullable=False),
        sa.Column("workers", sa.Integer, nullable=False),
        sa.Column("ps", sa.Integer, nullable=False),
    )
    op.create_index("generations_by_end", "generations", ["ended"])
    op.create_table(
        "events",
        sa.Column("id", _NUMBER, primary_key=True, autoincrement=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("decision", sa.Integer, nullable=False),
        sa.Column("job", sa.Text),
        sa.Column("tenant", sa.Text),
        sa.Column("data", sa.Text, nullable=False),
    )
    op.create_index("events_by_job", "events", ["job", "id"])
    op.create_index("events_by_tenant", "events", ["tenant", "id"])
    op.create_index("events_by_time", "events", ["at"])
    # Partial indexes: decisions are few among all events.
    for name, columns in (
        ("events_decided", ["id"]),
        ("events_decided_by_tenant", ["tenant", "id"]),
        ("events_decided_by_job", ["job", "id"]),
    ):
        op.create_index(name, "events", columns, sqlite_where=_DECIDED, postgresql_where=_DECIDED)
    op.create_table(
        "progress",
        sa.Column("id", _NUMBER, primary_key=True),
        sa.Column("job", sa.Text, nullable=False),
        sa.Column("generation", sa.Integer, nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("minibatches", sa.Float, nullable=False),
        sa.Column("metrics", sa.Text, nullable=False),
    )
    op.create_index("progress_by_job", "progress", ["job", "id"])
    op.create_index("progress_by_time", "progress", ["at"])
    op.create_table(
        "prices",
        sa.Column("id", _NUMBER, primary_key=True),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("slot", sa.BigInteger, nullable=False),
        sa.Column("grain", sa.Integer, nullable=False),
        sa.Column("record", sa.Text, nullable=False),
    )
    op.create_index("prices_by_time", "prices", ["at"])
    op.create_index("prices_by_grain", "prices", ["grain", "at"])
    op.create_table(
        "observed",
        sa.Column("id", _NUMBER, primary_key=True),
        sa.Column("job", sa.Text, nullable=False),
        sa.Column("since", sa.BigInteger, nullable=False),
        sa.Column("ended", sa.BigInteger),
        sa.Column("placement", sa.Text, nullable=False),
    )
    op.create_index("observed_by_job", "observed", ["job", "id"])
    op.create_index("observed_by_end", "observed", ["ended"])
    op.create_table(
        "outcomes",
        sa.Column("job", sa.Text, primary_key=True),
        sa.Column("tenant", sa.Text),
        sa.Column("started", sa.BigInteger, nullable=False),
        sa.Column("ended", sa.BigInteger),
        sa.Column("slot", sa.BigInteger),
        sa.Column("runs", sa.Integer, nullable=False),
        sa.Column("done", sa.Integer),
        sa.Column("utility", sa.Float),
    )
    op.create_index("outcomes_by_end", "outcomes", ["ended"])
    op.create_table(
        "budgets",
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("budget", sa.Text, nullable=False),
        sa.Column("balance", sa.BigInteger, nullable=False),
        sa.Column("reserved", sa.BigInteger, nullable=False),
        sa.Column("spent", sa.BigInteger, nullable=False),
        sa.Column("period", sa.BigInteger, nullable=False),
        sa.Column("room", sa.BigInteger, nullable=False),
        sa.Column("sums", sa.Text, nullable=False),
    )
    op.create_table(
        "entries",
        sa.Column("id", _NUMBER, primary_key=True, autoincrement=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("kind", sa.String(10), nullable=False),
        sa.Column("points", sa.BigInteger, nullable=False),
        sa.Column("balance", sa.BigInteger, nullable=False),
        sa.Column("job", sa.Text),
        sa.Column("other", sa.Text),
        sa.Column("note", sa.Text, nullable=False),
    )
    op.create_index("entries_by_tenant", "entries", ["tenant", "id"])
    op.create_index("entries_by_time", "entries", ["at"])
    op.create_table(
        "tokens",
        sa.Column("id", _NUMBER, primary_key=True),
        sa.Column("hash", sa.String(64), nullable=False, unique=True),
        sa.Column("role", sa.String(10), nullable=False),
        sa.Column("tenant", sa.Text),
        sa.Column("note", sa.Text, nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.Column("expires", sa.BigInteger),
        sa.Column("revoked", sa.BigInteger),
    )

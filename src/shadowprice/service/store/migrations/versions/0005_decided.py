"""Decisions of all, of a tenant and of a job by themselves, however much else happens to them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

_DECIDED = sa.text("decision = 1")


def upgrade() -> None:
    """Replace the index of all entries by what is in each of them by those of decisions alone."""
    op.drop_index("events_by_decision", "events")
    for name, columns in (
        ("events_decided", ["id"]),
        ("events_decided_by_tenant", ["tenant", "id"]),
        ("events_decided_by_job", ["job", "id"]),
    ):
        op.create_index(name, "events", columns, sqlite_where=_DECIDED, postgresql_where=_DECIDED)

"""What tenants may spend, and every entry of their accounts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

_NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "budgets",
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("budget", sa.Text, nullable=False),
        sa.Column("balance", sa.BigInteger, nullable=False),
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

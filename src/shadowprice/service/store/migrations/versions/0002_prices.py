"""Prices as they were, and generations by when they ended."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Make the table and the index."""
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
    op.create_index("generations_by_end", "generations", ["ended"])
